"""The comparison of methods: all tuned alike, recorded with evidence, and a page that says no more than the records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab.comparison import OWN, PATH_ROWS, TUNING, comparison, setting_name, tune, tuning_file, untuned
from lab.comparison_figure import comparison_figure
from lab.comparison_page import comparison_page, null, separation
from tiny_cells import TINY

from fastntk.reproduce import Request, code, plan, run_steps
from fastntk.reproduce.records import read_record, setting_folder, write_record
from fastntk.unlearning import METHODS
from lab import comparison as module

REQUEST = Request("random", 0.4)
RIDGE, PATH = OWN[0], OWN[-1]


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    """A baseline and two of ours on a few digits; the random share is large enough for an attack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RESNET", replace(TINY, images_per_class=10, probes=False))
        patch.setattr(module, "BASELINES", ("max-loss",))
        patch.setattr(module, "OWN", (RIDGE, PATH))
        patch.setattr(module, "REQUESTS", (REQUEST,))
        patch.setattr(module, "BUDGET", 2)
        patch.setattr(module, "SURVIVORS", 1)
        patch.setattr(module, "SEEDS", (0,))
        patch.setattr(module, "EXTRA_RETRAIN_SEEDS", (1,))
        patch.setattr(module, "REHEARSAL_SEEDS", (100, 101))
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tuned and recorded, with the page and the figure."""
    out = tmp_path_factory.mktemp("comparison")
    folders = {"out": out, "work": out / "work", "shared": Path("nowhere")}
    defaults = ["full", "fast-ntk-ridge", *(row.label for row in PATH_ROWS), "retrain"]
    assert [method.label for method in comparison(out)[0].methods] == defaults
    said: list[str] = []
    tune(**folders, settings=["compare-class-0"], say=said.append)
    assert said == []
    tune(**folders, only_plan=True, say=said.append)
    assert said == ["compare-random: 3 of 3 methods to tune; about 0 min (rough)"]
    tune(**folders, settings=["compare-random"], say=said.append)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("tuned/**/*.json")}
    assert len(before) == 3
    tune(**folders, say=said.append)
    assert said[-1].startswith("compare-random: 0 of 3 methods to tune")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("tuned/**/*.json")} == before
    (setting,) = comparison(out)
    run_steps(plan([setting], out=out, work=out / "work"), shared=Path("nowhere"), work=out / "work", say=lambda text: None)
    assert plan([setting], out=out, work=out / "work") == []
    (out / "page.md").write_text(comparison_page([setting], out=out), "utf-8")
    (out / "figure.svg").write_bytes(comparison_figure([setting], out=out))
    assert comparison_figure([setting], out=out) == (out / "figure.svg").read_bytes()
    return out


def test_tuned_options_are_those_of_the_best_trial_on_all_seeds_and_are_used(recorded: Path) -> None:
    tuned = read_record(tuning_file(REQUEST, "max-loss", recorded), schema=TUNING)
    assert tuned["protocol"]["seeds"] == [100, 101]
    assert tuned["protocol"]["tried"] == len(tuned["trials"]) == 2
    assert 0 in tuned["protocol"]["survivors"]
    complete = [tuned["trials"][number] for number in tuned["protocol"]["survivors"]]
    assert all(set(trial["scores"]) == {"100", "101"} for trial in complete)
    assert tuned["options"] == min(complete, key=lambda trial: trial["score"])["options"]
    assert set(tuned["code"]) > {"unlearning", "baselines"}
    record = read_record(setting_folder(recorded, "compare-random") / REQUEST.name / "max-loss-seed0.json")
    assert record["options"] == tuned["options"]
    assert len(record["confidences"]) == len(record["margins"]) == record["request"]["forget"] == 12


def test_ours_have_their_defaults_and_another_row_where_the_tuning_chose_otherwise(recorded: Path) -> None:
    labels = [method.label for method in comparison(recorded)[0].methods]
    for each in (RIDGE, PATH):
        tuned = read_record(tuning_file(REQUEST, each.label, recorded), schema=TUNING)
        assert each.default is not None
        assert each.default.label in labels
        assert each.fixed.items() <= tuned["options"].items()
        assert (f"{each.label}, tuned" in labels) == (tuned["options"] != tuned["trials"][0]["options"])
    assert labels[-1] == "retrain"


def test_costs_are_over_a_retrain_timed_in_the_same_process(recorded: Path) -> None:
    record = read_record(setting_folder(recorded, "compare-random") / REQUEST.name / "fast-ntk-ridge-seed0.json")
    times = record["timings"]
    assert times["retrain_here"]["epochs_timed"] == 2
    ratio = (times["method"]["cpu"] + times["rows"]["cpu"]) / times["retrain_here"]["cpu"]
    assert times["ratio_to_retrain"]["cpu"]["with_rows"] == pytest.approx(ratio)


def test_a_row_along_the_path_pays_for_its_own_rows(recorded: Path) -> None:
    folder = setting_folder(recorded, "compare-random") / REQUEST.name
    for row in PATH_ROWS[-2:]:
        record = read_record(folder / f"{row.slug}-seed0.json")
        assert not record["audit"]["details"]["rows_reused"]
        assert record["audit"]["details"]["rows_seconds"] > 0


def test_page_has_a_row_for_every_method_and_every_tuning(recorded: Path) -> None:
    page = (recorded / "page.md").read_text("utf-8")
    for label in ("full", "max-loss", "fast-ntk-ridge (the paper's equation)", *(row.label for row in PATH_ROWS)):
        assert f"| {label} | 1 |" in page
    assert "| retrain | 2 |" in page
    assert page.count("| a random 40 % |") == 3
    assert "not run" not in page
    assert "attack AUC |" in page
    assert "over 1 pairs of seeds" in page
    for section in ("How the methods were tuned", "How our own defaults were developed"):
        assert f"## {section}" in page
    assert "Provenance: all" in page or "Provenance: not all of one commit" in page
    assert "name no digest" not in page


def test_a_class_has_no_attack_column(tmp_path: Path) -> None:
    setting = replace(comparison(tmp_path)[0], name="compare-class-0", requests=(Request("class", 0),))
    page = comparison_page([setting], out=tmp_path)
    assert "attack AUC |" not in page
    assert "Provenance: nothing was run." in page
    assert "Not tuned yet: max-loss, fast-ntk-ridge, path-replay, all." in page


def test_tunings_of_other_code_or_over_another_space_are_made_again(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert untuned(REQUEST, recorded) == []
    with monkeypatch.context() as patch:
        now = code._room_digest
        patch.setattr(code, "_room_digest", lambda package, room: "other" if room == "baselines" else now(package, room))
        assert [(each.label, why) for each, why in untuned(REQUEST, recorded)] == [("max-loss", "made by other code (baselines)")]
        assert untuned(REQUEST, recorded, keep_stale=True) == []
    with monkeypatch.context() as patch:
        patch.setattr(module, "OWN", (RIDGE._replace(grid={"damping": (1.0, 2.0)}), PATH))
        assert [each.label for each, _ in untuned(REQUEST, recorded, keep_stale=True)] == ["fast-ntk-ridge"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "REHEARSAL_SEEDS", (100, 101, 102))
        assert len(untuned(REQUEST, recorded)) == 3
    others = {"BUDGET": 3, "SURVIVORS": 2, "VALIDATION": 0.3, "RESNET": replace(TINY, images_per_class=9)}
    for name, value in others.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            word = "training" if name == "RESNET" else name.lower()
            reasons = [why for _, why in untuned(REQUEST, recorded, keep_stale=True)]
            assert reasons == [f"tuned under another protocol ({word})"] * 3
    with monkeypatch.context() as patch:
        patch.setattr(module, "OWN", (RIDGE._replace(fixed={"form": "softmax"}), PATH))
        (reason,) = untuned(REQUEST, recorded, keep_stale=True)
        assert reason[1] == "tuned under another protocol (fixed)"


def test_a_tuning_from_kept_weights_names_no_code(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN", ())
    tune(out=tmp_path, work=recorded / "work", shared=Path("nowhere"), keep_stale=True, say=lambda text: None)
    assert "code" not in read_record(tuning_file(REQUEST, "max-loss", tmp_path), schema=TUNING)
    assert untuned(REQUEST, tmp_path, keep_stale=True) == []
    assert [each.label for each, _ in untuned(REQUEST, tmp_path)] == ["max-loss"]


def test_a_tuning_that_names_no_training_and_no_number_of_survivors_is_judged_by_what_it_names(
    recorded: Path, tmp_path: Path
) -> None:
    record = read_record(tuning_file(REQUEST, "max-loss", recorded), schema=TUNING)
    older = {name: value for name, value in record.items() if name not in ("training", "survivors")}
    write_record(tuning_file(REQUEST, "max-loss", tmp_path), older)
    labels = ["fast-ntk-ridge", "path-replay, all"]
    assert [each.label for each, _ in untuned(REQUEST, tmp_path)] == labels
    many = older | {"protocol": older["protocol"] | {"survivors": [0, 1, 2, 3]}}
    write_record(tuning_file(REQUEST, "max-loss", tmp_path), many)
    assert untuned(REQUEST, tmp_path)[0][1] == "tuned under another protocol (survivors)"


def test_every_space_has_options_of_its_method_and_all_that_is_tuned_is_jsonable() -> None:
    for each in OWN:
        known = each.space.keys() | each.fixed.keys()
        assert known <= METHODS[each.method].options.keys()
        assert not each.space.keys() & each.fixed.keys()
        json.dumps({name: list(values) for name, values in each.space.items()})
    assert [setting_name(request) for request in (Request("class", 0), REQUEST)] == ["compare-class-0", "compare-random"]


def test_separation_needs_enough_models_and_the_null_twice_as_many() -> None:
    side = lambda shift, count: [
        {"seed": k, "confidences": [float(shift + ((7 * k + 3 * i) % 5) / 5) for i in range(40)]} for k in range(count)
    ]
    assert separation(side(0, 3), side(3, 3)) is None
    far = separation(side(0, 5), side(9, 5))
    assert far is not None
    assert far.auc > 0.99
    assert null(side(0, 5)) is None
    assert null(side(0, 10)) is not None
