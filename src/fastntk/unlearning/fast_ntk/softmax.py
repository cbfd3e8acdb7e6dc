"""``fast-ntk`` with the loss the run was trained by: equation (1)'s two regressions, under cross-entropy instead of squares.

    x_S = argmin  Σ_{i in S} CE(g_i + J_i x, y_i) + λ/2 ‖x‖²        x = w − w0,   g + J x: the logits, linearised
    Δ   = x_r − x_D,   θ_r = θ + Δ

With squares in place of the cross-entropy this is equation (1) (``fast_ntk.ridge``), whose one solve reaches
the optimum; here each Newton step is such a solve with samples weighted by diag p − ppᵀ, and a handful of them are needed. There
is no scale to fit: the loss sets it. At a ridge optimum of a linear model the result is Retrain's optimum, as before.

λ = damping·tr(A_D)/d. Unless given, the damping is the one whose x_D predicts most like the network: the least
KL(softmax f_θ ‖ softmax(g + J x_D)) over all samples. A fine-tuning that stops early is no ridge optimum, but resembles one;
which one, the run itself says. No retrained model and no hold-out set is seen.

Newton's systems are solved by conjugate gradients with one Nyström sketch, that of the curvature at θ, for all of them, from
products with J and Jᵀ alone. Not for rows that are not stored: each product would make them anew.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import Split
from fastntk.linalg import HeadRows
from fastntk.linalg.krylov import conjugate_gradients
from fastntk.linalg.sketch import LowRank, nystrom
from fastntk.tangent.linearisation import Linearisation

KEY = "softmax regression"
"""Of a linearisation's memo."""
RANK = 256
NEWTON, INNER, HALVINGS = 40, 400, 20
FORCING = 0.1
"""The residual that a Newton step's system is solved to, at most."""
ROUNDING = 30
"""Of the tolerance, where a residual that falls no further counts as met."""
LOOSE = 1e-3
"""Of the gradient at x = 0: enough to compare dampings."""
GRID = tuple(tuple(10.0 ** (-k / 2) for k in part) for part in (range(5), *((k,) for k in range(5, 13))))
"""Dampings looked at, falling from 1, the first ones at once; the search ends where the last is not the best so far."""


@dataclass(frozen=True)
class SoftmaxForm:
    """The update, the class probabilities (n, C) that the regression on all samples gives, and what it rests on."""

    delta: Tensor
    probabilities: Tensor
    damping: float
    lam: float
    fitted: dict[str, float]
    divergence: float
    condition: float
    full: dict[str, Any]
    retained: dict[str, Any]
    seconds: dict[str, float]

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "damping": self.damping,
            "damping_fit": self.fitted,
            "divergence": self.divergence,
            "lambda": self.lam,
            "scale": 1.0,
            "solver": "newton-cg",
            "solve_full": self.full,
            "solve_update": self.retained,
            "residual": max(self.full["residual"], self.retained["residual"]),
            "condition": self.condition,
        }


@dataclass(frozen=True, eq=False)
class Optima:
    """x (d, k), and how they were reached: the worst ‖gradient‖ over that at x = 0, Newton steps and CG iterations."""

    x: Tensor
    residual: float
    tol: float
    steps: int
    iterations: int

    def details(self) -> dict[str, Any]:
        """JSON-able."""
        status = "ok" if self.residual <= ROUNDING * self.tol else "inexact"
        return {"status": status, "residual": self.residual, "newton_steps": self.steps, "iterations": self.iterations}


@dataclass(frozen=True, eq=False)
class OnAll:
    """x_D: its damping, the curve that chose it (empty where it was given), the optimum and its logits (n, C, 1)."""

    damping: float
    curve: dict[str, float]
    optimum: Optima
    logits: Tensor


class _Curvature:
    """Jᵀ(diag p − ppᵀ)J for probabilities p (n, C) or (n, C, k), samples weighted by w (n, 1, k): an operator of products."""

    def __init__(self, rows: HeadRows, p: Tensor, w: Tensor | None = None) -> None:
        p = p if p.ndim == 3 else p[..., None]
        dtype = rows.product_dtype or p.dtype
        self.rows, self.p = rows, p.to(dtype)
        self.weighted = self.p if w is None else (w * p).to(dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, d)."""
        return self.rows.shape

    def gram_matvec(self, v: Tensor) -> Tensor:
        """(d, k) -> (d, k) in one pass over the rows."""
        return self.rows.gram_matvec(v, self._weigh)

    def _weigh(self, part: slice, u: Tensor) -> Tensor:
        return self.weighted[part] * (u - (self.p[part] * u).sum(1, keepdim=True))


class Regression:
    """The linearised model's cross-entropy on weighted samples: one per linearisation, for every λ and every request."""

    def __init__(self, linearisation: Linearisation, labels: Tensor) -> None:
        rows = linearisation.rows
        if not isinstance(rows, HeadRows):
            raise InputError("form='softmax' needs stored rows: give rows='disk' and folder=..., or use form='ridge'.")
        self.rows = copy.copy(rows)
        single = rows.body.dtype == torch.float32
        # Products in the rows' own precision: float64 copies of float32 rows only cost time.
        self.rows.product_dtype = torch.float32 if single else None
        self.tight = 1e-4 if single else 1e-11
        self.targets = F.one_hot(labels, rows.shape[1]).double()
        self.outputs = linearisation.outputs.double()
        self._on_all: dict[float | None, OnAll] = {}
        self.theta = (linearisation.theta - linearisation.anchor).double()[:, None]
        start = linearisation.anchor_outputs.double()
        if linearisation.at == "trained":
            start = self.outputs - self.rows.matvec(self.theta).squeeze(-1)
        self.start = start
        d = rows.shape[2]
        self.unit = float(rows.column_norms2().sum()) / d
        if self.unit == 0:
            raise InputError("All Jacobian rows are zero: nothing the subset does changes the logits at this point.")
        # Of the curvature at θ, where the optima lie: with a sketch of A itself the iterations are many times as many.
        curvature = _Curvature(self.rows, self.outputs.softmax(1))
        self.sketch: LowRank = nystrom(curvature, min(RANK, d, rows.shape[0] * rows.shape[1]))

    def on_all(self, damping: float | None) -> OnAll:
        """The regression on all samples, made once for each damping asked for; None fits it."""
        if damping not in self._on_all:
            best, curve, x = (damping, {}, None) if damping is not None else _fit_damping(self)
            optimum = self.solve([best * self.unit], weights=torch.ones(len(self.outputs), 1), x=x)
            self._on_all[damping] = OnAll(best, curve, optimum, self.logits(optimum.x))
        return self._on_all[damping]

    def logits(self, x: Tensor) -> Tensor:
        """g + J x of all samples for each of k, (n, C, k)."""
        return self.start[..., None] + self.rows.matvec(x)

    def divergence(self, logits: Tensor) -> list[float]:
        """Mean KL(softmax f_θ ‖ softmax of the logits (n, C, k)) over all samples, in nats, for each of k."""
        regression = logits.log_softmax(1)
        network = self.outputs.log_softmax(1)[..., None]
        return list((network.exp() * (network - regression)).sum(1).mean(0).tolist())

    def condition(self, lam: float) -> float:
        """That of the system at θ: the sketch's largest eigenvalue over λ."""
        return 1.0 + float(self.sketch.values[0]) / lam

    def solve(self, lams: Sequence[float], *, weights: Tensor, x: Tensor | None = None, tol: float | None = None) -> Optima:
        """The optima of k regressions at once: one pass over the rows serves them all.

        ``lams``: λ of each; ``weights`` (n, k): of its samples; ``x`` (d, k): where to begin, θ if
        not given, near which the optima lie and the sketch is good.
        """
        tol, lam = tol or self.tight, torch.tensor(lams, dtype=torch.float64)
        w = weights.double()[:, None, :]
        x = self.theta.expand(-1, len(lams)) if x is None else x
        targets = self.targets[..., None]
        logits = self.logits(x)
        at_zero = self.rows.rmatvec(w * (self.start.softmax(1) - self.targets)[..., None]).norm(dim=0).clamp_min(1e-300)
        last, steps, iterations = torch.full_like(lam, math.inf), 0, 0
        for _ in track(range(NEWTON), "softmax regression (Newton)"):
            p = logits.softmax(1)
            gradient = self.rows.rmatvec(w * (p - targets)) + lam * x
            residual = gradient.norm(dim=0) / at_zero
            # Where it falls no further, rounding allows no more.
            stop = (residual <= tol) | ((residual > 0.9 * last) & (residual <= ROUNDING * tol))
            if bool(stop.all()) or steps == NEWTON - 1:
                break
            last = residual
            step, count = self._newton_step(p, w, gradient * ~stop, lam, forcing=min(FORCING, float(residual.max()) ** 0.5))
            change = self.rows.matvec(step)
            length = self._lengths(x, logits, step, change, w, lam)
            steps, iterations = steps + 1, iterations + count
            if not bool(length.any()):
                break
            x, logits = x + length * step, logits + length * change
        return Optima(x, float(residual.max()), tol, steps, iterations)

    def _newton_step(self, p: Tensor, w: Tensor, gradient: Tensor, lam: Tensor, *, forcing: float) -> tuple[Tensor, int]:
        curvature = _Curvature(self.rows, p, w)
        preconditioners = [self.sketch.precondition(float(ridge)) for ridge in lam]
        return conjugate_gradients(
            lambda v: curvature.gram_matvec(v) + lam * v,
            -gradient,
            precondition=lambda v: torch.cat([f(v[:, k : k + 1]) for k, f in enumerate(preconditioners)], 1),
            tol=forcing,
            max_iterations=INNER,
        )

    def _lengths(self, x: Tensor, logits: Tensor, step: Tensor, moved: Tensor, w: Tensor, lam: Tensor) -> Tensor:
        """1, halved until the objective does not rise, for each regression; 0 where it always does, which is rounding."""
        now = self._objective(logits, x, w, lam) * (1 + 1e-14)
        length = torch.ones_like(lam)
        for _ in range(HALVINGS):
            worse = self._objective(logits + length * moved, x + length * step, w, lam) > now
            if not bool(worse.any()):
                return length
            length = torch.where(worse, length / 2, length)
        return torch.where(worse, torch.zeros_like(length), length)

    def _objective(self, logits: Tensor, x: Tensor, w: Tensor, lam: Tensor) -> Tensor:
        return -(w * self.targets[..., None] * logits.log_softmax(1)).sum((0, 1)) + lam / 2 * x.square().sum(0)


def softmax_form(linearisation: Linearisation, labels: Tensor, split: Split, *, damping: float | None = None) -> SoftmaxForm:
    """Δ (d,) for forgetting ``split.forget``; ``labels`` (n,) are those of all samples. ``damping`` None: fitted."""
    started = time.perf_counter()
    if KEY not in linearisation.memo:
        linearisation.memo[KEY] = Regression(linearisation, labels)
    regression: Regression = linearisation.memo[KEY]
    base = regression.on_all(damping)
    seconds = {"fit": time.perf_counter() - started}
    lam = base.damping * regression.unit
    retained = base.optimum
    if len(split.forget):
        retained = regression.solve([lam], weights=split.keep[:, None], x=base.optimum.x)
    seconds["solve"] = time.perf_counter() - started - seconds["fit"]
    return SoftmaxForm(
        delta=(retained.x - base.optimum.x).squeeze(1),
        probabilities=base.logits.squeeze(-1).softmax(1),
        damping=base.damping,
        lam=lam,
        fitted=base.curve,
        divergence=regression.divergence(base.logits)[0],
        condition=regression.condition(lam),
        full=base.optimum.details(),
        retained=retained.details(),
        seconds=seconds,
    )


def _fit_damping(regression: Regression) -> tuple[float, dict[str, float], Tensor]:
    """(damping, {damping: divergence}, x near it (d, 1)): the vertex of the parabola through the three about the least."""
    dampings: list[float] = []
    divergences: list[float] = []
    starts: list[Tensor] = []
    for batch in GRID:
        weights = torch.ones(len(regression.outputs), len(batch))
        x = regression.solve([damping * regression.unit for damping in batch], weights=weights, tol=LOOSE).x
        dampings += batch
        divergences += regression.divergence(regression.logits(x))
        starts += [x[:, k : k + 1] for k in range(len(batch))]
        least = min(range(len(divergences)), key=divergences.__getitem__)
        if least < len(divergences) - 1:
            break
    best = dampings[least]
    if 0 < least < len(divergences) - 1:
        above, here, below = divergences[least - 1 : least + 2]
        bend = above - 2 * here + below
        # In steps of half a decade, from the least: between -1/2 and 1/2.
        best *= 10.0 ** (-0.5 * 0.5 * (above - below) / bend) if bend > 0 else 1.0
    return best, {f"{damping:.3g}": value for damping, value in zip(dampings, divergences)}, starts[least]
