"""``scrub``'s temperature, batches and rewind, ``bad-teacher``, ``l1-sparse``: slow oracles, and limits that are identities."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.planning import Calibration, Problem, Sizes
from fastntk.unlearning import METHODS
from fastntk.unlearning.baselines.common.distillation import divergence, taught
from fastntk.unlearning.baselines.scrub import scrub
from fastntk.unlearning.method import Task

FORGET = torch.arange(48) % 4 == 1
ALL = 64
"""A batch of everything."""


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(48) % 4
    centres = torch.randn(4, 3, 6, 6, generator=generator)
    inputs = (centres[labels] + 0.5 * torch.randn(48, 3, 6, 6, generator=generator)).double()
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    model = nn.Sequential(*layers).double().eval()
    recipe = fastntk.Recipe(epochs=15, lr=0.02, batch_size=16)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), fastntk.Samples(inputs, labels), recipe)


def slow_divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T²·Σ p·log(p/q), sample by sample and class by class, from logits."""
    total = torch.zeros((), dtype=student.dtype)
    for t, s in zip(teacher, student):
        p, q = (t / temperature).softmax(0), (s / temperature).softmax(0)
        for c in range(len(t)):
            total = total + p[c] * (p[c] / q[c]).log()
    return temperature**2 * total / len(teacher)


def error(run: fastntk.Run, vector: Tensor) -> float:
    model = copy.deepcopy(run.model)
    run.subset.on(model).set(vector)
    return float((fastntk.predict(model, run.data.inputs[FORGET]).argmax(1) != run.data.labels[FORGET]).double().mean())


# The divergence


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_divergence_at_a_temperature_by_hand(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (3 * torch.randn(5, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    logs = (teacher / temperature).log_softmax(1)
    fast = divergence(logs, student, temperature=temperature)
    torch.testing.assert_close(fast, slow_divergence(teacher, student, temperature))
    assert divergence(logs, teacher, temperature=temperature).abs() < 1e-14


def test_at_high_temperature_the_divergence_is_that_of_centred_logits() -> None:
    """T → ∞: ‖(t − t̄) − (s − s̄)‖² / 2C (Hinton et al. 2015)."""
    teacher, student = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gap = (teacher - teacher.mean(1, keepdim=True)) - (student - student.mean(1, keepdim=True))
    hot = divergence((teacher / 1e4).log_softmax(1), student, temperature=1e4)
    torch.testing.assert_close(hot, gap.square().sum(1).mean() / (2 * 5), rtol=1e-3, atol=0)


def test_teachers_are_asked_once_and_at_the_temperature(run: fastntk.Run) -> None:
    logs = taught(run.model, run.data.inputs, temperature=3.0, device=torch.device("cpu"))
    torch.testing.assert_close(logs, (run.model(run.data.inputs) / 3).log_softmax(1).detach())
    plain = taught(run.model, run.data.inputs, temperature=1.0, device=torch.device("cpu"))
    assert torch.equal(plain, fastntk.predict(run.model, run.data.inputs).log_softmax(1))


# scrub


def test_scrub_by_hand(run: fastntk.Run) -> None:
    """Two epochs, one of them with a max pass in two batches, from plain autograd and Adam: max first, then min.

    The first max step follows rounding errors, which have to be the same: hence a linear model, and the fast divergence.
    """
    linear = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double().eval()
    recipe = fastntk.Recipe(epochs=3, lr=0.01, batch_size=16)
    run = fastntk.fit(linear, fastntk.tune(linear, "head"), run.data, recipe)
    alpha, gamma, temperature, lr, weight_decay = 0.3, 0.8, 2.0, 0.01, 1e-3
    result = fastntk.unlearn(
        run, classes=[1], method="scrub", alpha=alpha, gamma=gamma, temperature=temperature, max_epochs=1, epochs=2, lr=lr,
        batch_size=ALL, forget_batch_size=8, schedule="constant", seed=3,
    )  # fmt: skip
    model = copy.deepcopy(run.model)
    subset, teacher = (
        run.subset.on(model),
        taught(run.model, run.data.inputs, temperature=temperature, device=torch.device("cpu")),
    )
    optimizer = torch.optim.Adam(subset.parameters.values(), lr=lr)

    def step(objective: Tensor) -> None:
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()

    forget = FORGET.nonzero().flatten()
    for batch in forget[torch.randperm(12, generator=torch.Generator().manual_seed(7))].split(8):
        step(-divergence(teacher[batch], model(run.data.inputs[batch]), temperature=temperature))
    for _ in range(2):
        outputs = model(run.data.inputs[~FORGET])
        away = torch.cat([p.flatten() for p in subset.parameters.values()]) - run.anchor
        loss = F.cross_entropy(outputs, run.data.labels[~FORGET])
        kept = divergence(teacher[~FORGET], outputs, temperature=temperature)
        step(gamma * loss + alpha * kept + weight_decay / 2 * away.square().sum())
    assert result.details["steps"] == 4
    torch.testing.assert_close(result.subset.get(), subset.get(), rtol=1e-9, atol=1e-10)


def test_scrub_rewinds_to_the_epoch_whose_forget_error_is_nearest(run: fastntk.Run) -> None:
    common = {"alpha": 0.1, "lr": 0.02, "batch_size": 12, "max_epochs": 3, "schedule": "constant", "temperature": 1.0}
    ends = [fastntk.unlearn(run, classes=[1], method="scrub", epochs=n, **common).subset.get() for n in range(1, 7)]
    errors = [error(run, end) for end in ends]
    assert len(set(errors)) >= 3, "an easy choice would test nothing"
    for wanted in (0.0, 0.3, 0.6, 1.0):
        result = fastntk.unlearn(run, classes=[1], method="scrub", epochs=6, rewind=wanted, **common)
        epoch = result.details["rewound_to"]
        assert torch.equal(result.subset.get(), ends[epoch - 1])
        nearest = min(abs(value - wanted) for value in errors)
        assert epoch == max(i + 1 for i, value in enumerate(errors) if abs(value - wanted) == nearest)
    assert "rewound_to" not in fastntk.unlearn(run, classes=[1], method="scrub", epochs=1).details


def test_scrub_without_epochs_has_nothing_to_rewind_to(run: fastntk.Run) -> None:
    result = fastntk.unlearn(run, classes=[1], method="scrub", epochs=0, rewind=0.5)
    assert result.delta.abs().max() == 0
    assert "rewound_to" not in result.details


def test_the_forget_batches_have_a_size_of_their_own(run: fastntk.Run) -> None:
    task = Task(run, fastntk.ForgetRequest(classes=(1,)).resolve(run.data), None)
    counts = [scrub(task, max_epochs=2, epochs=3, batch_size=12, forget_batch_size=size).details["steps"] for size in (12, 5, 1)]
    assert counts == [3 * 3 + 2, 3 * 3 + 2 * 3, 3 * 3 + 2 * 12]


# bad-teacher


def test_bad_teacher_takes_the_step_of_its_objective(run: fastntk.Run) -> None:
    temperature, lr = 2.0, 1e-3
    result = fastntk.unlearn(
        run, classes=[1], method="bad-teacher", temperature=temperature, share=1.0, lr=lr, epochs=1, batch_size=ALL
    )
    ignorant = copy.deepcopy(run.model)
    run.subset.on(ignorant).set(run.anchor)
    inputs = run.data.inputs
    targets = torch.where(FORGET[:, None], ignorant(inputs), run.model(inputs)).detach()
    parameters = list(run.subset.parameters.values())
    grads = torch.autograd.grad(slow_divergence(targets, run.model(inputs), temperature), parameters)
    gradient = torch.cat([grad.flatten() for grad in grads])
    # Adam's first step is lr·g/(|g| + 1e-8).
    torch.testing.assert_close(result.delta, -lr * gradient / (gradient.abs() + 1e-8), rtol=1e-5, atol=1e-9)


def test_a_bad_teacher_that_is_the_good_one_teaches_nothing(run: fastntk.Run) -> None:
    same = replace(run, anchor=run.subset.get().clone())
    # One step: Adam makes 1e-10 of gradients of rounding errors, and soon a step of them.
    asked = {"classes": [1], "method": "bad-teacher", "share": 1.0, "lr": 0.01, "epochs": 1, "batch_size": ALL}
    assert fastntk.unlearn(same, **asked).delta.abs().max() < 1e-8
    assert fastntk.unlearn(run, **asked).delta.abs().max() > 1e-3


def test_the_student_comes_nearer_to_the_bad_teacher_on_what_goes(run: fastntk.Run) -> None:
    result = fastntk.unlearn(run, classes=[1], method="bad-teacher", share=1.0, lr=0.02, epochs=20)
    ignorant = copy.deepcopy(run.model)
    run.subset.on(ignorant).set(run.anchor)
    outputs = {
        name: fastntk.predict(m, run.data.inputs) for name, m in (("bad", ignorant), ("good", run.model), ("new", result.model))
    }
    apart = lambda teacher, name, part: float(divergence(outputs[teacher][part].log_softmax(1), outputs[name][part]))
    assert apart("bad", "new", FORGET) < 0.3 * apart("bad", "good", FORGET)
    assert apart("good", "new", ~FORGET) < 0.3 * apart("good", "bad", ~FORGET)


@pytest.mark.parametrize(("share", "count"), [(0.25, 9), (1.0, 36), (1e-6, 1)])
def test_a_share_of_the_retained_samples_takes_part(run: fastntk.Run, share: float, count: int) -> None:
    details = fastntk.unlearn(run, classes=[1], method="bad-teacher", share=share, epochs=2, batch_size=5).details
    assert details["retained_taking_part"] == count
    assert details["steps"] == 2 * math.ceil((count + 12) / 5)


# l1-sparse


@pytest.mark.parametrize("towards", ["anchor", "zero"])
def test_l1_sparse_by_hand(run: fastntk.Run, towards: str) -> None:
    gamma, lr, epochs = 0.05, 0.01, 4
    result = fastntk.unlearn(
        run, classes=[1], method="l1-sparse", gamma=gamma, towards=towards, lr=lr, epochs=epochs, batch_size=ALL,
        schedule="constant",
    )  # fmt: skip
    model = copy.deepcopy(run.model)
    subset = run.subset.on(model)
    optimizer = torch.optim.Adam(subset.parameters.values(), lr=lr)
    target = run.anchor if towards == "anchor" else torch.zeros_like(run.anchor)
    for weight in (0.05, 0.0375, 0.025, 0.0125):
        optimizer.zero_grad()
        values = torch.cat([p.flatten() for p in subset.parameters.values()])
        loss = F.cross_entropy(model(run.data.inputs[~FORGET]), run.data.labels[~FORGET])
        penalty = 1e-3 / 2 * (values - run.anchor).square().sum() + weight * (values - target).abs().sum()
        (loss + penalty).backward()
        optimizer.step()
    torch.testing.assert_close(result.subset.get(), subset.get(), rtol=1e-9, atol=1e-10)


def test_a_large_penalty_takes_back_the_fine_tuning_or_the_norm_scales(run: fastntk.Run) -> None:
    start = float((run.subset.get() - run.anchor).abs().mean())
    scales = {}
    for towards in ("anchor", "zero"):
        result = fastntk.unlearn(run, classes=[1], method="l1-sparse", gamma=100.0, towards=towards, lr=0.03, epochs=60)
        scales[towards] = float(result.model[1].weight.detach().mean())
        if towards == "anchor":
            assert float((result.subset.get() - run.anchor).abs().mean()) < 0.25 * start
    assert scales["zero"] < 0.85 < 0.95 < scales["anchor"]


# Their costs


def seconds(method: str, **options: object) -> float:
    """At one second a training pass and a thousandth a forward pass."""
    sizes = Sizes(samples=60, retain=40, classes=3, parameters=1, body=1, features=1, itemsize=4, chunk=1, input_copy=0)
    still = dict.fromkeys(("gemm32", "gemm64", "cholesky", "read"), 1.0)
    speed = Calibration(forward=1e-3, rows=0, step=1, row_bytes=0, dispatch=0, threads=1, **still)
    problem = Problem(
        method=method, sizes=sizes, speed=speed, options=METHODS[method].filled(options), given=frozenset(options),
        recipe=fastntk.Recipe(epochs=7), places=("memory",), ready=False, on_disk=0, whole_classes=True, memory=10**9,
    )  # fmt: skip
    (route,) = METHODS[method].cost(problem)
    return route.seconds


def test_costs_count_teachers_looks_and_shares() -> None:
    assert seconds("scrub", epochs=4, max_epochs=2) == pytest.approx(4 * 40 + 2 * 20 + 0.060)
    assert seconds("scrub", epochs=4, max_epochs=2, rewind=0.5) == pytest.approx(4 * 40 + 2 * 20 + 0.060 + 4 * 0.020)
    assert seconds("scrub", epochs=4, max_epochs=0) == pytest.approx(4 * 40 + 0.060)
    assert seconds("bad-teacher", epochs=2, share=0.25) == pytest.approx(2 * (10 + 20) + 0.080)
    assert seconds("bad-teacher", epochs=2, share="much") == pytest.approx(2 * (40 + 20) + 0.080)
    assert seconds("l1-sparse", epochs=2) == pytest.approx(2 * 40)


@pytest.mark.parametrize(
    "method",
    ["max-loss", "random-label", "fine-tune", "l1-sparse", "neggrad+", "scrub", "bad-teacher", "amnesiac", "deltagrad"],
)
def test_search_spaces_have_trials_enough_and_most_of_them_are_short(method: str) -> None:
    space = METHODS[method].search_space
    assert math.prod(len(set(axis)) for axis in space.values()) >= 25
    epochs = [5 if value is None else value for value in space.get("epochs", (1,))]
    assert 2 * sum(value <= 5 for value in epochs) > len(epochs)
    defaults = METHODS[method].filled({})
    assert all(defaults[name] in axis for name, axis in space.items()), "the defaults lie inside"
