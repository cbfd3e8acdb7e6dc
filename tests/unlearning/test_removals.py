"""Many leave-out requests in one call: each group as if it had been asked for alone."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

import pytest
import torch
from path_cases import body_run, head_run, theta, traced_head, without
from torch import Tensor

import fastntk
from fastntk.auditing.metrics import margins, mean_loss
from fastntk.base.errors import BudgetError, InputError

GROUPS: tuple[Any, ...] = (["p3"], "p8", ["p1", "p5", "p9", "p13"], [f"p{i}" for i in range(2, 40, 4)], ["p39", "p3"])


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    return body_run()


def expected(run: fastntk.Run, group: Any, depth: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Logits before and after, by a request of its own, from the last recorded features."""
    assert run.trace is not None
    ids = [group] if isinstance(group, str) else group
    made = without(run, depth=depth, ids=ids, exact=0, **options)
    where = run.listed.index_of(ids)
    visits = [int((run.trace.visited == i).nonzero()[-1]) for i in where.tolist()]
    h = torch.stack([run.trace.features[visit] for visit in visits])
    both = []
    for vector in (theta(run), theta(made)):
        weight, bias = (vector[run.subset.slices[name]] for name in ("out.weight", "out.bias"))
        moved = h
        if made.details["blocks"]:
            step = (vector - theta(run))[torch.cat([span(run, name) for name in made.details["moved"] if "out" not in name])]
            motion = run.trace.memo["network"].rows(
                made.details["blocks"], made.details["checkpoints"], place="memory", scratch=None, chunk=None
            )[0][-1]
            moved = h + motion.rows[where] @ step @ motion.lift.T
        both.append(moved @ weight.view(4, 7).T + bias)
    return both[0], both[1]


def span(run: fastntk.Run, name: str) -> Tensor:
    return torch.arange(run.subset.slices[name].start, run.subset.slices[name].stop)


@pytest.mark.parametrize(("depth", "options"), [("head", {}), (1, {}), ("all", {}), ("all", {"checkpoints": 2})])
def test_each_group_is_as_if_it_were_asked_for_alone(run: fastntk.Run, depth: Any, options: dict[str, Any]) -> None:
    found = fastntk.removals(run, GROUPS, depth=depth, **options)
    assert len(found) == len(GROUPS)
    assert found.alone == ()
    for k, group in enumerate(GROUPS):
        before, after = expected(run, group, depth, **options)
        labels = run.listed.labels[found.positions[k]]
        torch.testing.assert_close(found.margins[k][0], margins(before, labels), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.margins[k][1], margins(after, labels), rtol=1e-10, atol=1e-12)
        assert float(found.loss_before[k]) == pytest.approx(mean_loss(before, labels), rel=1e-10)
        assert float(found.loss_after[k]) == pytest.approx(mean_loss(after, labels), rel=1e-10)
        assert float(found.margin_after[k]) == pytest.approx(float(margins(after, labels).mean()), rel=1e-10)
    torch.testing.assert_close(found.loss_change, found.loss_after - found.loss_before)
    torch.testing.assert_close(found.margin_change, found.margin_after - found.margin_before)
    assert bool((found.loss_change > 0).all())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"spec": "2.weight"}])
def test_with_the_head_alone_tuned_the_figures_are_those_of_retrain(dtype: torch.dtype, near: float, options: Any) -> None:
    run = head_run(dtype=dtype, **options)
    found = fastntk.removals(run, GROUPS)
    for k, group in enumerate(GROUPS):
        true = without(run, method="retrain", ids=[group] if isinstance(group, str) else group)
        inputs, labels = run.data.inputs[found.positions[k]], run.data.labels[found.positions[k]]
        for figure, model in ((found.margins[k][0], run.model), (found.margins[k][1], true.model)):
            torch.testing.assert_close(figure, margins(fastntk.predict(model, inputs), labels), rtol=near, atol=near)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_groups_that_empty_a_batch_are_replayed_alone(batch_size: int) -> None:
    run = head_run(batch_size=batch_size)
    found = fastntk.removals(run, GROUPS)
    assert len(found.alone) == (len(GROUPS) if batch_size == 1 else 1)
    for k, group in enumerate(GROUPS):
        true = without(run, method="retrain", ids=[group] if isinstance(group, str) else group)
        labels = run.data.labels[found.positions[k]]
        outputs = fastntk.predict(true.model, run.data.inputs[found.positions[k]])
        assert float(found.loss_after[k]) == pytest.approx(mean_loss(outputs, labels), rel=1e-10)


@pytest.mark.parametrize("depth", ["head", "all"])
def test_memory_decides_the_turns_and_changes_nothing(run: fastntk.Run, depth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[int] = []
    module = importlib.import_module("fastntk.unlearning.removals")
    true = module.replay

    def counted(trace: Any, anchor: Any, keep: Tensor, **options: Any) -> Any:
        lanes.append(len(keep))
        return true(trace, anchor, keep, **options)

    monkeypatch.setattr(module, "replay", counted)
    groups = [*GROUPS, *(f"p{i}" for i in range(20))]
    whole = fastntk.removals(run, groups, depth=depth)
    assert lanes == [25]
    lanes.clear()
    parts = fastntk.removals(run, groups, depth=depth, memory_budget=100_000)
    assert len(lanes) > 1
    assert sum(lanes) == 25
    for one, other in zip(whole.losses + whole.margins, parts.losses + parts.margins):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    fresh = fastntk.removals(body_run(), groups, depth=depth, memory_budget=100_000)  # beyond the head: rows on disk
    torch.testing.assert_close(fresh.loss_change, whole.loss_change, rtol=1e-10, atol=1e-12)
    with pytest.raises(BudgetError, match="memory_budget allows 1"):
        fastntk.removals(run, groups, depth=depth, memory_budget=1000)


def test_depth_head_needs_no_images_and_the_record_names_nobody(run: fastntk.Run) -> None:
    alone = dataclasses.replace(run, samples=None)
    found, same = fastntk.removals(alone, GROUPS), fastntk.removals(run, GROUPS)
    assert torch.equal(found.loss_change, same.loss_change)
    record = found.to_dict()
    text = json.dumps(record)
    assert not any(f'"{name}"' in text for name in run.listed.ids)
    assert [group["positions"] for group in record["groups"]] == [[3], [8], [1, 5, 9, 13], list(range(2, 40, 4)), [39, 3]]
    assert record["groups"][0]["loss_change"] == float(found.loss_change[0])
    assert record["depth"] == "head"
    with pytest.raises(InputError, match="rows need the images"):
        fastntk.removals(alone, GROUPS, depth=1)


def test_a_result_can_be_asked_too(run: fastntk.Run) -> None:
    after = without(run, depth="head", classes=[1]).as_run()
    found = fastntk.removals(after, ["p0", ["p2", "p3"]])
    assert [where.tolist() for where in found.positions] == [[0], [1, 2]]
    with pytest.raises(InputError, match="group 0: unknown ids: p1"):
        fastntk.removals(after, ["p1"])


def test_what_cannot_be_removed_is_refused(run: fastntk.Run) -> None:
    everybody = list(run.listed.ids)
    for groups, message in (
        ([], "a sequence of groups of ids, at least one"),
        ("p1", "a sequence of groups of ids, at least one; got 'p1'"),
        (["p1", []], "group 1 is empty"),
        (["p1", ["p2", "who"]], "group 1: unknown ids: who"),
        ([["p1", "p1"]], "group 0 names ids more than once: p1"),
        ([everybody], "group 0 has all 40 samples"),
        ([[1.5]], "ids must be int or str"),
    ):
        with pytest.raises(InputError, match=message):
            fastntk.removals(run, groups)
    with pytest.raises(InputError, match="one depth for all groups"):
        fastntk.removals(run, ["p1"], depth="auto")
    with pytest.raises(InputError, match="depth=9"):
        fastntk.removals(run, ["p1"], depth=9)
    with pytest.raises(InputError, match="checkpoints is a number"):
        fastntk.removals(run, ["p1"], depth=1, checkpoints=0)
    with pytest.raises(InputError, match="has no trace"):
        fastntk.removals(dataclasses.replace(run, trace=None), ["p1"])
    odd, _ = traced_head([[0, 1], [2, 3]])
    with pytest.raises(InputError, match=r"group 1: .* never looked at p11"):
        fastntk.removals(odd, ["p0", "p11"])


def test_of_a_sample_that_was_never_looked_at_there_is_no_figure() -> None:
    run, _ = traced_head([[0, 1], [2, 3]])
    both, alone = fastntk.removals(run, [["p0", "p11"], ["p0"]]), fastntk.removals(run, ["p0"])
    assert both.losses[0].isnan().tolist() == both.margins[0].isnan().tolist() == [[False, True]] * 2
    assert both[0] == both[1] == alone[0]


def test_groups_one_by_one() -> None:
    run = body_run()
    made = fastntk.removals(run, [[run.data.ids[0]], [run.data.ids[1], run.data.ids[2]]])
    assert [group["loss_change"] for group in made] == pytest.approx(made.loss_change.tolist())
    assert made[1]["margin_after"] == pytest.approx(float(made.margin_after[1]))


def test_a_path_that_does_not_lead_to_the_weights_is_said(run: fastntk.Run) -> None:
    found = fastntk.removals(run, GROUPS)
    assert found.replay_miss == without(run, depth="head", ids=["p3"]).details["replay_miss"] < 1e-12
    assert found.to_dict()["replay_miss"] == found.replay_miss
    assert run.trace is not None
    other = dataclasses.replace(run, trace=dataclasses.replace(run.trace, rates=run.trace.rates * 3, memo={}))
    with pytest.warns(UserWarning, match="removals: the recorded path, walked again, misses the trained weights by"):
        assert fastntk.removals(other, GROUPS).replay_miss > 0.05
