"""Whether only the recorded optimiser wrote to the tuned parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Untouched:
    """Parameters as they were when :meth:`note` was last called.

    torch counts what is written to a tensor, except through its ``.data``, so the numbers of one of them, ``watched``, are kept.
    Of the others only their norms are: where something was written, as averaged weights and then the own ones again, these tell
    whether it is what was there.
    """

    def __init__(self, parameters: Sequence[Tensor], watched: Tensor) -> None:
        self._parameters, self._watched = parameters, watched
        self.note()

    def note(self) -> None:
        """They may be as they are now."""
        self._versions, self._kept, self._norms = self._counted(), self._watched.detach().clone(), self._measured()

    def moved(self, *, wait: bool) -> bool:
        """Whether somebody wrote other numbers to them since. ``wait``: for a GPU, to compare the numbers too where nothing is
        known to be written; without one they always are."""
        versions = self._counted()
        written = versions != self._versions
        if (wait or written or not self._kept.is_cuda) and not torch.equal(self._watched, self._kept):
            return True
        if written:
            if any(not torch.equal(now, then) for now, then in zip(self._measured(), self._norms)):
                return True
            self._versions = versions
        return False

    def _counted(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    @torch.no_grad()
    def _measured(self) -> Sequence[Tensor]:
        norms: Sequence[Tensor] = torch._foreach_norm(list(self._parameters))
        return norms
