"""The methods behind ``unlearn(run, method=…)``: one line each. A method's module is imported when it is asked for.

Importing this file loads no torch, so that a help text can list the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fastntk.base.errors import InputError

if TYPE_CHECKING:
    from fastntk.unlearning.method import Method

_HOMES = {
    "fast-ntk": "fastntk.unlearning.fast_ntk.method:METHOD",
    "path-replay": "fastntk.unlearning.path_replay.method:METHOD",
    "tangent-replay": "fastntk.unlearning.tangent_replay.method:METHOD",
    "retrain": "fastntk.unlearning.baselines.retrain:RETRAIN",
    "full": "fastntk.unlearning.baselines.retrain:FULL",
    "max-loss": "fastntk.unlearning.baselines.push_away:MAX_LOSS",
    "random-label": "fastntk.unlearning.baselines.push_away:RANDOM_LABEL",
    "fine-tune": "fastntk.unlearning.baselines.fine_tune:METHOD",
    "l1-sparse": "fastntk.unlearning.baselines.l1_sparse:METHOD",
    "neggrad+": "fastntk.unlearning.baselines.neggrad_plus:METHOD",
    "scrub": "fastntk.unlearning.baselines.scrub:METHOD",
    "bad-teacher": "fastntk.unlearning.baselines.bad_teacher:METHOD",
    "ssd": "fastntk.unlearning.baselines.ssd:METHOD",
    "salun": "fastntk.unlearning.baselines.salun:METHOD",
    "fisher": "fastntk.unlearning.baselines.fisher:METHOD",
    "amnesiac": "fastntk.unlearning.baselines.amnesiac:METHOD",
    "deltagrad": "fastntk.unlearning.baselines.deltagrad:METHOD",
}
_REGISTERED: dict[str, Method] = {}


class _Methods(Mapping[str, "Method"]):
    """Methods by name, in the order of the list above, then those registered since."""

    def __getitem__(self, name: str) -> Method:
        if name in _REGISTERED:
            return _REGISTERED[name]
        module, _, attribute = _HOMES[name].partition(":")
        _REGISTERED[name] = getattr(importlib.import_module(module), attribute)
        return _REGISTERED[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_HOMES, *_REGISTERED]))

    def __len__(self) -> int:
        return len(set(_HOMES) | set(_REGISTERED))


METHODS: Mapping[str, Method] = _Methods()


def find_method(name: str) -> Method:
    """The method of this name; an unknown one is refused with the names there are."""
    if name not in METHODS:
        raise InputError(f"Unknown method {name!r}: choose one of {', '.join(METHODS)}.")
    return METHODS[name]


def register(method: Method) -> None:
    """Add a method of your own: commands, plans, reports and tuning then know it. A name that is taken is refused."""
    if method.name in METHODS:
        raise InputError(f"There is a method {method.name!r} already: choose another name.")
    if not method.name.strip() or not method.summary.strip():
        raise InputError("A method needs a name and a summary of what it does.")
    _REGISTERED[method.name] = method


def unregister(name: str) -> None:
    """Take back a method that :func:`register` added."""
    if name in _HOMES or name not in _REGISTERED:
        raise InputError(f"{name!r} was not registered.")
    del _REGISTERED[name]
