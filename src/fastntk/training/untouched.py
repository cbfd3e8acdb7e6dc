"""Whether only the recorded optimiser wrote to tensors: the tuned parameters, its own state of the head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Untouched:
    """Tensors as they were when :meth:`note` was last called; ``tensors`` says which they are.

    torch counts what is written to a tensor, except through its ``.data``, so the numbers of some, ``watched``, are kept, and of
    all of them the norms: they also tell whether what was written is what was there, as averaged weights and then the own ones.
    A GPU is not waited for: what it finds is asked of it where something is known to be written, and at the end.
    """

    def __init__(self, tensors: Callable[[], Sequence[Tensor]], watched: Sequence[Tensor] = ()) -> None:
        self._tensors, self._watched = tensors, watched
        self._moved = torch.zeros((), dtype=torch.bool)
        self.note()

    def note(self) -> None:
        """They may be as they are now."""
        self._versions, self._kept = self._counted(), [each.detach().clone() for each in self._watched]
        self._norms = self._measured()

    def moved(self, *, wait: bool = False, norms: bool = True) -> bool:
        """Whether somebody wrote other numbers to them since. ``wait``: for a GPU; without one, and where something was written,
        there is no need. ``norms``: compare them, too, where nothing is known to be written."""
        versions = self._counted()
        has_writes = versions != self._versions
        pairs = list(zip(self._watched, self._kept))
        if norms or has_writes:
            now = self._measured()
            if len(now) != len(self._norms):
                self._moved = torch.ones_like(self._moved)
            pairs += zip(now, self._norms)
        for present, before in pairs:
            self._moved = self._moved.to(before.device) | _differs(present, before)
        if not (wait or has_writes or not self._moved.is_cuda):
            return False
        self._versions = versions
        return self.ever

    @property
    def ever(self) -> bool:
        """Whether that was found before."""
        return bool(self._moved)

    @property
    def mark(self) -> Tensor:
        """By which what was noted last is known again (k,)."""
        return _row(self._norms)

    def found_in(self, marks: Sequence[Tensor]) -> int | None:
        """The last of these marks at which the tensors were as they are now; None where they were not at any."""
        places = (torch.stack(list(marks)) == _row(self._measured())).all(1).nonzero()
        return int(places[-1]) if len(places) else None

    def _counted(self) -> list[int]:
        return [each._version for each in self._tensors()]

    @torch.no_grad()
    def _measured(self) -> Sequence[Tensor]:
        tensors = list(self._tensors())
        norms: Sequence[Tensor] = torch._foreach_norm(tensors) if tensors else ()
        return norms


def _row(norms: Sequence[Tensor]) -> Tensor:
    return torch.stack([norm.to(norms[0].device) for norm in norms])


def _differs(now: Tensor, then: Tensor) -> Tensor:
    """Whether some number is another one; of a training that diverged, no number is the same as none."""
    return ((now != then) & ~(now.isnan() & then.isnan())).any()
