"""Which passes of the head belong to which batch: forward with gradients enabled, backward, and the step that they wait for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fastntk.base.errors import InputError

TWO_PASSES = (
    "the head saw two forward passes with gradients in one batch: which one the step comes from is not known. Where the loss "
    "needs both (two views of an image), pass them through the model as one, with every id and target twice, or give each its "
    "own `with recorder.batch(…)` around forward and backward; put passes that no gradient comes from under torch.no_grad()"
)


@dataclass(eq=False)
class Part:
    """One batch: who, towards what, and what was seen of it. ``again``: it had its step, and this is a further pass of it."""

    positions: Tensor
    targets: Tensor
    features: Tensor | None = None
    gradient: Tensor | None = None
    forwards: int = 0
    again: bool = False


class Passes:
    """Of the batch that is open, and of those before it that had no step yet: ``pending``."""

    def __init__(self) -> None:
        self._open: Part | None = None
        self.pending: list[Part] = []

    def begin(self, part: Part | None) -> None:
        """A batch begins; None: one that is not recorded."""
        self._open = part

    def end(self) -> None:
        """It ended. A look at the model after its step, without a gradient, is of no batch."""
        self._open = None
        self.pending = [each for each in self.pending if not each.again or each.gradient is not None]

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
        """The gradient of the head's weight, and what was there ``before`` it is added."""
        if not self.pending:
            return
        part = self.pending[-1]
        if part.again and part.forwards > 1:
            raise InputError(TWO_PASSES)
        if part.gradient is None and len(self.pending) > 1 and (before is None or not bool(before.any())):
            self.pending = [part]  # the gradients of earlier batches were thrown away: a step that was skipped
        part.gradient = gradient.detach().clone() if part.gradient is None else part.gradient + gradient.detach()

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
