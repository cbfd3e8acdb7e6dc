"""What can still be read from the features: a linear probe, beside the model's own head.

    own head       accuracy of the model as it is
    linear probe   features before the head, frozen; standardised; a multinomial logistic regression (L2, C = 1) is fitted on
                   the features of *all* training samples, retained and forgotten, under their true labels; its accuracy on
                   retained, forgotten (both were fitted) and held-out samples

A probe is taught the forgotten samples again, so a high figure does not mean that the model remembers them: features of a good
backbone separate classes it was never shown. Only the difference to Retrain's probe says something; Pre-trained (tuned part at
the anchor) and Random (the same architecture, weights drawn anew) show what the features give by themselves.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fastntk.auditing.record_figures import SetAccuracies
from fastntk.base.errors import InputError
from fastntk.models import build_model, card_of


def linear_probe(features: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> SetAccuracies | None:
    """Accuracy of a probe on ``retain``, ``forget`` and ``holdout``, each features (n, H) and labels (n,).

    None where features are not finite, or all samples are of one class.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    arrays = {name: value.detach().cpu().double().numpy() for name, value in features.items()}
    if not all(np.isfinite(value).all() for value in arrays.values()):
        return None
    truth = {name: value.cpu().numpy() for name, value in labels.items()}
    inputs = np.concatenate([arrays["retain"], arrays["forget"]])
    targets = np.concatenate([truth["retain"], truth["forget"]])
    if len(np.unique(targets)) < 2:
        return None
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=300))
    with warnings.catch_warnings():
        # A probe stopped after 300 steps is still a fair probe: all models get the same number.
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(inputs, targets)
    return SetAccuracies(**{name: float(probe.score(arrays[name], truth[name])) for name in arrays})


def random_model(model: nn.Module, *, seed: int = 0) -> tuple[nn.Module, str]:
    """The same architecture with weights drawn anew, in eval mode, and a word on how it was made."""
    first = next(model.parameters())
    card = card_of(model)
    if card is not None:
        try:
            fresh = build_model(card.name, num_classes=card.num_classes, weights=None, image_size=card.image_size, seed=seed)
        except InputError as error:
            why = f"build_model refused: {error}"
        else:
            return fresh.to(first), "built anew by name"
    else:
        why = "the model was not made by build_model"
    work = copy.deepcopy(model).eval().cpu()  # drawn on the CPU: the same numbers whatever the device
    unchanged_count = _reset(work, seed=seed)
    work.to(first.device)
    rest = f"; {unchanged_count} tensors without such a method keep their values" if unchanged_count else ""
    return work, f"a copy after reset_parameters, since {why}{rest}"


def _reset(model: nn.Module, *, seed: int) -> int:
    """Draw every module's own parameters anew, in place; return how many tensors could not be."""
    unchanged_count = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            else:
                unchanged_count += len(list(module.parameters(recurse=False)))
    return unchanged_count
