"""The one optimiser step of every training loop.

    g = ∇ loss + wd·(w − anchor),   g_j = 0 where the mask is False,   w ← optimiser(g) at the step's rate

A loop decides which batches there are and what their loss is; the step is the same for all of them: fine-tuning, Retrain, replay,
the baselines, relearning and pre-training. Not for batch order, epochs or history: :mod:`fastntk.training.loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fastntk.base.errors import DivergedError

Gradient = Callable[[Tensor], Sequence[Tensor]]
"""From a scalar loss to its gradients, one for each parameter of the optimiser."""


class Stepper:
    """Steps of one optimiser on some parameters; ``taken`` counts them, skipped ones included.

    ``rate``: learning rate of step 0, 1, …; None leaves the optimiser's own. ``anchor``: what weight decay pulls towards, a
    tensor for each parameter; None: there is no penalty. ``mask``: True where a parameter may move, a tensor for each; empty:
    all may. ``diverged``: the error message for a loss that is not finite; None: a step is taken on such a loss as on any other.
    ``gradient``: for a loss that is not a function of the parameters themselves; None: by autograd.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        *,
        rate: Callable[[int], float] | None = None,
        anchor: Sequence[Tensor] | None = None,
        weight_decay: float = 0.0,
        mask: Sequence[Tensor] = (),
        diverged: Callable[[float], str] | None = None,
        gradient: Gradient | None = None,
        taken: int = 0,
    ) -> None:
        self.optimizer, self.taken = optimizer, taken
        self._parameters, self._rate, self._mask, self._diverged = list(parameters), rate, list(mask), diverged
        self._anchor, self._weight_decay = anchor, weight_decay
        self._gradient = gradient or self._autograd

    def step(self, loss: Tensor, *, penalty: bool = True) -> float:
        """Step down the loss and, unless told otherwise, the penalty; returns the loss, which is without the penalty.

        Raises :class:`DivergedError` where it is not finite, before anything moves.
        """
        value = loss.item()
        if self._diverged is not None and not math.isfinite(value):
            raise DivergedError(self._diverged(value))
        for parameter, grad in zip(self._parameters, self._gradient(loss)):
            parameter.grad = grad
        if penalty and self._anchor is not None:
            for parameter, anchor in zip(self._parameters, self._anchor):
                assert parameter.grad is not None
                parameter.grad = parameter.grad.add(parameter.detach() - anchor, alpha=self._weight_decay)
        for parameter, mask in zip(self._parameters, self._mask):
            assert parameter.grad is not None
            parameter.grad = torch.where(mask, parameter.grad, torch.zeros_like(parameter.grad))
        if self._rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate(self.taken)
        self.optimizer.step()
        self.taken += 1
        return value

    def skip(self) -> None:
        """Count a step that is not taken: the schedule goes on."""
        self.taken += 1

    def _autograd(self, loss: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(loss, self._parameters, materialize_grads=True)
