"""What the baselines cost, in training passes: one sample once forward and once backward, which takes about three forward passes.

For estimates shown before work begins; rows and replay are planned by :mod:`fastntk.planning`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from fastntk.unlearning.baselines.push_away import MOST_EPOCHS
from fastntk.unlearning.registry import METHODS

ROWS_OVER_FLOOR = 1.5
"""Per-sample gradients take about this many times (1 + backward passes)·t_forward (docs/engine.md)."""


def training_passes(method: str, options: dict[str, Any], *, retain: int, forget: int, classes: int) -> float | None:
    """Training passes of a method on so many samples; None for the methods that are planned elsewhere."""
    given = {name: value.default for name, value in inspect.signature(METHODS[method]).parameters.items()} | options
    if method == "ssd":
        return (retain + forget) * _squares(1)
    if method == "fisher":
        return retain * _squares(classes)
    if method in ("fast-ntk", "tangent-replay", "retrain", "full"):
        return None
    size = given["batch_size"]
    epochs = given["epochs"] if given["epochs"] is not None else MOST_EPOCHS
    paired = math.ceil(retain / size) * forget / math.ceil(forget / size)
    passes = {
        "max-loss": epochs * forget,
        "random-label": epochs * forget,
        "fine-tune": epochs * retain,
        "neggrad+": epochs * (retain + paired),
        "salun": epochs * (retain + paired) + forget,
        "scrub": epochs * retain + min(epochs, given.get("max_epochs", 0)) * forget + (retain + forget) / 3,
    }
    return float(passes[method])


def _squares(backwards: int) -> float:
    """One sample's squared gradients: a forward pass for the outputs, then a sweep of so many backward passes."""
    return (1 + ROWS_OVER_FLOOR * (1 + backwards)) / 3
