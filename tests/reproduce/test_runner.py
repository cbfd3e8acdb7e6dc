"""The runner end to end on a few digits: a record is what ``audit`` says, and resumed it gives the same records."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_cells import TINY as BASE

from fastntk import audit, fit, unlearn
from fastntk.base.errors import InputError
from fastntk.reproduce import MethodRow, Request, Setting, code, plan, run_steps
from fastntk.reproduce.experiment import fit_file, has_vector, open_experiment
from fastntk.reproduce.records import DROPPED, jsonable, without
from fastntk.reproduce.runner import record_digest, stale_text
from fastntk.reproduce.setting import FAST_NTK
from fastntk.reproduce.step_runner import StepRunner
from fastntk.training.recipe import Recipe

TINY = replace(
    BASE,
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100,),
    extra_retrain_seeds=(101, 102),
    methods=(
        MethodRow("full", "full"),
        MethodRow("fast-ntk", "fast-ntk"),
        MethodRow("tangent-replay", "tangent-replay"),
        MethodRow("random-label", "random-label", {"epochs": 1}),
        MethodRow("retrain", "retrain"),
    ),
    probes=False,
)
VARYING = ("timings", "environment", "created", "seconds", "peak_memory_bytes", "cost", "text", "ids_digest", "record_sha256")
"""Times, memory and the words on them (the verdict's text)."""


def run(setting: Setting, out: Path, *, most: int | None = None) -> int:
    steps = plan([setting], out=out, work=out / "work")
    run_steps(steps[:most], shared=Path("nowhere"), work=out / "work", say=lambda text: None)
    return len(steps)


def records(out: Path) -> dict[str, Any]:
    paths = sorted(out.rglob("*.json"))
    return {str(path.relative_to(out)): without(json.loads(path.read_text()), *VARYING) for path in paths}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    assert run(TINY, out) == 3 + 6 + 2 * (4 + 3)
    return out


def test_a_record_holds_what_a_method_is_judged_by(finished: Path) -> None:
    record = json.loads((finished / "records/tiny/class-0/tangent-replay-seed100.json").read_text())
    audit = record["audit"]
    assert set(audit["accuracy"]["forget"]) == {"full", "unlearned", "retrain"}
    assert audit["reference"] == {"made": True, "seed": 100, "other_seeds": [101, 102]}
    assert {"101", "102"} <= set(audit["distances"]["by_seed"])
    assert set(audit["distances"]["retrain_pairs"]) == {"100-101", "100-102", "101-102"}
    assert record["request"]["forget"] == 4
    assert audit["relearn"]["unlearned"]["cap"] == 2
    assert audit["details"]["validity"]["verdict"]
    assert not set(audit) & set(DROPPED)
    assert "confidences" not in record
    times = record["timings"]
    ratio = times["ratio_to_retrain"]["wall"]
    assert ratio["with_rows"] == pytest.approx((times["method"]["wall"] + times["rows"]["wall"]) / times["retrain"]["wall"])
    assert ratio["without_rows"] == pytest.approx(times["method"]["wall"] / times["retrain"]["wall"])


def test_full_and_retrain_bound_the_measures(finished: Path) -> None:
    folder = finished / "records/tiny/random-20pct-draw100"
    full = json.loads((folder / "full-seed100.json").read_text())
    retrain = json.loads((folder / "retrain-seed100.json").read_text())
    full, retrain = full["audit"], retrain["audit"]
    distances = retrain["distances"]
    assert full["distances"]["same_seed"]["recovered"] == 0
    assert distances["same_seed"]["recovered"] == 1
    assert distances["same_seed"]["total_variation"]["forget"] == distances["same_seed"]["weights"] == 0
    other, pair = (distances[name][key]["total_variation"] for name, key in (("by_seed", "101"), ("retrain_pairs", "100-101")))
    assert other["forget"] == pair["forget"] > 0
    assert all(by_model["unlearned"] == by_model["full"] for by_model in full["accuracy"].values())


@pytest.mark.parametrize("method", ["random-label", "retrain"])
def test_the_figures_are_those_of_audit_on_the_same_models(finished: Path, method: str) -> None:
    """Trained, unlearned and audited by the public functions alone: the runner measures nothing by itself."""
    setting = replace(TINY, probes=True)
    runner = StepRunner(open_experiment(setting, shared=Path("nowhere"), work=finished / "work"))
    row = next(row for row in setting.methods if row.label == method)
    record = json.loads(json.dumps(jsonable(runner.record(setting.requests[0], row, 100))))["audit"]
    experiment = open_experiment(setting, shared=Path("nowhere"), work=finished / "unused")
    run = fit(experiment.model, experiment.subset, experiment.samples, TINY.recipe_for(100))
    retrains = [unlearn(run, classes=[0], method="retrain", seed=seed) for seed in (100, 101, 102)]
    chosen = retrains[0] if method == "retrain" else unlearn(run, classes=[0], method=method, epochs=1, seed=100)
    audited = audit(run, chosen, holdout=experiment.holdout, reference=retrains, relearn_cap=2, seed=100)
    assert set(record) == set(audited) - set(DROPPED)
    for part in ("accuracy", "loss", "relearn", "distances", "membership", "probes", "request", "reference", "verdict"):
        assert without(record[part], *VARYING) == without(json.loads(json.dumps(audited[part])), *VARYING), part


def test_runs_and_retrains_have_models_of_their_own(finished: Path) -> None:
    experiment = open_experiment(TINY, shared=Path("nowhere"), work=finished / "work")
    run = experiment.run(100)
    retrain = experiment.retrain_result(run, TINY.requests[0], 101)
    before = run.subset.get().clone(), retrain.subset.get().clone()
    assert not torch.equal(*before)
    experiment.train(102, None)
    assert torch.equal(run.subset.get(), before[0])
    assert torch.equal(retrain.subset.get(), before[1])
    assert torch.equal(retrain.delta, before[1] - before[0])
    shared = {tensor.data_ptr() for tensor in run.model.parameters()} & {t.data_ptr() for t in retrain.model.parameters()}
    assert len(shared) == len(list(run.model.parameters())) - len(run.subset.names)


def other_code(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    now = code._room_digest
    monkeypatch.setattr(code, "_room_digest", lambda package, room: "other" if room == changed else now(package, room))


def test_records_of_other_code_are_stale_and_made_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = finished / "work"
    other_code(monkeypatch, "auditing")
    steps = plan([TINY], out=finished, work=work)
    assert [step.kind for step in steps] == ["record"] * 14
    assert stale_text(steps) == "14 records are stale and made again: made by other code (auditing)"
    assert plan([TINY], out=finished, work=work, keep_stale=True) == []


def test_trained_weights_of_other_code_are_counted_too(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_code(monkeypatch, "training")
    steps = plan([TINY], out=finished, work=finished / "work")
    again = "are stale and made again: made by other"
    assert stale_text(steps) == f"9 trained weights {again} training code; 14 records {again} code (training)"
    steps = plan([TINY], out=finished, work=tmp_path)
    assert stale_text(steps) == f"14 records {again} code (training)", "weights that are not there are not stale"


def test_a_baseline_that_changed_leaves_the_others_records(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_code(monkeypatch, "baselines")
    steps = plan([TINY], out=finished, work=finished / "work")
    assert {step.row.method for step in steps} == {"random-label"}


def test_weights_of_other_training_code_are_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = open_experiment(TINY, shared=Path("nowhere"), work=tmp_path)
    experiment.fitted(100)
    path = experiment.folder / fit_file(100)
    before = path.stat().st_mtime_ns
    experiment.fitted(100)
    assert path.stat().st_mtime_ns == before
    other_code(monkeypatch, "training")
    assert not has_vector(path)
    dataclasses.replace(experiment, keep_stale=True).fitted(100)
    assert path.stat().st_mtime_ns == before
    experiment.fitted(100)
    assert path.stat().st_mtime_ns > before
    assert has_vector(path)
    assert not list(tmp_path.rglob(".*.lock"))


def test_a_record_from_before_code_was_noted_is_stale_and_one_of_another_version_alone_is_not(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / "records", tmp_path / "records")
    path = tmp_path / "records/tiny/class-0/fast-ntk-seed100.json"
    record = json.loads(path.read_text())
    older = record | {"fastntk": "0.0.9", "digest": record_digest(TINY, TINY.requests[0], FAST_NTK, 100, version="0.0.9")}
    del older["record_sha256"]
    path.write_text(json.dumps(older))
    assert plan([TINY], out=tmp_path, work=finished / "work") == []
    del older["code"]
    path.write_text(json.dumps(older))
    (step,) = plan([TINY], out=tmp_path, work=finished / "work")
    assert step.reason == "made by an older state of the code, or with --keep-stale"


def test_a_record_made_from_kept_weights_names_no_code_and_is_made_again_without_the_option(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "records", tmp_path / "records")
    path = tmp_path / "records/tiny/class-0/fast-ntk-seed100.json"
    path.unlink()
    with monkeypatch.context() as patch:
        other_code(patch, "training")
        steps = plan([TINY], out=tmp_path, work=finished / "work", keep_stale=True)
        run_steps(steps, shared=Path("nowhere"), work=finished / "work", keep_stale=True, say=lambda text: None)
        assert "code" not in json.loads(path.read_text())
        assert plan([TINY], out=tmp_path, work=finished / "work", keep_stale=True) == []
    (step,) = plan([TINY], out=tmp_path, work=finished / "work")
    assert step.reason == "made by an older state of the code, or with --keep-stale"


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
        patch.setattr("fastntk.auditing.comparisons.relearn", killed)
        with pytest.raises(KeyboardInterrupt):
            run(TINY, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == before
    assert run(TINY, tmp_path / "copy") == 1
    assert records(tmp_path / "copy") == records(finished)


def test_another_configuration_is_refused(finished: Path, tmp_path: Path) -> None:
    other = dataclasses.replace(TINY, recipe=Recipe(epochs=3, batch_size=4))
    with pytest.raises(InputError, match="made by another configuration"):
        plan([other], out=finished, work=finished / "work")
    relabelled = dataclasses.replace(TINY, methods=(MethodRow("fast-ntk", "fast-ntk", {"damping": 0.5}),))
    for keep_stale in (False, True):
        steps = plan([relabelled], out=finished, work=finished / "work", keep_stale=keep_stale)
        assert {step.reason for step in steps} == {"made with another method, options or request"}
    shutil.copytree(finished / "records", tmp_path / "records")
    (tmp_path / "records/tiny/setting.json").unlink()
    with pytest.raises(InputError, match=r"records but no setting\.json"):
        plan([TINY], out=tmp_path, work=tmp_path / "work")


def test_more_methods_and_requests_can_be_added(finished: Path) -> None:
    more = dataclasses.replace(TINY, methods=(*TINY.methods, MethodRow("damped", "fast-ntk", {"damping": 0.5})))
    steps = plan([more], out=finished, work=finished / "work")
    assert [step.kind for step in steps] == ["record", "record"]


def test_weights_trained_on_other_data_are_refused(finished: Path) -> None:
    experiment = open_experiment(TINY, shared=Path("nowhere"), work=finished / "work")
    other = dataclasses.replace(experiment, samples=experiment.samples.subset(list(range(11, -1, -1))))
    assert experiment.fitted(100).vector.shape == (experiment.subset.numel,)
    with pytest.raises(InputError, match="trained from other data"):
        other.fitted(100)


def test_options_nobody_has_are_refused_before_any_work(tmp_path: Path) -> None:
    wrong = dataclasses.replace(TINY, methods=(MethodRow("x", "fast-ntk", {"shine": 1}),))
    with pytest.raises(InputError, match="row 'x': Method 'fast-ntk' has no option shine; it takes: damping"):
        plan([wrong], out=tmp_path, work=tmp_path)
    wrong = dataclasses.replace(TINY, methods=(MethodRow("x", "absent"),))
    with pytest.raises(InputError, match="unknown method 'absent'; methods: fast-ntk"):
        plan([wrong], out=tmp_path, work=tmp_path)
