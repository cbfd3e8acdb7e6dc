"""The weights outside the tuned subset: their digests, to tell later whether training changed them.

Running statistics of BatchNorm are left out: what becomes of those is decided elsewhere (``fastntk.unlearning.residue``).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fastntk.base.digest import tensor_digest
from fastntk.models.card import card_of
from fastntk.tuning.subset import Subset

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def outside(subset: Subset) -> dict[str, Tensor]:
    """Every entry of the model's state_dict that is neither tuned, under any of its names, nor a running statistic."""
    tuned = subset.aliases
    state = {name: value for name, value in subset.model.state_dict().items() if isinstance(value, Tensor)}  # no extra state
    return {name: value for name, value in state.items() if name not in tuned and name.rpartition(".")[2] not in STATISTICS}


def noted(subset: Subset) -> dict[str, str] | None:
    """Digests of the weights outside, for a training that begins now; None where the model's card says what they were."""
    card = card_of(subset.model)
    return digests(outside(subset)) if card is None or not card.fingerprint else None


def digests(tensors: Mapping[str, Tensor | str]) -> dict[str, str]:
    """A digest for every tensor; what is a digest already stays."""
    return {name: value if isinstance(value, str) else tensor_digest(value) for name, value in tensors.items()}
