"""Recording a Lightning training: a callback, and batches that carry ids.

    recorded = RecordCallback("norm+head", loss=torch.nn.functional.cross_entropy)
    Trainer(callbacks=[recorded]).fit(module, loader)
    run = recorded.run

For ``lightning.pytorch`` and for ``pytorch_lightning``, whichever is installed. It keeps nothing in checkpoints. Needs the extra
``lightning``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.integrations.recorded import Recorded, subset_of
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.training.recorder import record
from fastntk.tuning import Subset


def _bases() -> tuple[Any, ...]:
    """The class Callback of each package that is installed: a Trainer takes callbacks of its own package alone."""
    ensure_operators()
    packages = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    modules = [importlib.import_module(name) for top, name in packages.items() if importlib.util.find_spec(top) is not None]
    if not modules:
        raise InputError("Lightning is not installed: pip install 'fastntk[lightning]'.")
    return tuple(dict.fromkeys(module.Callback for module in modules))


def ids_and_targets(batch: Any) -> tuple[Any, Any]:
    """Of a batch (images, targets, ids), or a dict with "id" or "ids" and "label", "labels", "target" or "targets"."""
    if isinstance(batch, Mapping):
        ids = [batch[key] for key in ("id", "ids") if key in batch]
        targets = [batch[key] for key in ("label", "labels", "target", "targets") if key in batch]
        if len(ids) == len(targets) == 1:
            return ids[0], targets[0]
        what = f"a dict with {listing(map(str, batch))}"
    elif isinstance(batch, list | tuple) and len(batch) == 3:
        return batch[2], batch[1]
    else:
        what = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, list | tuple) else "")
    raise InputError(
        f"Recording needs every batch's ids and targets: (images, targets, ids), or a dict with 'id' and 'label'; got {what}. "
        "Let the data set return an id for every image, or give RecordCallback(batch=function) that returns (ids, targets)."
    )


class RecordCallback(Recorded, *_bases()):  # type: ignore[misc]
    """Give it to ``Trainer(callbacks=[…])``; ``run`` is there after ``fit()``.

    ``subset``: what is tuned, a spec (all else is frozen before the optimiser is made), a :class:`Subset`, or None for all that
    is not frozen. ``loss``, ``trace``, ``samples``: as in :func:`fastntk.record` and :meth:`Recorder.finish`. ``batch``: a
    function of a batch that returns its ids and targets. ``network``: the attribute of the module that turns images into logits,
    None where the module itself does.
    """

    def __init__(
        self,
        subset: Subset | str | None = None,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | str = "cross-entropy",
        trace: bool | str | Path = True,
        batch: Callable[[Any], tuple[Any, Any]] = ids_and_targets,
        network: str | None = None,
        samples: Samples | None = None,
    ) -> None:
        super().__init__(samples)
        self._given, self._loss, self._trace, self._of_batch, self._network = subset, loss, trace, batch, network
        self._subset: Subset | None = None

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Freeze what is not tuned, before there is an optimiser."""
        if stage == "fit":
            self._begin()
            self._subset = subset_of(_network(pl_module, self._network), self._given)

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Begin, at the first step of a training in one process with one optimiser."""
        if trainer.world_size > 1:
            raise InputError(
                f"Recording sees one process's share of every batch, and this training has {trainer.world_size} processes. "
                "Record a run of one: Trainer(devices=1)."
            )
        if len(trainer.optimizers) != 1:
            raise InputError(f"Recording follows one optimiser, and this module has {len(trainer.optimizers)}.")
        if trainer.global_step > 0:
            raise InputError(
                f"This training goes on from a checkpoint at step {trainer.global_step}, and the steps before it were not "
                "recorded. Train from the start, or without the callback."
            )
        assert self._subset is not None
        steps = trainer.estimated_stepping_batches
        self._recorder = record(
            self._subset.model,
            self._subset,
            trainer.optimizers[0],
            loss=self._loss,
            trace=self._trace,
            max_norm=_limit(trainer),
            steps=int(steps) if 0 < steps < float("inf") else None,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Tell the recorder."""
        if self._recorder is not None:
            self._recorder.epoch()

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """A batch begins."""
        self._enter(*self._of_batch(batch))

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """It has ended."""
        self._batch.close()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Take back the batch that was not finished; the steps before it stand."""
        try:
            self._batch.__exit__(type(exception), exception, exception.__traceback__)
        except BaseException as error:
            if error is not exception:
                raise

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Make the run, after whatever other callbacks do when the training ends."""
        self._end()


def _limit(trainer: Any) -> float | None:
    """The norm that the Trainer clips gradients to."""
    limit = trainer.gradient_clip_val
    return limit if limit and limit > 0 and trainer.gradient_clip_algorithm in (None, "norm") else None


def _network(module: nn.Module, name: str | None) -> nn.Module:
    """The part of the module that turns images into logits."""
    if name is None:
        return module
    try:
        return module.get_submodule(name)
    except AttributeError:
        has = listing(each for each, _ in module.named_children())
        raise InputError(
            f"RecordCallback(network={name!r}): {type(module).__name__} has no such attribute that is a network; it has {has}."
        ) from None
