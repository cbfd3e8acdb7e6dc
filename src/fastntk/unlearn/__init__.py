"""Unlearning: the corrected closed form, tangent replay, retraining and the paper's baselines."""

from fastntk.unlearn.api import METHODS, unlearn
from fastntk.unlearn.linearisation import Linearisation, linearise_run
from fastntk.unlearn.result import Unlearned

__all__ = ["METHODS", "Linearisation", "Unlearned", "linearise_run", "unlearn"]
