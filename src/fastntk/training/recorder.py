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
training changes. What goes wrong after the first step never stops the loop: a warning is given, and ``Recorder.finish``
raises.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastntk.base.atomic import new_folder
from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.data.samples import as_ids
from fastntk.training.live_optimizer import Numbers, groups_of, numbers_of, recorded_groups, unwrapped, varying
from fastntk.training.losses import OWN, PathLoss, check_loss, fingerprint, recognised
from fastntk.training.network import check_precision
from fastntk.training.run import Run
from fastntk.training.trace import Trace, TraceFacts
from fastntk.training.trace_folder import read_trace, seal_trace
from fastntk.training.trace_writer import GRADIENTS_UP_TO, HALF_ABOVE, TraceWriter
from fastntk.tuning import Subset, find_head

FIT = 2e-2
"""How far the head's gradient may be from what ``loss`` gives, over its own length; ten times that in low precision."""
EXPECTED_STEPS = 1000
"""Steps for which the body's gradients should have room, where the loop does not say how many there will be."""
QUEUE = 16
"""Steps whose numbers may be on their way from the device at once."""


def record(
    model: nn.Module,
    subset: Subset,
    optimizer: Any,
    *,
    loss: Any,
    trace: bool | str | Path = True,
    average: Literal["batch", "step"] = "batch",
    steps: int | None = None,
    room: int = GRADIENTS_UP_TO,
) -> Recorder:
    """Record a loop of one's own. Call it before the first step: the subset's values are then the anchor.

    ``loss(logits, targets)``: the mean loss that the loop uses, a function or a name ("cross-entropy"). ``trace``: True keeps the
    record in memory, a path puts it into a new folder. ``average``: what a step of several accumulated batches is, the mean of
    their means, or the mean of all their samples. ``steps``: how many there will be, if known; with ``room`` (bytes) it decides
    how much of the body's path is kept, from the head inwards.
    """
    return Recorder(model, subset, optimizer, loss=loss, trace=trace, average=average, steps=steps, room=room)


@dataclass(eq=False)
class _Part:
    """One batch: who, towards what, and what was seen of it."""

    positions: Tensor
    targets: Tensor
    features: Tensor | None = None
    gradient: Tensor | None = None
    forwards: int = 0


@dataclass(eq=False)
class _Step:
    """One step on its way to the writer: numbers that may still be on the device."""

    positions: Tensor
    counts: list[int]
    targets: Tensor | None
    numbers: Numbers
    tensors: dict[str, Tensor]
    ready: Any = None


@dataclass(eq=False)
class _Known:
    """Samples seen so far, in the order in which they came."""

    places: dict[str, int] = field(default_factory=dict)
    labels: list[int] = field(default_factory=list)
    epoch: set[int] = field(default_factory=set)


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
        average: Literal["batch", "step"],
        steps: int | None,
        room: int,
    ) -> None:
        _check_setting(model, subset, trace, average)
        check_precision(subset.parameters.items())
        self._optimizer = unwrapped(optimizer)
        self._names = groups_of(self._optimizer, model, subset)
        if _has_stepped(self._optimizer):
            raise InputError("This optimiser has taken steps already: call record before the first one.")
        name, self._head = find_head(model)
        prefix = f"{name}." if name else ""
        self._weight_name, self._bias_name = f"{prefix}weight", f"{prefix}bias"
        if self._weight_name not in subset.names or not self._head.weight.requires_grad:
            raise InputError(
                f"A trace follows the head while the rest moves little, and the head ({self._weight_name}) is not tuned. "
                "Tune it as well: tune(model, '…+head')."
            )
        if self._bias_name in subset.names and not subset.parameters[self._bias_name].requires_grad:
            raise InputError(f"The head's bias ({self._bias_name}) is in the subset but frozen: tune the weight alone.")
        self.model, self.subset, self._parameters = model, subset, subset.parameters
        self._anchor = subset.get()
        self._given_loss, self._average, self._room = loss, average, room
        check_loss(loss)
        self._loss: PathLoss | None = None
        self._body = tuple(each for each in subset.names if each not in (self._weight_name, self._bias_name))
        self._kept = self._with_room(steps)
        self._writer: TraceWriter | None = None
        self._target = None if trace is True else Path(str(trace)).absolute()
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        if self._target is not None:
            self._folder = self._stack.enter_context(new_folder(self._target))
            self._folder.chmod(0o700)
            self._abandoned = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._buffers = {each: buffer.clone() for each, buffer in model.named_buffers()}
        self._known = _Known()
        self._open: _Part | None = None
        self._pending: list[_Part] = []
        self._queue: list[_Step] = []
        self._measures: list[Tensor] = []
        self._options: list[Numbers] = []
        self._prepared: _Step | None = None
        self._epoch_due, self.epochs, self.steps = True, 0, 0
        self._soft, self._low = False, False
        self._broken: str | None = None
        self._done = False
        self._version = self._versions()
        self._members = [id(each) for group in self._optimizer.param_groups for each in group["params"]]
        own = {id(parameter) for parameter in self._parameters.values()}
        self._others = [each for group in self._optimizer.param_groups for each in group["params"] if id(each) not in own]
        self._usual = torch.ones(())
        self._fingerprint: tuple[float, ...] | None = None
        self._handles: list[Any] = [
            self._head.register_forward_pre_hook(PassiveHook(self._saw_features)),
            self._head.weight.register_hook(self._saw_gradient),
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
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
        self._open = part
        try:
            yield
        except BaseException:
            # What this batch began was not finished; steps before it stand. A gradient that it left counts, until it is cleared.
            self._pending = [each for each in self._pending if each is not part or each.gradient is not None]
            self._open = None
            raise
        self._open = None
        if part is not None and self._broken is None and part.forwards == 0:
            self._pending = [each for each in self._pending if each is not part]
            self._fail(
                f"a batch of {len(part.positions)} samples was announced, but the head saw no images inside the with-block "
                "(with gradients enabled): put forward, backward and step into it"
            )

    def epoch(self) -> None:
        """A new epoch begins. Not needed where every sample is seen once an epoch: then it is noticed."""
        self._epoch_due = True

    def finish(self, samples: Samples | None = None) -> Run:
        """The run: model, subset, anchor and the recorded path. ``samples``: images, where something will need them."""
        if self._done:
            reason = "" if self._broken is None else f" This training could not be recorded: {self._broken.rstrip('.')}."
            raise InputError(f"This recorder was finished before.{reason}")
        if self._broken is None:
            self._listed(samples)  # what is wrong with them is said before anything ends
        try:
            self._check_end()
            trace = self._sealed(samples)
        except BaseException:
            self.close()
            raise
        self._release()
        return Run(self.model, self.subset, self._anchor, samples, trace=trace)

    def close(self) -> None:
        """Let go of model and optimiser and keep nothing; not needed after ``finish``."""
        self._release()
        if self._writer is not None:
            self._writer.close()
        with contextlib.suppress(_Abandoned):
            self._stack.__exit__(_Abandoned, _Abandoned(), None)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if not self._done:
            self.close()

    # What the hooks see

    def _entered(self, ids: Any, targets: Tensor) -> _Part:
        if ids is None or targets is None:
            raise InputError("a batch needs ids and targets: recorder.batch(ids, targets), one of each for every sample.")
        try:
            targets, names = torch.as_tensor(targets).detach().clone(), as_ids(ids)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"ids and targets must be sequences or tensors, one entry a sample: {error}") from error
        if not targets.is_floating_point():
            targets = targets.long()
        if targets.dim() == 0:
            raise InputError("targets must be labels (B,) or soft targets (B, C); got a single number.")
        if len(names) != len(targets):
            raise InputError(f"{len(names)} ids for {len(targets)} targets: give one id a sample.")
        soft = targets.is_floating_point()
        if (targets.dim() != (2 if soft else 1)) or (self.steps + len(self._pending) and soft != self._soft):
            raise InputError(
                f"targets must be labels (B,) of integers, or soft targets (B, C), the same kind in all batches; got "
                f"{targets.dtype} {tuple(targets.shape)}."
            )
        self._soft = soft
        if self._versions() != self._version:
            raise InputError(
                "the tuned parameters were changed since the last recorded step, by something else than this optimiser's step "
                "inside a batch: another optimiser, a loaded checkpoint, averaged weights"
            )
        return _Part(self._places(names, targets), targets)

    def _places(self, names: tuple[str, ...], targets: Tensor) -> Tensor:
        """Positions by order of first appearance; notices a new epoch, and a sample whose label is another one now."""
        known = self._known
        labels = (targets.argmax(1) if targets.is_floating_point() else targets).tolist()
        wrong = [name for name, label in zip(names, labels) if not 0 <= label < self._head.weight.shape[0]]
        if wrong:
            raise InputError(f"targets of {listing(wrong)} are not classes 0…{self._head.weight.shape[0] - 1} of this head.")
        positions = []
        for name, label in zip(names, labels):
            place = known.places.setdefault(name, len(known.places))
            if place == len(known.labels):
                known.labels.append(label)
            elif known.labels[place] != label and not self._soft:
                raise InputError(f"sample {name!r} had the label {known.labels[place]} before and has {label} now.")
            positions.append(place)
        if 2 * sum(place in known.epoch for place in positions) > len(positions):
            self._epoch_due = True
            known.epoch.clear()
        known.epoch.update(positions)
        return torch.tensor(positions)

    def _saw_features(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._open is not None and self._broken is None and torch.is_grad_enabled():
            with self._watched():
                self._take(self._open, args)

    def _take(self, part: _Part, args: tuple[Any, ...]) -> None:
        part.forwards += 1
        features = args[0].detach()
        if part.forwards > 1:
            self._fail("the head saw two forward passes with gradients in one batch: which one the step comes from is not known")
        elif features.dim() != 2:
            self._fail(f"a trace needs a head on flat features (B, H); this one is given {tuple(features.shape)}")
        elif len(features) != len(part.positions):
            self._fail(f"the head saw {len(features)} samples, but {len(part.positions)} ids were given for this batch")
        else:
            self._low |= features.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(features.device.type)
            part.features = features
            self._pending.append(part)

    def _saw_gradient(self, gradient: Tensor) -> None:
        if self._broken is not None or not self._pending:
            return
        part = self._pending[-1]
        before = self._head.weight.grad
        if part.gradient is None and len(self._pending) > 1 and (before is None or not bool(before.any())):
            self._pending = [part]  # the gradients of earlier batches were thrown away: a step that was skipped
        part.gradient = gradient.detach().clone() if part.gradient is None else part.gradient + gradient.detach()

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
        if [id(each) for group in self._optimizer.param_groups for each in group["params"]] != self._members:
            raise InputError("the optimiser has other parameters than at the start (add_param_group): that cannot be recorded")
        if any(each.grad is not None for each in self._others):
            raise InputError("a parameter that is not in the subset gets gradients now: tune it as well, or leave it frozen")
        if self._versions() != self._version:
            raise InputError("the tuned parameters were changed before the step, by something else than this optimiser")
        if self._bias_name in self._parameters and self._parameters[self._bias_name].grad is None and self._pending:
            raise InputError(f"the head's bias ({self._bias_name}) is tuned but gets no gradient: tune the weight alone")
        parts = [part for part in self._pending if part.gradient is not None]
        if not parts:
            what = "outside of `with recorder.batch(ids, targets)`" if not self._pending else "without a backward pass"
            self._fail(f"the optimiser took a step {what}: which samples it learnt from is not known")
            return
        with torch.no_grad():
            self._prepared = self._prepare(parts)

    def _prepare(self, parts: list[_Part]) -> _Step:
        """All that is known of a step before it is taken; its numbers stay on the device."""
        loss = self._recognised_loss()
        weight, unscale = self._head.weight, getattr(self._optimizer, "grad_scale", None)  # a fused step divides by it itself
        products, sizes = [], []
        for part in parts:
            assert part.features is not None
            features = part.features.to(weight.dtype)
            outputs = nn.functional.linear(features, weight, self._head.bias)
            products.append(loss.gradient(outputs, part.targets.to(outputs.device)).T @ features)
            sizes.append(features.norm())
        if weight.grad is None:
            raise InputError("the gradients were thrown away between the backward pass and the step: zero_grad() before it")
        live = weight.grad if unscale is None else weight.grad / unscale
        # Of every batch the factor that its loss had; beyond 64 most of it is a loss scaler's, a power of 2 taken back since.
        tiny = 8 * torch.finfo(weight.dtype).eps
        raw = torch.stack([part.gradient for part in parts if part.gradient is not None]).sum(0)
        plain = torch.stack([product.norm() > tiny * size for product, size in zip(products, sizes)])
        scales = torch.stack([_scale(part.gradient, product) for part, product in zip(parts, products)])
        total = torch.where(plain, scales, 0).sum()
        power = torch.where(total > 64, total.clamp_min(1).log2().round().exp2(), torch.ones_like(total))
        shares = torch.where(plain, scales / power, self._usual.to(scales))
        known = plain.any() & (raw.norm() > 0)
        clip = torch.where(known, power * _scale(live, raw), 1.0)
        model = torch.stack([share * product for share, product in zip(shares, products)]).sum(0)
        error = torch.where(known, (live - clip * model).norm() / live.norm().clamp_min(1e-30), 0.0)
        if self.steps == 0:
            self._check_first(float(error), float(live.norm()))
        usual = torch.where(plain, shares, 0).sum() / plain.sum().clamp_min(1)
        self._usual = torch.where(plain.any(), usual, self._usual.to(usual))
        writer = self._opened(parts[0])
        if self._epoch_due:
            self._drain()
            self._check_room()
            writer.epoch(self.subset.get())
            self._epoch_due, self.epochs = False, self.epochs + 1
        gradients = {name: self._parameters[name].grad for name in self._body}
        scale = clip if unscale is None else clip * unscale
        norm = torch.stack([grad.norm() for grad in gradients.values() if grad is not None] or [clip.new_zeros(())]).norm()
        bias = self._parameters[self._bias_name].grad if self._bias_name in self._parameters else None
        head = live.norm() if bias is None else torch.stack([live.norm(), bias.norm() / scale * clip]).norm()
        tensors = {"measures": torch.stack([clip, error, norm / scale, head / clip]).double(), "shares": shares.double()}
        tensors["features"] = torch.cat([part.features for part in parts if part.features is not None])
        if writer.keeps_gradients:
            flat = [self._flat(name, gradients[name]) for name in self._kept]
            tensors["gradient"] = torch.cat([self._anchor[:0], *flat]) / scale
        numbers = numbers_of(self._optimizer)
        return _Step(
            positions=torch.cat([part.positions for part in parts]),
            counts=[len(part.positions) for part in parts],
            targets=torch.cat([part.targets for part in parts]) if self._soft else None,
            numbers=numbers,
            tensors=tensors,
        )

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._version = self._versions()
        self._pending, prepared, self._prepared = [], self._prepared, None
        if prepared is None or self._broken is not None or self._done:
            return
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is not None and bool(overflow):
            return  # a fused step that a loss scaler made empty
        self.steps += 1
        with self._watched():
            self._queue.append(_leaving(prepared))
            while self._queue and (len(self._queue) > QUEUE or _arrived(self._queue[0])):
                self._write(self._queue.pop(0))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Whatever goes wrong in here is a failure of the recording, not of the loop."""
        try:
            yield
        except _Failed:
            raise
        except InputError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    # Helpers

    def _flat(self, name: str, gradient: Tensor | None) -> Tensor:
        parameter = self._parameters[name]
        return torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.detach().reshape(-1)

    def _with_room(self, steps: int | None) -> tuple[str, ...]:
        """Parameters of the body, from the head inwards, whose gradients fit into the room of this many steps."""
        allowed = self._room // (steps or EXPECTED_STEPS)
        kept: list[str] = []
        for name in reversed(self._body):
            allowed -= self._parameters[name].nbytes
            if allowed < 0:
                break
            kept.append(name)
        return tuple(name for name in self._body if name in set(kept))

    def _check_room(self) -> None:
        """Give up the body's path where it has no room any more, with the tuned parameters of one more epoch."""
        writer = self._writer
        assert writer is not None
        used = writer.nbytes("gradients") + writer.nbytes("weights") + self._anchor.nbytes
        if writer.keeps_gradients and self._body and used > 2 * self._room:
            writer.leave_body()
            self._kept = ()

    def _opened(self, part: _Part) -> TraceWriter:
        """The writer, made when the first features are here."""
        if self._writer is None:
            assert part.features is not None
            body = sum(self._parameters[name].numel() for name in self._kept)
            self._writer = TraceWriter(
                features=part.features.shape[1],
                body=body,
                width=self.subset.numel,
                dtype=self._anchor.dtype,
                half=part.features.dtype in (torch.float16, torch.bfloat16),
                gradients=bool(self._kept) or not self._body,
                folder=self._folder,
                soft=part.targets.shape[1] if self._soft else 0,
            )
        return self._writer

    def _recognised_loss(self) -> PathLoss:
        if self._loss is None:
            classes = self._head.weight.shape[0]
            self._loss = recognised(self._given_loss, classes, soft=self._soft, like=self._head.weight)
            if self._loss.name == OWN:
                self._fingerprint = fingerprint(self._loss, classes, soft=self._soft, like=self._head.weight)
        return self._loss

    def _write(self, step: _Step) -> None:
        writer = self._writer
        assert writer is not None
        tensors = step.tensors
        measures = tensors["measures"].cpu()
        self._measures.append(measures)
        self._options.append(self._options[-1] if self._options and self._options[-1] == step.numbers else step.numbers)
        rounding = max(1e-6, float(measures[1]))
        shares = [1.0 if abs(share - 1) <= rounding else share for share in tensors["shares"].cpu().tolist()]
        gradient = tensors.get("gradient") if writer.keeps_gradients else None
        if writer.keeps_gradients and gradient is None:
            gradient = self._anchor[:0]
        writer.step(
            step.positions,
            tensors["features"],
            gradient,
            rate=[group["lr"] for group in step.numbers],
            parts=list(zip(step.counts, shares)),
            targets=step.targets,
        )
        self._check_room()
        if writer.nbytes("features") > HALF_ABOVE and self._anchor.dtype == torch.float32:
            writer.narrow()

    def _drain(self) -> None:
        while self._queue:
            step = self._queue.pop(0)
            _wait(step)
            self._write(step)

    def _versions(self) -> tuple[int, ...]:
        return tuple(parameter._version for parameter in self._parameters.values())

    def _fail(self, reason: str) -> None:
        """Before the first step is recorded: an error at once. Later the loop goes on, and ``finish`` raises."""
        if self.steps == 0:
            self._broken = reason
            self.close()
            raise _Failed(f"Recording: {reason.rstrip('.')}.")
        self._broken = reason
        self._pending = []
        warnings.warn(
            f"fastntk stopped recording after step {self.steps}: {reason.rstrip('.')}. The training goes on; there will be no "
            "trace.",
            stacklevel=3,
        )

    def _check_first(self, error: float, length: float) -> None:
        if error > FIT * (10 if self._low else 1) and length > 0:
            self._fail(
                f"the gradient that reached the head's weight is not that of loss(logits, targets): {100 * error:.0f} % of it is "
                "something else. loss must be the mean loss that the loop uses, its targets those given to batch(), and nothing "
                "may follow the head (a factor, a second head, a penalty on its weight)"
            )

    def _check_end(self) -> None:
        if self._broken is not None:
            raise InputError(f"This training could not be recorded: {self._broken.rstrip('.')}.")
        if self.steps == 0:
            raise InputError(
                "No step was recorded: put the loop's forward, backward and step into `with recorder.batch(ids, targets)`."
            )
        waiting = len(self._pending)
        if self._versions() != self._version:
            raise InputError(
                "The tuned parameters were changed after the last recorded step, by something else than this optimiser (another "
                "optimiser, a loaded checkpoint, averaged weights): the recorded path does not lead to them."
            )
        if waiting:
            warnings.warn(
                f"{waiting} batches at the end had no step of the optimiser: they are not part of the recorded path.",
                stacklevel=3,
            )

    def _sealed(self, samples: Samples | None) -> Trace:
        self._drain()
        writer = self._writer
        assert writer is not None
        writer.epoch(self.subset.get())
        listed, relabel = self._listed(samples)
        measures = torch.stack(self._measures)
        clips, most = _clipping(measures)
        self._check_fit(measures[:, 1])
        trace, digests = writer.finish(
            self._facts(writer, most),
            listed,
            relabel=relabel,
            clips=clips,
            norms=measures[:, 2],
            varying=varying(self._options),
            function=self._loss.function if self._loss is not None else None,
        )
        if self._folder is None:
            return trace
        assert self._target is not None
        seal_trace(trace, self._folder, digests)
        self._stack.close()
        function = trace.function
        stored = read_trace(self._target, verify=False)
        return stored if function is None else stored.with_loss(function)

    def _check_fit(self, errors: Tensor) -> None:
        middle = float(errors.median())
        if middle > FIT * (10 if self._low else 1):
            raise InputError(
                f"The gradients that reached the head are not those of the loss given: {100 * middle:.0f} % of them is something "
                "else. A replay by this record would not follow the training."
            )

    def _listed(self, samples: Samples | None) -> tuple[Samples, Tensor | None]:
        """Who was seen, as the trace lists them, and where each recorded position is in it."""
        ids, labels = tuple(self._known.places), torch.tensor(self._known.labels)
        classes = self._head.weight.shape[0]
        if samples is None:
            return Samples(torch.empty(len(ids), 0), labels, ids=ids).counting(classes), None
        places = samples.index_of(ids)
        others = [ids[k] for k in (samples.labels.cpu()[places] != labels).nonzero().flatten().tolist()]
        if others and not self._soft:
            raise InputError(f"The samples given to finish have other labels than the loop used: {listing(others)}.")
        return samples.counting(max(classes, samples.num_classes)) if samples.classes is None else samples, places

    def _facts(self, writer: TraceWriter, most: float | None) -> TraceFacts:
        loss = self._loss
        assert loss is not None
        before = self._buffers
        moved = [name for name, now in self.model.named_buffers() if name not in before or not torch.equal(now, before[name])]
        kept = self._kept if writer.keeps_gradients else ()
        return TraceFacts(
            classes=self._head.weight.shape[0],
            features=self._head.weight.shape[1],
            head_weight=self._weight_name,
            head_bias=self._bias_name if self._bias_name in self.subset.names else None,
            body=kept,
            left=tuple(name for name in self._body if name not in set(kept)),
            optimizer=type(self._optimizer).__name__,
            groups=recorded_groups(self._optimizer, self._names),
            penalty=0.0,
            loss=loss.name,
            smoothing=loss.smoothing,
            anchor=tensor_digest(self._anchor),
            trained=tensor_digest(self.subset.get()),
            average=self._average,
            max_norm=most,
            fingerprint=self._fingerprint,
            buffers=tuple(moved),
            mode="recorded",
        )

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._done, self._open, self._pending = [], True, None, []
        if self._target is not None:
            self._abandoned.detach()


class _Failed(InputError):
    """Said already."""


class PassiveHook:
    """A hook by a method, with some arguments before those of the call. It does not keep the method's object alive, and a copy of
    the model, or a file of it, has an empty one."""

    def __init__(self, method: Callable[..., Any] | None = None, *before: Any) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)
        self._before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method says; None once its object is gone."""
        method = None if self._method is None else self._method()
        return None if method is None else method(*self._before, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return PassiveHook, ()


class _Abandoned(BaseException):
    """Tells the new folder that it will not be finished."""


def _check_setting(model: nn.Module, subset: Subset, trace: Any, average: Any) -> None:
    if subset.model is not model:
        raise InputError("record: the subset belongs to another model. Use tune(model, spec) on the model that is trained.")
    if trace is not True and not isinstance(trace, str | Path):
        raise InputError(f"trace must be True (in memory) or a new folder; got {trace!r}.")
    if average not in ("batch", "step"):
        raise InputError(f"average must be 'batch' or 'step'; got {average!r}.")
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise InputError(
            "Recording sees one process's share of every batch, and this training runs in several. Record a run of one process."
        )


def _has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Some optimisers have a state from the start; a step counts in it, or fills it."""
    if type(optimizer).__name__ == "Adagrad":
        return any(float(state.get("step", 0)) > 0 for state in optimizer.state.values())
    return bool(optimizer.state)


def _scale(seen: Tensor | None, product: Tensor) -> Tensor:
    """The factor c for which c·product is nearest to what was seen."""
    assert seen is not None
    return (seen * product).sum() / product.square().sum().clamp_min(1e-30)


def _clipping(measures: Tensor) -> tuple[Tensor, float | None]:
    """Factors (S,), exactly 1 where they are so but for rounding; and the norm that gradients were clipped to, where there is
    one."""
    clips, errors, norms, head = measures.unbind(1)
    plain = (clips - 1).abs() <= errors.clamp_min(1e-6)
    clips = torch.where(plain, torch.ones_like(clips), clips)
    clipped = ~plain
    if not bool(clipped.any()) or bool((clips > 1).any()):
        return clips, None
    whole = (norms.square() + head.square()).sqrt() + 1e-6  # clip_grad_norm_ adds as much to the norm that it divides by
    reached = clips[clipped] * whole[clipped]
    most = float(reached.median())
    same = float(reached.std(correction=0)) <= 1e-2 * most and not bool((whole[plain] > 1.01 * most).any())
    return clips, most if same else None


def _leaving(step: _Step) -> _Step:
    """Start the way of a step's numbers from a GPU to the host; the loop does not wait for them."""
    if not any(tensor.is_cuda for tensor in step.tensors.values()):
        return step
    moved = {}
    for name, tensor in step.tensors.items():
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        moved[name] = host
    step.tensors, step.ready = moved, torch.cuda.Event()
    step.ready.record()
    return step


def _arrived(step: _Step) -> bool:
    return step.ready is None or bool(step.ready.query())


def _wait(step: _Step) -> None:
    if step.ready is not None:
        step.ready.synchronize()
