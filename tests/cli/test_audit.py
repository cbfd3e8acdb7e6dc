"""``fastntk audit``: what it prints and writes, its exit codes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from fastntk.auditing import schema
from fastntk.cli.app import app

SMALL = ["--data", "digits", "--images-per-class", "12", "--only-classes", "2", "--epochs", "1", "--seed", "1"]
QUICK = ["--relearn-cap", "1", "--no-probes"]


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audit-cli") / "run"
    outcome = command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out)
    assert outcome.exit_code == 0, outcome.output
    return out


@pytest.fixture(scope="module")
def results(run_folder: Path) -> dict[str, Path]:
    folders = {}
    for name, method in (("pushed", "max-loss"), ("retrain", "retrain")):
        folders[name] = run_folder.parent / name
        outcome = command("unlearn", run_folder, "--classes", "0", "--method", method, "--out", folders[name])
        assert outcome.exit_code == 0, outcome.output
    return folders


def test_it_says_what_it_will_do_and_writes_a_record_beside_the_result(run_folder: Path, results: dict[str, Path]) -> None:
    folders = (run_folder, results["pushed"])
    before = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    options = ["--holdout", "digits@test", "--reference", "retrain", "--retrains", "0", *QUICK]
    outcome = command("audit", run_folder, results["pushed"], *options, "--require", "forget_accuracy<=200")
    assert outcome.exit_code == 0, outcome.output
    target = results["pushed"] / "audit.json"
    for part in (
        "max-loss, 12 of 24 samples forgotten",
        "Retrain, and 0 with other seeds",
        "estimate",
        "relearn, at most",
        "Accuracy, forgotten samples",
        "Verdict: ",
        "met: forget_accuracy<=200",
        f"Wrote {target}",
        f"Next: fastntk report {results['pushed']}",
    ):
        assert part in outcome.stdout, part
    record = json.loads(target.read_text("utf-8"))
    jsonschema.validate(record, schema())
    assert record["request"]["whole_classes"] == ["0"]
    assert {path: path.read_bytes() for path in before} == before

    again = command("audit", run_folder, results["pushed"], *options)
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert json.loads(target.read_text("utf-8")) == record


def test_a_requirement_that_fails_is_exit_code_3_and_the_record_is_there(
    run_folder: Path, results: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "record.json"
    options = ["--holdout", "digits@test", "--reference", results["retrain"], *QUICK, "--out", out, "--json"]
    outcome = command("audit", run_folder, results["pushed"], *options, "--require", "forget_accuracy<=-1")
    assert outcome.exit_code == 3, outcome.output
    record = json.loads(outcome.stdout)
    jsonschema.validate(record, schema())
    assert record == json.loads(out.read_text("utf-8"))
    assert [item["passed"] for item in record["requirements"]] == [False]
    assert record["reference"] == {"made": True, "seed": 1, "other_seeds": []}
    assert "NOT MET" in outcome.stderr
    replaced = command("audit", run_folder, results["pushed"], *options, "--overwrite")
    assert replaced.exit_code == 0, replaced.output


def test_strict_makes_the_verdict_an_exit_code(run_folder: Path, results: dict[str, Path], tmp_path: Path) -> None:
    for name, level, code in (("pushed", "memory left", 3), ("retrain", "like retrain", 0)):
        options = ["--holdout", "digits@test", "--reference", results["retrain"], *QUICK, "--out", tmp_path / name, "--json"]
        outcome = command("audit", run_folder, results[name], *options, "--strict")
        assert json.loads(outcome.stdout)["verdict"]["level"] == level
        assert outcome.exit_code == code, outcome.output
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--holdout", "digits@test", "--require", "nonsense"], "cannot be read"),
        (["--holdout", "digits@test", "--require", "forget<=3"], "unknown figure 'forget'"),
        (["--holdout", "digits@test", "--require", "recovered>=1"], "needs a Retrain"),
        (["--holdout", "nowhere"], "unknown data source"),
        (["--holdout", "digits@train"], "hold-out samples are training samples"),
        (["--holdout", "digits@test", "--reference", "nowhere"], "there is no such folder"),
        (["--holdout", "digits@test", "--reference", "RESULT"], "only a Retrain can be the reference"),
        (["--holdout", "digits@test", "--ensemble", "3"], "at least 8 models"),
        (["--holdout", "digits@test", "--ensemble", "8", "--ensemble-kind", "fake"], "must be one of real, tangent"),
        (["--holdout", "digits@test", "--retrains", "-1"], "--retrains"),
        (["--holdout", "digits@test", "--retrains", "3"], "no --reference is given. Give --reference retrain"),
        (["--holdout", "digits@test", "--reference", "RESULT", "--retrains", "3"], "is a Retrain that is there already"),
        (["--holdout", "digits@test", "--cache", "somewhere"], "Give --ensemble K too"),
        (["--holdout", "digits@test", "--ensemble-kind", "tangent"], "Give --ensemble K too"),
        ([], "--holdout"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_writes_nothing(
    run_folder: Path, results: dict[str, Path], tmp_path: Path, options: list[str], message: str
) -> None:
    out = tmp_path / "record.json"
    arguments = [str(results["pushed"]) if option == "RESULT" else option for option in options]
    outcome = command("audit", run_folder, results["pushed"], *arguments, "--out", out, *QUICK)
    assert outcome.exit_code == 2, outcome.output
    assert message in outcome.stderr
    assert "Traceback" not in outcome.output
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_record_is_not_replaced(run_folder: Path, results: dict[str, Path], tmp_path: Path) -> None:
    own_file = tmp_path / "mine.json"
    own_file.write_text('{"schema": "something else"}')
    outcome = command("audit", run_folder, results["pushed"], "--holdout", "digits@test", "--out", own_file, "--overwrite")
    assert outcome.exit_code == 2
    assert "does not look like something this command wrote" in outcome.stderr
    swapped = command("audit", results["pushed"], run_folder, "--holdout", "digits@test", "--out", tmp_path / "x.json")
    assert swapped.exit_code == 2
    assert "holds a 'run'; expected 'result'" in swapped.stderr
