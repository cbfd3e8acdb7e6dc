"""The plan: sane on a real run, right at extreme sizes, clear refusals; what is planned is what runs. No time is asserted."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.errors import BudgetError, InputError
from fastntk.base.live_bytes import LiveBytes
from fastntk.base.text import duration
from fastntk.planning import Calibration, Plan, Problem, Route, Sizes, make_plan
from fastntk.planning.calibration import live_bytes_per_image
from fastntk.planning.problem import Rows
from fastntk.tangent import checked_engine
from fastntk.training.recipe import Recipe
from fastntk.unlearning.api import prepare, with_rows
from fastntk.unlearning.registry import METHODS

SPEED = Calibration(
    forward=1e-3, rows=1e-2, step=3e-3, row_bytes=1_000_000, gemm32=1e11, gemm64=5e10, cholesky=3e10, read=1e10,
    dispatch=1e-6, threads=2, read_many=2e9, replay=3e9,
)  # fmt: skip
PLACES: tuple[Rows, ...] = ("memory", "disk", "stream")


def small_run(*, recipe: Recipe | None = Recipe(epochs=3, batch_size=8)) -> fastntk.Run:  # noqa: B008
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    subset = fastntk.tune(model, "norm+head")
    anchor = subset.get()
    samples = fastntk.Samples(torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 4)
    subset.set(anchor + 0.1)
    return fastntk.Run(model, subset, anchor, samples, recipe=recipe)


def sizes(**changes: int) -> Sizes:
    plain = Sizes(
        samples=1000, retain=900, classes=10, parameters=2026, body=1376, features=64, itemsize=4, chunk=20,
        input_copy=0,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


SQUARED = Recipe(loss="squared")
"""Trained so, a run is unlearned by equation (1)."""


def routes_of(
    s: Sizes,
    *,
    memory: float = 1e10,
    speed: Calibration = SPEED,
    recipe: Recipe | None = SQUARED,
    places: tuple[Rows, ...] = PLACES,
) -> list[Route]:
    return [
        route
        for name in with_rows()
        for route in METHODS[name].cost(
            Problem(
                method=name,
                sizes=s,
                speed=speed,
                options=METHODS[name].filled({}),
                given=frozenset(),
                recipe=recipe,
                places=PLACES,
                ready=False,
                on_disk=0,
                whole_classes=True,
                memory=int(memory),
            )
        )
    ]


def planned(
    s: Sizes, *, memory: float = 1e10, disk: float = 1e11, speed: Calibration = SPEED, recipe: Recipe | None = SQUARED
) -> Plan:
    routes = routes_of(s, memory=memory, speed=speed, recipe=recipe)
    epochs = None if recipe is None else recipe.epochs
    retrain = None if recipe is None else recipe.epochs * s.retain * speed.step
    return make_plan(s, speed, routes, memory=int(memory), disk=int(disk), retrain_seconds=retrain, epochs=epochs)


def test_a_small_run_has_a_sane_plan_and_is_left_as_it_was() -> None:
    run = small_run()
    run.model.train()
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    plan = fastntk.plan(run, classes=[0], memory_budget=10**9, disk_budget=10**9)
    assert dataclasses.replace(plan.sizes, weights=0) == Sizes(
        samples=20, retain=15, classes=4, parameters=40, body=12, features=6, itemsize=4, chunk=20,
        input_copy=20 * 3 * 8 * 8 * 4,
    )  # fmt: skip
    assert plan.sizes.stored == 20 * (4 * 12 + 6) * 4
    assert list(plan.chosen) == with_rows()
    assert all(route.fits and route.seconds > 0 and 0 < route.memory < 10**8 for route in plan.routes)
    again = fastntk.plan(run, classes=[0], method="retrain").route("retrain")
    assert plan.retrain_seconds is not None
    assert again.method == "retrain"
    assert run.model.training
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_the_plan_goes_into_json_and_onto_the_screen() -> None:
    plan = fastntk.plan(small_run(), ids=["3", "4"], memory_budget=10**9)
    back = json.loads(json.dumps(plan.details(), allow_nan=False))
    assert back["sizes"]["retain"] == 18
    assert {route["solver"].split()[0] for route in back["routes"]} >= {"primal", "matrix-free", "replays", "newton"}
    assert list(back["chosen"]) == with_rows()
    text = str(plan)
    for word in ("20 samples (18 retained)", "retrain", "->", "on disk", plan.verdict):
        assert word in text


def test_every_method_can_be_planned_and_one_alone_with_its_options() -> None:
    plan = fastntk.plan(small_run(), classes=[0], method=list(METHODS))
    assert list(plan.chosen) == [name for name, method in METHODS.items() if "trace" not in method.needs]
    reasons = {route.why_not for route in plan.routes if route.method in ("amnesiac", "deltagrad")}
    assert reasons == {"needs the trace, which the run does not have"}
    few = fastntk.plan(small_run(), classes=[0], method="fine-tune", epochs=1)
    many = fastntk.plan(small_run(), classes=[0], method="fine-tune", epochs=10_000)
    assert few.route("fine-tune").seconds < many.route("fine-tune").seconds
    assert few.engine == {}
    assert {route.rows for route in fastntk.plan(small_run(), classes=[0], rows="disk").routes} == {"disk"}
    with pytest.raises(InputError, match=r"options \(epochs\) go with one method"):
        fastntk.plan(small_run(), classes=[0], epochs=1)
    with pytest.raises(InputError, match="has no option magic"):
        fastntk.plan(small_run(), classes=[0], method="fine-tune", magic=1)


def test_without_a_recipe_replay_is_out_and_nothing_is_claimed_of_retrain() -> None:
    plan = fastntk.plan(small_run(recipe=None), classes=[1], memory_budget=10**9)
    assert set(plan.chosen) == {"fast-ntk"}
    assert not plan.recipe_known
    assert plan.retrain_seconds is None
    assert plan.details()["retrain_seconds"] is None
    assert "records no recipe" in plan.table()
    assert "what Retrain would take is not known" in plan.verdict
    assert "times as long" not in plan.verdict
    assert all("recipe" in route.why_not for route in plan.routes if route.method == "tangent-replay")


def test_ten_megabytes_are_refused_with_advice() -> None:
    with pytest.raises(BudgetError) as caught:
        fastntk.plan(small_run(), classes=[0], memory_budget=10_000_000)
    message = str(caught.value)
    for part in ("20 samples x 4 classes", "40 tuned parameters", "10 MB of memory", "allow at least", "retrain"):
        assert part in message
    with pytest.raises(BudgetError) as again:
        fastntk.unlearn(small_run(), method="fast-ntk", classes=[0], memory_budget=10_000_000)
    assert str(again.value) == message


def test_what_the_refusal_asks_for_is_enough() -> None:
    needed = min(route.memory for route in routes_of(sizes(), memory=1))
    assert not any(route.fits for route in planned(sizes(), memory=needed - 1).routes)
    assert planned(sizes(), memory=needed).chosen


@pytest.mark.parametrize("wrong", [{"memory_budget": 0}, {"disk_budget": -1}, {"chunk": 0}])
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        fastntk.plan(small_run(), classes=[0], **wrong)


def test_unknown_ids_are_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="unknown ids: nobody"):
        fastntk.plan(small_run(), ids=["nobody"])


def test_few_columns_go_primal_and_few_rows_dual() -> None:
    assert "primal" in planned(sizes(samples=50_000)).chosen["fast-ntk"].solver
    few = planned(sizes(samples=20, retain=15, parameters=40_000, body=39_350)).chosen["fast-ntk"]
    assert few.settings["solver"] == "dual"


def test_cross_entropy_is_unlearned_by_the_softmax_form_where_rows_can_be_kept() -> None:
    route = planned(sizes(), recipe=Recipe()).chosen["fast-ntk"]
    assert (route.rows, route.solver) == ("memory", "newton (softmax form)")
    assert not any("newton" in route.solver for route in planned(sizes()).routes)
    big = sizes(samples=5000, retain=4500, parameters=46_090, body=38_400, features=768)
    assert planned(big, memory=4e9, recipe=Recipe()).chosen["fast-ntk"].rows == "disk"
    assert planned(big, memory=4e9, disk=1e9, recipe=Recipe()).chosen["fast-ntk"].rows == "stream"


def test_the_largest_case_goes_matrix_free_from_the_disk() -> None:
    big = sizes(samples=5000, retain=4500, parameters=46_090, body=38_400, features=768)
    plan = planned(big, memory=4e9, speed=dataclasses.replace(SPEED, rows=0.1, forward=0.01))
    route = plan.chosen["fast-ntk"]
    assert (route.rows, route.settings["solver"]) == ("disk", "matrix-free")
    assert route.disk == big.stored == 5000 * (10 * 38_400 + 768) * 4
    assert route.memory < 4e9
    without = planned(big, memory=4e9, disk=1e9)
    assert without.chosen["fast-ntk"].rows == "stream"
    assert "tangent-replay" not in without.chosen
    assert any(route.why_not == "above the disk budget" for route in without.routes)


def test_the_choice_does_not_depend_on_measured_times() -> None:
    times = ("forward", "rows", "step", "read", "read_many", "replay", "gemm32", "gemm64", "cholesky")
    unknown = dataclasses.replace(SPEED, **dict.fromkeys(times, math.nan))
    for s in (sizes(), sizes(samples=50_000), sizes(samples=20, retain=15, parameters=40_000, body=39_350)):
        for memory in (3e8, 1e9, 4e9):
            for recipe in (SQUARED, Recipe(), None):
                with_times = planned(s, memory=memory, recipe=recipe).chosen
                without = planned(s, memory=memory, recipe=recipe, speed=unknown).chosen
                taken = [{name: (r.rows, r.solver, r.settings) for name, r in each.items()} for each in (with_times, without)]
                assert taken[0] == taken[1]


def test_memory_figures_follow_the_sizes() -> None:
    def memory(s: Sizes, pick: Callable[[Route], bool]) -> int:
        return next(route.memory for route in routes_of(s) if pick(route))

    streamed: Callable[[Route], bool] = lambda route: route.rows == "stream" and "primal" in route.solver
    stored: Callable[[Route], bool] = lambda route: route.rows == "memory" and route.settings.get("solver") == "matrix-free"
    wide = sizes(parameters=8746, body=8096)
    assert memory(wide, streamed) == pytest.approx(16 * 8746**2, rel=0.15)
    assert memory(dataclasses.replace(wide, samples=4000), streamed) == memory(wide, streamed)
    grown = dataclasses.replace(wide, samples=4000)
    assert memory(grown, stored) - memory(wide, stored) >= 3000 * 10 * 8096 * 4


@pytest.mark.parametrize(("retrain", "says"), [(1e9, "times as long"), (1e-9, "costs more than Retrain")])
def test_the_verdict_compares_with_retrain(retrain: float, says: str) -> None:
    plan = planned(sizes(classes=4), recipe=Recipe(), speed=dataclasses.replace(SPEED, step=retrain))
    assert says in plan.verdict
    if retrain < 1:
        assert "5 forward passes an image" in plan.verdict
        assert "retrain" in plan.verdict


# What is planned is what runs


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    """Rows of about 17 MB, so that the place they go to depends on a budget of tens of megabytes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 40),
        nn.ReLU(), nn.Linear(40, 8),
    )  # fmt: skip
    samples = fastntk.Samples(torch.randn(100, 3, 8, 8), torch.arange(100) % 8)
    return fastntk.fit(model, fastntk.tune(model, "all"), samples, Recipe(epochs=2, batch_size=32, lr=1e-2))


@pytest.mark.parametrize("budget", [45e6, 75e6, 4e9])
@pytest.mark.parametrize("rows", ["auto", "memory", "disk"])
@pytest.mark.parametrize(("method", "options"), [("fast-ntk", {}), ("fast-ntk", {"form": "ridge"}), ("tangent-replay", {})])
def test_a_plan_is_executed_and_never_refused_afterwards(
    run: fastntk.Run, tmp_path: Path, budget: float, rows: str, method: str, options: dict[str, object]
) -> None:
    asked = {"rows": rows, "memory_budget": int(budget), "scratch": str(tmp_path), **options}
    try:
        plan = prepare(run, classes=[0], method=method, options=asked).plan
    except BudgetError:
        assert budget <= 75e6, "only tight budgets are refused"
        with pytest.raises(BudgetError):
            fastntk.unlearn(run, classes=[0], method=method, **asked)
        return
    route = plan.route(method)
    result = fastntk.unlearn(run, classes=[0], method=method, plan=plan, validate=False)
    assert result.details["rows"]["kept"] == route.rows
    if rows != "auto":
        assert route.rows == rows
    if method == "fast-ntk":
        assert result.details["form"] == route.settings["form"]
        assert result.details["solver"] == route.settings["solver"]
    assert not list(tmp_path.iterdir()), "rows that nobody asked to keep were left behind"


SOLVERS = [{}, {"solver": "primal"}, {"solver": "dual"}, {"solver": "matrix-free"}]
HELD = [("fast-ntk", rows, options) for rows in ("memory", "disk") for options in SOLVERS]
HELD += [("fast-ntk", "stream", {"solver": solver}) for solver in ("primal", "dual")]  # matrix-free takes minutes
HELD += [("tangent-replay", rows, {}) for rows in ("memory", "disk")]


@pytest.mark.parametrize("classes", [4, 20])
@pytest.mark.parametrize(("method", "rows", "options"), HELD)
def test_no_route_holds_more_than_was_planned(classes: int, rows: str, method: str, options: dict[str, object]) -> None:
    run = wide_run(classes)
    job = prepare(run, ids=list(range(30)), method=method, options={"rows": rows, "memory_budget": 10**10, **options})
    with LiveBytes() as live:
        job.execute()
    assert live.peak <= 1.1 * job.plan.route(method).memory


@functools.cache
def wide_run(classes: int) -> fastntk.Run:
    """Rows of a few megabytes an image where there are many classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, classes))
    samples = fastntk.Samples(torch.randn(160, 3, 4, 4), torch.arange(160) % classes)
    return fastntk.fit(model, fastntk.tune(model, "all"), samples, Recipe(epochs=1, batch_size=64, lr=1e-2))


@pytest.mark.parametrize("method", ["fast-ntk", "tangent-replay", "retrain", "fisher"])
def test_a_plan_with_times_takes_the_route_of_one_without(run: fastntk.Run, method: str) -> None:
    with_times = fastntk.plan(run, classes=[0], method=method, memory_budget=60 * 10**6).route(method)
    asked = {"memory_budget": 60 * 10**6} if method in with_rows() else {}
    without = prepare(run, classes=[0], method=method, options=asked).plan.route(method)
    assert math.isfinite(with_times.seconds)
    assert (with_times.rows, with_times.settings, with_times.disk) == (without.rows, without.settings, without.disk)


def test_budgets_decide_where_rows_go(run: fastntk.Run) -> None:
    def place(budget: float) -> str:
        asked = {"memory_budget": int(budget)}
        return prepare(run, classes=[0], method="tangent-replay", options=asked).plan.route("tangent-replay").rows

    assert [place(budget) for budget in (60e6, 4e9)] == ["disk", "memory"]


def test_a_plan_of_another_request_method_or_option_is_refused(run: fastntk.Run) -> None:
    plan = prepare(run, ids=[0], method="fast-ntk").plan
    with pytest.raises(InputError, match="made for another run or request"):
        fastntk.unlearn(run, ids=[1], plan=plan)
    with pytest.raises(InputError, match=r"made with other options \(form, scale\)"):
        fastntk.unlearn(run, ids=[0], plan=plan, form="ridge", scale=2.0)
    with pytest.raises(InputError, match="This plan holds fast-ntk, not 'tangent-replay'"):
        fastntk.unlearn(run, ids=[0], plan=plan, method="tangent-replay")
    streamed = fastntk.linearise_run(run, rows="stream")
    with pytest.raises(InputError, match="has them in stream: plan again"):
        fastntk.unlearn(run, ids=[0], plan=plan, linearisation=streamed)


def test_a_plan_carries_its_options(run: fastntk.Run) -> None:
    plan = fastntk.plan(run, ids=[0], method="fast-ntk", form="ridge", memory_budget=10**9)
    result = fastntk.unlearn(run, ids=[0], plan=plan)
    assert result.details["form"] == "ridge"
    assert result.details["options"] == {"form": "ridge", "memory_budget": 10**9}


def test_rows_that_are_on_disk_already_are_not_counted_again(run: fastntk.Run, tmp_path: Path) -> None:
    asked = {"folder": tmp_path / "rows", "form": "ridge"}
    first = prepare(run, ids=[0], method="fast-ntk", options=asked)
    assert first.plan.route("fast-ntk").disk == first.plan.sizes.stored
    first.execute()
    again = prepare(run, ids=[1], method="fast-ntk", options=asked | {"disk_budget": 1000})
    assert again.plan.route("fast-ntk").disk == 0
    again.execute()


def test_scratch_rows_of_a_killed_process_are_swept_and_the_owner_alone_reads_them(run: fastntk.Run, tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from pathlib import Path
from fastntk.base.atomic import scratch_folder
from fastntk.tangent.on_disk import SCRATCH
with scratch_folder(Path({str(tmp_path)!r}), SCRATCH) as folder:
    (folder / "body.bin").write_bytes(b"rows")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())  # beside it lies its lock, which nobody holds
    assert left.stat().st_mode & 0o077 == 0
    fastntk.unlearn(run, method="fast-ntk", ids=[0], rows="disk", scratch=tmp_path, form="ridge")
    assert not list(tmp_path.iterdir())


def test_a_scratch_folder_that_is_not_there_is_refused_before_any_work(run: fastntk.Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder: give one that exists"):
        fastntk.unlearn(run, method="fast-ntk", ids=[0], rows="disk", scratch=tmp_path / "missing")


def test_seconds_do_not_count_the_calibration(run: fastntk.Run) -> None:
    measured = prepare(run, ids=[0], method="full", measured=True)
    assert measured.preparing_seconds < 0.5 * time_of(lambda: prepare(run, ids=[0], method="full", measured=True))


def time_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_verdicts_of_methods_without_rows_speak_of_no_rows(run: fastntk.Run) -> None:
    assert "ows" not in fastntk.plan(run, ids=[0], method="fine-tune", epochs=500).verdict.replace("no rows", "")
    assert "Retrain" not in fastntk.plan(run, ids=[0], method="retrain").verdict
    assert "nan" not in str(fastntk.plan(run, ids=[0], method="full"))


def test_modules_with_extra_state_can_be_planned_and_unlearned() -> None:
    class Noted(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"note": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    model = nn.Sequential(nn.Flatten(), Noted(12, 4))
    samples = fastntk.Samples(torch.randn(20, 3, 2, 2), torch.arange(20) % 4)
    noted = fastntk.fit(model, fastntk.tune(model, "head"), samples, Recipe(epochs=1))
    assert fastntk.unlearn(noted, ids=[0], method="full").seconds >= 0


def test_one_linearisation_serves_requests_of_several_threads(run: fastntk.Run) -> None:
    shared = fastntk.linearise_run(run)
    alone = [
        fastntk.unlearn(run, method="fast-ntk", ids=[i], form="ridge", linearisation=shared).details["validity"]["error"]
        for i in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        ask = lambda i: fastntk.unlearn(run, method="fast-ntk", ids=[i], form="ridge", linearisation=shared).details["validity"][
            "error"
        ]
        assert list(pool.map(ask, range(4))) == alone


# The calibration


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
    made = fastntk.plan(small_run(), classes=[0], folder=tmp_path / "not" / "yet", memory_budget=10**9)
    assert made.disk_budget > 0
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0402, "40 ms"), (3.21, "3.2 s"), (42.3, "42 s"), (600, "10 min"), (7.56e3, "2.1 h")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert math.isfinite(seconds)


def test_a_plan_leaves_random_numbers_alone(run: fastntk.Run) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fastntk.plan(run, classes=[0])
    assert torch.equal(torch.rand(3), expected)
