"""A Retrain of a result: the batches of the first fine-tuning, with the gaps that earlier requests left in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from path_cases import body_run, head_run, theta, without

import fastntk
from fastntk.base.errors import InputError
from fastntk.training.loop import epoch_batches, epoch_steps, learning_rate
from fastntk.training.recipe import Recipe

FIRST, SECOND, THIRD = ["p0", "p7", "p12"], ["p1", "p30"], ["p5"]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("options", [{"schedule": "cosine"}, {"schedule": "linear", "batch_size": 1}, {"batch_size": 3}])
def test_request_after_request_retrain_is_that_of_all_at_once(optimizer: str, options: dict[str, Any]) -> None:
    run = body_run(optimizer=optimizer, **options)
    first = without(run, depth="head", ids=FIRST).as_run()
    second = without(first, depth="head", ids=SECOND).as_run()
    for after, ids, all_ids in ((first, SECOND, FIRST + SECOND), (second, THIRD, FIRST + SECOND + THIRD)):
        assert torch.equal(theta(without(after, method="retrain", ids=ids)), theta(without(run, method="retrain", ids=all_ids)))


def test_so_is_that_of_a_saved_result(tmp_path: Path) -> None:
    run = body_run()
    without(run, depth="head", classes=[1]).as_run().save(tmp_path / "result")
    kept = run.data.subset(torch.nonzero(run.data.labels != 1).squeeze(1))
    after = fastntk.Run.load(tmp_path / "result", samples=kept, model=body_run().model)
    assert after.recipe is not None
    assert after.recipe.drawn_from == len(run.data)
    true = without(run, method="retrain", ids=[*(i for i, y in zip(run.data.ids, run.data.labels) if y == 1), "p0"])
    assert torch.equal(theta(without(after, method="retrain", ids=["p0"])), theta(true))


@pytest.mark.parametrize("options", [{"depth": "head"}, {"method": "tangent-replay"}])
def test_with_the_head_alone_tuned_the_next_replay_is_that_retrain(options: dict[str, Any]) -> None:
    run = head_run(batch_size=3)
    after = without(run, depth="head", ids=FIRST).as_run()
    made, true = without(after, ids=SECOND, **options), without(after, method="retrain", ids=SECOND)
    torch.testing.assert_close(theta(made), theta(true), rtol=1e-10, atol=1e-12)


def test_so_are_its_last_epochs_on_the_network() -> None:
    run = head_run(batch_size=1)
    after = without(run, depth="head", ids=FIRST).as_run()
    options = {"method": "tangent-replay", "polish": 1}
    made, at_once = without(after, ids=SECOND, **options), without(run, ids=FIRST + SECOND, **options)
    torch.testing.assert_close(theta(made), theta(at_once), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("change", [{"seed": 9}, {"lr": 0.01}, {"batch_size": 5}, {"schedule": "constant"}, {"epochs": 6}])
def test_another_recipe_draws_its_own_batches(change: dict[str, Any]) -> None:
    after = without(head_run(), depth="head", ids=FIRST).as_run()
    assert after.recipe is not None
    other = dataclasses.replace(after, recipe=dataclasses.replace(after.recipe, **change))
    assert after.walked is not None
    assert other.walked is None
    made, same = without(other, method="retrain", ids=SECOND), without(after, method="retrain", ids=SECOND)
    assert not torch.equal(theta(made), theta(same))


def test_other_seeds_and_results_without_a_trace_draw_from_as_many_as_before() -> None:
    run = head_run()
    after = without(run, method="retrain", ids=FIRST).as_run()
    assert after.trace is None
    assert after.recipe is not None
    assert after.recipe.drawn_from == len(run.data)
    for seed in (None, 5):
        again = without(after, method="retrain", ids=[], seed=seed)
        assert torch.isfinite(theta(again)).all()
    count = len(after.data)
    for epoch in range(after.recipe.epochs):
        batches = list(epoch_batches(count, after.recipe, epoch))
        assert len(batches) == epoch_steps(count, after.recipe) == -(-len(run.data) // after.recipe.batch_size)
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(count))


def test_nothing_forgotten_leaves_the_recipe() -> None:
    run = head_run()
    assert without(run, depth="head", ids=[]).as_run().recipe == run.recipe


def test_recording_a_training_with_gaps_records_the_rates_of_the_steps_taken() -> None:
    run = head_run(batch_size=1)
    assert run.recipe is not None
    model = head_run(epochs=0).model
    recipe = Recipe(**run.recipe.to_dict() | {"drawn_from": len(run.data) + 9, "seed": 3})
    gaps = fastntk.fit(model, fastntk.tune(model, "head"), run.data, recipe, trace=True)
    assert gaps.trace is not None
    steps = recipe.epochs * epoch_steps(len(run.data), recipe)
    taken = [
        step
        for step, batch in enumerate(batch for epoch in range(recipe.epochs) for batch in epoch_batches(40, recipe, epoch))
        if len(batch)
    ]
    assert len(taken) == gaps.trace.steps == steps - 9 * recipe.epochs
    expected = torch.tensor([learning_rate(recipe, step, steps) for step in taken], dtype=torch.float64)
    torch.testing.assert_close(gaps.trace.rates[:, 0].double(), expected)
    made, true = without(gaps, depth="head", ids=FIRST), without(gaps, method="retrain", ids=FIRST)
    torch.testing.assert_close(theta(made), theta(true), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "40"])
def test_a_number_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"Recipe\.drawn_from must be"):
        Recipe(drawn_from=value)


def test_fewer_than_there_are_is_refused() -> None:
    run = head_run(epochs=0)
    with pytest.raises(InputError, match="at least 40 here, got 39"):
        fastntk.fit(run.model, run.subset, run.data, Recipe(drawn_from=39))


def test_a_recipe_says_it_only_where_it_is_known() -> None:
    assert "drawn_from" not in Recipe().to_dict()
    assert Recipe.from_dict(Recipe().to_dict()) == Recipe()
    assert Recipe.from_dict(Recipe(drawn_from=7).to_dict()) == Recipe(drawn_from=7)
