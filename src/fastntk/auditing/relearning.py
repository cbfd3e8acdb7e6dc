"""How many epochs on the forgotten samples until a model knows them again: few epochs mean that memory was left.

Adam on the tuned subset of a copy, network in eval mode, until the eval-mode loss on all forgotten samples is below a
threshold; looked at before the first epoch and after each. A model that is not there after ``cap`` epochs is censored, which is
not the same as ``cap`` epochs.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fastntk.auditing.metrics import mean_loss
from fastntk.auditing.record_figures import Relearning
from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.models import device_of, logits
from fastntk.training.network import eval_mode, fast_layout, predict, thawed
from fastntk.training.step import Stepper
from fastntk.tuning import Subset


@dataclass(frozen=True)
class Relearned:
    """``epochs`` until the loss was below the threshold, None where it never was (more than ``cap``).

    ``curve``: the loss before the first epoch and after each.
    """

    epochs: int | None
    curve: tuple[float, ...]
    threshold: float
    cap: int

    @property
    def censored(self) -> bool:
        """True where ``cap`` epochs were not enough."""
        return self.epochs is None

    def to_record(self) -> Relearning:
        """As a record has it: the curve to six digits, null where the loss is no number."""
        curve = tuple(float(f"{loss:.6g}") if math.isfinite(loss) else None for loss in self.curve)
        return Relearning(epochs=self.epochs, censored=self.censored, threshold=self.threshold, cap=self.cap, curve=curve)


def relearn(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    *,
    lr: float = 1e-3,
    batch_size: int = 64,
    threshold: float = 0.05,
    cap: int = 100,
    seed: int = 0,
) -> Relearned:
    """Count the epochs a copy of the model needs on ``samples``, the forgotten ones; the model itself is not touched."""
    if len(samples) == 0:
        raise InputError("relearn: there are no samples to learn again.")
    if not lr > 0 or batch_size < 1 or not threshold > 0 or cap < 0:
        raise InputError(
            f"relearn: lr and threshold must be > 0, batch_size ≥ 1, cap ≥ 0; got {lr}, {threshold}, {batch_size}, {cap}."
        )
    work = copy.deepcopy(model)
    tuned = subset.on(work)
    parameters = list(tuned.parameters.values())
    inputs, labels = fast_layout(work, samples.inputs), samples.labels
    # A loss that overflows is not below the threshold either: such a model is censored, and the audit goes on.
    stepper = Stepper(parameters, torch.optim.Adam(parameters, lr=lr))
    curve = [mean_loss(predict(work, inputs), labels)]
    for epoch in track(range(cap), "relearning"):
        if curve[-1] < threshold:
            break
        order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(labels)))
        with eval_mode(work), thawed(tuned):
            for batch in order.split(batch_size):
                stepper.step(F.cross_entropy(logits(work, inputs[batch]), labels[batch].to(device_of(work))))
        curve.append(mean_loss(predict(work, inputs), labels))
    epochs = len(curve) - 1 if curve[-1] < threshold else None
    return Relearned(epochs, tuple(curve), threshold, cap)
