"""A method's options from the command line: ``key=value`` texts checked against what the method takes.

Checked before anything is loaded, so that a wrong option costs no minute of work.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from fastntk.base.errors import InputError

_WORDS = {"true": True, "false": False}


def method_options(method: str, given: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """The options to call a method with: named ones that were ``given`` (None = not), and ``key=value`` texts."""
    from fastntk.unlearning.registry import find_method

    entry = find_method(method)
    settings = {name: value for name, value in given.items() if value is not None}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InputError(f"--option {text!r}: expected key=value.")
        if name in settings:
            raise InputError(f"Option {name} is given twice.")
        settings[name] = value.strip()
    entry.checked(settings)
    options = {name: _value(name, value, entry.options[name].kind) for name, value in settings.items()}
    damping = options.get("damping")
    if damping is not None and not (math.isfinite(damping) and damping > 0):
        raise InputError(f"damping must be a number > 0, got {damping!r}.")
    return options


def _value(name: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` wants it; text that cannot be read so is refused with what was expected."""
    for choice in get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,):
        if choice is types.NoneType:
            if str(value).lower() == "none":
                return None
        elif get_origin(choice) is Literal:
            if value in get_args(choice):
                return value
        elif choice is bool:
            if str(value).lower() in _WORDS:
                return _WORDS[str(value).lower()]
        elif choice in (int, float):
            try:
                return choice(value)
            except ValueError:
                continue
        elif get_origin(choice) is Sequence:
            with contextlib.suppress(ValueError):
                return tuple(int(part) for part in str(value).split(","))
        else:
            return value
    raise InputError(f"Option {name}: expected {_expected(kind)}, got {value!r}.")


def _expected(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_expected(choice) for choice in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is Sequence:
        return "whole numbers joined by commas"
    names = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none"}
    return names.get(kind, "text")
