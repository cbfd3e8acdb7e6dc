"""``fastntk report``: from a real audit to a page, and what it refuses."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fastntk import schemas
from fastntk.auditing.record import sealed
from fastntk.cli.app import app
from fastntk.cli.report import as_png
from fastntk.data.digits import open_digits
from fastntk.report import record_digest, render
from fastntk.storage.data import source_samples
from fastntk.storage.keys import key_file
from fastntk.storage.manifest import read_manifest
from fastntk.storage.runs import load_run

SMALL = ["--data", "digits", "--images-per-class", "4", "--only-classes", "3", "--epochs", "2", "--seed", "1"]


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a result with its audit, and a result without."""
    root = tmp_path_factory.mktemp("report-cli")
    digits = open_digits("test")
    some = [row for label in range(3) for row in np.flatnonzero(digits.labels == label)[:3].tolist()]
    np.savez(root / "unseen.npz", x=np.stack([np.asarray(digits.read(row)) for row in some]), y=digits.labels[some])
    steps: list[list[object]] = [
        ["finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", root / "run"],
        ["unlearn", root / "run", "--classes", "0", "--method", "full", "--out", root / "result"],
        ["unlearn", root / "run", "--classes", "1", "--method", "full", "--out", root / "unaudited"],
        ["audit", root / "run", root / "result", "--holdout", root / "unseen.npz", "--relearn-cap", "1", "--no-probes"],
    ]
    for step in steps:
        outcome = command(*step)
        assert outcome.exit_code == 0, outcome.output
    return root


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to play with; the working folder."""
    for name in ("run", "result", "unaudited"):
        shutil.copytree(finished / name, tmp_path / name)
        if name != "run":
            shutil.copy(key_file(finished / name), key_file(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_real_audit_becomes_a_page(place: Path) -> None:
    record = json.loads((place / "result" / "audit.json").read_text())
    outcome = command("report", "result")
    assert outcome.exit_code == 0, outcome.output
    assert "Wrote result/report.html" in outcome.stdout
    page = (place / "result" / "report.html").read_text("utf-8")
    assert page == render(record)
    assert f"Verdict: {record['verdict']['level']}" in page
    assert command("info", "result").exit_code == 0


def test_the_page_names_nobody(place: Path) -> None:
    command("report", "result")
    page = (place / "result" / "report.html").read_text("utf-8")
    run = load_run(place / "run", samples=source_samples(read_manifest(place / "run")))
    cells = set(re.findall(r">([^<>]*)<", page))
    forgotten = [name for name, label in zip(run.data.ids, run.data.labels.tolist()) if label == 0]
    assert not {name for name in forgotten if len(name) > 1} & cells
    assert "<img" not in page


def test_json_is_one_object_and_the_file_may_be_named(place: Path) -> None:
    outcome = command("report", "result/audit.json", "--out", "pages/page.html", "--json")
    assert outcome.exit_code == 0, outcome.output
    printed = json.loads(outcome.stdout)
    jsonschema.validate(printed, schemas.load("report"))
    record = json.loads((place / "result" / "audit.json").read_text())
    assert printed == {
        "command": "report",
        "result": "result/audit.json",
        "out": "pages/page.html",
        "bytes": (place / "pages" / "page.html").stat().st_size,
        "record_sha256": record_digest(record),
        "verdict": record["verdict"]["level"],
        "thumbnails": 0,
    }


def test_overwriting_has_to_be_asked_for(place: Path) -> None:
    assert command("report", "result").exit_code == 0
    refused = command("report", "result")
    assert refused.exit_code == 2
    assert "exists already" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert command("report", "result", "--overwrite").exit_code == 0


def test_every_next_command_can_be_given(place: Path, finished: Path) -> None:
    def following(*arguments: object) -> list[str]:
        outcome = command(*arguments)
        assert outcome.exit_code == 0, outcome.output
        (line,) = [line for line in outcome.stdout.splitlines() if line.startswith("Next: fastntk ")]
        return line.split()[2:]

    def page() -> None:
        assert command("report", "result").exit_code == 0

    assert following("info", "result") == ["report", "result"]
    page()
    plan = following("info", "result")  # class 0 is gone
    assert plan == ["plan", "result", "--classes", "1"]
    assert command(*plan, "--method", "retrain").exit_code == 0
    quick = ["--holdout", finished / "unseen.npz", "--relearn-cap", "0", "--no-probes"]
    again = following("audit", "run", "result", *quick, "--overwrite")
    assert again == ["report", "result", "--overwrite"]
    assert command(*again).exit_code == 0


def test_thumbnails_show_the_forgotten_pictures_and_no_others(place: Path) -> None:
    outcome = command("report", "result", "--thumbnails", "--run", "run", "--data", "digits@train", "--json")
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["thumbnails"] == 4
    assert "erase it together" in outcome.stderr
    page = (place / "result" / "report.html").read_text("utf-8")
    assert page.count('src="data:image/png;base64,') == 4
    assert "This file holds pictures that were asked to be forgotten." in page


def test_a_thumbnail_is_the_picture_before_normalisation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    normalised = ((pixels / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1).astype(np.float32)
    with Image.open(io.BytesIO(as_png(normalised, mean=mean, std=std))) as image:
        assert np.array_equal(np.asarray(image), pixels)
    large = np.zeros((3, 400, 200), dtype=np.float32)
    with Image.open(io.BytesIO(as_png(large, mean=mean, std=std))) as image:
        assert image.size == (48, 96)


def _newer(folder: Path) -> None:
    (folder / "audit.json").write_text('{"schema": "fastntk-audit/2"}')


def _truncated(folder: Path) -> None:
    file = folder / "audit.json"
    file.write_text(file.read_text()[:500])


def _of_another(folder: Path) -> None:
    record = json.loads((folder / "audit.json").read_text())
    record["subject"]["result"]["tuned"] = "0" * 64
    (folder / "audit.json").write_text(json.dumps(sealed(record)))


def _edited(folder: Path) -> None:
    record = json.loads((folder / "audit.json").read_text())
    record["verdict"]["level"] = "like retrain"
    (folder / "audit.json").write_text(json.dumps(record))


def _resealed(folder: Path) -> None:
    _edited(folder)
    (folder / "audit.json").write_text(json.dumps(sealed(json.loads((folder / "audit.json").read_text()))))


def _unsealed(folder: Path) -> None:
    _edited(folder)
    record = json.loads((folder / "audit.json").read_text())
    del record["record_sha256"]
    (folder / "audit.json").write_text(json.dumps(record))


def _no_key(folder: Path) -> None:
    key_file(folder).unlink()


def _per_cent(folder: Path) -> None:
    record = json.loads((folder / "audit.json").read_text())
    record["accuracy"]["forget"]["full"] = 97.0
    (folder / "audit.json").write_text(json.dumps(record))


def _no_weights(folder: Path) -> None:
    (folder / "tuned.safetensors").unlink()


WRONG = [
    ("report", None, "RESULT"),
    ("report nowhere", None, "nowhere is not there"),
    ("report unaudited", None, "fastntk audit RUN unaudited --holdout SRC"),
    ("report result", _newer, "has schema 'fastntk-audit/2'"),
    ("report result", _truncated, "cannot be read as an audit record"),
    ("report result", _per_cent, "accuracy.forget.full: expected a fraction from 0 to 1, found 97.0"),
    ("report result", _of_another, "is about another result"),
    ("report result", _no_weights, "tuned.safetensors is missing"),
    ("report result/manifest.json", None, "no audit record"),
    ("report run", None, "run holds a 'run'; expected 'result'"),
    ("report result --out result", None, "exists already"),
    ("report result --out result --overwrite", None, "not replaced"),
    ("report result --out result/audit.json/page.html", None, "is not a folder"),
    ("report result --thumbnails", None, "--thumbnails needs --run RUN"),
    ("report result --run run", None, "for --thumbnails only"),
    ("report result --data digits", None, "for --thumbnails only"),
    ("report result", _edited, "this record was changed after it was written"),
    ("report result", _resealed, "it says “like retrain”, its figures say “no reference”"),
    ("report result", _unsealed, "it says “like retrain”, its figures say “no reference”"),
    ("info result", _edited, "this record was changed after it was written"),
    ("info result", _resealed, "its figures say “no reference”"),
    ("report result/audit.json --thumbnails --run run", None, "needs the result's folder"),
    ("report result --thumbnails --run unaudited", None, "was not made from this run: they differ in data"),
    ("report result --thumbnails --run run", _no_key, "its key is not in"),
    ("report result --thumbnails --run nowhere", None, "no such folder"),
    ("report result --thumbnails --run run --data digits@test", None, "samples of this run are not in digits@test"),
    ("report result --pictures", None, "--pictures"),
]


@pytest.mark.parametrize(
    ("line", "spoil", "message"), WRONG, ids=[f"{line} {spoil and spoil.__name__}" for line, spoil, _ in WRONG]
)
def test_wrong_usage_is_told_and_changes_nothing(place: Path, line: str, spoil: Any, message: str) -> None:
    if spoil is not None:
        spoil(place / "result")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    outcome = command(*line.split())
    assert outcome.exit_code == 2, outcome.output
    text = re.sub(r"[\s│]+", " ", outcome.stderr)
    assert message in text
    assert "Traceback" not in text
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
