"""Unlearning: ``plan`` and ``unlearn``, the methods behind them, and the tuning of baselines.

Names are imported on first use, so that the registry can list the methods without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastntk.base.lazy import lazy_names

if TYPE_CHECKING:
    from fastntk.unlearning.api import plan, prepare, unlearn
    from fastntk.unlearning.baseline_tuning import TunedBaseline, tune_baseline
    from fastntk.unlearning.method import Method, Outcome, Task
    from fastntk.unlearning.registry import METHODS, register, unregister
    from fastntk.unlearning.rehearsal import Rehearsal, rehearse
    from fastntk.unlearning.result import Unlearned

__all__ = [
    "METHODS",
    "Method",
    "Outcome",
    "Rehearsal",
    "Task",
    "TunedBaseline",
    "Unlearned",
    "plan",
    "prepare",
    "register",
    "rehearse",
    "tune_baseline",
    "unlearn",
    "unregister",
]

_HOMES = {
    "METHODS": "registry",
    "Method": "method",
    "Outcome": "method",
    "Rehearsal": "rehearsal",
    "Task": "method",
    "TunedBaseline": "baseline_tuning",
    "Unlearned": "result",
    "plan": "api",
    "prepare": "api",
    "register": "registry",
    "rehearse": "rehearsal",
    "tune_baseline": "baseline_tuning",
    "unlearn": "api",
    "unregister": "registry",
}


__getattr__ = lazy_names(__name__, _HOMES)
