"""``fast-ntk``, form ``ridge``: the paper's equation (1), corrected and damped, as the difference of two ridge regressions.

    v_D = (A_D + λI)⁻¹ J_Dᵀ t          t = onehot − 1/C
    Δ_v = −(A_r + λI)⁻¹ J_fᵀ (t_f − J_f v_D)                      = v_r − v_D
    Δ   = s·Δ_v − Δ_u,   θ_r = θ + Δ        u: the same solves for the anchor's outputs f_w0 (zero for a head from zero)

Paper: V has Θ_ff⁻¹ where shapes need Θ_rr⁻¹, the first term's sign is reversed, residuals are taken at trained weights,
and nothing is damped. Here: the form above, algebraically equal to P·J_fᵀ·M·V with those four mended, because as
printed it cannot be computed, and undamped it is singular as soon as n_r·C > d.

λ = damping·tr(A_D)/d is relative, and the same in both solves. s is fitted in function space on the full data alone:
the logits' movement f_θ − f_w0 (+ J u_D) regressed on J v_D. No retrained model and no hold-out set is seen.

A model that never saw a class never predicts it. Where whole classes go and the largest of the logits f_θ + J Δ is still theirs,
the fitted s is too small for these samples, whose logits outgrew the regression's: it is raised to the least that stops it, to
``CEILING`` times itself at most. That too is seen from the run alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.linalg import Rows, Solution, decide, solve_pair
from fastntk.tangent import TangentOperator
from fastntk.tangent.linearisation import Linearisation

DAMPING = 1e-2
RIDGE_REGIME = 0.99
CEILING, STEPS = 3.0, 200
ScaleFit = Literal["auto", "least-squares", "softmax"]


@dataclass(frozen=True)
class ClosedForm:
    """The update and what it rests on."""

    delta: Tensor
    damping: float
    lam: float
    scale: float
    scale_fit: str
    explained: float
    raised_from: float | None
    solver: str
    full: Solution
    step: Solution
    seconds: dict[str, float]

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "damping": self.damping,
            "lambda": self.lam,
            "scale": self.scale,
            "scale_fit": self.scale_fit,
            "scale_r2": self.explained,
            "scale_raised_from": self.raised_from,
            "solver": self.solver,
            "solve_full": self.full.details(),
            "solve_update": self.step.details(),
            "residual": max(self.full.residual, self.step.residual),
            "condition": self.full.condition,
        }


def closed_form(
    linearisation: Linearisation,
    labels: Tensor,
    split: Split,
    *,
    damping: float = DAMPING,
    scale: float | None = None,
    scale_fit: ScaleFit = "auto",
    loss: str = "cross-entropy",
    solver: str = "auto",
    rank: int | None = None,
    memory_budget: int | None = None,
) -> ClosedForm:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples.

    ``solver`` with ``rank``, the sketch's, is taken as decided; ``auto``, or a name alone, is decided here for ``memory_budget``
    (bytes; None: the usual share of what is available).
    """
    check_damping(damping)
    if scale_fit not in get_args(ScaleFit):
        raise InputError(f"scale_fit must be one of {', '.join(get_args(ScaleFit))}; got {scale_fit!r}.")
    if scale is not None and not (isinstance(scale, Real) and math.isfinite(scale)):
        raise InputError(f"scale must be a finite number or None (fitted), got {scale!r}.")
    started = time.perf_counter()
    rows = linearisation.rows
    n, classes, d = rows.shape
    targets = F.one_hot(labels, classes).double() - 1.0 / classes
    offset = linearisation.anchor_outputs.double()
    has_offset = bool(offset.abs().max() > 0)
    both = torch.stack([targets, offset], -1) if has_offset else targets.unsqueeze(-1)
    if rank is None or solver == "auto":
        solver, _, rank = decide(solver, n * classes, d, budget=memory_budget)
    pair = solve_pair(rows, both, forget=split.forget, retain=split.retain, relative_damping=damping, solver=solver, rank=rank)
    full, step = pair.full, pair.difference
    v = full.value[:, 0]
    lift = rows.matvec(full.value[:, 1]) if has_offset else torch.zeros_like(offset)
    kind, fitted, r_squared = _fitted_scale(
        rows.matvec(v), linearisation.outputs.double(), offset - lift, kind=scale_fit, loss=loss
    )
    if scale is not None:
        kind, fitted = "given", float(scale)
    offset_step = step.value[:, 1] if has_offset else torch.zeros_like(v)
    s = fitted
    if scale_fit == "auto" and kind == "softmax":  # where the regression is what was trained, it is not second-guessed
        s = _raised(rows, linearisation.outputs, labels, split, step=step.value[:, 0], offset=offset_step, fitted=fitted)
    delta = s * step.value[:, 0] - offset_step
    seconds = {"solve": time.perf_counter() - started}
    raised_from = None if s == fitted else fitted
    return ClosedForm(delta, damping, pair.damping, s, kind, r_squared, raised_from, solver, full, step, seconds)


def check_damping(damping: float | None) -> None:
    """Refuse what is no damping; None stands for the default."""
    if damping is not None and not (isinstance(damping, Real) and math.isfinite(damping) and damping > 0):
        raise InputError(
            f"damping must be a number > 0, got {damping!r}. It is relative: λ = damping·tr(A)/d; equation (1)'s default is "
            f"{DAMPING}, the softmax form fits its own."
        )


def _raised(
    rows: Rows | TangentOperator, outputs: Tensor, labels: Tensor, split: Split, *, step: Tensor, offset: Tensor, fitted: float
) -> float:
    """The least scale from ``fitted`` on at which no forgotten sample of a whole class is predicted to be of it."""
    samples = split.forget[split.of_whole_classes(labels)]
    if len(samples) == 0 or fitted <= 0:
        return fitted
    part = rows.subset(samples)
    start, move = outputs[samples].double() - part.matvec(offset), part.matvec(step)
    best, fewest = fitted, len(samples) + 1
    for factor in torch.linspace(1.0, CEILING, STEPS).tolist():
        correct = int(((start + factor * fitted * move).argmax(1) == labels[samples]).sum())
        if correct < fewest:
            best, fewest = factor * fitted, correct
        if fewest == 0:
            break
    return best


def _fitted_scale(direction: Tensor, outputs: Tensor, start: Tensor, *, kind: ScaleFit, loss: str) -> tuple[str, float, float]:
    """(which fit, s, R² of the least-squares fit) for outputs ≈ start + s·direction, all (n, C)."""
    target = outputs - start
    square = direction.square().sum().clamp_min(1e-300)
    least = float((direction * target).sum() / square)
    r_squared = 1.0 - float((target - least * direction).square().sum() / target.square().sum().clamp_min(1e-300))
    if kind == "auto":
        kind = "least-squares" if r_squared >= RIDGE_REGIME or loss == "squared" else "softmax"
    if kind == "least-squares":
        return kind, least, r_squared
    probabilities = outputs.softmax(1)
    divergence = lambda s: -float((probabilities * (start + s * direction).log_softmax(1)).sum())
    bounds = sorted((0.0, 2.0 * least))
    return kind, float(minimize_scalar(divergence, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x), r_squared
