"""The verdict's calibration on a few digits: pools are measured once, judged by the product's rule, and reported without more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.__main__ import main
from lab.calibration import RequestAudits
from lab.calibration_models import POOLS, Pool, open_pool
from lab.calibration_page import CALIBRATION, FOLDER, calibration_page, enough, lower_bound
from scipy.stats import binom
from tiny_cells import TINY as BASE

from fastntk.auditing import comparisons
from fastntk.auditing.record_figures import PopulationAttacks
from fastntk.reproduce import Request, code
from fastntk.reproduce.records import read_record, write_record
from fastntk.reproduce.setting import FAST_NTK, FULL, REST, RETRAIN
from lab import calibration, calibration_models

SHARE, CLASS = Request("random", 0.4), Request("class", 0)
SETTING = replace(
    BASE,
    images_per_class=10,
    holdout=REST,
    holdout_per_class=8,
    methods=calibration_models.PATHS,
    requests=(SHARE,),
    probes=False,
)
TINY = Pool("development", SETTING, (SHARE, CLASS), tuple(range(5)), (0,))
MODELS = 2 * (5 + 2)
"""Requests times Retrains, Full and one method."""


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    """One method, few draws, few epochs of relearning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POOLS, "development", TINY)
        for name, value in {"OURS": (FAST_NTK,), "BASELINES": (), "CAP": 3, "SAMPLES_CAP": 2}.items():
            patch.setattr(calibration_models, name, value)
        for name, value in {"OTHERS": (1,), "DRAWS": 6, "METHOD_DRAWS": 2}.items():
            patch.setattr(calibration, name, value)
        yield


def run(out: Path, **options: Any) -> dict[str, Any]:
    folders = {"out": out, "work": out / "weights", "shared": Path("nowhere")}
    calibration.run(**folders, pools=["development"], say=lambda text: None, **options)  # type: ignore[arg-type]
    return read_record(out / FOLDER / "development.json", schema=CALIBRATION)


def written(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "work" / "calibration").rglob("*.safetensors")}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pool, trained, measured and judged."""
    out = tmp_path_factory.mktemp("calibration")
    run(out)
    assert len(written(out)) == MODELS
    return out


def test_a_pool_is_run_and_its_page_counts_independent_models(measured: Path) -> None:
    record = read_record(measured / FOLDER / "development.json", schema=CALIBRATION)
    assert record["complete"]
    assert record["code"] == code.code_of()
    rows = {(row["request"], row["candidate"]): row for row in record["rows"]}
    assert {candidate for _, candidate in rows} == {"retrain", calibration.MEAN, "full", "fast-ntk"}
    genuine = [rows[request.name, "retrain"] for request in (SHARE, CLASS)]
    assert all(row["draws"] == 6 == sum(row["levels"].values()) for row in genuine)
    assert all(set(row["failed"]) <= set(row["candidates"]) <= set(TINY.seeds) for row in genuine)
    seeds = {seed for row in genuine for seed in row["candidates"]}
    failed = {seed for row in genuine for seed in row["failed"]}
    page = calibration_page(measured)
    seen = f"{len(seeds)} independent seeds (2 requests, 12 draws), {len(failed)} failed"
    assert f"{seen}.** The limits were chosen on these models" in page
    assert "that shows" not in page
    assert "% of 12" not in page
    assert "Provenance: " in page
    assert "name no digest" not in page
    write_record(measured / "other" / FOLDER / "report.json", record | {"pool": "report"})
    page = calibration_page(measured / "other")
    bound = math.floor(1000 * lower_bound(len(seeds) - len(failed), len(seeds))) / 10
    assert f"{seen} at least once: so at least {bound:.1f} % of seeds pass in every draw, and more is not shown.**" in page
    assert "takes 59 without a failure" in page


def test_the_attack_is_the_products_on_the_three_models_together_and_made_once(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"out": measured, "work": measured / "weights", "shared": Path("nowhere")}
    audits = RequestAudits(open_pool(TINY, **folders, kept=True), SHARE)
    record = audits.record((FAST_NTK, (0,)), [0, 1])
    rows = {"full": FULL, "unlearned": FAST_NTK, "retrain": RETRAIN}
    models = {name: audits.model((row, (0,))).predictions for name, row in rows.items()}
    assert record.membership == comparisons.population(models, whole=(), seed=0)
    assert isinstance(record.membership.population, PopulationAttacks)
    assert record.membership.population.unlearned is not None
    assert record.membership.population.unlearned.difference_standard_error > 0
    monkeypatch.setattr(comparisons, "population", lambda *_, **__: pytest.fail("made once for these models"))
    assert audits.record((FAST_NTK, (0,)), [0, 2]).membership is record.membership


def test_a_class_has_no_attack(measured: Path) -> None:
    folders = {"out": measured, "work": measured / "weights", "shared": Path("nowhere")}
    record = RequestAudits(open_pool(TINY, **folders, kept=True), CLASS).record((FULL, (0,)), [0, 1])
    assert record.membership.population is None
    assert record.membership.note == comparisons.NO_CLASS_ATTACK


def test_models_of_other_code_or_another_question_are_measured_again(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(measured)
    first = run(measured)
    assert written(measured) == before, "all of it is fresh"
    now = code._room_digest
    with monkeypatch.context() as patch:
        patch.setattr(code, "_room_digest", lambda package, room: "other" if room == "unlearning" else now(package, room))
        stale = run(measured, keep_stale=True, kept=True)
        assert written(measured) == before
        assert "code" not in stale, "models of other code are not vouched for"
        assert stale["rows"] == first["rows"]
        assert run(measured, only_finish=True)["rows"] == [], "what other code measured is left out, not measured"
        assert written(measured) == before
    with monkeypatch.context() as patch:
        patch.setattr(calibration_models, "CAP", 4)
        run(measured, kept=True)
        changed = {path for path, when in written(measured).items() if before[path] != when}
        assert changed == {path for path in before if path.parent.name == CLASS.name}
    before = written(measured)
    monkeypatch.setattr(calibration_models, "HOLDOUT", 10)
    run(measured, kept=True)
    assert all(before[path] != when for path, when in written(measured).items())


def test_limits_may_change_without_measuring_again(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(measured)
    before, now = written(measured), code._room_digest
    monkeypatch.setattr(code, "_room_digest", lambda package, room: "other" if room == "auditing" else now(package, room))
    assert run(measured)["code"]["auditing"] == "other"
    assert written(measured) == before


def test_the_bound_is_exact() -> None:
    for passed, count in ((20, 20), (19, 20), (57, 60), (1, 5)):
        assert binom.sf(passed - 1, count, lower_bound(passed, count)) == pytest.approx(0.05)
    assert lower_bound(0, 5) == 0.0
    assert lower_bound(enough(), enough()) >= 0.95 > lower_bound(enough() - 1, enough() - 1)


def test_shares_of_audits_and_what_the_others_said(tmp_path: Path) -> None:
    row = {
        "request": "class-7",
        "title": "class 7",
        "forget": 30,
        "candidate": "retrain",
        "others": 1,
        "retrains": 7,
        "tests": {},
    }
    row |= {"draws": 200, "models": 7, "candidates": list(range(7)), "failed": [], "levels": {"like retrain": 200}}
    record = {"schema": CALIBRATION, "pool": "report", "complete": False, "environment": {"commit": "a" * 40}}
    path = tmp_path / FOLDER / "report.json"
    write_record(path, record | {"rows": [row]})
    page = calibration_page(tmp_path)
    assert "**Genuine Retrains pass in 100.0 % of 200 audits** (by request and R in 100.0 to 100.0 %" in page
    seen = "7 independent seeds (1 request, 200 draws), 0 failed"
    assert f"{seen} at least once: so at least 65.1 % of seeds pass in every draw, and more is not shown." in page
    assert "Of 1 the code is not known" in page
    assert page.count("Not run with the present rules.") == 2
    rows = [row, row | {"others": 3, "failed": [2], "levels": {"like retrain": 190, "cannot be told": 6, "memory left": 4}}]
    write_record(path, record | {"rows": rows})
    page = calibration_page(tmp_path)
    assert "**Genuine Retrains pass in 97.5 % of 400 audits** (by request and R in 95.0 to 100.0 %" in page
    assert "“differs from retrain” 0.0 %, “cannot be told” 1.5 %, “memory left” 1.0 %" in page
    assert "(1 request, 400 draws), 1 failed" in page
    write_record(path, record | {"rows": []})
    assert "No genuine Retrain was judged." in calibration_page(tmp_path)


def test_the_command_line_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(calibration, "run", lambda **options: asked.append(options))
    assert main(["run", "calibration", "--keep-stale", "--finish", "--settings", "report", "--out", str(tmp_path)]) == 0
    assert asked[0]["keep_stale"]
    assert asked[0]["only_finish"]
    assert asked[0]["pools"] == ["report"]
