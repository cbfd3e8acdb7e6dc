"""Models of the logits along a fine-tuning, cheap enough to train: what stands in for the network during replay.

Let x be the body's tuned parameters less the anchor's, (W, b) the head, θ the trained point, J the body's rows at θ,
h_0 and h_θ the head's features at the anchor and at θ.

``tangent``   f = f_θ + J (x − x_θ) + h_θ (W − W_θ)ᵀ + b − b_θ
              linear in everything. Wrong early on: the rows at θ presume the trained head, which starts at zero.

``product``   h = h_0 + τ (h_θ − h_0) + P J (x − τ x_θ),   f = W h + b
              τ = ⟨x, x_θ⟩ / ‖x_θ‖²,   P = W_θ⁺
              the head × features product stays exact, the features are right at the anchor and at θ, and off the
              straight path they move by the least that explains the rows' logits. One forward pass more than
              ``tangent``.

``curved``    h = h_0 + τ (h_θ − h_0) + (τ² − τ) D + τ P J (x − τ x_θ),   D = P (J x_θ − W_θ (h_θ − h_0)),   f = W h + b
              the same for networks that bend. Along the path, the parabola that arrives at θ with the slope of the rows;
              off it, rows that were taken at θ count by the share of the way to θ. So it is tangent to the network at θ in
              everything (with at least as many features as classes), and takes no rows for granted at the anchor.

``product`` and ``curved`` need a model that ends in a tuned linear head; where there is none, only ``tangent`` exists. None
wins everywhere: prompts of a ViT keep the rows they start with, which ``product`` presumes; a tuned ResNet does not; where
the features change beyond recognition, all but ``tangent`` can go astray. The replay of *all* samples should end at θ, which
is known, so :mod:`fastntk.unlearning.tangent_replay.selection` tries them and looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.linalg import HeadRows
from fastntk.tangent.linearisation import Linearisation

NOT_STORED = (
    "A replay reads every row in every epoch, and these rows are not stored. Give rows='disk' and folder=..., or raise "
    "memory_budget; method='fast-ntk' needs no stored rows."
)
PathName = Literal["auto", "tangent", "product", "curved"]
PathModel = Callable[[Tensor, Tensor], Tensor]
"""(batch indices (k,), tuned vector w (d,)) → logits (k, C), differentiable in w."""
BATCH = 256
EXACT = 0.01
"""Mean total variation to the network's predictions up to which a replay counts as exact: it needs no other path model, no other
seed and no blending."""


def path_models(linearisation: Linearisation, name: PathName = "auto") -> dict[str, PathModel]:
    """The named model of the path; for ``auto`` every one that exists, the simpler first where there is a tuned head."""
    if name not in get_args(PathName):
        raise InputError(f"path must be one of {', '.join(get_args(PathName))}; got {name!r}.")
    rows = linearisation.rows
    if not isinstance(rows, HeadRows):
        raise InputError(NOT_STORED)
    makers: dict[str, Callable[[Linearisation, HeadRows], PathModel]] = {"tangent": _tangent}
    if _has_head(linearisation, rows):
        makers = {"product": _product, "curved": _curved, **makers}
    if name != "auto" and name not in makers:
        raise InputError(
            f"path {name!r} needs a model whose logits are a tuned linear head's output, linearised at the trained "
            "weights. Use path='tangent', or tune the head as well."
        )
    return {key: make(linearisation, rows) for key, make in makers.items() if name in ("auto", key)}


def _has_head(linearisation: Linearisation, rows: HeadRows) -> bool:
    return (
        linearisation.at == "trained"
        and rows.features is not None
        and linearisation.features is not None
        and linearisation.anchor_features is not None
        and rows.layout.body > 0
    )


def _tangent(linearisation: Linearisation, rows: HeadRows) -> PathModel:
    layout = rows.layout
    point = linearisation.point
    # The network's own logits at the point of linearisation; only θ's and the anchor's are stored.
    if linearisation.at == "midpoint":
        base = linearisation.anchor_outputs + rows.matvec(point - linearisation.anchor)
    else:
        base = linearisation.outputs if linearisation.at == "trained" else linearisation.anchor_outputs

    def logits(batch: Tensor, w: Tensor) -> Tensor:
        step = w - point
        out = base[batch] + rows.body[batch] @ step[layout.body_columns]
        if layout.head:
            head = step[layout.head_columns]
            if rows.features is not None:
                out = out + rows.features[batch] @ head[:, : rows.features.shape[1]].T
            if rows.bias:
                out = out + head[:, -1]
        return out

    return logits


def _product(linearisation: Linearisation, rows: HeadRows) -> PathModel:
    return _headed(linearisation, rows, lambda along, moved, bend, aside: along * moved + aside)


def _curved(linearisation: Linearisation, rows: HeadRows) -> PathModel:
    return _headed(linearisation, rows, lambda along, moved, bend, aside: along * (moved + (along - 1) * bend + aside))


def _headed(
    linearisation: Linearisation, rows: HeadRows, features: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
) -> PathModel:
    """W h + b, with h less h_0 from ``features``: of τ, h_θ − h_0, D and P J (x − τ x_θ), each of the batch."""
    layout = rows.layout
    at_anchor, at_theta = linearisation.anchor_features, linearisation.features
    assert at_anchor is not None
    assert at_theta is not None
    width = at_theta.shape[1]
    theta_head = linearisation.theta[layout.head_columns]
    lift = torch.linalg.pinv(theta_head[:, :width].double(), rtol=1e-6).to(at_theta)
    origin = linearisation.anchor[layout.body_columns]
    reach = linearisation.theta[layout.body_columns] - origin
    length2 = reach.dot(reach).clamp_min(torch.finfo(reach.dtype).tiny)
    difference = at_theta - at_anchor
    bend = (rows.body @ reach - difference @ theta_head[:, :width].T) @ lift.T
    # A bias outside the subset still adds to the logits: take it from the true outputs.
    constant = linearisation.outputs - at_theta @ theta_head[:, :width].T

    def logits(batch: Tensor, w: Tensor) -> Tensor:
        x = w[layout.body_columns] - origin
        head = w[layout.head_columns]
        along = x.dot(reach) / length2
        aside = rows.body[batch] @ (x - along * reach) @ lift.T
        here = at_anchor[batch] + features(along, difference[batch], bend[batch], aside)
        out: Tensor = here @ head[:, :width].T
        rest: Tensor = head[:, -1] if rows.bias else constant[batch]
        return out + rest

    return logits


def probabilities(model: PathModel, w: Tensor, count: int) -> Tensor:
    """Class probabilities (n, C) of the path model at ``w`` (d,), for all ``count`` samples."""
    with torch.no_grad():
        return torch.cat([model(batch, w) for batch in torch.arange(count).split(BATCH)]).softmax(1)
