"""Help that teaches: what a command does, every option explained, examples that its own parser accepts."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fastntk.cli.app import app, reflowed

GROUP: Any = typer.main.get_command(app)
COMMANDS = sorted(GROUP.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_is_explained(name: str) -> None:
    silent = [parameter.name for parameter in GROUP.commands[name].params if not getattr(parameter, "help", None)]
    assert silent == []


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_taken_by_the_parser(name: str) -> None:
    paragraphs = GROUP.commands[name].help.split("\n\n")
    examples = [line for line in paragraphs if line.startswith(f"fastntk {name} ")]
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" | ")[0])[2:]
        GROUP.commands[name].make_context(name, words)  # raises on an unknown option or a value of the wrong kind


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_shown(name: str) -> None:
    help_text = re.sub(r"[│\s]+", " ", CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout)
    for parameter in GROUP.commands[name].params:
        if parameter.param_type_name == "option" and type(parameter.default) in (int, float, str):
            assert f"[default: {parameter.default}]" in help_text, parameter.name


def test_paragraphs_are_broken_by_the_terminal_alone() -> None:
    assert reflowed("One\ntwo.\n\nthree\n  four") == "One two.\n\nthree four"
    for name in COMMANDS:
        assert all("\n" not in paragraph for paragraph in GROUP.commands[name].help.split("\n\n"))
