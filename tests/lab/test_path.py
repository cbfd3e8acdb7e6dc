"""The path experiment on a few digits: what is first and next, resuming, figures against the audit's, the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lab.augmented import AUGMENTED
from lab.path_models import outputs_file, outputs_of, read_outputs
from lab.path_page import COLUMNS, path_page
from lab.path_rows import PathRecords
from lab.path_targets import WANTED, Wanted, target_lines, trade_lines
from lab.settings import DEVELOPMENT, PATH, RELEARNED
from tiny_cells import TINY as BASE

from fastntk import audit, unlearn
from fastntk.base.errors import InputError
from fastntk.reproduce import MethodRow, Request
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.retrain_clock import timed_retrain
from fastntk.reproduce.summary import Figure
from fastntk.unlearning.method import Method, Outcome, Task
from fastntk.unlearning.registry import register, unregister
from lab import path

NAME = "counts-its-memo"
TINY = replace(
    BASE,
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100, 101),
    extra_retrain_seeds=(102,),
    methods=(MethodRow("memo", NAME), MethodRow("fast-ntk", "fast-ntk")),
    probes=False,
)
COSTS = {"place": "first", "ratio": {"wall": 0.1, "cpu": 0.1}}
FOLDERS = {"shared": Path("nowhere")}


def remember(task: Task, *, amount: float = 0.01) -> Outcome:
    """Moves all tuned parameters, and keeps in the trace's memo how often it was called."""
    assert task.run.trace is not None
    calls = task.run.trace.memo["calls"] = task.run.trace.memo.get("calls", 0) + 1
    return Outcome(task.run.subset.get() * (1 + amount), {"calls": calls})


@pytest.fixture(autouse=True)
def _method() -> Iterator[None]:
    register(Method(NAME, "a count of its own calls", remember, cost=lambda problem: [problem.passes(0, batch=1)]))
    yield
    unregister(NAME)


@pytest.fixture(scope="module")
def shared_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def run(out: Path, work: Path, **options: Any) -> list[str]:
    said: list[str] = []
    path.run(options.pop("setting", TINY), out=out, work=work, **FOLDERS, **options, say=said.append)
    return said


def read(out: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "path/tiny" / f"{name}.json").read_text())
    return record


def test_the_first_request_finds_an_empty_memo_and_the_next_one_what_it_left(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work)
    class_0, random = (request.name for request in TINY.requests)
    for seed, order in ((100, (class_0, random)), (101, (random, class_0))):
        rows = read(tmp_path, f"seed{seed}")["rows"]
        for row in rows.values():
            assert [row["requests"][name]["place"] for name in order] == ["first", "next"]
        assert [rows["memo"]["requests"][name]["details"]["calls"] for name in order] == [1, 2]
        stages = [rows["fast-ntk"]["requests"][name]["cost"]["stages"] for name in order]
        assert "rows" in stages[0]
        assert "rows" not in stages[1]
    between = read(tmp_path, "between")["requests"][class_0]
    assert sorted(between["retrains"]) == ["100", "101", "102"]
    assert sorted(between["spread"]) == ["100-101", "100-102", "101-102"]
    assert sorted(between["others"]["memo"]["100"]["by_seed"]) == ["101", "102"]


def test_figures_are_those_of_the_audit(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work)
    experiment, request = open_experiment(TINY, shared=Path("nowhere"), work=shared_work), TINY.requests[0]
    origin = experiment.run(100, traced=True)
    result = unlearn(origin, ids=request.ids(experiment.samples), method=NAME)
    references = [experiment.retrain_result(origin, request, seed) for seed in (100, 101, 102)]
    expected = audit(origin, result, holdout=experiment.holdout, reference=references, relearn_cap=0)
    entry = read(tmp_path, "seed100")["rows"]["memo"]["requests"][request.name]
    distances = expected["distances"]
    assert entry["same"] == pytest.approx(distances["same_seed"]["total_variation"], abs=1e-6)
    assert entry["recovered"] == pytest.approx(distances["same_seed"]["recovered"], rel=1e-4)
    assert entry["weights"] == pytest.approx(distances["same_seed"]["weights"], rel=1e-5)
    between = read(tmp_path, "between")["requests"][request.name]
    others = between["others"]["memo"]["100"]["by_seed"]
    for seed in ("101", "102"):
        assert others[seed] == pytest.approx(distances["by_seed"][seed]["total_variation"], abs=1e-6)
    pair = next(value for name, value in distances["retrain_pairs"].items() if "101" in name and "102" in name)
    assert between["spread"]["101-102"] == pytest.approx(pair["total_variation"], abs=1e-6)
    for name, model in (("full", "full"), ("retrain", "retrain")):
        accuracies = read(tmp_path, "seed100")["references"][request.name][name]["accuracy"]
        assert accuracies == pytest.approx({where: expected["accuracy"][where][model] for where in accuracies})


def test_rows_resume_one_by_one_and_again_where_options_changed(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work, seeds=[100], rows=["memo"])
    assert list(read(tmp_path, "seed100")["rows"]) == ["memo"]
    assert not (tmp_path / "path/tiny/seed101.json").exists()
    assert run(tmp_path, shared_work, only_plan=True)[0].startswith("tiny: 3 of 4 rows to do")
    before = read(tmp_path, "seed100")["rows"]["memo"]
    run(tmp_path, shared_work)
    assert read(tmp_path, "seed100")["rows"]["memo"] == before
    said = run(tmp_path, shared_work)
    assert said[0].startswith("tiny: 0 of 4 rows to do")
    assert len(said) == 2
    changed = replace(TINY, methods=(MethodRow("memo", NAME, {"amount": 0.5}), TINY.methods[1]))
    run(tmp_path, shared_work, setting=changed)
    after = read(tmp_path, "seed100")["rows"]["memo"]
    assert after["digest"] != before["digest"]
    assert after["requests"]["class-0"]["same"] != before["requests"]["class-0"]["same"]


def test_what_is_computed_between_seeds_outlives_the_models(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work)
    before = read(tmp_path, "between")["requests"]
    run(tmp_path, tmp_path / "no-models-here", only_finish=True)
    assert read(tmp_path, "between")["requests"] == before


def test_kept_logits_are_made_again_for_another_vector(tmp_path: Path, shared_work: Path) -> None:
    experiment, request = open_experiment(TINY, shared=Path("nowhere"), work=shared_work), TINY.requests[0]
    file = outputs_file(tmp_path, request, "some", 0)
    first = outputs_of(experiment, request, experiment.anchor, file)
    stored = read_outputs(file)
    assert stored is not None
    assert torch.equal(stored.forget, first.forget)
    other = outputs_of(experiment, request, experiment.anchor + 0.1, file)
    assert not torch.equal(other.forget, first.forget)
    assert read_outputs(outputs_file(tmp_path, request, "none", 0)) is None


def test_retrain_is_timed_on_its_first_epochs_and_scaled(shared_work: Path) -> None:
    longer = replace(TINY, recipe=replace(TINY.recipe, epochs=6))
    timed = timed_retrain(open_experiment(longer, shared=Path("nowhere"), work=shared_work), TINY.requests[0], 100)
    assert timed["epochs_timed"] == 2
    assert timed["wall"] > 0


def table(text: str, request: str) -> dict[str, list[str]]:
    """The cells of a request's table, by row."""
    part = text.split(f"forget {request}\n")[1].split("##")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")][2:]
    return {cells[0]: cells[1:] for cells in lines}


def test_the_page_says_what_was_not_run(tmp_path: Path, shared_work: Path) -> None:
    nothing = table(path_page([TINY], out=tmp_path), "class 0")
    assert all(cells == ["not run"] * (len(COLUMNS) - 1) for cells in nothing.values())
    assert list(nothing) == ["Retrain", "Full", "memo", "fast-ntk"]
    run(tmp_path, shared_work, rows=["memo"])
    text = path_page([TINY], out=tmp_path)
    assert text == path_page([TINY], out=tmp_path)
    assert "Retrain's spread over 3 pairs of seeds" in text
    rows = table(text, "class 0")
    assert rows["fast-ntk"] == ["not run"] * (len(COLUMNS) - 1)
    assert rows["memo"][0] == "2"
    assert rows["Retrain"][0] == "3"
    assert rows["memo"][-2:] == ["2 models a side: too few", "–"]


def test_the_page_shows_multiples_of_the_spread(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work, rows=["memo"], seeds=[100])
    run(tmp_path, shared_work, seeds=[101], rows=["memo"])
    between = read(tmp_path, "between")["requests"]["class-0"]
    unit = fmean(pair["forget"] for pair in between["spread"].values())
    seeds = [read(tmp_path, f"seed{seed}")["rows"]["memo"]["requests"] for seed in TINY.seeds]
    same = fmean(entry["class-0"]["same"]["forget"] for entry in seeds) / unit
    others = fmean(fmean(d["forget"] for d in each["by_seed"].values()) for each in between["others"]["memo"].values()) / unit
    first = fmean(part["ratio"]["cpu"] for entry in seeds for part in entry.values() if part["place"] == "first")
    cells = dict(zip(COLUMNS[1:], table(path_page([TINY], out=tmp_path), "class 0")["memo"]))
    assert cells["TV same × spread, D_f / hold-out"].startswith(f"{same:.2f} ±")
    assert cells["TV others × spread, D_f / hold-out"].startswith(f"{others:.2f} ±")
    assert float(cells["first × Retrain [wall]"].split(" ")[0]) == pytest.approx(first, abs=6e-3)


def test_u_lira_stands_beside_retrains_against_retrains() -> None:
    values = torch.randn(8, 50, generator=torch.Generator().manual_seed(0)).round(decimals=4)
    request = TINY.requests[0]

    def figures(confidences: torch.Tensor) -> dict[str, Any]:
        accuracy = dict.fromkeys(("retain", "forget", "holdout"), 1.0)
        return {"confidences": confidences.tolist(), "accuracy": accuracy, "same": None, "recovered": 1.0}

    def records(shift: float, retrains: int) -> PathRecords:
        seeds = {
            seed: {"references": {}, "rows": {"memo": {"digest": "", "requests": {request.name: figures(row + shift) | COSTS}}}}
            for seed, row in enumerate(values[:4])
        }
        between = {"retrains": {str(seed): figures(row) for seed, row in enumerate(values[:retrains])}}
        return PathRecords(TINY, seeds, {request.name: between})

    null = records(0.0, 8).retrain_row(request)
    assert null is not None
    assert null.u_lira is not None
    assert abs(null.u_lira.auc - 0.5) < 0.1
    assert null.models == 4
    shifted, too_few = records(3.0, 8).row("memo", request), records(0.0, 7).retrain_row(request)
    assert shifted is not None
    assert shifted.u_lira is not None
    assert shifted.u_lira.auc > 0.9
    assert too_few is not None
    assert too_few.u_lira is None


def test_distances_to_retrains_whose_logits_are_gone_stay(tmp_path: Path, shared_work: Path) -> None:
    run(tmp_path, shared_work, rows=["memo"])
    before = read(tmp_path, "between")["requests"]
    own = tmp_path / "work"
    shutil.copytree(shared_work, own)
    for file in own.rglob("path/*/retrain-seed101.safetensors"):
        file.unlink()
    run(tmp_path, own, only_finish=True)
    assert read(tmp_path, "between")["requests"] == before
    assert sorted(before[TINY.requests[0].name]["others"]["memo"]["100"]["by_seed"]) == ["101", "102"]


def test_targets_are_held_against_what_was_measured(tmp_path: Path, shared_work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (Wanted("tiny", "memo", first=1e6, same=0.0), Wanted("tiny", "fast-ntk", u_lira=0.75, kind="class"))
    monkeypatch.setattr("lab.path_targets.WANTED", wanted)
    run(tmp_path, shared_work, rows=["memo"])
    lines = [line.strip("| ").split(" | ") for line in target_lines([PathRecords.read(TINY, out=tmp_path)])[2:]]
    assert [line[3] for line in lines] == ["first × Retrain", "TV same, × spread"] * 2 + ["U-LiRA"]
    assert [line[-1] for line in lines] == ["yes", "**no**", "yes", "**no**", "–"]
    assert lines[-1][-2] == "not run"


def test_a_missed_target_stands_beside_the_rows_that_come_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three made-up rows: cheap and far, between, dear and near."""
    request = TINY.requests[0]
    rows = {"memo": (0.1, 3.0), "fast-ntk": (0.3, 2.0), "third": (0.9, 1.0)}
    methods = tuple(TINY.methods[0]._replace(label=label) for label in rows)

    def figures(label: str, _: Request) -> Any:
        cost, distance = (Figure.of([value]) for value in rows[label])
        return SimpleNamespace(label=label, first=cost, next=cost, same={"forget": distance}, others={"forget": distance})

    records = SimpleNamespace(setting=replace(TINY, requests=(request,), methods=methods), row=figures)
    cases = [
        (
            Wanted("tiny", "fast-ntk", first=0.2, same=1.5, others=1.5),
            ["`memo`: 0.100; 3.00, 3.00", "`third`: 0.900; 1.00, 1.00"],
        ),
        (Wanted("tiny", "memo", same=2.0, others=2.0), ["–", "`fast-ntk`: 0.300; 2.00, 2.00"]),
        (Wanted("tiny", "third", first=0.05, same=0.5, others=0.5), ["none", "none"]),
        (Wanted("tiny", "third", first=1.0, same=1.0, others=1.0), None),
        (Wanted("tiny", "memo", first=0.01), None),
    ]
    for wanted, expected in cases:
        monkeypatch.setattr("lab.path_targets.WANTED", (wanted,))
        lines = [line.strip("| ").split(" | ")[-2:] for line in trade_lines([cast(PathRecords, records)])[2:]]
        assert lines == ([] if expected is None else [expected])


def test_targets_name_rows_that_exist() -> None:
    for wanted in WANTED:
        settings = [setting for setting in (*PATH, AUGMENTED) if setting.name.startswith(wanted.settings)]
        assert settings
        assert all(wanted.row in [row.label for row in setting.methods] for setting in settings)


def test_unknown_seeds_and_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no seeds \[7\]: choose from \[100, 101\]"):
        run(tmp_path, tmp_path, seeds=[7])
    with pytest.raises(InputError, match="no rows"):
        run(tmp_path, tmp_path, rows=["absent"])


def test_path_settings_keep_apart_from_development() -> None:
    tried = {(setting.model, request.name) for setting in DEVELOPMENT for request in setting.requests}
    assert not tried & {(setting.model, request.name) for setting in PATH for request in setting.requests}
    assert max(seed for setting in PATH for seed in setting.retrain_seeds) < 100
    labels = {row.label for setting in PATH for row in setting.methods}
    assert labels >= RELEARNED
