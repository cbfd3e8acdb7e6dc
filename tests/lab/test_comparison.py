"""The comparison of methods: tuned once, recorded with evidence, and a page that says no more than the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from committed import ROOT, committed
from lab.comparison import TUNING, comparison, tune, tuning_file
from lab.comparison_page import comparison_figure, comparison_page, separation
from tiny_cells import TINY

from fastntk.reproduce import Request, plan, run_steps
from fastntk.reproduce.records import read_record, setting_folder
from lab import comparison as module


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two baselines on a dozen digits, tuned and recorded; the random share is large enough for an attack."""
    out = tmp_path_factory.mktemp("comparison")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RESNET", replace(TINY, images_per_class=10, probes=False))
        patch.setattr(module, "BASELINES", ("max-loss", "ssd"))
        patch.setattr(module, "REQUESTS", (Request("random", 0.4),))
        patch.setattr(module, "BUDGET", 2)
        nothing = comparison(out)
        assert [method.label for method in nothing[0].methods] == ["full", "fast-ntk", "tangent-replay", "retrain"]
        tune(out=out, work=out / "work", shared=Path("nowhere"))
        before = {path: path.stat().st_mtime_ns for path in out.rglob("tuned/**/*.json")}
        tune(out=out, work=out / "work", shared=Path("nowhere"))
        assert {path: path.stat().st_mtime_ns for path in out.rglob("tuned/**/*.json")} == before
        (setting,) = comparison(out)
        run_steps(plan([setting], out=out, work=out / "work"), shared=Path("nowhere"), work=out / "work", say=lambda text: None)
        (out / "page.md").write_text(comparison_page([setting], out=out), "utf-8")
        (out / "figure.svg").write_bytes(comparison_figure([setting], out=out))
        assert comparison_figure([setting], out=out) == (out / "figure.svg").read_bytes()
    return out


def test_tuned_options_are_those_of_the_best_trial_and_are_used(recorded: Path) -> None:
    request = Request("random", 0.4)
    for method in ("max-loss", "ssd"):
        tuned = read_record(tuning_file(request, method, recorded), schema=TUNING)
        best = min((trial for trial in tuned["trials"] if trial["score"] is not None), key=lambda trial: trial["score"])
        assert tuned["options"] == best["options"]
        assert len(tuned["trials"]) == 2
        record = read_record(setting_folder(recorded, f"compare-{request.name}") / request.name / f"{method}-seed0.json")
        assert record["options"] == tuned["options"]
        assert len(record["confidences"]) == len(record["margins"]) == record["request"]["forget"] == 12


def test_retrain_is_at_no_distance_from_itself(recorded: Path) -> None:
    request = Request("random", 0.4)
    audit = read_record(setting_folder(recorded, f"compare-{request.name}") / request.name / "retrain-seed0.json")["audit"]
    distances = audit["distances"]["same_seed"]
    assert distances["jensen_shannon"] == {"forget": 0.0, "holdout": 0.0}
    assert distances["agreement"] == {"forget": 1.0, "holdout": 1.0}
    assert distances["tug_of_war"] == 1.0


def test_page_has_a_row_for_every_method_and_every_tuning(recorded: Path) -> None:
    page = (recorded / "page.md").read_text("utf-8")
    for label in ("full", "max-loss", "ssd", "fast-ntk", "tangent-replay", "retrain"):
        assert f"| {label} | 1 |" in page
    assert page.count("| a random 40 % |") == 2
    assert "not run" not in page


def test_separation_needs_five_models_and_another_side() -> None:
    side = lambda shift, count: [
        {"seed": k, "confidences": [float(shift + ((7 * k + 3 * i) % 5) / 5) for i in range(40)]} for k in range(count)
    ]
    assert separation(side(0, 5), side(0, 5)) is None
    assert separation(side(0, 4), side(3, 4)) is None
    far = separation(side(0, 5), side(9, 5))
    assert far is not None
    assert far > 0.99


def test_committed_documents_are_what_the_records_give(tmp_path: Path) -> None:
    """`make tables` again, byte for byte."""
    results = committed(tmp_path)
    settings = comparison(results)
    assert comparison_page(settings, out=results) == (ROOT / "docs" / "comparison.md").read_text("utf-8")
    assert comparison_figure(settings, out=results) == (ROOT / "docs" / "comparison.svg").read_bytes()
