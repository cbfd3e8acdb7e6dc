"""Records that were made again elsewhere, beside those that the pages show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lab.again import again_sentence

from fastntk.base.schema import read_json
from lab import __main__ as lab_command

RESULTS = Path(__file__).parents[2] / "results"
CELL = Path("records") / "resnet20-100" / "class-0"
FILES = ("path-replay-head-seed0.json", "full-seed0.json")
LATER = "f" * 40


def again(folder: Path, file: str, **figures: float) -> None:
    """A copy of a record that says it is of a later commit, with other figures."""
    record = read_json(RESULTS / CELL / file)
    record["environment"]["commit"] = LATER
    audit = record["audit"]
    audit["accuracy"]["retain"]["unlearned"] += figures.get("accuracy", 0.0)
    audit["distances"]["same_seed"]["recovered"] -= figures.get("recovered", 0.0)
    unit = audit["distances"]["retrain_spread"]["total_variation"]["holdout"]
    audit["distances"]["other_seeds"]["total_variation"]["holdout"] += unit * figures.get("distance", 0.0)
    if figures:
        audit["subject"]["result"]["tuned"] = "another"
        audit["relearn"]["unlearned"]["epochs"] = None
    (folder / CELL).mkdir(parents=True, exist_ok=True)
    (folder / CELL / file).write_text(json.dumps(record))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out" / CELL).mkdir(parents=True)
    for file in FILES:
        shutil.copy(RESULTS / CELL / file, tmp_path / "out" / CELL / file)
    return tmp_path / "out"


def test_the_largest_change_of_each_kind_is_told(out: Path, tmp_path: Path) -> None:
    again(tmp_path / "later", FILES[0], accuracy=0.0025, recovered=0.5, distance=0.25)
    again(tmp_path / "later", FILES[1])
    assert lab_command.main(["again", str(tmp_path / "later"), "--out", str(out)]) == 0
    sentence = again_sentence(out)
    assert "(`ffffffffff`): 2 of these records, of resnet20-100. 1 are the same model to the byte" in sentence
    assert "an accuracy is 0.25 points, of a distance 0.25 × the spread, of *recovered* 0.5" in sentence
    assert "as many epochs in 1." in sentence


def test_records_of_the_same_commit_are_not_made_again(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert again_sentence(out) == ""
    assert lab_command.main(["again", str(out), "--out", str(out)]) == 2
    assert "no record of another commit" in capsys.readouterr().err
