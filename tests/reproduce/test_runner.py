"""The runner end to end on a few digits: resumed it gives the same records and the same document."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_cells import TINY as BASE

from fastntk.base.errors import InputError
from fastntk.experiments import Method, Request, Setting, plan, run_steps, single
from fastntk.experiments.bench import open_bench
from fastntk.experiments.development_page import development_page
from fastntk.experiments.lists import DEVELOPMENT, UNLEARNING
from fastntk.experiments.pages import page
from fastntk.experiments.records import without
from fastntk.training.recipe import Recipe

TINY = replace(
    BASE,
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100,),
    extra_retrain_seeds=(101, 102),
    methods=(
        Method("full", "full"),
        Method("fast-ntk", "fast-ntk"),
        Method("tangent-replay", "tangent-replay"),
        Method("random-label", "random-label", {"epochs": 1}),
        Method("retrain", "retrain"),
    ),
)
VARYING = ("timings", "environment", "wall", "cpu", "rows_wall")


def run(setting: Setting, out: Path, *, most: int | None = None) -> int:
    steps = plan([setting], out=out, work=out / "work")
    run_steps(steps[:most], shared=Path("nowhere"), work=out / "work", say=lambda text: None)
    return len(steps)


def records(out: Path) -> dict[str, Any]:
    found = sorted(path for path in out.rglob("*.json"))
    return {str(path.relative_to(out)): without(json.loads(path.read_text()), *VARYING) for path in found}


def document(out: Path) -> str:
    return page("unlearning", [TINY], single=[], out=out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    assert run(TINY, out) == 1 + 6 + 2 * (4 + 3)
    return out


def test_a_record_holds_what_a_method_is_judged_by(finished: Path) -> None:
    record = json.loads((finished / "records/tiny/class-0/tangent-replay-seed100.json").read_text())
    assert set(record["accuracy"]) == {"full", "method", "retrain"}
    assert set(record["total_variation"]["holdout"]["other_seeds"]) == {"101", "102"}
    assert set(record["retrain_spread"]["forget"]) == {"100-101", "100-102", "101-102"}
    assert record["request"]["forget"] == 4
    assert record["relearn"]["cap"] == 2
    assert record["details"]["validity"]["verdict"]
    times = record["timings"]
    ratio = times["ratio_to_retrain"]["wall"]
    assert ratio["with_rows"] == pytest.approx((times["method"]["wall"] + times["rows"]["wall"]) / times["retrain"]["wall"])
    assert ratio["without_rows"] == pytest.approx(times["method"]["wall"] / times["retrain"]["wall"])


def test_full_and_retrain_bound_the_measures(finished: Path) -> None:
    folder = finished / "records/tiny/random-20pct-draw100"
    full = json.loads((folder / "full-seed100.json").read_text())
    retrain = json.loads((folder / "retrain-seed100.json").read_text())
    assert full["recovered"] == 0
    assert retrain["recovered"] == 1
    assert retrain["total_variation"]["forget"]["same_seed"] == retrain["weight_distance"] == 0
    others = retrain["total_variation"]["forget"]["other_seeds"]
    assert others["101"] == retrain["retrain_spread"]["forget"]["100-101"] > 0
    assert full["accuracy"]["method"] == full["accuracy"]["full"]


def test_nothing_is_run_twice(finished: Path) -> None:
    assert plan([TINY], out=finished, work=finished / "elsewhere") == []


@pytest.mark.parametrize("stop", [1, 5, 10])
def test_stopped_and_resumed_gives_the_same(finished: Path, tmp_path: Path, stop: int) -> None:
    run(TINY, tmp_path, most=stop)
    run(TINY, tmp_path)
    assert records(tmp_path) == records(finished)


def test_a_step_that_fails_leaves_nothing_half_done(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    target = tmp_path / "copy/records/tiny/class-0/fast-ntk-seed100.json"
    target.unlink()
    before = sorted(path.name for path in (tmp_path / "copy").rglob("*"))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fastntk.experiments.measure.relearn", killed)
        with pytest.raises(KeyboardInterrupt):
            run(TINY, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == before
    assert run(TINY, tmp_path / "copy") == 1
    assert records(tmp_path / "copy") == records(finished)


def test_the_document_is_the_same_bytes_and_marks_what_was_not_run(finished: Path, tmp_path: Path) -> None:
    text = document(finished)
    assert text == document(finished)
    assert "### tiny: forget class 0" in development_page([TINY], out=finished)
    rows = [line for line in text.splitlines() if line.startswith("| retrain |")]
    assert len(rows) == 2
    assert all("[1.00×]" in row for row in rows)
    assert "not run" not in text
    shutil.copytree(finished / "records", tmp_path / "records")
    (tmp_path / "records/tiny/class-0/fast-ntk-seed100.json").unlink()
    lines = [line for line in document(tmp_path).splitlines() if line.startswith("| fast-ntk |")]
    assert lines[0] == "| fast-ntk |" + " not run |" * 14
    assert "not run" not in lines[1]


def test_another_configuration_is_refused(finished: Path, tmp_path: Path) -> None:
    other = dataclasses.replace(TINY, recipe=Recipe(epochs=3, batch_size=4))
    with pytest.raises(InputError, match="made by another configuration"):
        plan([other], out=finished, work=finished / "work")
    relabelled = dataclasses.replace(TINY, methods=(Method("fast-ntk", "fast-ntk", {"damping": 0.5}),))
    with pytest.raises(InputError, match="another method, options or request"):
        plan([relabelled], out=finished, work=finished / "work")
    shutil.copytree(finished / "records", tmp_path / "records")
    (tmp_path / "records/tiny/setting.json").unlink()
    with pytest.raises(InputError, match=r"records but no setting\.json"):
        plan([TINY], out=tmp_path, work=tmp_path / "work")


def test_more_methods_and_requests_can_be_added(finished: Path) -> None:
    more = dataclasses.replace(TINY, methods=(*TINY.methods, Method("damped", "fast-ntk", {"damping": 0.5})))
    steps = plan([more], out=finished, work=finished / "work")
    assert [step.kind for step in steps] == ["record", "record"]


def test_weights_trained_on_other_data_are_refused(finished: Path) -> None:
    bench = open_bench(TINY, shared=Path("nowhere"), work=finished / "work")
    other = dataclasses.replace(bench, samples=bench.samples.subset(list(range(11, -1, -1))))
    assert bench.fitted(100).vector.shape == (bench.subset.numel,)
    with pytest.raises(InputError, match="trained from other data"):
        other.fitted(100)


def test_options_nobody_has_are_refused_before_any_work(tmp_path: Path) -> None:
    wrong = dataclasses.replace(TINY, methods=(Method("x", "fast-ntk", {"shine": 1}),))
    with pytest.raises(InputError, match=r"row 'x': 'fast-ntk' has no option \['shine'\]; it takes: damping"):
        plan([wrong], out=tmp_path, work=tmp_path)
    wrong = dataclasses.replace(TINY, methods=(Method("x", "wish"),))
    with pytest.raises(InputError, match="unknown method 'wish'; methods: fast-ntk"):
        plan([wrong], out=tmp_path, work=tmp_path)


def test_single_removals_resume_and_correlate(tmp_path: Path) -> None:
    setting = dataclasses.replace(
        TINY,
        requests=(),
        extra_retrain_seeds=(),
        methods=(Method("tangent-replay", "tangent-replay", {"validate": False}),),
    )
    folders = {"whole": tmp_path / "whole", "resumed": tmp_path / "resumed"}
    for out in folders.values():
        single.run(setting, out=out, work=out / "work", shared=Path("x"), removals=3, say=lambda text: None)
    lost = folders["resumed"] / "single/tiny/removal-001.json"
    lost.unlink()
    single.run(setting, out=lost.parents[2], work=tmp_path / "new", shared=Path("x"), removals=3, say=lambda text: None)
    assert records(folders["whole"]) == records(folders["resumed"])
    ids = [record["id"] for name, record in records(folders["whole"]).items() if "removal" in name]
    assert len(set(ids)) == 3
    text = page("unlearning", [], single=[setting], out=folders["whole"])
    assert "| tangent-replay | 3 |" in text


def test_reported_settings_and_development_settings_do_not_meet() -> None:
    reported = {(s.model, request.name) for s in UNLEARNING for request in s.requests}
    tried = {(s.model, request.name) for s in DEVELOPMENT for request in s.requests}
    assert not reported & tried
    assert min(seed for s in DEVELOPMENT for seed in s.seeds) >= 100
    assert max(seed for s in UNLEARNING for seed in s.retrain_seeds) < 100
    assert all(len(s.retrain_seeds) >= 3 for s in UNLEARNING)
    assert {request.value for s in DEVELOPMENT for request in s.requests if request.kind == "class"} <= {7, 8, 9}
