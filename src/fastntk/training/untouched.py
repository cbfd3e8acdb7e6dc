"""Whether only the recorded optimiser wrote to the tuned parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Untouched:
    """Parameters as they were when :meth:`note` was last called.

    torch counts what is written to a tensor, except through its ``.data``, so the numbers of one of them, ``watched``, are kept.
    """

    def __init__(self, parameters: Sequence[Tensor], watched: Tensor) -> None:
        self._parameters, self._watched = parameters, watched
        self.note()

    def note(self) -> None:
        """They may be as they are now."""
        self._versions, self._kept = self._counted(), self._watched.detach().clone()

    def moved(self, *, wait: bool) -> bool:
        """Whether somebody wrote to them since. ``wait``: for a GPU, to compare the numbers too; without one they always are."""
        compared = wait or not self._kept.is_cuda
        return self._counted() != self._versions or (compared and not torch.equal(self._watched, self._kept))

    def _counted(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]
