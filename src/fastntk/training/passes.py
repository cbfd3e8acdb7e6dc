"""Which passes of the head belong to which batch: forward with gradients enabled, backward, and the step that they wait for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fastntk.base.errors import InputError

TWO_PASSES = (
    "the head saw two forward passes with gradients in one batch: which one the step comes from is not known. Where the loss "
    "needs both (two views of an image), pass them through the model as one, with every id and target twice, or give each its "
    "own `with recorder.batch(…)` around forward and backward; put passes that no gradient comes from under torch.no_grad(). "
    "Gradient checkpointing passes what it includes a second time: let it end before the head"
)


@dataclass(eq=False)
class Part:
    """One batch: who, towards what, and what was seen of it. ``arrived``: the gradient, or some of it, went into ``.grad``;
    ``again``: it had its step, and this is a further pass of it."""

    positions: Tensor
    targets: Tensor
    features: Tensor | None = None
    gradient: Tensor | None = None
    arrived: bool = False
    forwards: int = 0
    again: bool = False


class Passes:
    """Of the batch that is open, and of those before it that had no step yet: ``pending``."""

    def __init__(self) -> None:
        self._open: Part | None = None
        self._latest: Tensor | None = None
        self.pending: list[Part] = []

    def begin(self, part: Part | None) -> None:
        """A batch begins; None: one that is not recorded."""
        self._open = part

    def end(self) -> None:
        """It ended. A look at the model after its step, or at its gradient then, is of no batch."""
        self._open = None
        self.pending = [each for each in self.pending if not each.again or each.arrived]

    def break_off(self, part: Part | None) -> None:
        """It was not finished. A gradient that it left counts, until it is cleared."""
        self.pending = [each for each in self.pending if each is not part or each.gradient is not None]
        self.end()

    @property
    def inside(self) -> bool:
        """Whether a batch is open."""
        return self._open is not None

    def forward(self, features: Tensor) -> Part | None:
        """The head's input (B, H). Returns the pass, where it is the one of its batch; refused where that cannot be."""
        part = self._open
        if part is None:
            return None
        if part.gradient is not None and part not in self.pending:  # its step was taken
            part = self._open = Part(part.positions, part.targets, again=True)
        part.forwards += 1
        wrong = _misfit(part, features)
        if wrong is None:
            part.features = features
            self.pending.append(part)
            return part
        if part.again:  # a look at the model, unless a gradient comes from it
            return None
        raise InputError(wrong)

    def backward(self, gradient: Tensor, before: Tensor | None) -> None:
        """A gradient of the head's weight, and what is in ``.grad`` before it.

        Whether it goes there :meth:`arrive` says. One that is only looked at (``torch.autograd.grad``) counts until another one
        comes, for a loop may write it there by itself.
        """
        if not self.pending:
            return
        part = self.pending[-1]
        if part.again and part.forwards > 1:
            raise InputError(TWO_PASSES)
        if (len(self.pending) > 1 or part.arrived) and (before is None or not bool(before.any())):
            self.pending, part.arrived = [part], False  # what came before was thrown away: a step that was skipped, a look
        self._latest = gradient.detach().clone()
        if not part.arrived:
            part.gradient = self._latest

    def arrive(self) -> None:
        """The latest gradient is in ``.grad`` now, or added to what was there."""
        if not self.pending or self._latest is None:
            return
        part = self.pending[-1]
        if part.arrived and part.gradient is not None:
            part.gradient = part.gradient + self._latest
        part.arrived, self._latest = True, None

    def of_step(self) -> list[Part]:
        """Those that the coming step learns from; refused where there are none."""
        parts = [part for part in self.pending if part.gradient is not None]
        if not parts:
            raise InputError(f"the optimiser took a step {self._where()}: which samples it learnt from is not known")
        return parts

    def _where(self) -> str:
        if self.pending:
            return "without a backward pass"
        if not self.inside:
            return "outside of `with recorder.batch(ids, targets)`"
        return (
            "in a batch of which the head saw no images with gradients enabled (a model that was compiled and used before "
            "record() goes on as it was: call record() before its first forward pass, or torch.compiler.reset() after)"
        )


def _misfit(part: Part, features: Tensor) -> str | None:
    """What is wrong with this pass of a batch; None where nothing is."""
    if part.forwards > 1:
        return TWO_PASSES
    if features.dim() != 2:
        return f"a trace needs a head on flat features (B, H); this one is given {tuple(features.shape)}"
    if len(features) != len(part.positions):
        return f"the head saw {len(features)} samples, but {len(part.positions)} ids were given for this batch"
    return None
