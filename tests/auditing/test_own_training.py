"""Retrain by a training function of the user: what it is called with, what may come back, and what the audit makes of it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

import fastntk
from fastntk.auditing import accuracy, parse_record, schema
from fastntk.auditing.ensembles import FEWEST, confidences, ensemble, own_ensemble
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.report.page import render
from fastntk.training.network import predict


def foreign(toy) -> fastntk.Run:
    """The toy's run as one that does not say how it was trained."""
    return dataclasses.replace(toy.run, recipe=None)


def repeat(toy, keep_ids: list[str], seed: int) -> fastntk.Unlearned:
    """The toy's own recipe, as if it were somebody's loop."""
    gone = sorted(set(toy.run.data.ids) - set(keep_ids))
    return fastntk.unlearn(toy.run, ids=gone, method="retrain", seed=seed)


FORMS: dict[str, Callable[[fastntk.Unlearned], Any]] = {
    "model": lambda made: made.model,
    "state": lambda made: made.model.state_dict(),
    "vector": lambda made: made.subset.get(),
    "run": lambda made: made.as_run(),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_comes_back_becomes_the_result(toy, form: str) -> None:
    calls = []

    def mine(keep_ids: list[str], seed: int) -> Any:
        calls.append((keep_ids, seed))
        return FORMS[form](repeat(toy, keep_ids, seed))

    run, ids = foreign(toy), toy.ids(7)
    result = fastntk.unlearn(run, ids=ids, method="retrain", retrain=mine)
    by_recipe = fastntk.unlearn(toy.run, ids=ids, method="retrain")
    assert torch.equal(result.delta, by_recipe.delta)
    assert torch.equal(predict(result.model, toy.holdout.inputs), predict(by_recipe.model, toy.holdout.inputs))
    assert calls == [([name for name in run.data.ids if name not in ids], 0)]
    assert result.details["retrained_by"] == result.details["options"]["retrain"]
    assert "test_own_training:" in result.details["retrained_by"]
    json.dumps(result.details)
    fastntk.unlearn(run, ids=ids, method="retrain", retrain=mine, seed=3)
    assert calls[1][1] == 3


def test_an_audit_by_the_function_is_the_audit_by_the_recipe(toy) -> None:
    result = fastntk.unlearn(foreign(toy), ids=toy.ids(12), method="fast-ntk")
    options: dict[str, Any] = {"holdout": toy.holdout, "relearn_cap": 5, "retrains": 2}
    by_recipe = fastntk.audit(toy.run, result, reference="retrain", **options)
    mine = functools.partial(lambda toy, keep, seed: repeat(toy, keep, seed).model, toy)
    record = fastntk.audit(result.run, result, retrain=mine, **options)
    jsonschema.validate(record, schema())
    same = ("accuracy", "loss", "relearn", "probes", "distances", "flow", "loss_histogram")
    assert all(record[part] == by_recipe[part] for part in same)
    assert record["verdict"]["level"] == by_recipe["verdict"]["level"] != "no reference"
    assert by_recipe["reference"] == {"made": True, "seed": 0, "other_seeds": [1, 2]}
    name = record["reference"].pop("made_by")
    assert "<lambda>" in name
    assert record["reference"] == by_recipe["reference"] | {"changed_outside": 0}
    assert any(f"a function of the user ({name})" in sentence for sentence in record["limits"])
    record["reference"]["made_by"] = name
    assert "without the forgotten samples by test_own_training:" in render(record)


class Whole:
    """Somebody's full fine-tuning, BatchNorm in train mode: every tensor changes, but only the head was named as tuned."""

    def __init__(self, toy) -> None:
        self.samples = toy.run.data

    def network(self) -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def __call__(self, keep_ids: list[str], seed: int) -> nn.Module:
        model = self.network()
        part: Samples = self.samples.subset(self.samples.index_of(keep_ids))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        torch.manual_seed(seed)
        for _ in range(10):
            for batch in torch.randperm(len(part)).split(30):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(part.inputs[batch]), part.labels[batch]).backward()
                optimizer.step()
        return model

    def run(self) -> fastntk.Run:
        before = fastntk.tune(self.network(), "head").get()
        model = self(list(self.samples.ids), 0).eval()
        return fastntk.Run(model, fastntk.tune(model, "head"), before, self.samples)


def test_predictions_come_from_the_returned_model_and_not_from_its_tuned_part(toy, tmp_path: Path) -> None:
    train = Whole(toy)
    run = train.run()
    before = copy.deepcopy(run.model.state_dict())
    result = fastntk.unlearn(run, ids=toy.ids(20), method="fast-ntk")
    record = fastntk.audit(run, result, holdout=toy.holdout, retrain=train, relearn_cap=2, probes=False)
    kept = [name for name in run.data.ids if name not in toy.ids(20)]
    model, sets = train(kept, 0), {"holdout": toy.holdout, "forget": result.forgotten, "retain": result.retained}
    for name, samples in sets.items():
        assert record["accuracy"][name]["retrain"] == accuracy(predict(model, samples.inputs), samples.labels)
    composed = copy.deepcopy(run.model)
    run.subset.on(composed).set(run.subset.on(model).get())
    right, wrong = (predict(each, toy.holdout.inputs) for each in (model, composed))
    assert not torch.allclose(right, wrong)
    assert record["reference"]["changed_outside"] == 4  # weight and bias of two layers
    assert any("4 tensors outside the tuned parameters" in sentence for sentence in record["limits"])
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())

    retrained = fastntk.unlearn(run, ids=toy.ids(20), method="retrain", retrain=train)
    assert retrained.details["outside_subset"]["status"] == "retrained"
    assert torch.equal(predict(retrained.model, toy.holdout.inputs), right)
    fastntk.save_result(retrained, tmp_path / "retrain")
    loaded = fastntk.load_result(tmp_path / "retrain", run)
    assert torch.equal(predict(loaded.model, toy.holdout.inputs), right)
    again = fastntk.audit(run, result, holdout=toy.holdout, reference=loaded, relearn_cap=2, probes=False)
    assert again["accuracy"] == record["accuracy"]
    assert again["reference"]["made_by"] == record["reference"]["made_by"] == "test_own_training:Whole"


def test_a_loop_that_trains_one_module_again_and_again_is_copied(toy) -> None:
    """In a notebook the model is often one object, reset and trained anew."""
    train, shared = Whole(toy), Whole(toy).network()

    def mine(keep_ids: list[str], seed: int) -> nn.Module:
        shared.load_state_dict(train(keep_ids, seed).state_dict())
        return shared

    run = train.run()
    result = fastntk.unlearn(run, ids=toy.ids(9), method="fast-ntk")
    options: dict[str, Any] = {"holdout": toy.holdout, "relearn_cap": 0, "probes": False, "retrains": 2}
    one, other = (fastntk.audit(run, result, retrain=function, **options) for function in (mine, train))
    assert one["distances"] == other["distances"]
    assert one["distances"]["retrain_spread"]["total_variation"]["holdout"] > 0


def test_an_ensemble_by_the_function_is_the_real_one(toy, tmp_path: Path) -> None:
    """The oracle is the ensemble by the recipe: the same seeds, models and confidences."""
    result = fastntk.unlearn(toy.run, ids=toy.ids(12), method="fast-ntk", damping=0.1)
    known = ensemble(toy.run, result, size=FEWEST, kind="real", cache=tmp_path)
    run = foreign(toy)
    own = own_ensemble(run, fastntk.unlearn(run, ids=toy.ids(12), method="fast-ntk", damping=0.1),
                       lambda keep, seed: repeat(toy, keep, seed).model, size=FEWEST)  # fmt: skip
    assert own.seeds == known.seeds
    for name, vectors in known.vectors.items():
        expected = confidences(toy.run, {"forget": result.forgotten}, vectors, title=name)["forget"]
        np.testing.assert_allclose(own.margins["forget"][name], expected, rtol=1e-5, atol=1e-5)


def recorded(toy, keep_ids: list[str], seed: int) -> fastntk.Run:
    """Stands in for a loop of one's own with fastntk.record: a Run with its trace, in its own order, without images."""
    model = copy.deepcopy(toy.run.model)
    subset = toy.run.subset.on(model)
    subset.set(toy.run.anchor)
    data = toy.run.data.subset(toy.run.data.index_of(keep_ids[::-1]))
    run = fastntk.fit(model, subset, data, dataclasses.replace(toy.run.recipe, seed=seed, epochs=4), trace=True)
    return dataclasses.replace(run, samples=None, recipe=None)


@pytest.mark.parametrize("depth", ["head", 1])
def test_an_ensemble_of_path_replay_needs_the_trace_of_every_model(toy, depth: str | int) -> None:
    run = recorded(toy, list(toy.run.data.ids), 0)
    images = toy.run.data.subset(toy.run.data.index_of(run.listed.ids))
    run = dataclasses.replace(run, samples=images)
    result = fastntk.unlearn(run, ids=toy.ids(10), depth=depth)
    own = own_ensemble(run, result, functools.partial(recorded, toy), size=2)
    other = recorded(toy, list(run.data.ids), own.seeds[1])
    order = toy.run.data.subset(toy.run.data.index_of(other.listed.ids))
    again = fastntk.unlearn(dataclasses.replace(other, samples=order), ids=result.forgotten.ids, depth=depth)
    from fastntk.auditing.ulira import logit_confidence

    expected = logit_confidence(predict(again.model, result.forgotten.inputs), result.forgotten.labels)
    np.testing.assert_allclose(own.margins["forget"]["unlearned"][1], expected.numpy(), rtol=1e-5)
    with pytest.raises(InputError, match=r"path-replay works on the trace of every model .* let it record"):
        own_ensemble(run, result, lambda keep, seed: recorded(toy, keep, seed).model, size=2)


def test_a_real_ensemble_by_the_recipe_records_what_path_replay_needs(toy, tmp_path: Path) -> None:
    short = dataclasses.replace(toy.run.recipe, epochs=3)
    model = copy.deepcopy(toy.run.model)
    subset = toy.run.subset.on(model)
    subset.set(toy.run.anchor)
    run = fastntk.fit(model, subset, toy.run.data, short, trace=True)
    result = fastntk.unlearn(run, ids=toy.ids(8), depth="head")
    models = ensemble(run, result, size=FEWEST, kind="real", cache=tmp_path)
    work = copy.deepcopy(run.model)
    there = run.subset.on(work)
    there.set(run.anchor)
    other = fastntk.fit(work, there, run.data, dataclasses.replace(short, seed=models.seeds[3]), trace=True)
    again = fastntk.unlearn(other, ids=toy.ids(8), depth="head")
    assert torch.equal(models.vectors["full"][3], other.subset.get())
    assert torch.equal(models.vectors["unlearned"][3], again.subset.get())
    base = next((tmp_path / "ensembles").rglob("unlearned-*"))
    base.unlink()  # Full is in the cache then, its trace is not
    assert torch.equal(ensemble(run, result, size=FEWEST, kind="real", cache=tmp_path).vectors["unlearned"],
                       models.vectors["unlearned"])  # fmt: skip


def test_the_whole_audit_with_an_ensemble_by_the_function(toy, tmp_path: Path) -> None:
    train = Whole(toy)
    run = train.run()
    result = fastntk.unlearn(run, ids=toy.ids(10), method="fast-ntk")
    options: dict[str, Any] = {"holdout": toy.holdout, "relearn_cap": 0, "probes": False, "retrains": 0}
    record = fastntk.audit(run, result, retrain=train, ensemble=FEWEST, cache=tmp_path / "cache", **options)
    jsonschema.validate(record, schema())
    about = record["membership"]["u_lira"]["ensemble"]
    assert about["made_by"] == "test_own_training:Whole"
    assert about["estimated_seconds"] > 0
    assert not (tmp_path / "cache").exists()
    assert not any("stay in the cache" in sentence for sentence in record["limits"])
    assert "by test_own_training:Whole in" in render(record)


def test_without_a_function_record_and_page_say_what_is_missing(toy) -> None:
    run = foreign(toy)
    result = fastntk.unlearn(run, ids=toy.ids(5), method="fast-ntk")
    record = fastntk.audit(run, result, holdout=toy.holdout, relearn_cap=0)
    parse_record(record)
    assert record["verdict"]["level"] == "no reference"
    assert "no training function (retrain=, --retrain-with) was given" in record["verdict"]["reasons"][0]
    assert any("retrain=function" in sentence for sentence in record["limits"])
    page = render(record)
    assert "--reference retrain" not in page
    assert page.count("--retrain-with MODULE:FUNCTION") > 3
    with_recipe = fastntk.unlearn(toy.run, ids=toy.ids(5), method="fast-ntk")
    by_recipe = fastntk.audit(toy.run, with_recipe, holdout=toy.holdout, relearn_cap=0)
    assert "--retrain-with" not in render(by_recipe)
    assert "retrain=" not in str(by_recipe["limits"])


def nan_model(run: fastntk.Run) -> nn.Module:
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    return model


def trained_in_place(run: fastntk.Run) -> nn.Module:
    run.subset.set(run.subset.get() + 1)
    return run.model


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda run: "a path", r"returns an nn.Module, a state_dict, the tuned vector or a Run; got str"),
        (lambda run: None, "got NoneType"),
        (lambda run: torch.zeros(3), r"a tensor of shape \(3,\); a tuned vector has shape"),
        (lambda run: nn.Linear(6, 3), "another architecture than the run's Sequential; missing: 0.bias"),
        (lambda run: nn.Sequential(*run.model[:3], nn.Linear(96, 4)), "of another shape: 3.bias"),
        (lambda run: nn.DataParallel(copy.deepcopy(run.model)), "not in the run's model: module.0.bias.*not wrapped"),
        (lambda run: copy.deepcopy(run.model).double(), "of another dtype"),
        (lambda run: {"0.weight": 1}, "missing"),
        (nan_model, "no numbers .NaN or infinite.: 0.weight: its training diverged"),
        (lambda run: run.subset.get() * torch.nan, "no numbers"),
        (lambda run: copy.deepcopy(run.model), "returned the run's own weights, to the last bit"),
        (trained_in_place, "trained the run's own model, which is now another one"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_retrain_is_refused(toy, returned: Callable[[fastntk.Run], Any], message: str) -> None:
    model = copy.deepcopy(toy.run.model)
    run = dataclasses.replace(toy.run, model=model, subset=toy.run.subset.on(model), recipe=None)
    with pytest.raises(InputError, match=message):
        fastntk.unlearn(run, ids=toy.ids(3), method="retrain", retrain=lambda keep_ids, seed: returned(run))


def test_wrong_use_is_said_before_any_training(toy) -> None:
    run = foreign(toy)
    result = fastntk.unlearn(run, ids=toy.ids(3), method="fast-ntk")
    with pytest.raises(InputError, match=r"retrain must be a function of your own.*got str.*--retrain-with"):
        fastntk.audit(run, result, holdout=toy.holdout, retrain="mine:train")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="retrain must be a function of your own"):
        fastntk.unlearn(run, ids=toy.ids(3), method="retrain", retrain="mine")
    for message, options in (
        ("the run has none. Give a training function", {"reference": "retrain"}),
        ("the run has none.*retrain=, --retrain-with", {"ensemble": FEWEST}),
        ("or your own retrain=", {"require": ["forget_accuracy<=retrain"]}),
    ):
        with pytest.raises(InputError, match=message):
            fastntk.audit(run, result, holdout=toy.holdout, **options)  # type: ignore[arg-type]

    def never(keep_ids: list[str], seed: int) -> nn.Module:
        raise AssertionError("called")

    with pytest.raises(InputError, match="the run has none"):
        fastntk.audit(run, result, holdout=toy.holdout, retrain=never, ensemble=FEWEST, ensemble_kind="tangent")
    retrained = fastntk.unlearn(toy.run, ids=toy.ids(3), method="retrain")
    for more in ({}, {"ensemble": FEWEST, "ensemble_kind": "tangent"}):
        with pytest.raises(InputError, match=r"Retrains are given .* Give one: the results"):
            fastntk.audit(toy.run, result, holdout=toy.holdout, reference=retrained, retrain=never, **more)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="called"):  # what the function raises is the user's own to see
        fastntk.audit(run, result, holdout=toy.holdout, retrain=never)


def test_a_function_that_ignores_the_seed_is_noticed(toy) -> None:
    run = foreign(toy)
    result = fastntk.unlearn(run, ids=toy.ids(3), method="fast-ntk")
    options: dict[str, Any] = {"holdout": toy.holdout, "relearn_cap": 0, "probes": False}

    def deaf(keep_ids: list[str], seed: int) -> nn.Module:
        return repeat(toy, keep_ids, 0).model

    with pytest.raises(InputError, match=r"the same weights for the seeds 0 and 1.*retrains=0"):
        fastntk.audit(run, result, retrain=deaf, **options)
    record = fastntk.audit(run, result, retrain=deaf, retrains=0, **options)
    assert record["reference"]["other_seeds"] == []


def test_a_plan_does_not_guess_what_the_function_takes(toy) -> None:
    plan = fastntk.plan(foreign(toy), ids=toy.ids(3), method="retrain", retrain=lambda keep, seed: None)
    assert plan.route("retrain").solver == "your own training"
    assert plan.details()["chosen"]["retrain"]["seconds"] is None
    assert "its time is not known" in plan.verdict
