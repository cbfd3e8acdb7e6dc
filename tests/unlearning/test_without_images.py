"""A run of which only the trace is at hand: what works works as with images, and what needs them says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from path_cases import Layers, body_run, head_run, points, recipe, theta
from torch import nn

import fastntk
from fastntk.base.errors import BudgetError, InputError
from fastntk.unlearning import METHODS

GIVE = r"needs the images. Give them: .*samples=.* Its trace alone serves method='path-replay' with depth='head'"
BLIND = {"path-replay", "full"}


def alone(run: fastntk.Run) -> fastntk.Run:
    assert run.trace is not None
    return dataclasses.replace(run, samples=None, recipe=None, trace=dataclasses.replace(run.trace, memo={}))


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    return body_run()


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "saved and loaded"])
def test_requests_in_a_row_are_those_of_the_run_with_images(run: fastntk.Run, saved: bool, tmp_path: Path) -> None:
    bare = alone(run)
    if saved:
        bare.save(tmp_path / "run")
        bare = fastntk.Run.load(tmp_path / "run", model=Layers().double())
    first, known = fastntk.unlearn(bare, classes=["bee"]), fastntk.unlearn(run, classes=["bee"], depth="head")
    assert first.method == "path-replay"
    assert first.details["depth"] == "head"
    assert "rows need the images" in first.details["climb"]["stopped"]
    assert first.details["note"].startswith("depth auto went no further than the head: rows need the images")
    assert "; 6 of 8" in first.details["note"]
    assert torch.equal(theta(first), theta(known))
    later = first.as_run()
    if saved:
        fastntk.save_result(first, tmp_path / "first")
        paired = fastntk.load_result(tmp_path / "first", bare)
        assert torch.equal(paired.split.forget, first.split.forget)
        later = fastntk.load_run(tmp_path / "first", model=Layers().double())
    second = fastntk.unlearn(later, ids=["p0", "p6"])
    assert torch.equal(theta(second), theta(fastntk.unlearn(known.as_run(), ids=["p0", "p6"], depth="head")))
    assert {"p0", "p1"}.isdisjoint(second.retained.ids)
    extended = fastntk.unlearn(first, ids=["p0"])
    assert torch.equal(theta(extended), theta(fastntk.unlearn(known, ids=["p0"], depth="head")))
    if saved:
        fastntk.save_result(second, tmp_path / "second")
        assert fastntk.load_run(tmp_path / "second", model=Layers().double()).trace is not None
    groups = [["p0"], ["p4", "p5"]]
    assert fastntk.removals(bare, groups).loss_change.tolist() == fastntk.removals(run, groups).loss_change.tolist()


def test_a_plan_says_what_it_takes_and_what_is_out(run: fastntk.Run) -> None:
    bare = alone(run)
    plan = fastntk.plan(bare, classes=[1])
    assert plan.chosen["path-replay"].seconds > 0
    assert list(plan.chosen) == ["path-replay"]
    assert str(plan).count("needs the images, which the run does not have") == 2  # fast-ntk, tangent-replay
    made = fastntk.unlearn(bare, classes=[1], method="path-replay", plan=plan)
    assert torch.equal(theta(made), theta(fastntk.unlearn(bare, classes=[1])))
    assert "what Retrain would take is not known" in plan.verdict
    with_recipe = fastntk.plan(dataclasses.replace(bare, recipe=recipe()), classes=[1])
    assert "What Retrain would take was not measured, for there are no images" in with_recipe.verdict
    assert with_recipe.details()["retrain_seconds"] is None
    every = fastntk.plan(bare, classes=[1], method=list(METHODS))
    assert set(every.chosen) == BLIND
    with pytest.raises(BudgetError, match="needs the images"):
        fastntk.plan(bare, classes=[1], method="scrub")


@pytest.mark.parametrize("method", [name for name in METHODS if name not in BLIND])
def test_methods_that_need_images_say_so_and_how_to_give_them(run: fastntk.Run, method: str) -> None:
    bare = dataclasses.replace(alone(run), recipe=recipe())
    with pytest.raises(InputError, match=f"method '{method.replace('+', '.')}' {GIVE}"):
        fastntk.unlearn(bare, ids=["p3"], method=method)


def test_what_else_needs_images_says_so(run: fastntk.Run) -> None:
    bare = alone(run)
    result = fastntk.unlearn(bare, ids=["p3"])
    needing: dict[str, Any] = {
        "an accuracy": result.accuracies,
        "an audit": lambda: fastntk.audit(bare, result, holdout=points(20, seed=9)),
        "this": lambda: fastntk.linearise_run(bare),
    }
    for what, call in needing.items():
        with pytest.raises(InputError, match=f"{what} {GIVE}"):
            call()
    deeper = r"rows need the images.*Take depth='head', or give them: dataclasses.replace"
    for depth in (1, "all"):
        with pytest.raises(InputError, match=deeper):
            fastntk.unlearn(bare, ids=["p3"], depth=depth)
        with pytest.raises(InputError, match=deeper):
            fastntk.removals(bare, ["p3"], depth=depth)
    with pytest.raises(InputError, match=r"the run has none.*method='path-replay', which walks along its trace"):
        fastntk.unlearn(bare, ids=["p3"], method="tangent-replay")
    nothing = fastntk.Run(run.model, run.subset, run.anchor, None)
    with pytest.raises(InputError, match=r"replace\(run, samples=...\)\.$"):  # no trace, so nothing is said of one
        fastntk.unlearn(nothing, ids=["p3"])
    given = dataclasses.replace(bare, samples=run.data)
    assert fastntk.unlearn(given, ids=["p3"], depth=1).details["depth"] == 1


def test_what_needs_no_images_after_all_works_without(run: fastntk.Run) -> None:
    bare = alone(run)
    for options in ({"method": "amnesiac", "epochs": 0}, {"method": "full"}):
        assert torch.equal(
            theta(fastntk.unlearn(bare, ids=["p3"], **options)), theta(fastntk.unlearn(run, ids=["p3"], **options))
        )
    assert "amnesiac" in fastntk.plan(bare, ids=["p3"], method="amnesiac", epochs=0).chosen
    retrained = fastntk.unlearn(bare, ids=["p3"], method="retrain", retrain=lambda keep, seed: run.anchor + len(keep) + seed)
    assert torch.equal(theta(retrained), run.anchor + 39)
    assert retrained.retained.ids == tuple(name for name in run.listed.ids if name != "p3")


def test_a_retrain_without_images_can_be_saved_and_is_the_reference_of_the_run_with_them(
    run: fastntk.Run, tmp_path: Path
) -> None:
    bare = alone(run)
    fastntk.save_result(
        fastntk.unlearn(bare, ids=["p3"], method="retrain", retrain=lambda keep, seed: 0.9 * run.subset.get()),
        tmp_path / "retrain",
    )
    given = dataclasses.replace(bare, samples=run.data)
    reference = fastntk.load_result(tmp_path / "retrain", given)
    result = fastntk.unlearn(given, ids=["p3"], depth="head")
    record = fastntk.audit(given, result, holdout=points(24, seed=9), reference=reference, relearn_cap=0)
    assert record["reference"]["made"]


def test_statistics_that_moved_are_left_and_said_to_be(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double().eval()
    run = fastntk.fit(model, fastntk.tune(model, "head"), points(), recipe(bn_stats="update"), trace=True)
    bare = dataclasses.replace(run, samples=None)
    result = fastntk.unlearn(bare, classes=[1])
    assert "estimating them anew needs the images; they may remember" in result.details["batch_norm_statistics"]
    assert torch.equal(result.model[1].running_mean, run.model[1].running_mean)


def test_a_head_that_is_all_there_is_needs_no_note() -> None:
    made = fastntk.unlearn(alone(head_run()), classes=[1])
    assert "note" not in made.details
    assert made.details["left"] == []
