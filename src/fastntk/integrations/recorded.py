"""What the callbacks share: which parameters are tuned, and the end of a recording, which never spoils a finished training."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from torch import nn

from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.training.recorder import Recorder
from fastntk.training.run import Run
from fastntk.tuning import Subset, tune


def subset_of(model: nn.Module, subset: Subset | str | None) -> Subset:
    """The tuned parameters: as given, by a spec (which freezes the rest), or all that are not frozen."""
    if isinstance(subset, str):
        return tune(model, subset)
    if subset is None:
        return Subset(model, [name for name, parameter in model.named_parameters() if parameter.requires_grad])
    if subset.model is not model:
        raise InputError(
            "The subset belongs to another model than the one that is trained. Give subset=tune(model, spec) of that model, a "
            "spec such as 'norm+head', or None for all parameters that are not frozen."
        )
    return subset


class Recorded:
    """A training that is being recorded by a callback."""

    def __init__(self, samples: Samples | None) -> None:
        self._samples = samples
        self._recorder: Recorder | None = None
        self._batch = contextlib.ExitStack()
        self._run: Run | None = None
        self._problem = "No training was recorded yet: call the Trainer's train() or fit() with this callback first."

    @property
    def run(self) -> Run:
        """The recorded run, after the training; after one that broke off, what there was until then."""
        if self._run is None and self._recorder is not None:
            self._finish()
        if self._run is None:
            raise InputError(self._problem)
        return self._run

    def _begin(self) -> None:
        """Refuse a second training by the same callback."""
        if self._recorder is not None or self._run is not None:
            raise InputError("This callback has recorded a training already: make a new one for every training.")

    def _enter(self, ids: Any, targets: Any) -> None:
        assert self._recorder is not None
        self._batch.enter_context(self._recorder.batch(ids, targets))

    def _finish(self) -> None:
        """Make the run, or keep what went wrong for ``run`` to raise."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            self._run = recorder.finish(self._samples)
        except InputError as error:
            self._problem = str(error)

    def _end(self) -> None:
        """After the last step. What went wrong is a warning, so that the training reaches its own end."""
        self._finish()
        if self._run is None:
            warnings.warn(f"There is no recorded run. {self._problem}", stacklevel=3)
