"""What the runner asks the registry of methods."""

from __future__ import annotations

from fastntk.base.errors import InputError
from fastntk.reproduce.setting import MethodRow, Setting
from fastntk.unlearning.registry import METHODS


def needs_rows(name: str) -> bool:
    """Whether a method works on the rows of a linearisation, which its requests and other methods can share."""
    return "rows" in METHODS[name].needs


def needs_trace(name: str) -> bool:
    """Whether a method walks along the recorded path of the fine-tuning."""
    return "trace" in METHODS[name].needs


def seed_option(row: MethodRow, seed: int) -> dict[str, int]:
    """The run's seed for methods that draw at random themselves; Retrain takes it from the recipe."""
    return {"seed": seed} if row.method != "retrain" and "seed" in METHODS[row.method].options else {}


def check_methods(setting: Setting) -> None:
    """Refuse methods and options that ``unlearn`` does not have."""
    for row in setting.methods:
        if row.method not in METHODS:
            raise InputError(f"{setting.name}, row {row.label!r}: unknown method {row.method!r}; methods: {', '.join(METHODS)}.")
        try:
            METHODS[row.method].checked(row.options)
        except InputError as error:
            raise InputError(f"{setting.name}, row {row.label!r}: {error}") from error
