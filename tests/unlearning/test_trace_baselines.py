"""Amnesiac unlearning and DeltaGrad on a recorded path, against slow oracles: weights stored by a second training, Retrain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.planning import Calibration, Problem, Sizes
from fastntk.planning.problem import TraceSizes
from fastntk.training.loop import batch_loss, descend
from fastntk.training.trace_path import PathStep, recorded_path
from fastntk.unlearning import METHODS
from fastntk.unlearning.baselines.common.lbfgs import CURVATURE, History
from fastntk.unlearning.baselines.deltagrad import replayed
from fastntk.unlearning.method import Task

BOTH = ("amnesiac", "deltagrad")
ADAM = fastntk.Recipe(epochs=4, lr=0.02, batch_size=8)
RECIPES = {
    "adam": ADAM,
    "momentum": replace(ADAM, optimizer="sgd", lr=0.1, schedule="linear"),
    "plain sgd": replace(ADAM, optimizer="sgd", momentum=0.0, lr=0.1, schedule="constant", weight_decay=0.0),
    "squared": replace(ADAM, loss="squared"),
}
RARE = ["3", "17"]
"""Ids in few batches."""


def made(recipe: fastntk.Recipe = ADAM, *, tune: str = "norm+head", trace: bool = True, bias: bool = True) -> fastntk.Run:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 3, bias=bias)
    )
    model = model.double().eval()
    labels = torch.arange(42) % 3
    centres = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    samples = fastntk.Samples(centres[labels] + 0.7 * torch.randn(42, 2, 6, 6, dtype=torch.float64), labels)
    return fastntk.fit(model, fastntk.tune(model, tune), samples, recipe, trace=trace)


def all_weights(run: fastntk.Run) -> list[Tensor]:
    """The tuned vector before every step and at the end, by training a copy again and keeping all of it."""
    assert run.recipe is not None
    model, recipe = made(run.recipe, trace=False).model, run.recipe
    subset = run.subset.on(model)
    subset.set(run.anchor)
    stored: list[Tensor] = []

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        stored.append(subset.get().clone())
        return batch_loss(model(run.data.inputs[batch]), run.data.labels[batch], recipe), 0

    descend(list(subset.parameters.values()), loss, recipe, count=len(run.data))
    return [*stored, subset.get().clone()]


def task_of(run: fastntk.Run, **request: Any) -> Task:
    return Task(run, fastntk.ForgetRequest(**request).resolve(run.data, allow_empty=True))


def gradient(run: fastntk.Run, samples: Tensor, vector: Tensor) -> Tensor:
    model = made(trace=False).model
    subset = run.subset.on(model)
    subset.set(vector)
    assert run.recipe is not None
    loss = batch_loss(model(run.data.inputs[samples]), run.data.labels[samples], run.recipe)
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(subset.parameters.values()))])


# The recorded path


@pytest.mark.parametrize("name", RECIPES)
def test_the_recorded_path_is_that_of_the_training(name: str) -> None:
    run = made(RECIPES[name])
    assert run.trace is not None
    stored = all_weights(run)
    steps = list(recorded_path(run.trace, run.subset, run.anchor))
    assert [step.number for step in steps] == list(range(run.trace.steps)) == list(range(len(stored) - 1))
    for step, before, after in zip(steps, stored, stored[1:]):
        torch.testing.assert_close(step.weights, before, rtol=0, atol=1e-12)
        torch.testing.assert_close(step.after, after, rtol=0, atol=1e-12)
        torch.testing.assert_close(step.gradient, gradient(run, step.samples, before), rtol=0, atol=1e-12)
    torch.testing.assert_close(steps[-1].after, run.subset.get(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("tune", "bias"), [("head", True), ("head", False), ("norm+5.weight", True)])
def test_heads_without_a_tuned_bias_have_their_path_too(tune: str, bias: bool) -> None:
    run = made(tune=tune, bias=bias)
    assert run.trace is not None
    *_, last = recorded_path(run.trace, run.subset, run.anchor)
    torch.testing.assert_close(last.after, run.subset.get(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", BOTH)
def test_a_trace_without_the_gradients_of_the_body_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastntk.training.trace_writer.GRADIENTS_UP_TO", 0)
    run = made()
    with pytest.raises(InputError, match=r"no gradients of 1\.weight, 1\.bias.*path-replay"):
        fastntk.unlearn(run, ids=RARE, method=method)


# Both


@pytest.mark.parametrize("method", BOTH)
def test_nothing_forgotten_changes_nothing(method: str) -> None:
    run = made()
    result = fastntk.unlearn(run, ids=[], method=method)
    assert torch.equal(result.subset.get(), run.subset.get())


@pytest.mark.parametrize("method", BOTH)
def test_a_run_without_a_trace_is_refused_with_what_to_do(method: str) -> None:
    run = made(trace=False)
    with pytest.raises(InputError, match=r"This run has no trace.*fit\(\.\.\., trace=True\) records one"):
        fastntk.unlearn(run, ids=RARE, method=method)
    with pytest.raises(InputError, match="needs the trace, which the run does not have"):
        fastntk.plan(run, ids=RARE, method=method)


@pytest.mark.parametrize("method", BOTH)
def test_the_run_stays_as_it_is_and_the_same_request_gives_the_same_bytes(method: str) -> None:
    run = made()
    before = run.subset.get().clone()
    first, second = (fastntk.unlearn(run, classes=[1], method=method) for _ in range(2))
    assert torch.equal(first.subset.get(), second.subset.get())
    assert torch.equal(run.subset.get(), before)
    assert not torch.equal(first.subset.get(), before)


@pytest.mark.parametrize(
    ("method", "options"),
    [("amnesiac", {"epochs": -1}), ("amnesiac", {"lr": 0}), ("deltagrad", {"period": 0}), ("deltagrad", {"history": 0}),
     ("deltagrad", {"burn_in": -1})],
)  # fmt: skip
def test_values_out_of_range_are_refused(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"Method '{method}' cannot take {next(iter(options))}="):
        fastntk.unlearn(made(), ids=RARE, method=method, **options)


# Amnesiac unlearning


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("request_", [{"ids": RARE}, {"classes": [1]}])
def test_amnesiac_takes_back_the_updates_of_batches_with_forgotten_samples(name: str, request_: dict[str, Any]) -> None:
    run = made(RECIPES[name])
    result = fastntk.unlearn(run, **request_, method="amnesiac", epochs=0)
    assert run.trace is not None
    stored, forgotten = all_weights(run), set(result.split.forget.tolist())
    expected, count = torch.zeros_like(run.anchor), 0
    for t in range(run.trace.steps):
        batch = run.trace.visited[run.trace.bounds[t] : run.trace.bounds[t + 1]].tolist()
        if forgotten & set(batch):
            expected -= stored[t + 1] - stored[t]
            count += 1
    torch.testing.assert_close(result.delta, expected, rtol=0, atol=1e-11)
    assert result.details["taken_back"] == count
    assert result.details["share_taken_back"] == count / run.trace.steps
    assert result.details["batches"] == run.trace.steps


def test_where_every_batch_held_a_forgotten_sample_amnesiac_returns_to_the_anchor() -> None:
    run = made()
    result = fastntk.unlearn(run, ids=[str(i) for i in range(36)], method="amnesiac", epochs=0)
    assert result.details["share_taken_back"] == 1
    torch.testing.assert_close(result.subset.get(), run.anchor, rtol=0, atol=1e-11)


def test_amnesiac_then_trains_on_the_retained_samples_as_fine_tune_does() -> None:
    run = made()
    assert run.recipe is not None
    taken_back = fastntk.unlearn(run, classes=[1], method="amnesiac", epochs=0)
    there = fastntk.Run(taken_back.model, taken_back.subset, run.anchor, run.samples, recipe=run.recipe)
    expected = fastntk.unlearn(there, classes=[1], method="fine-tune", epochs=2, lr=0.01)
    result = fastntk.unlearn(run, classes=[1], method="amnesiac", epochs=2, lr=0.01)
    assert torch.equal(result.subset.get(), expected.subset.get())


# DeltaGrad


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("request_", [{"ids": RARE}, {"classes": [1]}])
def test_deltagrad_that_computes_every_gradient_is_retrain(name: str, request_: dict[str, Any]) -> None:
    run = made(RECIPES[name])
    retrain = fastntk.unlearn(run, **request_, method="retrain")
    result = fastntk.unlearn(run, **request_, method="deltagrad", period=1, burn_in=0)
    torch.testing.assert_close(result.subset.get(), retrain.subset.get(), rtol=0, atol=1e-10)
    assert result.details["computed"] + result.details["skipped"] == result.details["steps"]
    assert result.details["guessed"] == result.details["fell_back"] == 0


def test_a_batch_of_forgotten_samples_only_is_skipped_as_in_retrain() -> None:
    run = made(replace(ADAM, batch_size=2))
    retrain = fastntk.unlearn(run, classes=[0, 1], method="retrain")
    result = fastntk.unlearn(run, classes=[0, 1], method="deltagrad", period=1)
    assert result.details["skipped"] > 0
    torch.testing.assert_close(result.subset.get(), retrain.subset.get(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"period": 1, "burn_in": 0}, {"period": 4, "burn_in": 5}])
def test_the_replay_that_leaves_nothing_out_ends_at_theta(options: dict[str, int]) -> None:
    run = made()
    vector, counts = replayed(task_of(run, ids=()), history=2, **options)
    torch.testing.assert_close(vector, run.subset.get(), rtol=0, atol=1e-10)
    assert counts["computed"] + counts["guessed"] + counts["fell_back"] == counts["steps"]


@pytest.mark.parametrize("name", ["momentum", "plain sgd"])
def test_guessed_gradients_lead_towards_retrain(name: str) -> None:
    """Most of what Retrain changes is met although three of four gradients are guessed, from pairs of other batches."""
    run = made(RECIPES[name])
    retrain = fastntk.unlearn(run, ids=RARE, method="retrain").delta
    result = fastntk.unlearn(run, ids=RARE, method="deltagrad", period=4, burn_in=4)
    assert result.details["guessed"] > result.details["computed"]
    assert float((result.delta - retrain).norm() / retrain.norm()) < 0.5


def test_where_one_pair_tells_the_whole_hessian_guesses_are_exact() -> None:
    """Full batches of the squared loss and a head on one feature: the Hessian is the same multiple of I at every step."""
    torch.manual_seed(0)
    model = nn.Linear(1, 3, bias=False).double()
    samples = fastntk.Samples(torch.randn(20, 1, dtype=torch.float64), torch.arange(20) % 3)
    recipe = replace(RECIPES["momentum"], loss="squared", batch_size=20, epochs=60)
    run = fastntk.fit(model, fastntk.tune(model, "head"), samples, recipe, trace=True)
    retrain = fastntk.unlearn(run, ids=RARE, method="retrain")
    result = fastntk.unlearn(run, ids=RARE, method="deltagrad", period=100, burn_in=4, history=1)
    assert result.details["guessed"] == 55
    torch.testing.assert_close(result.delta, retrain.delta, rtol=1e-8, atol=1e-12)


def test_without_a_usable_pair_the_gradient_is_computed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastntk.unlearning.baselines.common.lbfgs.CURVATURE", 2.0)  # no cosine is that large
    run = made()
    retrain = fastntk.unlearn(run, ids=RARE, method="retrain")
    result = fastntk.unlearn(run, ids=RARE, method="deltagrad", period=5, burn_in=3)
    assert result.details["guessed"] == 0
    assert result.details["fell_back"] > 0
    assert result.details["refused_pairs"] > 0
    torch.testing.assert_close(result.subset.get(), retrain.subset.get(), rtol=0, atol=1e-10)


def test_batch_statistics_are_refused() -> None:
    run = made(replace(ADAM, bn_stats="update"))
    with pytest.raises(InputError, match="depend on the rest of the batch"):
        fastntk.unlearn(run, ids=RARE, method="deltagrad")


# The L-BFGS matrix


def recursion(steps: list[Tensor], changes: list[Tensor]) -> Tensor:
    """BFGS from σI, pair by pair, as a dense matrix."""
    matrix = (steps[-1] @ changes[-1]) / (steps[-1] @ steps[-1]) * torch.eye(len(steps[0]), dtype=torch.float64)
    for s, y in zip(steps, changes):
        moved = matrix @ s
        matrix = matrix - torch.outer(moved, moved) / (s @ moved) + torch.outer(y, y) / (s @ y)
    return matrix


@pytest.mark.parametrize("count", [1, 2, 5])
def test_products_are_those_of_the_dense_recursion_over_the_newest_pairs(count: int) -> None:
    draws = torch.Generator().manual_seed(count)
    root = torch.randn(9, 9, generator=draws, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(9, dtype=torch.float64)
    history, steps, changes = History(count), list[Tensor](), list[Tensor]()
    for _ in range(count + 2):
        s = torch.randn(9, generator=draws, dtype=torch.float64)
        steps, changes = [*steps, s], [*changes, hessian @ s + 0.1 * torch.randn(9, generator=draws, dtype=torch.float64)]
        history.add(steps[-1], changes[-1])
    assert len(history) == count
    vector = torch.randn(9, generator=draws, dtype=torch.float64)
    product = history.product(vector)
    assert product is not None
    torch.testing.assert_close(product, recursion(steps[-count:], changes[-count:]) @ vector, rtol=1e-9, atol=1e-9)
    newest = history.product(steps[-1])
    assert newest is not None
    torch.testing.assert_close(newest, changes[-1], rtol=1e-9, atol=1e-9)


def test_pairs_against_the_curvature_condition_are_refused_and_counted() -> None:
    history, s = History(3), torch.tensor([1.0, 0.0])
    assert history.product(s) is None
    for y in ([-1.0, 0.0], [0.0, 1.0], [CURVATURE / 2, 1.0], [0.0, 0.0]):
        history.add(s, torch.tensor(y))
    assert (len(history), history.refused) == (0, 4)
    history.add(torch.zeros(2), torch.zeros(2))
    assert history.refused == 4
    history.add(s, torch.tensor([2.0, 1.0]))
    assert (len(history), history.refused) == (1, 4)
    assert history.product(torch.full((2,), float("nan"))) is None


# Costs


def counted(method: str, run: fastntk.Run, **options: Any) -> float:
    """Training passes that a method's cost counts: one second each, all else free."""
    assert run.trace is not None
    sizes = Sizes(samples=42, retain=28, classes=3, parameters=1, body=1, features=1, itemsize=8, chunk=1, input_copy=0)
    free = dict.fromkeys(("gemm32", "gemm64", "cholesky", "read"), float("inf"))
    speed = Calibration(forward=0, rows=0, step=1, row_bytes=0, dispatch=0, threads=1, **free)
    found = METHODS[method]
    problem = Problem(
        method=method, sizes=sizes, speed=speed, options=found.filled(options), given=frozenset(options), recipe=run.recipe,
        places=("memory",), ready=False, on_disk=0, whole_classes=True, memory=10**9, trace=TraceSizes.of(run.trace),
    )  # fmt: skip
    (route,) = found.cost(problem)
    return route.seconds


def test_costs_count_the_samples_that_gradients_are_taken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = made(replace(ADAM, batch_size=6)), 0
    inner = F.cross_entropy

    def counting(outputs: Tensor, labels: Tensor, **options: float) -> Tensor:
        nonlocal seen
        seen += len(outputs) * outputs.requires_grad
        return inner(outputs, labels, **options)

    monkeypatch.setattr("torch.nn.functional.cross_entropy", counting)
    for method, options in (
        ("amnesiac", {"epochs": 0}),
        ("amnesiac", {"epochs": 3}),
        ("deltagrad", {"period": 1, "burn_in": 0}),
        ("deltagrad", {"period": 4, "burn_in": 4}),
    ):
        seen = 0
        details = fastntk.unlearn(run, classes=[1], method=method, **options).details
        assert details.get("fell_back", 0) == 0
        assert counted(method, run, **options) == pytest.approx(seen, rel=0.15), (method, options)


def test_the_counts_of_a_trace_are_its_own() -> None:
    run = made()
    assert run.trace is not None
    assert TraceSizes.of(run.trace) == TraceSizes(epochs=4, steps=24, visits=4 * 42, features=20, body=10)


def test_a_rehearsal_is_recorded_where_the_run_was() -> None:
    rehearsal = fastntk.rehearse(made(), classes=[1])
    assert rehearsal.run.trace is not None
    assert fastntk.rehearse(made(trace=False), classes=[1]).run.trace is None


def test_steps_are_yielded_one_by_one_without_running_ahead() -> None:
    run = made()
    assert run.trace is not None
    path = recorded_path(run.trace, run.subset, run.anchor)
    first = next(path)
    assert isinstance(first, PathStep)
    kept = first.weights.clone()
    next(path)
    assert torch.equal(first.weights, kept)
    assert torch.equal(first.weights, run.anchor)
