"""Recording a Hugging Face Trainer: a callback, and an id column in the training set.

    recorded = RecordCallback("norm+head")
    Trainer(model, args, train_dataset=dataset, callbacks=[recorded]).train()
    run = recorded.run

A callback sees no batches, and the Trainer drops columns that the model does not take. So the ids travel with their batch: they
are taken from the examples before these are collated (whatever their type, in a worker or not), ride through the loader in an
entry of their own, and are taken out of the call of the model by a hook in front of it. Needs the extra ``hf``.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastntk.base.errors import InputError, listing
from fastntk.base.hooks import PassiveHook
from fastntk.data import Samples
from fastntk.integrations.recorded import Recorded, subset_of
from fastntk.models.torchvision_ops import import_optional
from fastntk.training.averages import Average
from fastntk.training.recorder import record
from fastntk.tuning import Subset

ENTRY = "fastntk"
"""Where a batch carries its ids and targets from the collator to the model."""
_Callback: Any = import_optional("transformers", extra="hf").TrainerCallback


class RecordCallback(Recorded, _Callback):  # type: ignore[misc]
    """Give it to ``Trainer(callbacks=[…])``; ``run`` is there after ``train()``.

    ``subset``: what is tuned, a spec (all else is frozen when the Trainer is made), a :class:`Subset`, or None for all that is
    not frozen. ``id_column``: a key for every image, int or str. ``trace``, ``samples``: as in :func:`fastntk.record` and
    :meth:`Recorder.finish`. ``loss``: where the Trainer has a loss of its own (``compute_loss_func``), the same as a mean,
    ``loss(logits, targets)``. ``average``: what a step of several accumulated batches is the mean of, where the Trainer does not
    tell: of all its samples ("step") or of its batches ("batch").

    The Trainer has ``remove_unused_columns=False`` until its training set is loaded, and the callback removes the columns. So
    evaluate before the training with another Trainer.
    """

    def __init__(
        self,
        subset: Subset | str | None = None,
        id_column: str = "id",
        trace: bool | str | Path = True,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | str | None = None,
        average: Average | None = None,
        samples: Samples | None = None,
    ) -> None:
        super().__init__(samples)
        self._given, self._column, self._trace, self._loss, self._average = subset, id_column, trace, loss, average
        self._subset: Subset | None = None
        self._removes = False
        self._handles: list[Any] = []

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        """Freeze what is not tuned, before there is an optimiser, and let the id column through."""
        if isinstance(self._given, str):
            self._subset = subset_of(model, self._given)
        if not hasattr(args, "_fastntk_removes"):  # once: a second callback on the same arguments must not take False for theirs
            args._fastntk_removes = args.remove_unused_columns
        self._removes, args.remove_unused_columns = args._fastntk_removes, False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, train_dataloader: Any, **kwargs: Any
    ) -> None:
        """Hang on the loader's collator and on the model."""
        self._begin()
        earlier = _HANGING.get(model)
        if earlier is not None and earlier is not self:
            earlier._finish()  # its training broke off
        removes, self._removes = self._removes, False
        args.remove_unused_columns |= removes
        _check(args, state)
        if self._subset is not None and self._subset.model is not model:
            raise InputError(
                "The Trainer made another model for this training (model_init). Call tune(model, spec) inside model_init, and "
                "give RecordCallback no subset."
            )
        subset = self._subset or subset_of(model, self._given)
        columns = _columns(model, args) if removes else None
        loader = getattr(train_dataloader, "base_dataloader", train_dataloader)  # what accelerate put its own loader around
        loader.collate_fn = _Collator(loader.collate_fn, self._column, columns)
        begin = PassiveHook(self._before_forward, args, subset, optimizer, state.max_steps)
        self._handles = [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            model.register_forward_hook(PassiveHook(self._after_forward)),
        ]
        _HANGING[model] = self

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the recorder."""
        if self._recorder is not None:
            self._recorder.epoch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a first step whose batch never reached the model."""
        if self._recorder is None and self._handles:
            self._release()
            raise InputError(
                "The Trainer's compute_loss did not give the model the whole batch, so its ids are not known. Call the model as "
                f"model(**inputs) there, or pass the entry {ENTRY!r} of inputs on to it."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the run."""
        self._end()

    def _before_forward(
        self, args: Any, subset: Subset, optimizer: Any, steps: int, model: nn.Module, inputs: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        if ENTRY not in kwargs:
            return None
        ids, targets = kwargs.pop(ENTRY)
        if self._recorder is None:
            # The Trainer tells the model of how many samples the step will be, where the loss is their mean.
            average = self._average or ("step" if "num_items_in_batch" in kwargs else "batch")
            loss = self._loss or functools.partial(nn.functional.cross_entropy, label_smoothing=args.label_smoothing_factor)
            limit = args.max_grad_norm if args.max_grad_norm and args.max_grad_norm > 0 else None
            self._recorder = record(
                model,
                subset,
                optimizer,
                loss=loss,
                trace=self._trace,
                average=average,
                max_norm=limit,
                steps=steps if steps > 0 else None,
            )
            self._recorder.epoch()
        self._enter(ids, targets)
        return inputs, kwargs

    def _after_forward(self, model: nn.Module, inputs: Any, output: Any) -> None:
        self._batch.close()

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _finish(self) -> None:
        self._release()
        super()._finish()


_HANGING: weakref.WeakKeyDictionary[nn.Module, RecordCallback] = weakref.WeakKeyDictionary()
"""Which callback last hung on a model."""


class _Collator:
    """The Trainer's collator, with the ids put into the batch and columns taken out that the model does not take."""

    def __init__(self, collate: Callable[[Any], Any], column: str, columns: frozenset[str] | None) -> None:
        self._collate, self._column, self._columns = collate, column, columns

    def __call__(self, examples: list[Any]) -> Any:
        first = examples[0]
        if not isinstance(first, Mapping) or self._column not in first:
            has = f"columns {listing(map(str, first))}" if isinstance(first, Mapping) else f"a {type(first).__name__}"
            raise InputError(
                f"Recording needs an id for every image in the column {self._column!r}; an example of the training set has "
                f"{has}. Add the column, or name yours: RecordCallback(id_column=…). Where it is there and was dropped: "
                "give the callback to Trainer(callbacks=[…]) instead of adding it later, and let a transform keep it."
            )
        ids = [value.item() if hasattr(value, "item") else value for value in (example[self._column] for example in examples)]
        if self._columns is not None:
            examples = [{key: value for key, value in example.items() if key in self._columns} for example in examples]
        batch = self._collate(examples)
        targets = batch.get("labels") if isinstance(batch, Mapping) or hasattr(batch, "get") else None
        if targets is None:
            raise InputError("The collator's batches have no entry 'labels', which recording needs: return a dict with 'labels'.")
        batch[ENTRY] = [ids, targets]
        return batch


def _columns(model: nn.Module, args: Any) -> frozenset[str]:
    """What the Trainer would keep of a data set: what the model's forward takes, and labels."""
    base: Any = getattr(model, "get_base_model", None)  # of peft
    inner: Any = model if base is None else base()
    return frozenset(inspect.signature(inner.forward).parameters) | {"label", "label_ids", *(args.label_names or ())}


def _check(args: Any, state: Any) -> None:
    """Refuse, before the first step, trainings whose path would not be the model's."""
    if args.world_size > 1 or args.n_gpu > 1:
        raise InputError(
            f"Recording sees one process's share of every batch, and this training has {max(args.world_size, args.n_gpu)} "
            "processes or GPUs. Record a run of one (CUDA_VISIBLE_DEVICES=0, without torchrun)."
        )
    if state.global_step > 0:
        raise InputError(
            f"This training goes on from a checkpoint at step {state.global_step}, and the steps before it were not recorded. "
            "Train from the start, or without the callback."
        )
    for option, reason in (
        ("auto_find_batch_size", "a training that begins again with smaller batches is not one path"),
        ("torch_compile", "hooks on a compiled model do not see every pass"),
        ("deepspeed", "its optimiser cannot be read"),
        ("fsdp", "its parameters are spread over processes"),
    ):
        if getattr(args, option, None):
            raise InputError(f"Recording does not work with TrainingArguments({option}=…): {reason}. Leave it out.")
