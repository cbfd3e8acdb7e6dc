"""Attacks with many models on a few digits: forget sets around fixed targets, sides that share no seed, resuming, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.attack_models import TargetRequest, make_unlearned, margins_of, retrained_margins, unlearned_file, unlearned_margins
from lab.attacks import FOLDER, figures, record_names
from lab.attacks_page import attacks_page
from lab.klom_table import klom_table, write_klom_table
from tiny_cells import TINY as BASE

from fastntk.base.errors import InputError
from fastntk.reproduce import MethodRow, Request, code
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.setting import REST
from lab import attacks
from lab import klom_table as klom_module

MODELS = 4
TINY = replace(
    BASE,
    name="tiny-attacks",
    requests=(Request("random", 0.2, draw_seed=0),),
    images_per_class=10,
    holdout=REST,
    holdout_per_class=4,
    seeds=(0,),
    probes=False,
)
ROWS = (MethodRow("full", "full"), MethodRow("fast-ntk", "fast-ntk"))


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods that need no trace, the second of which stands in for Retrains."""
    for name, value in {"OURS": ROWS, "RESAMPLED": ROWS, "SURROGATE": ROWS[1], "BOTH_HALVES": ROWS[1:], "TUNED": ()}.items():
        monkeypatch.setattr(attacks, name, value)
    monkeypatch.setattr(klom_module, "SAMPLES", 20)
    monkeypatch.setattr(klom_module, "SIZES", (8, 16))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained weights that the tests share."""
    return tmp_path_factory.mktemp("work")


def run(out: Path, work: Path, **options: Any) -> list[str]:
    said: list[str] = []
    attacks.run(out=out, work=work, shared=Path("nowhere"), setting=TINY, models=MODELS, say=said.append, **options)
    return said


def test_forget_sets_share_the_targets_and_nothing_else_is_fixed(tmp_path: Path) -> None:
    samples = open_experiment(TINY, shared=Path("nowhere"), work=tmp_path).samples
    first, second = (TargetRequest("random", 0.2, draw_seed=draw, targets=4) for draw in (0, 1))
    targets = set(first.target_ids(samples))
    assert targets == set(second.target_ids(samples))
    assert set(first.ids(samples)) & set(second.ids(samples)) >= targets
    assert first.ids(samples) != second.ids(samples)
    assert len(set(first.ids(samples))) == len(first.ids(samples)) == round(0.2 * len(samples))
    assert first.name != second.name
    assert set(replace(first, target_seed=1).target_ids(samples)) != targets
    with pytest.raises(InputError, match="10 target samples do not fit in 20 % of 30"):
        replace(first, targets=10).ids(samples)


def test_records_resume_and_are_made_again_with_other_options(
    tmp_path: Path, work: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacks, "TARGETS", 2)
    out = tmp_path / "out"
    assert "2 of 2 records to do" in run(out, work, only_plan=True)[0]
    assert not out.exists()
    run(out, work)
    records = {name: json.loads((out / FOLDER / f"{name}.json").read_text()) for name in record_names(TINY)}
    assert {record["variation"] for record in records.values()} == {"seed-only", "resampled"}
    assert records["resampled"]["targets"] == 2
    for record in records.values():
        assert list(record["rows"]) == ["Retrain", "fast-ntk", "full"]
        assert record["models"] == MODELS
    assert run(out, work) == ["attacks: 0 of 2 records to do; 0 trainings, about 0 min, and unlearning"]
    other = (ROWS[0], MethodRow("fast-ntk", "fast-ntk", {"form": "ridge"}))
    for name, value in {"OURS": other, "RESAMPLED": other, "SURROGATE": other[1], "BOTH_HALVES": other[1:]}.items():
        monkeypatch.setattr(attacks, name, value)
    assert "2 of 2 records to do; 0 trainings" in run(out, work)[0]
    page = attacks_page(out, setting=TINY)
    assert "## Forget a random 20 %, seed-only" in page
    assert page.count("| full |") == 3
    assert "## Resampled forget sets" in page
    assert "Provenance: " in page
    assert "the code is not known" not in page
    assert "Not run." not in page
    assert "| 16 |" in page.split("## What KLoM can tell")[1]


def test_records_and_margins_of_other_code_or_data_are_made_again(
    tmp_path: Path, work: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacks, "TARGETS", 2)
    run(tmp_path, work)
    path = tmp_path / FOLDER / f"{TINY.requests[0].name}.json"
    assert json.loads(path.read_text())["code"] == code.code_of()
    experiment, request = open_experiment(TINY, shared=Path("nowhere"), work=work), TINY.requests[0]
    jobs = [(row, request) for row in ROWS]
    assert make_unlearned(experiment, jobs, 0) == 0
    assert make_unlearned(replace(experiment, holdout=experiment.samples), jobs, 0) == 2
    assert make_unlearned(experiment, jobs, 0) == 2
    now = code._room_digest
    monkeypatch.setattr(code, "_room_digest", lambda package, room: "other" if room == "training" else now(package, room))
    assert run(tmp_path, work, only_plan=True, keep_stale=True)[0].startswith("attacks: 0 of 2 records to do; 0 trainings")
    kept = replace(experiment, keep_stale=True)
    assert make_unlearned(kept, jobs, 0) == 0
    file = unlearned_file(experiment, *jobs[0], 0)
    file.unlink()
    assert make_unlearned(kept, jobs, 0) == 1
    with np.load(file) as margins:
        assert "code" not in margins.files, "made from weights of other code"
    said = run(tmp_path, work, only_plan=True)
    assert said[0].startswith(f"attacks: 2 of 2 records to do; {3 * 2 * MODELS} trainings"), "fits, and Retrains of two requests"
    assert said[1:] == [f"attacks: {name} is stale: made by other code (training)" for name in record_names(TINY)]
    path.unlink()
    run(tmp_path, work, keep_stale=True)
    assert "code" not in json.loads(path.read_text()), "models of other code are not vouched for"


def test_the_simulated_table_is_made_once_and_again_by_other_code(
    tmp_path: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "klom.json"
    write_klom_table(path)
    written = path.stat().st_mtime_ns
    write_klom_table(path)
    assert path.stat().st_mtime_ns == written
    with monkeypatch.context() as patch:
        patch.setattr(klom_module, "module_code", lambda *paths: {"auditing/klom.py": "other"})
        write_klom_table(path, keep_stale=True)
        assert path.stat().st_mtime_ns == written
        write_klom_table(path)
        assert json.loads(path.read_text())["code"] == {"auditing/klom.py": "other"}
    monkeypatch.setattr(klom_module, "SAMPLES", 21)
    write_klom_table(path, keep_stale=True)
    assert "auditing/ulira.py" in json.loads(path.read_text())["code"]


def test_margins_are_those_of_the_models_and_no_side_shares_a_seed(work: Path, cheap: None) -> None:
    experiment, request = open_experiment(TINY, shared=Path("nowhere"), work=work), TINY.requests[0]
    full = unlearned_margins(experiment, ROWS[0], request, 0)
    assert full is not None
    for where, values in margins_of(experiment, request, experiment.fitted(0).vector).items():
        np.testing.assert_allclose(full[where], values, rtol=1e-5)
    said = attacks.seed_only(experiment, request, ROWS, models=MODELS, say=lambda text: None)["rows"]
    retrains = [retrained_margins(experiment, request, seed) for seed in range(2 * MODELS)]
    null, reference = ({"forget": np.stack([each["forget"] for each in part])} for part in (retrains[:MODELS], retrains[MODELS:]))
    assert said["Retrain"]["u_lira"] == figures(null, reference)["u_lira"]


def test_a_known_shift_is_what_the_figures_say() -> None:
    rng = np.random.default_rng(0)
    reference, models = rng.normal(size=(16, 50)), rng.normal(size=(16, 50)) - 3
    found = figures({"forget": models}, {"forget": reference})
    assert found["shift"]["median"] == pytest.approx(-3, abs=0.4)
    assert found["u_lira"]["auc"] > 0.95
    assert found["klom"]["forget"]["gaussian"]["median"] == pytest.approx(4.5, abs=2.5)


def test_the_simulated_table_grows_with_the_shift_and_its_floor_falls_with_the_models() -> None:
    rows = klom_table()["rows"]
    floors = [rows[size]["shifts"]["0.0"]["mean"] for size in ("8", "16", "50", "100")]
    assert floors == sorted(floors, reverse=True)
    assert floors[0] > 10 * floors[-1]
    many = [cell["mean"] for cell in rows["100"]["shifts"].values()]
    assert many == sorted(many)
