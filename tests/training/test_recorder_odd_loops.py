"""Loops that are unusual and legitimate, or look like others: sums in place of means, labels of mixed images, clipping of other
kinds, weights that come back, batches that are passed over, losses with a state."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.training import averages, measured_step
from fastntk.training.averages import Shares
from fastntk.training.losses import own_copy
from fastntk.training.recorder import Recorder
from fastntk.training.visitors import Visitors

N, CLASSES = 42, 4
LABELS = torch.arange(N) % CLASSES
GONE = [0, 3, 7, 8, 12]


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    centres = torch.randn(CLASSES, 6, generator=draw)
    return (centres[LABELS] + 0.8 * torch.randn(N, 6, generator=draw)).to(dtype)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES)).to(dtype)


def batches(epochs: int, sizes: int | list[int] = 8) -> Iterator[Tensor]:
    for epoch in range(epochs):
        yield from torch.randperm(N, generator=torch.Generator().manual_seed(epoch)).split(sizes)


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def nothing(*_: Any) -> None:
    pass


class Loop:
    """A training whose loss is ``made`` and whose gradients are changed ``before`` each step; recorded, or without samples.

    ``accumulate``: how many batches make a step; ``after``: what is done after each of them; ``backward``: in place of
    ``loss.backward()``; ``hook``: what is hung on the optimiser, after the recorder.
    """

    def __init__(
        self,
        made: Callable[[Tensor, Tensor], Tensor] = mean,
        *,
        before: Callable[[list[nn.Parameter], int], object] = nothing,
        after: Callable[[nn.Module, int], object] = nothing,
        sizes: int | list[int] = 8,
        accumulate: int = 1,
        spec: str = "head",
        epochs: int = 3,
        rate: float = 0.1,
        backward: Callable[[Tensor, list[nn.Parameter], int], object] = lambda loss, *_: loss.backward(),
        hook: Callable[[torch.optim.Optimizer, list[nn.Parameter]], object] = nothing,
    ) -> None:
        self.rate, self.backward, self.hook = rate, backward, hook
        self.made, self.before, self.after, self.sizes = made, before, after, sizes
        self.accumulate, self.spec, self.epochs = accumulate, spec, epochs

    def __call__(self, gone: Sequence[int] = (), **record: Any) -> tuple[fastntk.Subset, Recorder | None]:
        inputs, model = images(), network()
        subset = fastntk.tune(model, self.spec)
        parameters = list(subset.parameters.values())
        optimizer = torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)
        recorder = fastntk.record(model, subset, optimizer, **{"loss": F.cross_entropy} | record) if record else None
        self.hook(optimizer, parameters)
        keep = torch.ones(N, dtype=torch.bool)
        keep[list(gone)] = False
        for number, batch in enumerate(batches(self.epochs, self.sizes)):
            kept = batch[keep[batch]]
            with recorder.batch(kept, LABELS[kept]) if recorder else contextlib.nullcontext():
                self.backward(self.made(model(inputs[kept]), LABELS[kept]), parameters, number)
                if (number + 1) % self.accumulate == 0:
                    self.before(parameters, number)
                    optimizer.step()
                    optimizer.zero_grad()
            self.after(model, number)
        return subset, recorder

    def run(self, **record: Any) -> fastntk.Run:
        _, recorder = self(**{"trace": True} | record)
        assert recorder is not None
        return recorder.finish()


def apart(loop: Loop, run: fastntk.Run, **options: Any) -> float:
    """How far a request ends from the same loop without the samples, over how far that is from the training."""
    wanted, trained = loop(GONE)[0].get(), run.subset.get()
    result = fastntk.unlearn(run, ids=GONE, method="path-replay", **{"depth": "head"} | options)
    return float((trained + result.delta - wanted).norm() / (trained - wanted).norm())


def said(work: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(each.message) for each in found]


# Sums


def summed(divided: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="sum") / divided


def clipped(most: float) -> Callable[[list[nn.Parameter], int], object]:
    return lambda parameters, _: nn.utils.clip_grad_norm_(parameters, most)


SUMS = {
    "over the usual size": Loop(summed(8)),
    "over nothing": Loop(summed(1.0)),
    "clipped": Loop(summed(8), before=clipped(0.3)),
    "accumulated": Loop(summed(24), accumulate=2, sizes=[12, 12, 4, 14]),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_in_place_of_a_mean_is_seen_from_steps_of_unequal_size(name: str) -> None:
    run = SUMS[name].run()
    assert run.trace.facts.average == "sum"
    assert apart(SUMS[name], run) < 1e-9


@pytest.mark.parametrize("before", [nothing, clipped(0.3), clipped(6.0)])
def test_a_sum_over_a_large_batch_is_not_taken_for_a_loss_scaler(before: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_step, "SCALER", 4)
    loop = Loop(summed(1.0), before=before)
    run = loop.run()
    assert run.trace.facts.average == "sum"
    assert run.trace.shares[:6].tolist() == pytest.approx([8, 8, 8, 8, 8, 2])
    assert apart(loop, run) < 1e-9


def test_a_second_request_and_a_folder_know_of_the_sum(tmp_path: Path) -> None:
    loop = SUMS["over the usual size"]
    run = loop.run(trace=tmp_path / "trace")
    run.save(tmp_path / "run")
    loaded = fastntk.Run.load(tmp_path / "run", model=network())
    first = fastntk.unlearn(loaded, ids=GONE[:2], method="path-replay", depth="head").as_run()
    second = fastntk.unlearn(first, ids=GONE[2:], method="path-replay", depth="head")
    torch.testing.assert_close(first.subset.get() + second.delta, loop(GONE)[0].get(), rtol=0, atol=1e-10)


def test_and_so_do_epochs_on_the_network_itself() -> None:
    loop = Loop(summed(8), spec="norm+head")
    _, recorder = loop(trace=True)
    assert recorder is not None
    run = recorder.finish(fastntk.Samples(images(), LABELS))
    assert apart(loop, run, depth="all", exact=3) < 1e-9


def test_where_all_steps_are_of_one_size_it_can_be_given() -> None:
    loop = Loop(summed(6), sizes=6)
    assert loop.run().trace.facts.average == "batch"
    assert apart(loop, loop.run(average="sum")) < 1e-9
    assert any("batches of unequal size counted alike" in each for each in said(lambda: Loop().run(average="sum")))
    assert any("by their size, as in a sum" in each for each in said(lambda: SUMS["clipped"].run(average="batch")))
    with pytest.raises(InputError, match="'batch', 'step', 'sum' or None"):
        Loop().run(average="mean")


def test_means_are_taken_for_no_sums() -> None:
    for loop in (Loop(), Loop(accumulate=3), Loop(lambda o, t: mean(o, t) / 2, accumulate=2, sizes=[12, 12, 4, 14])):
        assert not said(lambda loop=loop: loop.run())  # type: ignore[misc]
        run = loop.run()
        assert run.trace.facts.average == "batch"
        assert apart(loop, run) < 1e-9
    for average in ("batch", "step"):
        assert not said(lambda average=average: Loop().run(average=average))  # type: ignore[misc]


def test_a_sum_that_is_given_for_a_mean_is_said() -> None:
    loop = Loop(accumulate=2, sizes=[14, 7, 14, 7])
    assert any("give the mean" in each for each in said(lambda: loop.run(loss=nn.CrossEntropyLoss(reduction="sum"))))
    assert any("give the mean" in each for each in said(lambda: Loop().run(loss=nn.CrossEntropyLoss(reduction="sum"))))
    assert not said(lambda: Loop(summed(8)).run(loss=nn.CrossEntropyLoss(reduction="sum")))


def test_what_shares_show() -> None:
    def shown(*steps: list[tuple[int, float]]) -> tuple[str, ...]:
        shares = Shares()
        for step in steps:
            shares.add([count for count, _ in step], [share for _, share in step])
        return shares.averages()

    assert shown([(8, 1.0)], [(8, 1.0)]) == ()
    assert shown([(8, 1.0)], [(8, 1.0)], [(2, 1.0)]) == ("batch", "step")
    assert shown([(8, 1.0)], [(8, 0.97)], [(2, 0.26)]) == ("sum",)
    assert shown([(8, 0.5), (8, 0.5)], [(8, 0.5), (2, 0.125)]) == ("sum",)
    assert shown([(8, 0.5), (8, 0.5)], [(8, 0.8), (2, 0.2)]) == ("step",)
    assert shown([(8, 0.5), (8, 0.5)], [(8, 0.5), (2, 0.5)]) == ("batch",)
    assert shown([(6, 0.75), (2, 0.25)], [(6, 0.75), (2, 0.25)]) == ("step",)
    assert shown([(4, 0.5), (4, 0.5)], [(4, 0.5)]) == ()
    assert (
        shown([(8, 1.0)], [(8, 1e-300)], [(2, 0.0)], [(2, math.inf), (2, -math.inf)], [(8, math.nan)], [(2, -1.0)], [(8, 1.0)])
        == ()
    )


FALLS: dict[str, Callable[[int], float]] = {
    "by a factor": lambda number: 0.9**number,
    "as 1/n": lambda number: 1 / (1 + number),
    "with the epoch": lambda number: 0.5 ** (number // 8),
    "and rises": lambda number: 1.2**number,
    "once": lambda number: 1.0 if number < 8 else 0.1,
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", FALLS)
def test_a_weight_of_the_loss_that_changes_is_no_sum_and_hides_none(name: str, accumulate: int) -> None:
    def weighted(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
        (FALLS[name](number) * loss).backward()

    for made, average in ((mean, "batch"), (summed(6), "sum")):
        loop = Loop(made, backward=weighted, accumulate=accumulate, sizes=[6, 6, 6, 6, 6, 6, 3, 3], epochs=4)
        assert not said(lambda loop=loop: loop.run())  # type: ignore[misc]
        run = loop.run()
        assert run.trace.facts.average == average
        assert apart(loop, run) < 1e-9


def test_a_weight_that_falls_within_the_only_epoch_is_no_sum() -> None:
    def weighted(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
        ((1 - number / 5) * loss).backward()

    loop = Loop(backward=weighted, sizes=10, epochs=1)
    assert loop.run().trace.facts.average == "batch"
    assert apart(loop, loop.run()) < 1e-9


def test_what_is_kept_of_shares_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averages, "REMEMBERED", 20)
    shares, draw = Shares(), torch.Generator().manual_seed(0)
    for counts in torch.randint(1, 50, (500, 2), generator=draw).tolist():
        shares.add(counts, [count / 8 for count in counts])
    assert all(len(each) <= 20 for each in vars(shares).values() if isinstance(each, list | dict))
    assert shares.averages() == ("sum",)


@pytest.mark.parametrize("made", [mean, lambda o, t: 1.4 * mean(o, t), summed(8), lambda o, t: mean(o, t) / 3])
def test_a_loss_scaler_is_no_clipping_whatever_the_loss_is_multiplied_with(made: Callable[[Tensor, Tensor], Tensor]) -> None:
    def scaled(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2.0**16 * made(outputs, targets)

    def unscale(parameters: list[nn.Parameter], number: int) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(2.0**16)

    loop = Loop(scaled, before=unscale)
    run = loop.run()
    assert run.trace.clips.tolist() == [1.0] * run.trace.steps
    assert apart(loop, run) < 1e-9


@pytest.mark.parametrize(
    "made",
    [lambda o, t: (mean(o, t) - 0.3).abs() + 0.3, lambda o, t: mean(o, t).clamp(min=0.5), lambda o, t: mean(o.clamp(-2, 2), t)],
    ids=["flooding", "a floor", "clamped logits"],
)
def test_a_loss_with_a_threshold_is_followed_across_it(made: Callable[[Tensor, Tensor], Tensor]) -> None:
    loop = Loop(made, epochs=12, rate=0.5)
    run = loop.run(loss=made)
    assert run.trace.facts.loss == "own"
    assert apart(loop, run) < 1e-9


# Labels of mixed images


def mixed(*, epochs: int, alpha: float, most: bool) -> Recorder:
    """Mixup; ``most``: each image has more of itself than of the other."""
    model, inputs = network(), images()
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=1e-2)
    recorder = fastntk.record(model, subset, optimizer, loss=F.cross_entropy)
    torch.manual_seed(1)
    for batch in batches(epochs):
        own, other = float(torch.distributions.Beta(alpha, alpha).sample()), batch[torch.randperm(len(batch))]
        own = max(own, 1 - own) if most else own
        soft = F.one_hot(LABELS, CLASSES).double()
        targets = own * soft[batch] + (1 - own) * soft[other]
        with recorder.batch(batch, targets):
            optimizer.zero_grad()
            F.cross_entropy(model(own * inputs[batch] + (1 - own) * inputs[other]), targets).backward()
            optimizer.step()
    return recorder


@pytest.mark.filterwarnings("ignore:.*mixup, CutMix")
def test_a_label_of_mixed_targets_is_that_of_all_visits() -> None:
    recorder = mixed(epochs=5, alpha=0.8, most=False)
    with pytest.warns(UserWarning, match=r"labels were taken from mixed targets.*name ids.*finish\(samples\)"):
        run = recorder.finish()
    assert torch.equal(run.listed.labels, LABELS[[int(each) for each in run.listed.ids]])
    result = fastntk.unlearn(run, classes=[0], method="path-replay", depth="head")
    assert {int(each) for each in result.forgotten.ids} == set((LABELS == 0).nonzero().flatten().tolist())


@pytest.mark.filterwarnings("ignore:.*mixup, CutMix")
def test_labels_that_are_sure_are_not_said_to_be_unsure() -> None:
    recorder = mixed(epochs=3, alpha=0.8, most=True)
    assert not said(recorder.finish)
    recorder, samples = mixed(epochs=3, alpha=0.8, most=False), fastntk.Samples(images(), LABELS)
    assert not said(lambda: recorder.finish(samples))
    recorder = mixed(epochs=1, alpha=0.8, most=False)
    assert any("mixed targets" in each for each in said(recorder.finish))


# Clipping


@pytest.mark.parametrize("most", [0.3, 0.5])
def test_clipping_one_by_one_is_refused(most: float) -> None:
    def one_by_one(parameters: list[nn.Parameter], number: int) -> None:
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, most)

    with pytest.raises(InputError, match="that reached the head"):
        Loop(before=one_by_one).run()


def test_a_bias_whose_gradient_is_changed_alone_is_refused() -> None:
    def half(parameters: list[nn.Parameter], number: int) -> None:
        assert parameters[-1].grad is not None
        parameters[-1].grad.mul_(0.5)

    with pytest.raises(InputError, match="that reached the head"):
        Loop(before=half).run()


@pytest.mark.parametrize("kind", ["inf", "changing"])
def test_clipping_by_an_unknown_rule_is_said(kind: str) -> None:
    def clip(parameters: list[nn.Parameter], number: int) -> None:
        if kind == "inf":
            nn.utils.clip_grad_norm_(parameters, 0.05, norm_type=float("inf"))
        else:
            nn.utils.clip_grad_norm_(parameters, 0.1 if number < 9 else 0.05)

    _, recorder = Loop(before=clip)(trace=True)
    assert recorder is not None
    with pytest.warns(UserWarning, match="a replay keeps the recorded factors, an approximation"):
        run = recorder.finish()
    details = fastntk.unlearn(run, ids=GONE, method="path-replay", depth="head").details
    assert "clipped by a rule that is not known" in details["note"]


def test_clipping_by_a_known_rule_or_a_fixed_factor_is_not() -> None:
    def third(parameters: list[nn.Parameter], number: int) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(3)

    for before in (clipped(0.1), clipped(0.4), third):
        loop = Loop(before=before)
        assert not said(lambda loop=loop: loop.run())  # type: ignore[misc]
        run = loop.run()
        assert apart(loop, run) < 1e-9
        assert "note" not in fastntk.unlearn(run, ids=GONE, method="path-replay", depth="head").details


# Looks at gradients


def looked_at(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    torch.autograd.grad(loss, parameters, retain_graph=True)
    loss.backward()


def looked_at_once(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    if number == 0:
        torch.autograd.grad(loss, parameters, retain_graph=True)
    loss.backward()


def looked_at_after(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    loss.backward(retain_graph=True)
    if number % 5 == 0:
        torch.autograd.grad(loss, parameters)


def cleared(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    if number % 5 == 0:
        loss.backward(retain_graph=True)
        for parameter in parameters:
            parameter.grad = None if number else torch.zeros_like(parameter)
    loss.backward()


def written(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def halves(loss: Tensor, parameters: list[nn.Parameter], number: int) -> None:
    (0.5 * loss).backward(retain_graph=True)
    (0.5 * loss).backward()


LOOKS = [looked_at, looked_at_once, looked_at_after, written, halves]


@pytest.mark.parametrize(("backward", "accumulate"), [*((each, n) for each in LOOKS for n in (1, 2)), (cleared, 1)])
def test_a_gradient_counts_when_it_arrives(backward: Any, accumulate: int) -> None:
    """Looking at one, or clearing it, is no clipping."""
    loop = Loop(backward=backward, rate=0.5, accumulate=accumulate)
    run = loop.run()
    assert run.trace.clips.tolist() == [1.0] * run.trace.steps
    assert run.trace.facts.max_norm is None
    assert apart(loop, run) < 1e-9


def test_a_look_at_the_gradient_after_the_step_is_of_no_batch() -> None:
    model, inputs = network(), images()
    subset = fastntk.tune(model, "head")
    parameters = list(subset.parameters.values())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss=F.cross_entropy)
    for batch in batches(2):
        with recorder.batch(batch, LABELS[batch]):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), LABELS[batch]).backward()
            optimizer.step()
            torch.autograd.grad(F.cross_entropy(model(inputs[batch]), LABELS[batch]), parameters)
    assert not said(recorder.finish)


# Hooks of the loop's own


def test_hooks_before_the_step_are_followed_whenever_they_came() -> None:
    def clip(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        optimizer.register_step_pre_hook(lambda *_: nothing(clipped(0.3)(parameters, 0)))

    loop = Loop(hook=clip)
    run = loop.run()
    assert run.trace.facts.max_norm == pytest.approx(0.3, rel=1e-3)
    assert apart(loop, run) < 1e-9


def test_hooks_after_the_step_that_change_weights_are_noticed_whenever_they_came() -> None:
    def bound(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        optimizer.register_step_post_hook(lambda *_: nothing(parameters[0].data.clamp_(-0.2, 0.2)))

    with (
        pytest.warns(UserWarning, match="changed since the last recorded step"),
        pytest.raises(InputError, match=r"changed since the last recorded step, .*: a hook after the step"),
    ):
        Loop(hook=bound).run()


def test_two_loaders_that_look_like_a_sum_can_be_told_from_one() -> None:
    """As the page says."""
    weights = (1.0, 0.4)
    loop = Loop(backward=lambda loss, _, number: (weights[number % 2] * loss).backward(), sizes=[10, 4, 10, 4, 10, 4])
    assert loop.run().trace.facts.average == "sum"
    with pytest.warns(UserWarning, match="counted by their size"):
        run = loop.run(average="batch")
    assert apart(loop, run) < 1e-9


# Weights that come back


@pytest.mark.parametrize("spec", ["head", "norm+head"])
def test_averaged_weights_in_the_model_and_back_do_not_end_the_recording(spec: str) -> None:
    def validate(model: nn.Module, number: int) -> None:
        if number % 6 == 5:
            own = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict({name: 0.9 * value for name, value in own.items()})
            model.load_state_dict(own)

    loop = Loop(after=validate, spec=spec)
    assert not said(lambda: loop.run())
    run = loop.run()
    assert run.trace.steps == 18
    if spec == "head":
        assert apart(loop, run) < 1e-9


@pytest.mark.parametrize("name", ["3.weight", "3.bias", "1.weight", "1.bias"])
def test_but_those_that_do_not_come_back_do(name: str) -> None:
    def change(model: nn.Module, number: int) -> None:
        if number == 5:
            model.load_state_dict({**model.state_dict(), name: 0.999 * model.state_dict()[name]})

    with (
        pytest.warns(UserWarning, match="changed since the last recorded step"),
        pytest.raises(InputError, match="changed since the last recorded step"),
    ):
        Loop(after=change, spec="norm+head").run()


# Batches that are passed over


def passed_over(skip: set[int], *, epochs: int = 3, gone: Sequence[int] = (), record: bool = True) -> Any:
    """The recorder of a loop that leaves these batches before their forward pass; else the subset."""
    model, inputs = network(), images()
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=1e-2)
    recorder = fastntk.record(model, subset, optimizer, loss=F.cross_entropy) if record else None
    keep = torch.ones(N, dtype=torch.bool)
    keep[list(gone)] = False
    for number, batch in enumerate(batches(epochs)):
        kept = batch[keep[batch]]
        with recorder.batch(kept, LABELS[kept]) if recorder else contextlib.nullcontext():
            if number in skip:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[kept]), LABELS[kept]).backward()
            optimizer.step()
    return recorder or subset


@pytest.mark.parametrize("skip", [{9}, {6, 9, 10}, {11}, {12}])
def test_batches_that_a_loop_passes_over_are_not_part_of_the_path(skip: set[int]) -> None:
    found: list[Recorder] = []
    told = said(lambda: found.append(passed_over(skip)))
    assert len(told) == 1
    assert "the head saw no images" in told[0]
    (recorder,) = found
    run = recorder.finish()
    assert (run.trace.steps, run.trace.epochs) == (18 - len(skip), 3)
    assert run.trace.epoch_steps.tolist() == [sum(k not in skip for k in range(first)) for first in (0, 6, 12, 18)]
    result = fastntk.unlearn(run, ids=GONE, method="path-replay", depth="head")
    wanted = passed_over(skip, gone=GONE, record=False).get()
    torch.testing.assert_close(run.subset.get() + result.delta, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("again", [1, 3, 6])
def test_a_batch_that_is_passed_over_and_comes_again_begins_no_epoch(again: int) -> None:
    visitors = Visitors(CLASSES)
    begun = []
    for number, batch in enumerate(batches(3)):
        positions = visitors.arrive(tuple(map(str, batch.tolist())), LABELS[batch])
        if number == 5 + again:
            visitors.miss(positions)
        if visitors.count(positions):
            begun.append(number)
    assert begun == [6, 12]


def test_a_first_batch_that_the_head_does_not_see_is_an_error() -> None:
    with pytest.raises(InputError, match="put forward, backward and step into it"):
        passed_over({0})


# Losses with a state


def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs + 0.001 * torch.randn_like(outputs), targets)


class Warming(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(outputs, targets, label_smoothing=max(0.0, 0.1 - 0.001 * self.calls))


@pytest.mark.parametrize("make", [lambda: noisy, Warming])
def test_a_loss_with_random_numbers_or_a_state_trains_the_same(make: Callable[[], Any]) -> None:
    ends, draws = [], []
    for record in (False, True):
        loss = make()
        subset, recorder = Loop(loss)(**{"trace": True, "loss": loss} if record else {})  # the network sets the seed
        ends.append(subset.get())
        if recorder is not None:
            assert not said(recorder.finish)
        draws.append(torch.rand(3))
        if isinstance(loss, Warming):
            assert loss.calls == 18
    assert torch.equal(*ends)
    assert torch.equal(*draws)


def test_a_loss_that_cannot_be_copied_is_asked_itself_and_that_is_said() -> None:
    class Uncopied(nn.CrossEntropyLoss):
        def __deepcopy__(self, memo: dict[int, Any]) -> Uncopied:
            raise RuntimeError("held by another process")

    loss = Uncopied()
    with pytest.warns(UserWarning, match=r"the loss cannot be copied \(held by another process\)"):
        assert own_copy(loss) is loss
