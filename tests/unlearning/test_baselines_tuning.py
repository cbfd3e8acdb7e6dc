"""Tuning: equal budgets, an honest validation part, a score that can be checked by hand, halving; and the baselines' costs."""

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
from fastntk.unlearning.rehearsal import Rehearsal, SeedRehearsal, stratified


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


def test_the_score_by_hand() -> None:
    log = lambda *probabilities: torch.tensor(probabilities).log().tolist()
    forgotten = fastntk.Samples(torch.tensor([log(0.5, 0.25, 0.25), log(0.25, 0.5, 0.25)]), [0, 2])
    unseen = fastntk.Samples(torch.tensor([log(0.8, 0.1, 0.1)]), [0])

    class Uniform(Answers):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * super().forward(x)

    model, retrained = Answers().eval(), Uniform().eval()
    run = fastntk.Run(model, fastntk.tune(model, "scale"), torch.ones(1), forgotten)
    rehearsal = SeedRehearsal(0, run, retrained, forgotten, unseen, 0.0)
    judged = rehearsal.judge(model)
    assert judged["forget_distance"] == pytest.approx(0.5 - 1 / 3)
    assert judged["validation_distance"] == pytest.approx(0.8 - 1 / 3)
    assert judged["score"] == pytest.approx(0.5 * (0.5 - 1 / 3) + 0.5 * (0.8 - 1 / 3))
    assert judged["forget_accuracy"] == 0.5
    assert judged["validation_accuracy"] == 1.0
    assert rehearsal.judge(retrained)["score"] == 0.0


@pytest.mark.parametrize("request_", [{"classes": [1]}, {"ids": list(range(0, 30, 4))}])
def test_the_retrain_of_a_rehearsal_scores_zero_on_its_own_seed_only(run: fastntk.Run, request_: dict[str, Any]) -> None:
    rehearsal = fastntk.rehearse(run, **request_, seeds=(4, 5))
    assert [each.seed for each in rehearsal.seeds] == [4, 5]
    for each, other in zip(rehearsal.seeds, rehearsal.seeds[::-1]):
        assert each.run.recipe.seed == each.seed
        retrained = fastntk.unlearn(each.run, **request_, method="retrain")
        assert each.judge(retrained.model)["score"] == 0.0
        assert 0.0 < each.judge(other.retrained)["score"] < each.judge(each.run.model)["score"]
    assert rehearsal.spread == rehearsal.seeds[0].judge(rehearsal.seeds[1].retrained)["score"]
    assert {*rehearsal.validation.ids}.isdisjoint({*rehearsal.run.data.ids})
    assert fastntk.rehearse(run, **request_).spread is None


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,), (True,), ("a",)])
def test_wrong_rehearsal_seeds_are_refused(run: fastntk.Run, seeds: Any) -> None:
    with pytest.raises(InputError, match="seeds are different whole numbers"):
        fastntk.rehearse(run, classes=[1], seeds=seeds)


# The tuning


BASELINES = [name for name, method in METHODS.items() if method.search_space]


@pytest.mark.parametrize("method", BASELINES)
def test_every_baseline_gets_the_same_budget_and_the_least_score_wins(
    run: fastntk.Run, class_rehearsal: Rehearsal, method: str
) -> None:
    tuned = fastntk.tune_baseline(run, method, classes=[1], budget=5, rehearsal=class_rehearsal)
    assert tuned.method == method
    assert len(tuned.trials) == tuned.protocol["budget"] == tuned.protocol["tried"] == 5
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
    asked.clear()
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


def test_a_grid_replaces_the_space_and_fixed_options_are_in_every_trial(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    asked = {"classes": [1], "rehearsal": class_rehearsal}
    default = METHODS["neggrad+"].options["lr"].default
    tuned = fastntk.tune_baseline(run, "neggrad+", grid={"lr": [1e-4, 3e-3]}, fixed={"epochs": 2}, **asked)
    assert tuned.trials[0]["options"] == {"epochs": 2, "lr": default}
    assert sorted(trial["options"]["lr"] for trial in tuned.trials[1:]) == [1e-4, 3e-3]
    assert all(trial["options"]["epochs"] == 2 for trial in tuned.trials)
    assert tuned.protocol["tried"] == tuned.protocol["space"] == 3  # of a budget of 25: all there are
    with pytest.raises(InputError, match="none that is fixed"):
        fastntk.tune_baseline(run, "neggrad+", grid={"lr": [1e-4]}, fixed={"lr": 1e-3}, **asked)


def test_a_trial_that_fails_is_kept_without_a_score(run: fastntk.Run, class_rehearsal: Rehearsal) -> None:
    asked = {"classes": [1], "rehearsal": class_rehearsal}
    tuned = fastntk.tune_baseline(run, "neggrad+", grid={"alpha": [0.9, 7.0]}, **asked)
    (failed,) = (trial for trial in tuned.trials if trial["options"] == {"alpha": 7.0})
    assert failed["score"] is None
    assert failed["failed"]
    assert tuned.options != failed["options"]
    with pytest.raises(InputError, match="Every trial of 'neggrad\\+' failed"):
        fastntk.tune_baseline(run, "neggrad+", grid={"lr": [1e-3]}, fixed={"alpha": 7.0}, **asked)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, run: fastntk.Run) -> Any:
    """Trials whose scores are written down: by learning rate, the score on each seed; None diverges."""
    rehearsal = fastntk.rehearse(run, classes=[1], seeds=(7, 8, 9))

    def tuned(scores: dict[float, list[float | None]], **options: Any) -> Any:
        def attempt(trial: dict[str, Any], seed: SeedRehearsal, method: str, forget: tuple[str, ...]) -> None:
            value = scores[trial["options"]["lr"]][seed.seed - 7]
            if value is None:
                trial |= {"score": None, "failed": "diverged"}
                return
            trial["scores"][str(seed.seed)] = {"score": value}
            trial["score"] = sum(each["score"] for each in trial["scores"].values()) / len(trial["scores"])

        monkeypatch.setattr(baseline_tuning, "_try", attempt)
        grid = {"lr": [rate for rate in scores if rate != METHODS["neggrad+"].options["lr"].default]}
        return fastntk.tune_baseline(run, "neggrad+", classes=[1], grid=grid, rehearsal=rehearsal, **options)

    return tuned


def test_halving_takes_the_best_and_the_defaults_to_every_seed_and_the_least_mean_wins(scripted: Any) -> None:
    default = METHODS["neggrad+"].options["lr"].default
    scores = {default: [9, 9, 9], 1.0: [1, 5, 6], 2.0: [2, 2, 2], 3.0: [3, 1, 1], 4.0: [4, 0, 0], 5.0: [None, 0, 0]}
    tuned = scripted(scores, survivors=3)
    by_rate = {trial["options"]["lr"]: trial for trial in tuned.trials}
    assert {rate: len(trial["scores"]) for rate, trial in by_rate.items()} == {default: 3, 1.0: 3, 2.0: 3, 3.0: 3, 4.0: 1, 5.0: 0}
    assert tuned.options == {"lr": 3.0}
    assert tuned.score == pytest.approx(5 / 3)
    assert by_rate[5.0]["failed"] == "diverged"
    assert tuned.protocol["seeds"] == [7, 8, 9]
    assert {tuned.trials[number]["options"]["lr"] for number in tuned.protocol["survivors"]} == {default, 1.0, 2.0, 3.0}
    again = scripted(scores, survivors=3)
    assert again.to_dict()["trials"] == tuned.to_dict()["trials"]


def test_a_survivor_that_fails_later_cannot_win_and_the_first_of_equals_does(scripted: Any) -> None:
    default = METHODS["neggrad+"].options["lr"].default
    tuned = scripted({default: [2, 2, 2], 1.0: [1, None, 0], 2.0: [2, 2, 2]})
    assert tuned.options == {"lr": default}
    assert [trial["score"] for trial in tuned.trials if trial["options"]["lr"] == 1.0] == [None]
    with pytest.raises(InputError, match="failed on a further seed"):
        scripted({default: [1, None, 1], 1.0: [1, 1, None]})


def test_trials_share_the_rows_of_a_rehearsal(run: fastntk.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = fastntk.rehearse(run, classes=[1])
    given = []

    def spy(origin: fastntk.Run, **request: Any) -> Any:
        given.append(request["linearisation"])
        return fastntk.unlearn(origin, **request)

    monkeypatch.setattr(baseline_tuning, "unlearn", spy)
    grid = {"damping": [0.1, 1.0]}
    shared = fastntk.tune_baseline(run, "fast-ntk", classes=[1], grid=grid, fixed={"form": "ridge"}, rehearsal=rehearsal)
    assert given[0] is None
    assert all(each is not None for each in given[1:])
    alone = fastntk.unlearn(rehearsal.run, ids=rehearsal.forget, method="fast-ntk", **shared.trials[-1]["options"])
    assert rehearsal.judge(alone.model)["score"] == pytest.approx(shared.trials[-1]["score"], abs=1e-9)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fast-ntk", {}, "No search space"),
        ("magic", {}, "No search space"),
        ("scrub", {"budget": 0}, "budget counts trials, from 1"),
        ("scrub", {"survivors": 0}, "survivors counts trials, from 1"),
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
