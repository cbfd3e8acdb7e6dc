"""What the runner asks the registry of methods: the one place here that knows it."""

from __future__ import annotations

import inspect

from fastntk.base.errors import InputError
from fastntk.reproduce.setting import MethodRow, Setting
from fastntk.unlearning.registry import METHODS


def needs_rows(name: str) -> bool:
    """Whether a method works on the rows of a linearisation, which its requests and other methods can share."""
    return name in ("fast-ntk", "tangent-replay")


def options_of(name: str) -> list[str]:
    """The options that a method takes."""
    return [option for option in inspect.signature(METHODS[name]).parameters if option != "task"]


def own_seed(row: MethodRow, seed: int) -> dict[str, int]:
    """The run's seed for methods that draw at random themselves; Retrain takes it from the recipe."""
    return {"seed": seed} if row.method != "retrain" and "seed" in options_of(row.method) else {}


def check_methods(setting: Setting) -> None:
    """Refuse methods and options that ``unlearn`` does not have."""
    for row in setting.methods:
        known = row.method in METHODS
        options = options_of(row.method) if known else []
        unknown = [name for name in row.options if name not in options]
        if not known or unknown:
            what = f"{row.method!r} has no option {unknown}" if known else f"unknown method {row.method!r}"
            choices = f"it takes: {', '.join(options) or 'none'}" if known else f"methods: {', '.join(METHODS)}"
            raise InputError(f"{setting.name}, row {row.label!r}: {what}; {choices}.")
