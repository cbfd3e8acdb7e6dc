"""Tuning of the baselines: equal budgets, an honest validation part, a score that can be checked by hand; and their costs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.planning import Calibration, Problem, Sizes
from fastntk.unlearning import METHODS, baseline_tuning
from fastntk.unlearning.rehearsal import Rehearsal, stratified


class Counting(nn.Module):
    """A linear classifier that counts the samples it is asked about with gradients; copies count together."""

    counted = 0

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        Counting.counted += len(x) * torch.is_grad_enabled()
        return self.out(x)


def data(n: int = 60) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(n) % 3
    return fastntk.Samples(torch.randn(n, 6, generator=generator) + 1.5 * F.one_hot(labels, 6), labels)


def made(model: nn.Module | None = None) -> fastntk.Run:
    torch.manual_seed(0)
    model = (model or nn.Sequential(nn.Linear(6, 3))).eval()
    return fastntk.fit(model, fastntk.tune(model, "head"), data(), fastntk.Recipe(epochs=8, lr=0.05, batch_size=16), trace=True)


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    return made()


@pytest.fixture(scope="module")
def class_rehearsal(run: fastntk.Run) -> Rehearsal:
    return fastntk.rehearse(run, classes=[1])


# The rehearsal


@pytest.mark.parametrize("request_", [{"classes": [1]}, {"ids": list(range(0, 30, 4))}])
def test_validation_samples_are_unseen_stratified_and_never_forgotten(run: fastntk.Run, request_: dict[str, Any]) -> None:
    rehearsal = fastntk.rehearse(run, **request_, validation=0.25, seed=3)
    seen, unseen = set(rehearsal.run.data.ids), set(rehearsal.validation.ids)
    assert seen | unseen == set(run.data.ids)
    assert not seen & unseen
    assert set(rehearsal.forget) <= seen
    kept = [label for i, label in zip(run.data.ids, run.data.labels.tolist()) if i not in rehearsal.forget]
    for label in set(kept):
        assert rehearsal.validation.labels.tolist().count(label) == round(0.25 * kept.count(label))
    other = fastntk.rehearse(run, **request_, validation=0.25, seed=4)
    assert set(other.validation.ids) != unseen


def test_the_rehearsed_run_is_what_fit_makes_of_the_rest(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    before = run.subset.get()
    again = made(nn.Sequential(nn.Linear(6, 3)))
    again.subset.set(run.anchor)
    expected = fastntk.fit(again.model, again.subset, class_rehearsal.run.data, run.recipe)
    assert torch.equal(class_rehearsal.run.subset.get(), expected.subset.get())
    assert torch.equal(run.subset.get(), before)
    assert torch.equal(class_rehearsal.run.anchor, run.anchor)


def test_stratified_leaves_at_least_one_of_each_class() -> None:
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    drawn = labels[stratified(labels, torch.arange(7), 0.9, torch.Generator().manual_seed(0))].tolist()
    assert drawn == [0, 2, 2, 2]


class Answers(nn.Module):
    """Logits that are handed in as inputs, so that a score can be done by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def test_the_score_by_hand(run: fastntk.Run) -> None:
    right = lambda label, margin: (margin * F.one_hot(torch.tensor(label), 3)).tolist()
    # To forget: class 2 as a whole (one of two right), and two samples of class 0 (both right, loss a).
    rows = [right(2, 2.0), right(0, 2.0), right(0, 3.0), right(0, 3.0)]
    rest = [right(0, 0.5), right(1, 1.0), right(2, 1.0), right(1, 0.5)]
    # Not seen: class 0 once wrong and once right, class 1 right.
    samples = fastntk.Samples(torch.tensor(rows + rest), [2, 2, 0, 0, 0, 1, 1, 1])
    unseen = fastntk.Samples(torch.tensor([right(1, 1.0), right(0, 1.0), right(1, 5.0)]), [0, 0, 1])
    model = Answers().eval()
    of = fastntk.Run(model, fastntk.tune(model, "scale"), torch.ones(1), samples)
    rehearsal = Rehearsal(of, of, ("0", "1", "2", "3"), (2,), unseen, 0.2, 0, 0.0)
    judged = rehearsal.judge(model)
    cost = lambda row, label: float(F.cross_entropy(torch.tensor([row]).double(), torch.tensor([label])))
    known, unknown = cost(right(0, 3.0), 0), (cost(right(1, 1.0), 0) + cost(right(0, 1.0), 0)) / 2
    apart = 0.5 * abs(1.0 - 0.5) + 0.5 * abs(known - unknown) / (known + unknown)
    assert judged["validation_accuracy"] == pytest.approx(2 / 3)
    assert judged["forget_gap"] == pytest.approx((1 + 2 * apart) / 4)
    assert judged["score"] == pytest.approx(1 / 3 + (1 + 2 * apart) / 4)
    assert judged["forget_accuracy"] == pytest.approx(3 / 4)


def test_a_model_that_never_saw_the_samples_scores_better_than_one_that_did(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    nothing = class_rehearsal.judge(class_rehearsal.run.model)
    retrained = fastntk.unlearn(class_rehearsal.run, classes=[1], method="retrain")
    assert class_rehearsal.judge(retrained.model)["score"] < nothing["score"] - 0.5


# The tuning


BASELINES = [name for name, method in METHODS.items() if method.search_space]


@pytest.mark.parametrize("method", BASELINES)
def test_every_baseline_gets_the_same_budget_and_the_least_score_wins(
    run: fastntk.Run, class_rehearsal: Rehearsal, method: str
) -> None:
    tuned = fastntk.tune_baseline(run, method, classes=[1], budget=5, rehearsal=class_rehearsal)
    assert tuned.method == method
    assert len(tuned.trials) == tuned.protocol["budget"] == 5
    keys = [json.dumps(trial["options"]) for trial in tuned.trials]
    assert len(set(keys)) == 5
    assert tuned.trials[0]["options"].items() <= METHODS[method].filled({}).items()
    scores = [trial["score"] for trial in tuned.trials if trial["score"] is not None]
    winner = next(trial for trial in tuned.trials if trial["options"] == tuned.options)
    assert tuned.score == winner["score"] == min(scores)
    again = json.loads(json.dumps(tuned.to_dict()))
    assert again["trials"][0]["options"] == tuned.trials[0]["options"]
    fastntk.unlearn(run, classes=[1], method=method, **tuned.options)


def test_every_baseline_has_a_space_and_the_default_budget_fits_all() -> None:
    assert set(BASELINES) == set(METHODS) - {"fast-ntk", "tangent-replay", "path-replay", "retrain", "full"}
    for method in BASELINES:
        space = METHODS[method].search_space
        assert space.keys() <= METHODS[method].options.keys()
        assert torch.tensor([len(axis) for axis in space.values()]).prod() >= 16, method


def test_trials_see_neither_validation_nor_other_data_and_no_retrained_model(run: fastntk.Run, monkeypatch: Any) -> None:
    asked = []

    def spy(origin: fastntk.Run, **request: Any) -> Any:
        asked.append((origin, request))
        return fastntk.unlearn(origin, **request)

    monkeypatch.setattr(baseline_tuning, "unlearn", spy)
    ids = list(range(0, 30, 4))
    rehearsal = fastntk.rehearse(run, ids=ids, seed=2)
    fastntk.tune_baseline(run, "scrub", ids=ids, budget=3, rehearsal=rehearsal)
    assert len(asked) == 3
    for origin, request in asked:
        assert origin is rehearsal.run
        assert not set(origin.data.ids) & set(rehearsal.validation.ids)
        assert set(request["ids"]) == {str(i) for i in ids}
        assert request["method"] == "scrub"


def test_one_training_serves_many_methods_and_is_made_when_missing(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    shared = fastntk.tune_baseline(run, "max-loss", classes=[1], budget=2, rehearsal=class_rehearsal)
    alone = fastntk.tune_baseline(run, "max-loss", classes=[1], budget=2)
    strip = lambda trials: [{name: value for name, value in trial.items() if name != "seconds"} for trial in trials]
    assert strip(shared.trials) == strip(alone.trials)


def test_a_grid_replaces_the_space(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    tuned = fastntk.tune_baseline(run, "neggrad+", classes=[1], budget=2, grid={"lr": [1e-4, 1e-3]}, rehearsal=class_rehearsal)
    assert sorted(trial["options"]["lr"] for trial in tuned.trials) == [1e-4, 1e-3]


def test_a_trial_that_fails_is_kept_without_a_score(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    asked = {"classes": [1], "rehearsal": class_rehearsal}
    tuned = fastntk.tune_baseline(run, "neggrad+", budget=2, grid={"alpha": [0.9, 7.0]}, **asked)
    assert tuned.options == {"alpha": 0.9}
    assert [trial["score"] is None for trial in tuned.trials if trial["options"] == {"alpha": 7.0}] == [True]
    with pytest.raises(InputError, match="Every trial of 'neggrad\\+' failed"):
        fastntk.tune_baseline(run, "neggrad+", budget=1, grid={"alpha": [7.0]}, **asked)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fast-ntk", {}, "No search space"),
        ("magic", {}, "No search space"),
        ("scrub", {"budget": 0}, "budget counts trials, 1 to"),
        ("scrub", {"budget": 1000}, "budget counts trials, 1 to"),
        ("scrub", {"grid": {"magic": [1]}}, "takes alpha, gamma"),
        ("scrub", {"grid": {"alpha": []}}, "each with a value or more"),
        ("scrub", {"grid": {}}, "each with a value or more"),
        ("scrub", {"validation": 1.0}, r"in \(0, 1\)"),
        ("scrub", {"classes": [9]}, "unknown classes"),
        ("scrub", {"classes": []}, "the request is empty"),
    ],
)
def test_wrong_tuning_is_refused(run: fastntk.Run, method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fastntk.tune_baseline(run, method, **({"classes": [1]} | options))


def test_a_rehearsal_of_another_request_or_run_and_a_run_without_recipe_are_refused(
    run: fastntk.Run, class_rehearsal: Rehearsal
) -> None:
    with pytest.raises(InputError, match="another run or another request"):
        fastntk.tune_baseline(run, "scrub", classes=[2], rehearsal=class_rehearsal)
    with pytest.raises(InputError, match="another run or another request"):
        fastntk.tune_baseline(made(), "scrub", classes=[1], rehearsal=class_rehearsal)
    with pytest.raises(InputError, match="has no recipe"):
        fastntk.rehearse(fastntk.Run(run.model, run.subset, run.anchor, run.samples), classes=[1])
    alone = [i for i, label in zip(run.data.ids, run.data.labels.tolist()) if label == 0][1:]
    with pytest.raises(InputError, match="No validation samples for the classes 0"):
        fastntk.rehearse(run, ids=alone)


# Costs


def training_passes(method: str, **options: object) -> float:
    """What a method's cost counts, at one second a training pass and nothing else."""
    sizes = Sizes(samples=60, retain=40, classes=3, parameters=1, body=1, features=1, itemsize=4, chunk=1, input_copy=0)
    still = dict.fromkeys(("gemm32", "gemm64", "cholesky", "read"), 1.0)
    speed = Calibration(forward=0, rows=0, step=1, row_bytes=0, dispatch=0, threads=1, **still)
    found = METHODS[method]
    problem = Problem(
        method=method,
        sizes=sizes,
        speed=speed,
        options=found.filled(options),
        given=frozenset(options),
        recipe=fastntk.Recipe(epochs=7),
        places=("memory",),
        ready=False,
        on_disk=0,
        whole_classes=True,
        memory=10**9,
    )
    (route,) = found.cost(problem)
    return route.seconds


@pytest.mark.parametrize(
    "method", ["max-loss", "random-label", "fine-tune", "l1-sparse", "neggrad+", "scrub", "bad-teacher", "salun"]
)
@pytest.mark.parametrize("batch_size", [5, 64])
def test_costs_count_the_samples_that_gradients_are_taken_of(method: str, batch_size: int) -> None:
    run = made(Counting())
    Counting.counted = 0
    fastntk.unlearn(run, classes=[1], method=method, batch_size=batch_size, epochs=4)
    assert training_passes(method, epochs=4, batch_size=batch_size) == Counting.counted


def test_retraining_counts_every_epoch_of_the_recipe() -> None:
    assert training_passes("retrain") == 7 * 40
    assert training_passes("full") == 0
