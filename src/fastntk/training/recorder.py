"""Recording a training loop that somebody else wrote: the path that ``path-replay`` walks along again, with nothing to be stated.

    recorder = record(model, subset, optimizer, loss=loss)
    for images, targets, ids in loader:
        with recorder.batch(ids, targets):
            optimizer.zero_grad(); loss(model(images), targets).backward(); optimizer.step()
    run = recorder.finish(samples)

It hangs on the head's input (features as the head saw them), on the gradient of the head's weight (which batches went into a
step, and with which share: accumulation, loss scaling) and on the optimiser's step (rates, options, gradients). From features and
loss the head's gradient M of a step follows; what the loop gave the optimiser, c·M, tells the factor c of gradient clipping, and
how far it is from any multiple of M tells whether ``loss`` is the loss of this loop. No pass is added and no number of the
training changes. What goes wrong after the first step never stops the loop: a warning is given, and ``finish`` raises.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.base.hooks import PassiveHook
from fastntk.data import Samples
from fastntk.training.averages import Average
from fastntk.training.live_optimizer import STATE_CHANGED, LiveOptimizer, numbers_of
from fastntk.training.losses import OWN, PathLoss, check_loss, own_draws, recognised
from fastntk.training.measured_step import Step, check_all, check_first, measured, step_tensors, tell_unexplained
from fastntk.training.network import check_precision
from fastntk.training.passes import Part, Passes
from fastntk.training.path_store import Ended, PathStore
from fastntk.training.recordable import Failed, check_setting, clip_limit
from fastntk.training.recorded_facts import recorded_facts
from fastntk.training.run import Run
from fastntk.training.trace import TraceFacts
from fastntk.training.trace_writer import GRADIENTS_UP_TO
from fastntk.training.tuned_head import tuned_head
from fastntk.training.untouched import Untouched
from fastntk.training.visitors import Visitors, names_and_targets
from fastntk.tuning import Subset
from fastntk.tuning.outside import noted


def record(
    model: nn.Module,
    subset: Subset,
    optimizer: Any,
    *,
    loss: Any,
    trace: bool | str | Path = True,
    average: Average | None = None,
    max_norm: float | None = None,
    steps: int | None = None,
    room: int = GRADIENTS_UP_TO,
) -> Recorder:
    """Record a loop of one's own. Call it before the first step: the subset's values are then the anchor.

    ``loss(logits, targets)``: the mean loss that the loop uses, a function or a name ("cross-entropy"). ``trace``: True keeps the
    record in memory, a path puts it into a new folder. ``average``: what a step of several accumulated batches is, the mean of
    their means ("batch"), or the mean of all their samples ("step"); "sum" where the loop sums ``loss`` over samples and divides
    by nothing or a fixed number. None: as batches of unequal size show, else the first. ``max_norm``: the limit that the loop
    gives ``clip_grad_norm_``; without it the steps that reached it tell it, and none does where none reached it.
    ``steps``: how many there will be, if known; with ``room`` (bytes) it decides how much of the body's path is kept, from the
    head inwards.
    """
    max_norm = clip_limit(max_norm)
    return Recorder(model, subset, optimizer, loss=loss, trace=trace, average=average, max_norm=max_norm, steps=steps, room=room)


class Recorder:
    """What ``record`` gives. ``steps``: how many were recorded; ``epochs``: how many have begun."""

    def __init__(
        self,
        model: nn.Module,
        subset: Subset,
        optimizer: Any,
        *,
        loss: Any,
        trace: bool | str | Path,
        average: Average | None,
        max_norm: float | None,
        steps: int | None,
        room: int,
    ) -> None:
        check_setting(model, subset, trace, average)
        check_precision(subset.parameters.items())
        check_loss(loss)
        self._live = LiveOptimizer(optimizer, model, subset)
        self._head = tuned_head(model, subset)
        if self._head.bias is not None and not subset.parameters[self._head.bias].requires_grad:
            raise InputError(f"The head's bias ({self._head.bias}) is in the subset but frozen: tune the weight alone.")
        self.model, self.subset, self._parameters = model, subset, subset.parameters
        self._anchor, self._pretrained = subset.get(), noted(subset)
        self._given_loss, self._average = loss, average
        self._loss: PathLoss | None = None
        self._buffers = {each: buffer.clone() for each, buffer in model.named_buffers()}
        self._visitors = Visitors(self._head.layer.weight.shape[0])
        self._passes = Passes()
        self._prepared: Step | None = None
        self._usual = torch.ones(())
        self._epoch_due, self._told, self.epochs, self.steps = True, False, 0, 0
        self._low = self._passed_over = False
        self._broken: str | None = None
        self._done = False
        own = [self._head.layer.weight, *([] if self._head.bias is None else [self._parameters[self._head.bias]])]
        self._tuned = Untouched(lambda: list(self._parameters.values()), own)
        self._marks: list[Tensor] = []
        self._state = Untouched(lambda: self._live.state_of(own))
        self._store = PathStore(subset, self._head, trace, max_norm=max_norm, steps=steps, room=room)
        self._handles: list[Any] = [
            self._head.layer.register_forward_pre_hook(PassiveHook(self._saw_features)),
            self._head.layer.weight.register_hook(self._saw_gradient),
            self._head.layer.weight.register_post_accumulate_grad_hook(self._saw_arrival),
            *self._live.watch(self._before_step, self._after_step),
        ]

    # What the loop calls

    @contextlib.contextmanager
    def batch(self, ids: Any, targets: Tensor) -> Iterator[None]:
        """Around forward, backward and step of one batch; or of several before one step (accumulation).

        ``ids``: a key for every sample, the same in every epoch; ``targets``: what the loss is given, labels (B,) or soft (B, C).
        """
        if self._done:
            raise InputError("This recorder is finished: make a new one by record(...) before the next training.")
        part = None
        if self._broken is None:
            with self._watched():
                part = self._entered(ids, targets)
        self._passes.begin(part)
        try:
            yield
        except BaseException:
            self._passes.break_off(part)  # steps before it stand
            if part is not None and part.forwards == 0:
                self._visitors.miss(part.positions)
            raise
        self._passes.end()
        if part is not None and self._broken is None and part.forwards == 0:
            self._without_images(part)

    def epoch(self) -> None:
        """A new epoch begins. Not needed where every sample is seen once an epoch: then it is noticed. Where samples are drawn
        with replacement it cannot be; once this was called, nothing else begins an epoch."""
        self._epoch_due = self._told = True

    def finish(self, samples: Samples | None = None) -> Run:
        """The run: model, subset, anchor and the recorded path. ``samples``: images, where something will need them."""
        if self._done:
            reason = "" if self._broken is None else f" This training could not be recorded: {self._broken.rstrip('.')}."
            raise InputError(f"This recorder was finished before.{reason}")
        # What is wrong with the samples is said before anything ends: others may be given.
        samples_and_relabel = None if self._broken is not None else self._visitors.listed(samples)
        try:
            self._check_end()
            assert samples_and_relabel is not None
            ended = self._store.end()
            check_all(ended.error, ended.mean_error, low=self._low)
            tell_unexplained(ended.clips, ended.max_norm)
            trace = self._store.finish(ended, self._facts(ended), *samples_and_relabel, self._recognised_loss().function)
        except OSError as error:
            self.close()
            raise InputError(f"The trace could not be written ({error}); nothing of it is kept.") from error
        except BaseException:
            self.close()
            raise
        self._release()
        return Run(self.model, self.subset, self._anchor, samples, trace=trace, pretrained=self._pretrained)

    def close(self) -> None:
        """Let go of model and optimiser and keep nothing; not needed after ``finish``."""
        self._release()
        self._store.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if not self._done:
            self.close()

    # What the hooks see

    def _entered(self, ids: Any, targets: Tensor) -> Part:
        self._live.watch_closely()
        names, targets = names_and_targets(ids, targets)
        if self._tuned.moved(norms=False):
            raise InputError(
                "the tuned parameters were changed since the last recorded step, by something else than this optimiser's step "
                "inside a batch: a hook after the step, another optimiser, a loaded checkpoint, averaged weights"
            )
        return Part(self._visitors.arrive(names, targets), targets)

    def _without_images(self, part: Part) -> None:
        """A batch was announced and not looked at. After the first step that is one that the loop passes over."""
        what = (
            f"a batch of {len(part.positions)} samples was announced, but the head saw no images inside the with-block (with "
            "gradients enabled)"
        )
        if self.steps == 0:
            self._fail(f"{what}: put forward, backward and step into it")
        self._visitors.miss(part.positions)
        if not self._passed_over:
            warnings.warn(
                f"{what}, after step {self.steps}: it is not part of the recorded path, nor are further ones of this kind",
                stacklevel=4,
            )
        self._passed_over = True

    def _saw_features(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._passes.inside or self._broken is not None or not torch.is_grad_enabled():
            return
        with self._watched():
            features = args[0].detach()
            part = self._passes.forward(features)
            if part is not None:
                self._low |= features.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(features.device.type)
                self._epoch_due |= not part.again and self._visitors.count(part.positions) and not self._told

    def _saw_gradient(self, gradient: Tensor) -> None:
        if self._broken is None:
            with self._watched():
                self._passes.backward(gradient, self._head.layer.weight.grad)

    def _saw_arrival(self, weight: Tensor) -> None:
        if self._broken is None:
            self._passes.arrive()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The gradients are ready; or a closure will make them, and they are looked at when it did."""
        self._prepared = None
        if self._broken is not None or self._done:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._look()
            return None

        def watched() -> Any:
            value = closure()
            if self._prepared is not None:
                self._fail("the optimiser called its closure more than once in one step")
            elif self._broken is None:
                self._look()
            return value

        return args[:1], {**kwargs, "closure": watched}

    def _look(self) -> None:
        with self._watched():
            self._look_closely()

    def _look_closely(self) -> None:
        bias = None if self._head.bias is None else self._parameters[self._head.bias]
        self._live.check()
        if self.steps and all(each.grad is None for each in self._parameters.values()):
            return  # it moves nothing, as of a batch that the loop passes over
        if self._tuned.moved():
            raise InputError("the tuned parameters were changed before the step, by something else than this optimiser")
        if self._state.moved():
            raise InputError(STATE_CHANGED)
        if bias is not None and bias.grad is None and self._passes.pending:
            raise InputError(f"the head's bias ({self._head.bias}) is tuned but gets no gradient: tune the weight alone")
        parts = self._passes.of_step()
        with torch.no_grad():
            self._prepared = self._prepare(parts)

    def _prepare(self, parts: list[Part]) -> Step:
        """All that is known of a step before it is taken; its numbers stay on the device."""
        grad_scale = getattr(self._live.optimizer, "grad_scale", None)
        bias = None if self._head.bias is None else self._parameters[self._head.bias].grad
        loss, head = self._recognised_loss(), self._head.layer
        with own_draws(head.weight.device) if loss.name == OWN else contextlib.nullcontext():
            measure = measured(parts, head, loss, usual=self._usual, scaled=grad_scale, bias=bias)
        if self.steps == 0:
            check_first(measure, low=self._low)
        self._usual = measure.usual
        soft = torch.cat([part.targets for part in parts]) if self._visitors.soft else None
        self._store.leave(self._live.skipped(self._parameters, self._store.kept))
        self._store.open(parts[0], soft=soft is not None)
        if self._epoch_due:
            self._store.epoch()
            self._epoch_due, self.epochs = False, self.epochs + 1
        kept_names = self._store.kept if self._store.keeps_body else None
        tensors = step_tensors(parts, measure, self._head, self._parameters, kept=kept_names, scaled=grad_scale)
        return Step(
            positions=torch.cat([part.positions for part in parts]),
            counts=[len(part.positions) for part in parts],
            targets=soft,
            numbers=numbers_of(self._live.optimizer),
            tensors=tensors,
        )

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tuned.note()
        self._state.note()
        self._passes.pending, step, self._prepared = [], self._prepared, None
        if step is None or self._broken is not None or self._done:
            return
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is not None and bool(overflow):
            return  # a fused step that a loss scaler made empty
        self.steps += 1
        self._marks.append(self._tuned.mark)
        with self._watched():
            self._store.add(step)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Whatever goes wrong in here is a failure of the recording, not of the loop."""
        try:
            yield
        except Failed:
            raise
        except InputError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _recognised_loss(self) -> PathLoss:
        if self._loss is None:
            weight, soft = self._head.layer.weight, self._visitors.soft
            with own_draws(weight.device):
                self._loss = recognised(self._given_loss, weight.shape[0], soft=soft, like=weight)
        return self._loss

    def _fail(self, reason: str) -> None:
        """Before the first step is recorded: an error at once. Later the loop goes on, and ``finish`` raises."""
        if self.steps == 0:
            self._broken = reason
            self.close()
            raise Failed(f"Recording: {reason.rstrip('.')}.")
        self._broken = reason
        self._passes.pending = []
        warnings.warn(
            f"fastntk stopped recording after step {self.steps}: {reason.rstrip('.')}. The training goes on; there will be no "
            "trace.",
            stacklevel=3,
        )

    def _check_end(self) -> None:
        if self._broken is not None:
            raise InputError(f"This training could not be recorded: {self._broken.rstrip('.')}.")
        if self.steps == 0:
            raise InputError(
                "No step was recorded: put the loop's forward, backward and step into `with recorder.batch(ids, targets)`."
            )
        if self._state.ever:
            raise InputError(f"This training could not be recorded: {STATE_CHANGED}.")
        waiting, trustworthy = len(self._passes.pending), not self._tuned.ever
        if not self._told:
            self._visitors.check_epochs(self.epochs)
        if self._tuned.moved(wait=True):
            self._cut_back(trustworthy)
        elif waiting:
            warnings.warn(
                f"{waiting} batches at the end had no step of the optimiser: they are not part of the recorded path.",
                stacklevel=3,
            )

    def _cut_back(self, trusted: bool) -> None:
        """The parameters are not those after the last step: let the path end where they were as they are now."""
        step = self._tuned.found_in(self._marks) if trusted else None
        if step is None:
            raise InputError(
                "The tuned parameters were changed after the last recorded step, by something else than this optimiser (another "
                "optimiser, a loaded checkpoint of another training, averaged weights): the recorded path does not lead to them."
            )
        warnings.warn(
            f"the tuned parameters are those after step {step + 1} of {self.steps}, as where the best ones were loaded again: "
            "the recorded path ends there",
            stacklevel=4,
        )
        self._store.cut(step + 1)
        self.steps = step + 1

    def _facts(self, ended: Ended) -> TraceFacts:
        return recorded_facts(
            self.subset,
            self._head,
            self._live,
            self._recognised_loss(),
            ended,
            soft=self._visitors.soft,
            kept=self._store.kept,
            average=self._average,
            anchor=self._anchor,
            buffers=self._buffers,
        )

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._done, self._passes = [], True, Passes()
