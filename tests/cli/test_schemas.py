"""What the commands print with --json: one object, nothing else on standard output, and as its schema says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import fastntk.schemas
from fastntk.auditing import AuditRecord
from fastntk.base.errors import InputError
from fastntk.cli import demo as demo_module
from fastntk.cli.app import app

SMALL = ["--data", "digits", "--images-per-class", "4", "--only-classes", "3", "--epochs", "2", "--seed", "1"]


def printed(*arguments: object) -> dict[str, Any]:
    """Run a command with --json; standard output has to be one JSON object that fits the command's schema."""
    outcome = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert outcome.exit_code in (0, 3), outcome.output  # 3: written, with the verdict "retrain instead" on a dozen digits
    record: dict[str, Any] = json.loads(outcome.stdout)  # refuses anything before or after the object
    assert outcome.stderr or arguments[0] in ("info", "report")
    check(str(arguments[0]), record)
    return record


def check(name: str, record: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(fastntk.schemas.load(name)).validate(record)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("schemas") / "run"
    printed("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out)
    return out


def test_info_of_a_run_and_plan(run_folder: Path) -> None:
    printed("info", run_folder)
    printed("plan", run_folder, "--classes", "0", "--memory-budget", "2GB")


@pytest.mark.parametrize("method", ["fast-ntk", "tangent-replay", "retrain", "full", "max-loss"])
def test_unlearn_and_info_of_its_result(method: str, run_folder: Path, tmp_path: Path) -> None:
    record = printed("unlearn", run_folder, "--classes", "0", "--method", method, "--out", tmp_path / "result")
    assert record["method"] == method
    info = printed("info", tmp_path / "result")
    assert info["kind"] == "result"
    assert info["extra"]["details"] == record["details"]


def test_pretrain(tmp_path: Path) -> None:
    options = ["--data", "digits", "--images-per-class", "2", "--epochs", "1", "--batch-size", "10"]
    printed("pretrain", "resnet20", *options, "--out", tmp_path / "w.safetensors")


@pytest.mark.slow  # two audits; the default tier validates demo.json in test_commands.py
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "EPOCHS", 1)
    monkeypatch.setattr(demo_module, "SOURCE", {**demo_module.SOURCE, "images_per_class": 3})
    monkeypatch.setattr(demo_module, "METHODS", ("full", "path-replay", "tangent-replay", "retrain"))
    monkeypatch.setattr(demo_module, "METHODS_SINGLE", ("full", "path-replay", "retrain"))
    record = printed("demo", "--out", tmp_path / "demo")
    assert json.loads((tmp_path / "demo" / "demo.json").read_text("utf-8")) == record


def test_every_schema_is_valid_and_closed_where_it_says_so() -> None:
    for name in fastntk.schemas.names():
        schema = fastntk.schemas.load(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["title"]
        assert schema["description"]
        assert schema["required"]


def test_the_schema_of_audits_is_made_from_the_types() -> None:
    assert "audit-1" in fastntk.schemas.names()
    schema = fastntk.schemas.load("audit-1")
    assert schema == fastntk.auditing.schema()
    assert schema["properties"]["schema"] == {"enum": ["fastntk-audit/1"]}
    assert {field.name for field in dataclasses.fields(AuditRecord)} == set(schema["properties"])
    assert set(schema["properties"]) - set(schema["required"]) == {"probes", "distances", "samples", "record_sha256", "outside"}
    assert all(part["description"] for part in schema["$defs"].values())


def test_a_wrong_record_does_not_pass(run_folder: Path) -> None:
    record = printed("info", run_folder)
    for wrong in (
        {key: value for key, value in record.items() if key != "files"},
        {**record, "surprise": 1},
        {**record, "ratio": 1.5},
        {**record, "manifest_sha256": "abc"},
        {**record, "kind": "result"},  # whose extra would have to say what was done
    ):
        with pytest.raises(jsonschema.ValidationError):
            check("info", wrong)


def test_unknown_schemas_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no schema 'nonsense': choose one of .*finetune"):
        fastntk.schemas.load("nonsense")
