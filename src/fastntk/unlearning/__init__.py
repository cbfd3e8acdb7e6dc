"""Unlearning: the corrected closed form, tangent replay, retraining and the paper's baselines."""

from fastntk.unlearning.api import unlearn
from fastntk.unlearning.linearisation import Linearisation, linearise_run
from fastntk.unlearning.methods import METHODS
from fastntk.unlearning.result import Unlearned

__all__ = ["METHODS", "Linearisation", "Unlearned", "linearise_run", "unlearn"]
