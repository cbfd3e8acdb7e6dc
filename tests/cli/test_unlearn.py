"""``plan`` and ``unlearn``: what they write, what they never write, and what they refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fastntk
from fastntk.base.errors import InputError
from fastntk.cli.app import app
from fastntk.cli.method_options import method_options
from fastntk.cli.request import parse_bytes
from fastntk.storage.data import source_samples
from fastntk.storage.manifest import read_manifest
from fastntk.storage.results import load_result, save_result
from fastntk.storage.runs import load_run
from fastntk.unlearning import METHODS
from fastntk.unlearning.path_replay import checking

SMALL = ["--data", "digits", "--images-per-class", "4", "--only-classes", "3", "--epochs", "2", "--seed", "1"]


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unlearn-cli") / "run"
    result = command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def run(run_folder: Path) -> fastntk.Run:
    return load_run(run_folder, samples=source_samples(read_manifest(run_folder)))


@pytest.fixture(scope="module")
def result_folder(run_folder: Path) -> Path:
    out = run_folder.parent / "result"
    outcome = command("unlearn", run_folder, "--classes", "0", "--method", "tangent-replay", "--out", out)
    assert outcome.exit_code in (0, 3), outcome.output
    return out


def test_unlearn_says_what_it_does_and_writes_what_the_library_makes(run_folder: Path, run: Any, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    out = tmp_path / "deep" / "result"
    outcome = command(
        "unlearn", run_folder, "--classes", "0", "--method", "fast-ntk", "--damping", "0.1", "--option", "at=anchor", "--out", out
    )
    assert outcome.exit_code == 0, outcome.output
    for part in (
        "forget 4 of 12",
        "fast-ntk, damping 0.1, at anchor",
        "estimate",
        "validity",
        f"Wrote {out}",
        "Next: f",
    ):
        assert part in outcome.stdout
    loaded = load_result(out, run)
    expected = fastntk.unlearn(run, classes=[0], method="fast-ntk", damping=0.1, at="anchor")
    assert torch.equal(loaded.subset.get(), expected.subset.get())
    assert torch.equal(loaded.split.forget, expected.split.forget)
    assert list(loaded.model.state_dict()) == list(run.model.state_dict())
    assert {path.name: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()} == before


def test_json_is_one_object_without_ids(run_folder: Path, run: Any, tmp_path: Path) -> None:
    sample_id = run.data.ids[5]
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{sample_id}\n\n  {run.data.ids[7]}  \n")
    outcome = command("unlearn", run_folder, "--ids-file", ids, "--method", "full", "--out", tmp_path / "r", "--json")
    record = json.loads(outcome.stdout)
    assert (record["command"], record["method"]) == ("unlearn", "full")
    assert record["details"]["request"]["forget"] == 2
    assert record["accuracy"]["retain"]["before"] == record["accuracy"]["retain"]["after"]


def test_patterns_files_and_persons_name_the_same_samples(run_folder: Path, run: Any, tmp_path: Path) -> None:
    """Each way of naming samples ends in the same request, and no name is written anywhere."""
    assert run.data.ids[:7] == ("0", "1", "2", "10", "11", "12", "20")
    ids, people = tmp_path / "ids.txt", tmp_path / "people.csv"
    ids.write_bytes("\ufeff# a series\r\n1[0-2]  # all three\r\n\r\n".encode())
    people.write_text("id,person\n12,Ada Lovelace\n20,Ada Lovelace\n20,Bob\n1,Eve\n")
    who = ["--person", "Ada Lovelace", "--person", "Bob", "--persons-file", people]
    asked = ["--ids", "1[0-1],12", *who], ["--ids-file", ids, *who], ["--ids", "10", "--ids-file", ids, *who]
    for number, request in enumerate(asked):
        outcome = command("unlearn", run_folder, *request, "--method", "full", "--out", tmp_path / str(number))
        assert outcome.exit_code == 0, outcome.output
        assert load_result(tmp_path / str(number), run).forgotten.ids == ("10", "11", "12", "20")
        written = b"".join(path.read_bytes() for path in (tmp_path / str(number)).rglob("*") if path.is_file())
        assert b"Lovelace" not in written
        assert "Lovelace" not in outcome.output
    planned = command("plan", run_folder, *who, "--method", "full")
    assert planned.exit_code == 0, planned.output
    assert "12 samples (10 retained)" in planned.stdout
    assert f"--person NAME --person NAME --persons-file {people}" in planned.stdout
    assert "Lovelace" not in planned.output


def test_a_result_keeps_digests_and_no_ids(run: Any, tmp_path: Path) -> None:
    samples = fastntk.Samples(run.data.inputs, run.data.labels, [f"person-{i}" for i in range(12)], run.data.classes)
    other = fastntk.Run(run.model, run.subset, run.anchor, samples, recipe=run.recipe)
    result = fastntk.unlearn(other, ids=["person-3", "person-8"], method="full")
    text = (save_result(result, tmp_path / "r") / "manifest.json").read_text()
    assert "person" not in text
    extra = json.loads(text)["extra"]
    assert len(extra["request"]["forgotten"]) == 2
    again = load_result(tmp_path / "r", other)
    assert again.forgotten.ids == ("person-3", "person-8")
    with pytest.raises(InputError, match="was not made from this run: they differ in data"):
        load_result(tmp_path / "r", run)


def test_requests_chain_over_folders(run_folder: Path, result_folder: Path, run: Any, tmp_path: Path) -> None:
    extra = run.data.ids[int((run.data.labels == 1).nonzero()[0])]
    options = ["--method", "tangent-replay", "--out", tmp_path / "second"]
    outcome = command("unlearn", run_folder, "--after", result_folder, "--ids", extra, *options)
    assert outcome.exit_code in (0, 3), outcome.output  # 3: written, but on twelve digits the verdict may be "retrain instead"
    both = fastntk.unlearn(run, classes=[0], ids=[extra], method="tangent-replay")
    chained = load_result(tmp_path / "second", run)
    assert torch.equal(chained.split.forget, both.split.forget)
    assert torch.allclose(chained.subset.get(), both.subset.get(), atol=1e-6)


def test_info_shows_a_result(result_folder: Path) -> None:
    info = command("info", result_folder)
    assert info.exit_code == 0, info.output
    for part in ("a result of fastntk", "4 samples (keyed digests of their ids only)", "tangent-replay", "8 samples"):
        assert part in info.stdout


def test_overwriting_replaces_results_and_never_runs(run_folder: Path, tmp_path: Path) -> None:
    arguments = ["unlearn", run_folder, "--classes", "1", "--method", "full"]
    for _ in range(2):
        assert command(*arguments, "--out", tmp_path / "r", "--overwrite").exit_code == 0
    shutil.copytree(run_folder, tmp_path / "other")
    refused = command(*arguments, "--out", tmp_path / "other", "--overwrite")
    assert refused.exit_code == 2
    assert "not replaced" in refused.stderr


def test_a_step_that_fails_its_check_is_written_with_exit_code_3(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MISS", -1.0)
    outcome = command("unlearn", run_folder, "--classes", "0", "--out", tmp_path / "r")
    assert outcome.exit_code == 3, outcome.output
    assert "retrain instead" in outcome.stdout
    assert read_manifest(tmp_path / "r")["extra"]["details"]["validity"]["verdict"] == "retrain instead"


def test_plan_compares_routes_with_retrain_and_writes_nothing(run_folder: Path, tmp_path: Path) -> None:
    outcome = command("plan", run_folder, "--classes", "0", "--memory-budget", "2GB")
    assert outcome.exit_code == 0, outcome.output
    for part in ("12 samples (8 retained)", "fast-ntk", "tangent-replay", "retrain", "Next: fastntk unlearn"):
        assert part in outcome.stdout
    (marked,) = (line for line in outcome.stdout.splitlines() if line.startswith("->"))
    assert f"--method {marked.split()[1].rstrip(':')} " in outcome.stdout.splitlines()[-1]
    record = json.loads(command("plan", run_folder, "--ids", "0", "--json").stdout)
    assert record["sizes"]["retain"] == 11
    assert record["retrain_seconds"] > 0


def test_the_command_of_a_plan_keeps_the_device(run_folder: Path) -> None:
    planned = command("plan", run_folder, "--classes", "0", "--method", "fast-ntk", "--device", "cpu")
    assert planned.exit_code == 0, planned.output
    assert "--device cpu" in planned.stdout.splitlines()[-1]  # also where it is retrain, the cheaper one


def test_data_may_have_moved_but_not_changed(run_folder: Path, tmp_path: Path) -> None:
    moved = command(
        "unlearn", run_folder, "--classes", "0", "--method", "full", "--data", "digits@train", "--out", tmp_path / "a"
    )
    assert moved.exit_code == 0, moved.output
    assert "--holdout SRC --data digits@train" in moved.stdout.splitlines()[-1]  # the audit finds the data there, too
    changed = command(
        "unlearn", run_folder, "--classes", "0", "--method", "full", "--data", "digits@test", "--out", tmp_path / "b"
    )
    assert changed.exit_code == 2
    assert "samples of this run are not in digits@test" in changed.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 10**9), ("500 MB", 5 * 10**8), ("1.5k", 1500), ("2e9", 2 * 10**9), ("7", 7)]
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_option_texts_become_what_the_method_expects() -> None:
    assert method_options("fast-ntk", {"scale": None}, ["chunk=8", "scale=none", "validate=false"]) == {
        "chunk": 8,
        "scale": None,
        "validate": False,
    }
    assert method_options("max-loss", {}, ["lr=1e-3", "batch-size=4"]) == {"lr": 1e-3, "batch_size": 4}


def test_the_help_names_every_method() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "fastntk.cli", "unlearn", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "160"},  # long names are broken in narrow columns
    )
    words = " ".join(process.stdout.replace("│", " ").split())
    assert all(name in words for name in METHODS)


CHECK = """
import sys, fastntk, fastntk.cli.app
assert "torch" not in sys.modules, "torch was imported"
from fastntk.storage.results import save_result
missing = [name for name in fastntk.__all__ if not hasattr(fastntk, name)]
assert not missing, missing
assert set(fastntk.__all__) <= set(dir(fastntk))
assert callable(fastntk.unlearn) and callable(fastntk.plan)
try:
    fastntk.nothing_of_the_kind
except AttributeError as error:
    assert "nothing_of_the_kind" in str(error)
else:
    raise AssertionError("no AttributeError")
"""


def test_names_are_imported_on_first_use_and_survive_their_sub_packages() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)
