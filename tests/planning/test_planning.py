"""The plan: sane on a real run, right choices at extreme sizes, honest refusals. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import BudgetError, InputError
from fastntk.base.text import duration
from fastntk.planning.calibration import Calibration, LiveBytes, live_bytes_per_image
from fastntk.planning.plan import METHODS, Plan, _judged, plan
from fastntk.planning.routes import Route, Sizes, estimate
from fastntk.tangent import checked_engine
from fastntk.training.recipe import Recipe

SPEED = Calibration(
    forward=1e-3, rows=1e-2, step=3e-3, row_bytes=1_000_000, gemm32=1e11, gemm64=5e10, cholesky=3e10, read=1e10,
    dispatch=1e-6, threads=2,
)  # fmt: skip


def small_run(*, recipe: Recipe | None = Recipe(epochs=3, batch_size=8)) -> fastntk.Run:  # noqa: B008
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    subset = fastntk.tune(model, "norm+head")
    samples = fastntk.Samples(torch.randn(20, 3, 8, 8), torch.arange(20) % 4)
    return fastntk.Run(model, subset, subset.get(), samples, recipe=recipe)


def sizes(**changes: int) -> Sizes:
    plain = Sizes(
        samples=1000, retain=900, classes=10, parameters=2026, body=1376, features=64, itemsize=4, chunk=20,
        input_copy=0,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


SQUARED = Recipe(loss="squared")
"""Trained so, a run is unlearned by equation (1)."""


def planned(s: Sizes, *, memory: float = 1e10, disk: float = 1e11, speed: Calibration = SPEED, recipe: Recipe = SQUARED) -> Plan:
    routes = tuple(_judged(r, memory=int(memory), disk=int(disk)) for r in estimate(s, speed, recipe=recipe))
    return Plan(s, speed, int(memory), int(disk), s.samples * speed.rows, routes, 60.0, True, "", {})


def test_a_small_run_has_a_sane_plan_and_is_left_as_it_was() -> None:
    run = small_run()
    run.model.train()
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    made = plan(run, classes=[0], memory_budget=10**9, disk_budget=10**9)
    assert made.sizes == Sizes(
        samples=20, retain=15, classes=4, parameters=40, body=12, features=6, itemsize=4, chunk=20,
        input_copy=20 * 3 * 8 * 8 * 4,
    )  # fmt: skip
    assert made.sizes.stored == 20 * (4 * 12 + 6) * 4
    assert set(made.chosen) == set(METHODS)
    assert all(route.fits and route.seconds > 0 and 0 < route.memory < 10**8 for route in made.routes)
    assert made.retrain_seconds == pytest.approx(3 * 15 * made.calibration.step)
    assert run.model.training
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_the_plan_goes_into_json_and_onto_the_screen() -> None:
    made = plan(small_run(), ids=["3", "4"], memory_budget=10**9)
    back = json.loads(json.dumps(made.details(), allow_nan=False))
    assert back["sizes"]["retain"] == 18
    assert {route["solver"].split()[0] for route in back["routes"]} >= {"primal", "dual", "matrix-free", "replays", "newton"}
    assert set(back["chosen"]) == set(METHODS)
    text = str(made)
    for word in ("20 samples (18 retained)", "retrain", "->", "on disk", made.verdict):
        assert word in text


def test_without_a_recipe_replay_is_out_and_retrain_is_a_stated_guess() -> None:
    made = plan(small_run(recipe=None), classes=[1], memory_budget=10**9)
    assert set(made.chosen) == {"fast-ntk"}
    assert not made.recipe_known
    assert made.retrain_seconds == pytest.approx(Recipe().epochs * 15 * made.calibration.step)
    assert "records no recipe" in made.table()
    assert all("recipe" in route.why_not for route in made.routes if route.method == "tangent-replay")


def test_ten_megabytes_are_refused_with_advice() -> None:
    with pytest.raises(BudgetError) as caught:
        plan(small_run(), classes=[0], memory_budget=10_000_000)
    message = str(caught.value)
    for part in ("20 samples x 4 classes", "40 tuned parameters", "10 MB of memory", "allow at least", "retrain"):
        assert part in message


def test_what_the_refusal_asks_for_is_enough() -> None:
    needed = min(r.memory for r in estimate(sizes(), SPEED, recipe=SQUARED))
    assert not any(r.fits for r in planned(sizes(), memory=needed - 1).routes)
    assert planned(sizes(), memory=needed).chosen


@pytest.mark.parametrize("wrong", [{"memory_budget": 0}, {"disk_budget": -1}, {"chunk": 0}])
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        plan(small_run(), classes=[0], **wrong)  # type: ignore[arg-type]


def test_unknown_ids_are_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="unknown ids: nobody"):
        plan(small_run(), ids=["nobody"])


def test_few_columns_go_primal_and_few_rows_dual() -> None:
    assert "primal" in planned(sizes(samples=50_000)).chosen["fast-ntk"].solver
    few = planned(sizes(samples=20, retain=15, parameters=40_000, body=39_350)).chosen["fast-ntk"]
    assert few.solver == "dual"


def test_cross_entropy_is_unlearned_by_the_softmax_form_where_rows_can_be_kept() -> None:
    chosen = planned(sizes(), recipe=Recipe()).chosen["fast-ntk"]
    assert (chosen.rows, chosen.solver) == ("in memory", "newton (softmax form)")
    assert not any("newton" in route.solver for route in planned(sizes()).routes)
    big = sizes(samples=5000, retain=4500, parameters=46_090, body=38_400, features=768)
    assert planned(big, memory=4e9, recipe=Recipe()).chosen["fast-ntk"].rows == "on disk"
    assert planned(big, memory=4e9, disk=1e9, recipe=Recipe()).chosen["fast-ntk"].rows == "never made"


def test_the_largest_case_goes_matrix_free_from_the_disk() -> None:
    big = sizes(samples=5000, retain=4500, parameters=46_090, body=38_400, features=768)
    chosen = planned(big, memory=4e9, speed=dataclasses.replace(SPEED, rows=0.1, forward=0.01)).chosen["fast-ntk"]
    assert (chosen.rows, chosen.solver) == ("on disk", "matrix-free")
    assert chosen.disk == big.stored == 5000 * (10 * 38_400 + 768) * 4
    assert chosen.memory < 4e9
    without = planned(big, memory=4e9, disk=1e9)
    assert without.chosen["fast-ntk"].rows == "never made"
    assert "tangent-replay" not in without.chosen
    assert any(r.why_not == "above the disk budget" for r in without.routes)


def test_float32_sums_are_taken_only_where_float64_does_not_fit() -> None:
    s = sizes(samples=5000, retain=4500, parameters=8746, body=8096)
    assert "float64" in planned(s).chosen["fast-ntk"].solver
    assert "float32" in planned(s, memory=1.1e9, disk=1).chosen["fast-ntk"].solver


def test_memory_figures_follow_the_sizes() -> None:
    def memory(s: Sizes, pick: Callable[[Route], bool]) -> int:
        return next(r.memory for r in estimate(s, SPEED, recipe=Recipe()) if pick(r))

    streamed: Callable[[Route], bool] = lambda r: "float32" in r.solver
    stored: Callable[[Route], bool] = lambda r: r.rows == "in memory" and r.solver == "matrix-free"
    wide = sizes(parameters=8746, body=8096)
    assert memory(wide, streamed) == pytest.approx(12 * 8746**2, rel=0.15)
    assert memory(dataclasses.replace(wide, samples=4000), streamed) == memory(wide, streamed)
    grown = dataclasses.replace(wide, samples=4000)
    assert memory(grown, stored) - memory(wide, stored) >= 3000 * 10 * 8096 * 4


@pytest.mark.parametrize(("retrain", "says"), [(1e9, "times as long"), (1e-9, "dearer than Retrain")])
def test_the_verdict_compares_with_retrain(monkeypatch: pytest.MonkeyPatch, retrain: float, says: str) -> None:
    speed = dataclasses.replace(SPEED, step=retrain)
    monkeypatch.setattr("fastntk.planning.plan.calibrate", lambda *_, **__: speed)
    made = plan(small_run(), classes=[0], memory_budget=10**9)
    assert says in made.verdict
    if retrain < 1:
        assert "5 forward passes an image" in made.verdict
        assert "retrain" in made.verdict


def test_live_bytes_counts_what_is_alive_at_once() -> None:
    with LiveBytes() as live:
        first = torch.zeros(1000)
        view = first[10:].view(-1)
        view.add_(1)
        second = first + 1
        assert live.now == 8000
        del second, first, view
        torch.ones(500)
    assert live.peak == 8000
    assert live.now == 0


def test_memory_of_a_chunk_is_that_of_its_images() -> None:
    run = small_run()
    run.model.eval()
    engine = checked_engine(run.model, run.subset, run.data.inputs)
    one = live_bytes_per_image(engine, run.data.inputs)
    # The convolution's output (6 x 6 x 6 floats) exists at least once, and not a hundred times.
    assert 6 * 6 * 6 * 4 < one < 100 * 6 * 6 * 6 * 4


def test_the_disk_asked_is_that_of_the_folder(tmp_path: Path) -> None:
    made = plan(small_run(), classes=[0], folder=tmp_path / "not" / "yet", memory_budget=10**9)
    assert made.disk_budget > 0
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0402, "40 ms"), (3.21, "3.2 s"), (42.3, "42 s"), (600, "10 min"), (7.56e3, "2.1 h")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert math.isfinite(seconds)
