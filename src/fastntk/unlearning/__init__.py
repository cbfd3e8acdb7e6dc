"""Unlearning: the corrected closed form, tangent replay, retraining, the baselines people compare with, and their tuning."""

from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.unlearning.api import unlearn
from fastntk.unlearning.baseline_tuning import SEARCH_SPACES, TunedBaseline, tune_baseline
from fastntk.unlearning.registry import METHODS
from fastntk.unlearning.rehearsal import Rehearsal, rehearse
from fastntk.unlearning.result import Unlearned

__all__ = [
    "METHODS",
    "SEARCH_SPACES",
    "Linearisation",
    "Rehearsal",
    "TunedBaseline",
    "Unlearned",
    "linearise_run",
    "rehearse",
    "tune_baseline",
    "unlearn",
]
