"""How near a path model's predictions are to the network's: probabilities of all samples, and the distance between two sets of
them.

    TV(p, q) = mean over samples of ½ Σ_c |p_c − q_c|

No retrained model is needed for that: the replay of all samples should end where the network did.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastntk.unlearning.tangent_replay.path_models import PathModel

BATCH = 256
EXACT = 0.01
"""Mean total variation to the network's predictions up to which a replay counts as exact: it needs no other path model, no other
seed and no blending."""


def probabilities(model: PathModel, w: Tensor, count: int) -> Tensor:
    """Class probabilities (n, C) of the path model at ``w`` (d,), for all ``count`` samples."""
    with torch.no_grad():
        return torch.cat([model(batch, w) for batch in torch.arange(count).split(BATCH)]).softmax(1)


def total_variation(p: Tensor, q: Tensor) -> float:
    """Mean total variation between two sets of probabilities, (n, C) each."""
    return float(0.5 * (p - q).abs().sum(1).mean())
