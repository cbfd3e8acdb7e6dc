"""What unlearning would cost on this machine, before any of it is done, and the route that is then taken.

A method says its routes (:class:`Route`) for a :class:`Problem`; :func:`make_plan` judges them by the budgets. Knows no method.
"""

from fastntk.planning.calibration import Calibration, calibrate, uncalibrated
from fastntk.planning.plan import Plan, disk_budget, make_plan
from fastntk.planning.problem import Problem, Route, Sizes, sizes_of

__all__ = [
    "Calibration",
    "Plan",
    "Problem",
    "Route",
    "Sizes",
    "calibrate",
    "disk_budget",
    "make_plan",
    "sizes_of",
    "uncalibrated",
]
