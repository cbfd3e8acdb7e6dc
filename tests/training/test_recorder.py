"""The recorder in loops of other people: what it takes from the live objects, replayed, against the same loop without samples."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.training.losses import recognised
from fastntk.training.measured_step import clipping
from fastntk.training.path_store import EXPECTED_STEPS
from fastntk.training.recorder import Recorder
from fastntk.training.trace_folder import read_trace

N, CLASSES = 24, 3
Loss = Callable[[Tensor, Tensor], Tensor]


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, list[str]]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(N, 5, generator=generator, dtype=dtype),
        torch.arange(N) % CLASSES,
        [f"img/{k:02d}.png" for k in range(N)],
    )


def network(*, dropout: float = 0.0, body: bool = False, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, CLASSES)).to(dtype)


def batches(epoch: int, keep: set[int], size: int = 6) -> Iterator[list[int]]:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(100 + epoch)).tolist()
    for start in range(0, N, size):
        yield [k for k in order[start : start + size] if k in keep]


class Loop:
    """A training as users write them: noise on the images, own batches, warm-up, clipping, accumulation."""

    noise = 0.1

    def __init__(
        self,
        optimizer: Callable[[list[nn.Parameter], list[nn.Parameter]], torch.optim.Optimizer],
        *,
        spec: str = "head",
        loss: Loss = nn.functional.cross_entropy,
        clip: float | None = None,
        accumulate: int = 1,
        soft: bool = False,
        epochs: int = 3,
        dtype: torch.dtype = torch.float64,
        schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    ) -> None:
        self.optimizer, self.spec, self.loss, self.clip, self.accumulate = optimizer, spec, loss, clip, accumulate
        self.soft, self.epochs, self.dtype, self.schedule = soft, epochs, dtype, schedule

    def __call__(self, gone: Sequence[int] = (), **record: Any) -> tuple[nn.Module, fastntk.Subset, fastntk.Run | None]:
        images, labels, ids = data(self.dtype)
        model = network(dtype=self.dtype).train()
        subset = fastntk.tune(model, self.spec)
        parameters = list(subset.parameters.values())
        optimizer = self.optimizer(parameters[:-1], parameters[-1:])
        scheduler = (
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
            if self.schedule is None
            else self.schedule(optimizer)
        )
        recorder = fastntk.record(model, subset, optimizer, loss=self.loss, **record) if record else None
        keep = set(range(N)) - set(gone)
        for epoch in range(self.epochs):
            noise = self.noise * torch.randn(N, 5, generator=torch.Generator().manual_seed(epoch), dtype=self.dtype)
            optimizer.zero_grad()
            for number, batch in enumerate(batches(epoch, keep)):
                last = (number + 1) % max(1, round(self.accumulate)) == 0 or number == N // 6 - 1
                if batch:
                    targets = labels[batch]
                    if self.soft:
                        targets = nn.functional.one_hot(targets, CLASSES).to(images) * 0.7 + 0.1
                    with recorder.batch([ids[k] for k in batch], targets) if recorder else torch.enable_grad():
                        (self.loss(model((images + noise)[batch]), targets) / self.accumulate).backward()
                        if last:
                            if self.clip is not None:
                                nn.utils.clip_grad_norm_(parameters, self.clip)
                            optimizer.step()
                            optimizer.zero_grad()
                if last:
                    scheduler.step()
        run = None
        if recorder is not None:
            run = recorder.finish(fastntk.Samples(images, labels, ids=ids))
        return model.eval(), subset, run


def two_groups(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[..., torch.optim.Optimizer]:
    """The last parameter (the bias) in a group of its own, as many loops exempt it from weight decay."""

    def make(first: list[nn.Parameter], last: list[nn.Parameter]) -> torch.optim.Optimizer:
        decay = {} if kind is torch.optim.Rprop else {"weight_decay": 0.05}
        none = {} if kind is torch.optim.Rprop else {"weight_decay": 0.0}
        return kind([{"params": first, **decay}, {"params": last, "lr": 0.02, **none}], **{"lr": 0.05} | options)  # type: ignore[call-arg]

    return make


def difference(loop: Loop, gone: Sequence[int], depth: Any = "head") -> tuple[float, float]:
    """How far a request ends from the same loop without these samples, and how far that is from the training."""
    _, _, run = loop(trace=True)
    assert run is not None
    result = fastntk.unlearn(run, ids=[run.listed.ids[k] for k in gone], method="path-replay", depth=depth)
    _, subset, _ = loop(gone)
    wanted = subset.get()
    return float((run.subset.get() + result.delta - wanted).norm()), float((run.subset.get() - wanted).norm())


ADAMW = two_groups(torch.optim.AdamW, betas=(0.8, 0.95))
LOOPS: dict[str, Loop] = {
    "AdamW": Loop(ADAMW),
    "SGD": Loop(two_groups(torch.optim.SGD, momentum=0.9, nesterov=True)),
    "NAdam": Loop(two_groups(torch.optim.NAdam)),
    "RMSprop": Loop(two_groups(torch.optim.RMSprop, lr=0.01)),
    "Adafactor": Loop(two_groups(torch.optim.Adafactor, lr=0.01)),
    "clipping": Loop(ADAMW, clip=0.2),
    "clipping now and then": Loop(ADAMW, clip=0.55),
    "accumulation": Loop(ADAMW, accumulate=2),
    "accumulation and clipping": Loop(ADAMW, accumulate=2, clip=0.2),
    "smoothing": Loop(ADAMW, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    "soft targets": Loop(ADAMW, soft=True),
    "class weights": Loop(ADAMW, loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))),
    "a margin loss": Loop(ADAMW, loss=lambda o, t: nn.functional.multi_margin_loss(o, t, p=2), accumulate=2),
    "Adagrad": Loop(two_groups(torch.optim.Adagrad, initial_accumulator_value=0.5)),
    "Adagrad with an option that torch passes over": Loop(
        lambda first, last: torch.optim.Adagrad(
            [{"params": first, "initial_accumulator_value": 0.7}, {"params": last}], lr=0.05, initial_accumulator_value=0.2
        )
    ),
    "a margin that is met": Loop(ADAMW, loss=lambda o, t: nn.functional.multi_margin_loss(o, t, margin=0.05), epochs=6),
    "twice the loss, clipped": Loop(ADAMW, loss=lambda o, t: 2 * nn.functional.cross_entropy(o, t), clip=0.5),
    "a sum": Loop(ADAMW, loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum") / 6, clip=0.3),
    "momentum that cycles": Loop(
        two_groups(torch.optim.AdamW),
        schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=12),
    ),
}


@pytest.mark.parametrize("gone", [[0, 3, 6, 9, 12, 15, 18, 21], [4], [1, 2, 7, 11, 20]], ids=["class", "one", "some"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_replay_of_a_loop_with_its_head_alone_tuned_is_that_loop_without_the_samples(name: str, gone: list[int]) -> None:
    missed, moved = difference(LOOPS[name], gone)
    assert moved > 1e-2
    assert missed < 1e-10 * max(1.0, moved)


def test_a_limit_of_clipping_that_no_step_reached_can_be_stated() -> None:
    """Without some samples a gradient may be longer than any in the record."""
    gone = [0, 3, 6, 9, 12, 15, 18, 21]
    told_apart = 0
    for limit in torch.linspace(0.6, 1.2, 31).tolist():
        loop = Loop(ADAMW, clip=limit)
        known, unknown = loop(trace=True, max_norm=limit)[2], loop(trace=True)[2]
        if bool((known.trace.clips < 1).any()):
            continue
        wanted = loop(gone)[1].get()
        missed = [
            float((fastntk.unlearn(run, ids=[run.listed.ids[k] for k in gone], depth="head").subset.get() - wanted).norm())
            for run in (known, unknown)
        ]
        assert (known.trace.facts.max_norm, unknown.trace.facts.max_norm) == (limit, None)
        assert missed[0] < 1e-10
        told_apart += missed[1] > 1e-4
    assert told_apart


def test_a_limit_of_clipping_that_the_steps_contradict() -> None:
    with pytest.warns(UserWarning, match=r"max_norm=0.9 was stated, .* clipped to a norm of 0.55"):
        run = Loop(ADAMW, clip=0.55)(trace=True, max_norm=0.9)[2]
    assert run.trace.facts.max_norm == pytest.approx(0.55, rel=1e-4)
    with pytest.warns(UserWarning, match=r"max_norm=0.1 was stated, .* no clipping, with norms up to") as said:
        run = Loop(ADAMW)(trace=True, max_norm=0.1)[2]
    assert [warning.filename for warning in said] == [__file__], "where finish was called"
    assert run.trace.facts.max_norm is None
    for odd in (0.0, -1, math.nan, True, "1"):
        with pytest.raises(InputError, match="max_norm is the limit"):
            Loop(ADAMW)(trace=True, max_norm=odd)


@pytest.mark.filterwarnings("error")
def test_a_limit_is_not_contradicted_by_steps_of_low_precision() -> None:
    """By how much they were clipped is uncertain there (the second number), to what norm is not."""
    before = torch.tensor([0.7, 1.01, 1.02, 1.04], dtype=torch.float64)
    clips = (1 / before).clamp_max(1)
    measures = torch.stack([clips, torch.full_like(clips, 0.05), torch.zeros_like(clips), before], 1)
    assert clipping(measures, 1.0)[1] == 1.0
    measures[3, 0], measures[3, 3] = 0.5, 2.0  # and one that is clipped for certain
    assert clipping(measures, 1.0)[1] == 1.0
    assert clipping(measures)[1] == pytest.approx(1.0, rel=1e-4)


def test_a_stated_limit_is_stored_and_no_limit_is_none(tmp_path: Path) -> None:
    """``clip_grad_norm_(parameters, inf)`` is how one reads the norm."""
    loop = Loop(ADAMW, clip=5.0)
    assert loop(trace=True, max_norm=math.inf)[2].trace.facts.max_norm is None
    run = loop(trace=tmp_path / "trace", max_norm=5.0)[2]
    assert read_trace(tmp_path / "trace").facts.max_norm == run.trace.facts.max_norm == 5.0
    assert Loop(ADAMW, clip=0.55)(trace=True, max_norm=0.55)[2].trace.facts.max_norm == 0.55


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_a_factor_of_the_loss_is_told_from_clipping(factor: float, clip: float | None) -> None:
    """The loop multiplies the loss that it names; accumulation that is not divided does so too."""

    class Scaled(Loop):
        def __call__(self, gone: Sequence[int] = (), **record: Any) -> Any:
            self.accumulate = 2 / factor  # type: ignore[assignment]
            return super().__call__(gone, **record)

    for loop in (Scaled(ADAMW, clip=clip), Loop(ADAMW, accumulate=3, clip=clip)):
        missed, moved = difference(loop, [0, 3, 6, 9])
        assert moved > 1e-2
        assert missed < 1e-9


def test_and_in_single_precision() -> None:
    missed, moved = difference(Loop(ADAMW, clip=0.4, accumulate=2, dtype=torch.float32), [4, 5, 6])
    assert missed < 1e-5
    assert moved > 1e-2


def test_options_are_those_of_the_live_objects() -> None:
    *_, run = LOOPS["momentum that cycles"](trace=True)
    trace = run.trace
    assert trace.facts.optimizer == "AdamW"
    assert [group.names for group in trace.facts.groups] == [("4.weight",), ("4.bias",)]
    assert [group.options["weight_decay"] for group in trace.facts.groups] == [0.05, 0.0]
    assert set(trace.varying) == {"betas.0"}
    assert (trace.steps, trace.epochs, trace.visits, len(trace.listed)) == (12, 3, 72, N)
    *_, run = LOOPS["clipping now and then"](trace=True)
    clips = run.trace.clips
    assert 0 < int((clips < 1).sum()) < len(clips)
    assert run.trace.facts.max_norm == pytest.approx(0.55, rel=1e-4)
    *_, run = LOOPS["smoothing"](trace=True)
    assert (run.trace.facts.loss, run.trace.facts.smoothing) == ("cross-entropy", 0.1)
    *_, run = LOOPS["accumulation"](trace=True)
    assert run.trace.steps == 6
    assert run.trace.shares.tolist() == pytest.approx([0.5] * 12)


@pytest.mark.parametrize("spec", ["head", "norm+head", "all"])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_the_recorder_changes_no_byte(spec: str, where: str, tmp_path: Path) -> None:
    loop = Loop(ADAMW, spec=spec, clip=0.3, accumulate=2, dtype=torch.float32)
    plain, *_ = loop()
    recorded, *_ = loop(trace=True if where == "memory" else tmp_path / "trace")
    for (name, first), second in zip(plain.state_dict().items(), recorded.state_dict().values()):
        assert torch.equal(first, second), name


@pytest.mark.parametrize("depth", ["head", 1, "all"])
def test_an_empty_request_moves_nothing(depth: Any) -> None:
    *_, run = Loop(ADAMW, spec="norm+head", clip=0.3, accumulate=2)(trace=True)
    result = fastntk.unlearn(run, ids=[], method="path-replay", depth=depth)
    assert float(result.delta.abs().max()) < 1e-13


@pytest.mark.parametrize("name", ["AdamW", "clipping now and then", "accumulation and clipping", "soft targets"])
def test_a_second_request_on_the_new_trace_is_the_two_at_once(name: str) -> None:
    *_, run = LOOPS[name](trace=True)
    first = fastntk.unlearn(run, ids=[run.listed.ids[k] for k in (2, 9)], method="path-replay", depth="head").as_run()
    second = fastntk.unlearn(first, ids=[run.listed.ids[k] for k in (5, 13)], method="path-replay", depth="head")
    _, subset, _ = LOOPS[name]([2, 9, 5, 13])
    assert torch.allclose(first.subset.get() + second.delta, subset.get(), rtol=0, atol=1e-10)


def test_the_body_is_replayed_too() -> None:
    """Deeper depths come nearer to the same loop without the samples, noise on the images and clipping and all."""
    loop = Loop(two_groups(torch.optim.AdamW, lr=0.01), spec="norm+head", clip=1.0, epochs=6)
    (head, moved), (whole, _) = (difference(loop, [0, 3, 6, 9, 12], depth) for depth in ("head", "all"))
    assert whole < head < moved


def test_a_trace_in_a_folder_serves_without_images(tmp_path: Path) -> None:
    ids = data()[2]
    _, _, run = LOOPS["clipping"](trace=tmp_path / "trace")
    assert run is not None
    run.save(tmp_path / "run")
    model = network().eval()
    loaded = fastntk.Run.load(tmp_path / "run", model=model)
    assert loaded.samples is None
    result = fastntk.unlearn(loaded, ids=[ids[4]])
    assert result.details["method"] == "path-replay"
    _, subset, _ = LOOPS["clipping"]([4])
    assert torch.allclose(loaded.subset.get() + result.delta, subset.get(), rtol=0, atol=1e-10)


def test_a_loss_of_ones_own_is_asked_for_again(tmp_path: Path) -> None:
    loop = LOOPS["class weights"]
    *_, run = loop(trace=True)
    assert run.trace.facts.loss == "own"
    run.save(tmp_path / "run")
    loaded = fastntk.Run.load(tmp_path / "run", model=network())
    with pytest.raises(fastntk.InputError, match=r"Run.load\(folder, loss=function\)"):
        fastntk.unlearn(loaded, ids=[run.listed.ids[4]], method="path-replay", depth="head")
    with pytest.raises(fastntk.InputError, match="other values on the same logits"):
        fastntk.Run.load(tmp_path / "run", model=network(), loss=nn.functional.cross_entropy)
    loaded = fastntk.Run.load(tmp_path / "run", model=network(), loss=loop.loss)
    result = fastntk.unlearn(loaded, ids=[run.listed.ids[4]], method="path-replay", depth="head")
    _, subset, _ = loop([4])
    assert torch.allclose(loaded.subset.get() + result.delta, subset.get(), rtol=0, atol=1e-10)


def test_autocast_takes_features_as_the_head_saw_them() -> None:
    images, labels, ids = data(torch.float32)
    model = network(dtype=torch.float32)
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    recorder = fastntk.record(model, subset, optimizer, loss=nn.functional.cross_entropy)
    for epoch in range(3):
        for batch in batches(epoch, set(range(N))):
            with recorder.batch([ids[k] for k in batch], labels[batch]):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    run = recorder.finish()
    assert run.trace.features.dtype == torch.float16
    assert run.trace.clips.tolist() == pytest.approx([1.0] * 12, abs=0.05)
    result = fastntk.unlearn(run, ids=[ids[3]])
    assert result.details["validity"]["replay_miss"] < 0.05


def test_a_step_that_the_loss_scaler_skips_is_not_part_of_the_path() -> None:
    images, labels, ids = data()
    model = network()
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss="cross-entropy")
    for number, batch in enumerate(batches(0, set(range(N)))):
        with recorder.batch([ids[k] for k in batch], labels[batch]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            if number != 1:
                optimizer.step()
    run = recorder.finish()
    assert (run.trace.steps, run.trace.visits) == (3, 18)
    assert run.trace.parts is None


def test_a_closure_is_looked_at_when_it_was_called() -> None:
    images, labels, ids = data()
    model, optimizer, recorder = started()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[:6]), labels[:6])
        loss.backward()
        nn.utils.clip_grad_norm_(model[-1].parameters(), 0.1)
        return loss

    with recorder.batch(ids[:6], labels[:6]):
        value = optimizer.step(closure)
    assert value > 0
    run = recorder.finish()
    assert run.trace.steps == 1
    assert float(run.trace.clips[0]) < 0.9


# Wrong use


def started(**record: Any) -> tuple[nn.Module, torch.optim.Optimizer, Recorder]:
    model = network()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=0.02)
    return model, optimizer, fastntk.record(model, subset, optimizer, **{"loss": nn.functional.cross_entropy} | record)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder, batch: list[int], **wrong: Any) -> None:
    images, labels, ids = data()
    with recorder.batch(wrong.get("ids", [ids[k] for k in batch]), wrong.get("targets", labels[batch])):
        optimizer.zero_grad()
        for _ in range(wrong.get("forwards", 1)):
            outputs = model(images[batch])
        nn.functional.cross_entropy(outputs * wrong.get("factor", 1), labels[batch]).backward()
        optimizer.step()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fewer ids than targets": ({"ids": ["a", "b"]}, "2 ids for 6 targets"),
    "fewer ids and targets than images": ({"ids": ["a", "b"], "targets": torch.tensor([0, 1])}, "saw 6 samples, but 2 ids"),
    "two forwards": ({"forwards": 2}, "two forward passes"),
    "no ids": ({"ids": []}, "0 ids for 6 targets"),
    "ids that are none": ({"ids": None}, "needs ids and targets"),
    "targets of strings": ({"targets": ["a"] * 6}, "must be sequences or tensors"),
    "float labels": ({"targets": torch.zeros(6)}, "labels .* of integers, or soft targets"),
    "labels beyond the head": ({"targets": torch.full((6,), 7)}, "not classes 0…2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_at_the_first_step_is_an_error_and_nothing_moves(name: str) -> None:
    wrong, message = WRONG[name]
    model, optimizer, recorder = started()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(fastntk.InputError, match=message):
        one_step(model, optimizer, recorder, list(range(6)), **wrong)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with pytest.raises(fastntk.InputError, match="finished"):
        recorder.finish()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_later_never_stops_the_training(name: str) -> None:
    """It goes on as if it were not recorded, with a warning; finish says what was wrong."""
    wrong, message = WRONG[name]
    models = []
    for use in ({}, wrong):
        model, optimizer, recorder = started()
        one_step(model, optimizer, recorder, list(range(6)))
        if use:
            with pytest.warns(UserWarning, match=message):
                one_step(model, optimizer, recorder, list(range(6, 12)), **use)
        else:
            one_step(model, optimizer, recorder, list(range(6, 12)))
        one_step(model, optimizer, recorder, list(range(12, 18)))
        models.append(model.state_dict())
        if use:
            with pytest.raises(fastntk.InputError, match=message):
                recorder.finish()
    assert all(torch.equal(models[0][key], value) for key, value in models[1].items())


def test_a_loss_that_is_not_the_loops_is_noticed() -> None:
    for record, wrong in (
        ({"loss": lambda o, t: nn.functional.multi_margin_loss(o, t)}, {}),
        ({}, {"factor": -3}),
        ({"loss": lambda o, t: nn.functional.cross_entropy(o, (t + 1) % CLASSES)}, {}),
    ):
        model, optimizer, recorder = started(**record)
        with pytest.raises(fastntk.InputError, match="not that of loss"):
            one_step(model, optimizer, recorder, list(range(6)), **wrong)


def test_a_step_without_a_batch_and_another_optimiser_are_noticed() -> None:
    images, labels, _ = data()
    model, optimizer, recorder = started()
    nn.functional.cross_entropy(model(images), labels).backward()
    with pytest.raises(fastntk.InputError, match=r"outside of `with recorder\.batch"):
        optimizer.step()
    model, optimizer, recorder = started()
    one_step(model, optimizer, recorder, list(range(6)))
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    one_step(model, other, recorder, list(range(6, 12)))
    with pytest.warns(UserWarning, match="another optimiser"):
        one_step(model, other, recorder, list(range(12, 18)))
    with pytest.raises(fastntk.InputError, match="another optimiser"):
        recorder.finish()
    model, optimizer, recorder = started()
    one_step(model, optimizer, recorder, list(range(6)))
    with torch.no_grad():
        next(iter(recorder.subset.parameters.values())).mul_(2)
    with pytest.raises(fastntk.InputError, match="changed after the last recorded step"):
        recorder.finish()


def test_a_loop_that_ends_by_an_exception_leaves_what_it_had(tmp_path: Path) -> None:
    model, optimizer, recorder = started(trace=tmp_path / "trace")
    one_step(model, optimizer, recorder, list(range(6)))
    with pytest.raises(KeyboardInterrupt), recorder.batch(["x"], torch.tensor([0])):
        raise KeyboardInterrupt
    run = recorder.finish()
    assert (run.trace.steps, run.trace.visits) == (1, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    model, optimizer, recorder = started(trace=tmp_path / "other")
    one_step(model, optimizer, recorder, list(range(6)))
    with pytest.raises(ZeroDivisionError), recorder:
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    assert not optimizer._optimizer_step_pre_hooks
    assert not model[-1]._forward_pre_hooks


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    model = network()
    loss = nn.functional.cross_entropy

    def refused(message: str, spec: str, optimizer: Any, **record: Any) -> None:
        subset = fastntk.tune(model, spec)
        made = optimizer(subset) if callable(optimizer) else optimizer
        with pytest.raises(fastntk.InputError, match=message):
            fastntk.record(model, subset, made, **{"loss": loss} | record)

    def sgd(subset: fastntk.Subset) -> torch.optim.Optimizer:
        return torch.optim.SGD(subset.parameters.values(), lr=0.1)

    refused(r"head \(4.weight\) is not tuned", "norm", sgd)
    refused("does not have 1 of the tuned", "head", lambda subset: torch.optim.SGD([model[4].weight], lr=0.1))
    refused("'LBFGS' cannot be rebuilt", "head", lambda subset: torch.optim.LBFGS(subset.parameters.values()))
    refused("must be one of torch.optim", "head", "SGD")
    foreign = type("Foreign", (torch.optim.SGD,), {"__module__": "elsewhere"})
    refused("elsewhere.Foreign is not one of torch.optim", "head", lambda subset: foreign(subset.parameters.values(), lr=0.1))
    refused("got int", "head", sgd, loss=3)
    refused("'mse' is not known", "head", sgd, loss="mse")
    refused("True .* or a new folder", "head", sgd, trace=False)
    (tmp_path / "there").mkdir()
    refused("exists already", "head", sgd, trace=tmp_path / "there")
    subset = fastntk.tune(model, "head")
    for parameter in model.parameters():
        parameter.requires_grad_()
    with pytest.raises(fastntk.InputError, match="also moves 4 parameters that are not in the subset"):
        fastntk.record(model, subset, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
    model, optimizer, recorder = started()
    one_step(model, optimizer, recorder, list(range(6)))
    with pytest.raises(fastntk.InputError, match="taken steps already"):
        fastntk.record(model, recorder.subset, optimizer, loss=loss)
    with pytest.raises(fastntk.InputError, match="belongs to another model"):
        fastntk.record(network(), recorder.subset, optimizer, loss=loss)


def test_nothing_recorded_is_an_error() -> None:
    _, _, recorder = started()
    with pytest.raises(fastntk.InputError, match="No step was recorded"):
        recorder.finish()


def test_the_bodys_path_is_kept_as_far_as_there_is_room() -> None:
    loop = Loop(ADAMW, spec="all")
    *_, run = loop(trace=True, steps=20, room=20 * 8 * 15)  # per step the 12 numbers of the norm, not more
    assert run.trace.facts.body == ("1.weight", "1.bias")
    assert run.trace.facts.left == ("0.weight", "0.bias")
    result = fastntk.unlearn(run, ids=[run.listed.ids[0]], method="path-replay", depth=1)
    assert set(result.details["left"]) == {"0.weight", "0.bias"}
    *_, run = loop(trace=True, room=100)
    assert run.trace.facts.body == ()
    assert run.trace.gradients is None
    *_, run = loop(trace=True, room=EXPECTED_STEPS * 8 * 8)  # one of the norm's two parameters: not a whole block
    assert run.trace.facts.body == ("1.bias",)
    note = fastntk.unlearn(run, ids=[run.listed.ids[0]]).details["note"]
    assert "no further than the head: the trace does not have the path of the whole block next to the head" in note


def test_targets_in_a_form_that_labels_do_not_have_reach_every_depth() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES)).double()
    samples = fastntk.Samples(torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % CLASSES)
    loss = nn.BCEWithLogitsLoss()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss=loss)
    for step in range(6):
        where = torch.arange(12)[step % 3 :: 3]
        targets = nn.functional.one_hot(samples.labels[where], CLASSES).double()
        with recorder.batch([samples.ids[i] for i in where.tolist()], targets):
            optimizer.zero_grad()
            loss(model(samples.inputs[where]), targets).backward()
            optimizer.step()
    run = recorder.finish(samples)
    assert fastntk.plan(run, ids=["3"]).routes
    assert fastntk.unlearn(run, ids=["3"], budget=9).details["climb"]["tried"][-1] > 0
    deep = fastntk.unlearn(run, ids=["3"], depth="all", exact=0, validate=False)
    assert deep.details["blocks"] > 0
    assert len(fastntk.removals(run, [["3"]], depth="all")) == 1


def test_batch_statistics_that_moved_are_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)).double().train()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss="cross-entropy")
    one_step(model, optimizer, recorder, list(range(6)))
    run = recorder.finish()
    assert run.trace.facts.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    result = fastntk.unlearn(run, ids=["img/00.png"])
    assert "left as they are, for estimating them anew needs the images" in result.details["batch_norm_statistics"]


def test_epochs_on_the_network_itself_have_to_be_asked_for() -> None:
    """The images that the loop was shown, with noise on them, are not there."""
    *_, run = Loop(ADAMW, spec="norm+head", epochs=20)(trace=True)
    ids = [run.listed.ids[4]]
    assert fastntk.unlearn(run, ids=ids, method="path-replay", depth="all").details["exact"] == []
    assert fastntk.unlearn(run, ids=ids, method="path-replay", depth="all", exact=1).details["exact"] == [0]


def test_a_copy_of_the_model_can_be_made_on_the_way() -> None:
    model, optimizer, recorder = started()
    one_step(model, optimizer, recorder, list(range(6)))
    copied = copy.deepcopy(model)
    copied(data()[0])
    buffer = io.BytesIO()
    torch.save(model, buffer)
    torch.optim.swa_utils.AveragedModel(model)
    one_step(model, optimizer, recorder, list(range(6, 12)))
    assert recorder.finish().trace.steps == 2


def test_weights_of_classes_in_single_precision(tmp_path: Path) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    missed, moved = difference(Loop(ADAMW, loss=loss, dtype=torch.float32), [4, 5, 6])
    assert missed < 1e-5 < moved
    *_, run = Loop(ADAMW, loss=loss, dtype=torch.float32)(trace=True)
    run.save(tmp_path / "run")
    fastntk.Run.load(tmp_path / "run", model=network(dtype=torch.float32), loss=loss)


def test_weights_of_late_classes_are_seen() -> None:
    weight = torch.ones(10, dtype=torch.float64)
    weight[9] = 10
    assert recognised(nn.CrossEntropyLoss(weight=weight), 10).name == "own"
    assert recognised(lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum") / 20, 10).name == "own"


def test_samples_that_do_not_fit_can_be_given_again() -> None:
    images, labels, ids = data()
    model, optimizer, recorder = started()
    one_step(model, optimizer, recorder, list(range(6)))
    with pytest.raises(fastntk.InputError, match="unknown ids"):
        recorder.finish(fastntk.Samples(images[:3], labels[:3], ids=ids[:3]))
    assert recorder.finish(fastntk.Samples(images, labels, ids=ids)).trace.steps == 1


def test_the_room_bounds_the_bodys_path() -> None:
    model, optimizer, recorder = started(room=4000, steps=20)
    for _ in range(80):
        one_step(model, optimizer, recorder, list(range(6)))
    run = recorder.finish()
    assert run.trace.gradients is None
    assert run.trace.steps == 80


def test_what_changes_on_the_way_is_noticed() -> None:
    def added(model: Any, optimizer: Any) -> None:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})

    def frozen(model: Any, optimizer: Any) -> None:
        model[-1].bias.requires_grad_(False)

    for change, message in ((added, "add_param_group"), (frozen, "gets no gradient")):
        model, optimizer, recorder = started()
        one_step(model, optimizer, recorder, list(range(6)))
        change(model, optimizer)
        with pytest.warns(UserWarning, match=message):
            one_step(model, optimizer, recorder, list(range(6, 12)))
        with pytest.raises(fastntk.InputError, match=message):
            recorder.finish()


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (torch.optim.SGD, "nesterov", True, "nesterov from False to True"),
        (torch.optim.SGD, "maximize", True, "maximize from False to True"),
        (torch.optim.Adafactor, "eps", (1e-8, 1e-3), "eps.0 from None to a number"),
    ],
)
def test_a_switch_of_the_optimiser_that_changes_is_noticed(kind: Any, name: str, value: object, message: str) -> None:
    model = network()
    subset = fastntk.tune(model, "head")
    optimizer = kind(subset.parameters.values(), lr=0.02)
    recorder = fastntk.record(model, subset, optimizer, loss="cross-entropy")
    optimizer.param_groups[0]["foreach"] = False  # how a step is computed
    one_step(model, optimizer, recorder, list(range(6)))
    optimizer.param_groups[0].update({"foreach": True, "weight_decay": 0.1, "momentum": 0.5})
    one_step(model, optimizer, recorder, list(range(6)))
    optimizer.param_groups[0][name] = value
    with pytest.warns(UserWarning, match=message):
        one_step(model, optimizer, recorder, list(range(6, 12)))
    with pytest.raises(InputError, match=r"leave it as it is at the first step"):
        recorder.finish()


def test_a_full_disk_never_stops_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, recorder = started(trace=tmp_path / "trace")
    one_step(model, optimizer, recorder, list(range(6)))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._store._writer, "step", full)
    with pytest.warns(UserWarning, match="No space left"):
        one_step(model, optimizer, recorder, list(range(6, 12)))
    one_step(model, optimizer, recorder, list(range(12, 18)))
    with pytest.raises(fastntk.InputError, match="No space left"):
        recorder.finish()
    assert list(tmp_path.iterdir()) == []


def test_exact_epochs_know_of_accumulated_batches() -> None:
    """Without noise on the images, a replay whose epochs are all the network's own is the loop without the samples."""

    class Plain(Loop):
        noise = 0.0

    loop = Plain(ADAMW, spec="norm+head", accumulate=2, epochs=3)
    *_, run = loop(trace=True)
    gone = [0, 3, 6, 9]
    result = fastntk.unlearn(run, ids=[run.listed.ids[k] for k in gone], method="path-replay", depth="all", exact=3)
    _, subset, _ = loop(gone)
    assert float((run.subset.get() + result.delta - subset.get()).norm()) < 1e-9


def test_images_can_be_given_later_in_any_order_and_with_names(tmp_path: Path) -> None:
    images, labels, ids = data()
    model, optimizer, recorder = started()
    for batch in batches(5, set(range(N))):
        one_step(model, optimizer, recorder, batch)
    run = recorder.finish()
    assert list(run.listed.ids) != ids
    run.save(tmp_path / "run")
    more = fastntk.Samples(
        torch.cat([images, images[:1]]), torch.cat([labels, labels[:1]]), ids=[*ids, "another"], classes=["a", "b", "c"]
    )
    loaded = fastntk.Run.load(tmp_path / "run", more, model=network())
    for given in (loaded, dataclasses.replace(run, samples=more)):
        assert given.samples is not None
        assert given.samples.ids == run.listed.ids
        result = fastntk.unlearn(given, ids=[ids[3]], method="path-replay", depth="all")
        assert set(result.details["moved"]) == set(run.subset.names)
    wrong = fastntk.Samples(images, (labels + 1) % 3, ids=ids)
    with pytest.raises(fastntk.InputError, match="other labels"):
        fastntk.Run.load(tmp_path / "run", wrong, model=network())


def test_models_in_16_bits_are_refused_before_the_training() -> None:
    model = network().bfloat16()
    subset = fastntk.tune(model, "head")
    with pytest.raises(fastntk.InputError, match="float"):
        fastntk.record(model, subset, torch.optim.SGD(subset.parameters.values(), lr=0.1), loss="cross-entropy")
