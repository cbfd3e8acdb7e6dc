"""The loss of a recorded path: its gradient by the logits, from which the path is walked again without autograd.

    cross-entropy   r = softmax(f) − q        q = onehot(y) or a soft target, smoothed: (1 − ε)·q + ε/C
    squared         r = f − (onehot(y) − 1/C)
    own             autograd through a function of the user's, (logits (k, C), targets) → mean loss

A function that is a cross-entropy, whatever it is called, is recognised by its values (:func:`recognised`), so that a trace can
be saved and read without it. Any other one cannot be saved: whoever reads the trace gives it again, and its values are compared.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastntk.base.errors import InputError

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(logits (k, C), targets (k,) or (k, C)) → the mean loss."""
NAMES = ("cross-entropy", "squared")
OWN = "own"
_SMOOTHING_UP_TO = 0.999
_MARGINS = (4.0, 9.0, 16.0, -4.0, -9.0, -16.0)
"""What is added to the logit of the right class: a loss with a threshold (flooding, a floor, clamped logits, samples that are
ignored) is a cross-entropy on one side of it."""


def loss_residual(logits: Tensor, targets: Tensor, loss: str, *, smoothing: float = 0.0) -> Tensor:
    """The gradient of each sample's loss by its ``logits`` (…, B, C), for labels (B,) or soft targets (B, C); in the logits'
    shape."""
    if not 0 <= smoothing <= 1 or (smoothing and loss != "cross-entropy"):
        raise InputError(
            f"Label smoothing is a number from 0 to 1, with the loss cross-entropy; this trace has {smoothing} with {loss!r}."
        )
    classes, rows = logits.shape[-1], torch.arange(len(targets), device=logits.device)
    if loss == "cross-entropy":
        residual = logits.softmax(-1)
        if targets.is_floating_point():
            return residual.sub_((1 - smoothing) * targets.to(residual) + smoothing / classes)
        residual[..., rows, targets] -= 1 - smoothing
        return residual.sub_(smoothing / classes) if smoothing else residual
    if loss == "squared":
        if targets.is_floating_point():
            return logits - (targets.to(logits) - 1 / classes)
        residual = logits + 1 / classes
        residual[..., rows, targets] -= 1
        return residual
    raise InputError(f"The loss {loss!r} of this trace is not known: expected cross-entropy or squared.")


@dataclass(frozen=True, eq=False)
class PathLoss:
    """The loss of a trace. ``function``: the user's own, where it is not one of :data:`NAMES`."""

    name: str
    smoothing: float = 0.0
    function: LossFunction | None = None

    def mean_residual(self, logits: Tensor, targets: Tensor, weights: Tensor, parts: Sequence[tuple[int, int, float]]) -> Tensor:
        """The gradient of each lane's loss by its ``logits`` (L, B, C).

        ``weights`` (L, B): what every sample counts for in its lane, 0 where it does not take part. ``parts``: first and last
        sample of each batch that went into the step, and its share; a function of one's own is called for each of them.
        """
        if self.name != OWN:
            return loss_residual(logits, targets, self.name, smoothing=self.smoothing) * weights.unsqueeze(2)
        residual = torch.zeros_like(logits)
        for lane, start, stop in ((lane, *part[:2]) for lane in range(len(logits)) for part in parts):
            rows = start + weights[lane, start:stop].nonzero().flatten()
            if len(rows):
                residual[lane, rows] = weights[lane, rows].sum() * self.gradient(logits[lane, rows], targets[rows])
        return residual

    def gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The gradient of the mean loss of one batch by its logits (k, C)."""
        if self.name != OWN:
            return loss_residual(logits, targets, self.name, smoothing=self.smoothing) / max(1, len(logits))
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.mean(leaf, targets), leaf)
        return gradient

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, with its graph."""
        if self.function is not None:
            return self.function(logits, targets)
        if self.name == "cross-entropy":
            return torch.nn.functional.cross_entropy(logits, targets, label_smoothing=self.smoothing)
        if self.name == "squared":
            probabilities = targets if targets.is_floating_point() else torch.nn.functional.one_hot(targets, logits.shape[1])
            return 0.5 * (logits - probabilities.to(logits) + 1 / logits.shape[1]).square().sum(1).mean()
        raise InputError(
            "This trace was recorded with a loss of one's own, which is not in the file. Give the same function again: "
            "Run.load(folder, loss=function), on the command line --loss-with MODULE:FUNCTION."
        )


def own_copy(loss: Any) -> Any:
    """A copy of a module, so that what it counts or learns stays the loop's; anything else, and what cannot be copied, itself."""
    if not isinstance(loss, torch.nn.Module):
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception as error:  # whatever its parts cannot do
        warnings.warn(
            f"the loss cannot be copied ({error}), so the recorder asks the loop's own: if it counts or learns, the training is "
            "not the same as without a recorder",
            stacklevel=2,
        )
        return loss


@contextlib.contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Random numbers that are drawn in here, on the CPU and this device, are drawn again after it."""
    other = device.type != "cpu"
    with torch.random.fork_rng(devices=[device.index or 0] if other else [], device_type=device.type if other else "cuda"):
        yield


def check_loss(loss: Any) -> None:
    """Refuse what is neither a name nor a function."""
    if isinstance(loss, str) and loss not in NAMES:
        raise InputError(f"The loss {loss!r} is not known: give one of {', '.join(NAMES)}, or a function of logits and targets.")
    if not isinstance(loss, str) and not callable(loss):
        raise InputError(
            f"loss must be a function of logits and targets, or one of {', '.join(NAMES)}; got {type(loss).__name__}."
        )


def recognised(loss: Any, classes: int, *, soft: bool = False, like: Tensor | None = None) -> PathLoss:
    """The loss that a function computes, by its values where it is a cross-entropy (with any smoothing) or the squared loss.

    ``loss``: a name, or a function of logits and targets; ``soft``: it is given soft targets; ``like``: a tensor of the kind and
    device that it is used with.
    """
    check_loss(loss)
    if isinstance(loss, str):
        return PathLoss(loss)
    own, asked = (PathLoss(OWN, function=own_copy(loss)) for _ in range(2))  # what a loss counts begins with the loop
    answers = _answers(asked, classes, soft=soft, like=like, margins=_MARGINS)
    if not answers:
        return own
    logits, targets, gradient = answers[0]
    # The gradient is (softmax − (1 − ε)q − ε/C)/k, so ε follows from it wherever q differs from 1/C.
    p = logits.softmax(1)
    q = targets if soft else torch.nn.functional.one_hot(targets, classes).to(p)
    span = (q - 1 / classes).square().sum()
    smoothing = float(1 - ((p - len(p) * gradient - 1 / classes) * (q - 1 / classes)).sum() / span) if classes > 1 else 0.0
    exact = logits.dtype == torch.float64
    candidates = [PathLoss("squared"), PathLoss("cross-entropy")]
    if (1e-9 if exact else 1e-5) < smoothing <= _SMOOTHING_UP_TO:
        candidates.append(PathLoss("cross-entropy", smoothing=round(smoothing, 9 if exact else 5)))
    rtol, atol = (1e-6, 1e-9) if exact else (1e-3, 1e-6)
    for candidate in candidates:
        if all(torch.allclose(candidate.gradient(each[0], each[1]), each[2], rtol=rtol, atol=atol) for each in answers):
            return candidate
    return own


def fingerprint(loss: PathLoss, classes: int, *, soft: bool, like: Tensor | None = None) -> tuple[float, ...] | None:
    """Numbers that tell one function from another: sums of its gradient at fixed logits; None where it cannot be asked."""
    values: list[float] = []
    for _, _, gradient in _answers(loss, classes, soft=soft, like=like):
        flat = gradient.double().cpu().flatten()
        places = torch.arange(len(flat), dtype=torch.float64)
        values += [float(f"{(flat * ((k + 1) * 0.37 * places).cos()).sum():.7g}") for k in range(4)]
    return tuple(values) or None


def _answers(
    loss: PathLoss, classes: int, *, soft: bool, like: Tensor | None, margins: Sequence[float] = ()
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Logits, targets and the loss's gradient, on two batches of different sizes in which every class occurs, and on a small one
    for each of the ``margins`` by which the right class is ahead.

    In double precision; where the function cannot take that (it holds tensors of its own), as ``like``. Empty where neither
    works: the function will say so itself.
    """
    probes = [(2 * classes, 0.0), (3 * classes + 1, 0.0), *((2 * min(classes, 32), margin) for margin in margins)]
    for kind in (torch.empty(0, dtype=torch.float64), torch.empty(0) if like is None else like.detach()):
        answers = []
        try:
            for rows, margin in probes:
                logits, targets = (part.to(kind.device) for part in _probe(rows, classes, soft=soft, margin=margin))
                logits = logits.to(kind.dtype)
                targets = targets.to(kind.dtype) if soft else targets
                answers.append((logits, targets, loss.gradient(logits, targets)))
        except (RuntimeError, TypeError, ValueError):
            continue
        return answers
    return []


def _probe(rows: int, classes: int, *, soft: bool, margin: float) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(rows * classes, dtype=torch.float64).reshape(rows, classes)
    logits, labels = 2 * (1.7 * numbers).sin(), torch.arange(rows) % classes
    if not margin:
        return logits, (0.5 * (0.9 * numbers).cos()).softmax(1) if soft else labels
    sure = torch.nn.functional.one_hot(labels, classes).to(logits)  # soft targets that are not have a loss that is never low
    return logits + margin * sure, sure if soft else labels
