"""The commands end to end, in this process and in real ones; every wrong usage is one sentence and exit code 2."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

import fastntk
import fastntk.schemas
from fastntk.base.text import duration
from fastntk.cli import app as app_module
from fastntk.cli import demo as demo_module
from fastntk.cli.app import app
from fastntk.cli.finetune import finetune, portable, prepare
from fastntk.storage.data import source_samples
from fastntk.storage.manifest import read_manifest
from fastntk.storage.results import load_result
from fastntk.storage.runs import load_run
from fastntk.unlearning import METHODS

SMALL = ["--data", "digits", "--images-per-class", "4", "--only-classes", "3", "--epochs", "1", "--seed", "1"]


def fastntk_command(*arguments: object) -> Any:
    """Run a command in this process; ``stdout`` and ``stderr`` of the result are apart."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _default_interrupt() -> None:
    """A shell's background job ignores Ctrl-C and its children inherit that; these tests are about a user's Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastntk.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.Popen(command, text=True, env=environment, stdout=-1, stderr=-1, preexec_fn=_default_interrupt, **options)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    result = fastntk_command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def test_finetune_says_what_it_does_and_writes_a_run_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "digits"
    result = fastntk_command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    for part in (
        "resnet20",
        "tuned",
        "12 samples in 3 classes",
        "1 epochs",
        "estimate",
        f"Wrote {out}",
        "Next: fastntk plan",
    ):
        assert part in result.stdout
    samples = source_samples(read_manifest(out))
    run = load_run(out, samples=samples)
    assert len(run.data) == 12
    assert run.recipe == fastntk.Recipe(epochs=1, seed=1)
    assert run.subset.numel == 1571
    assert [path.name for path in out.parent.iterdir()] == ["digits"]


def test_json_is_one_object_and_nothing_else(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = fastntk_command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", out, "--json")
    record = json.loads(result.stdout)
    assert record["command"] == "finetune"
    assert (record["samples"], record["classes"], record["tuned"]) == (12, 3, 1571)
    assert record["recipe"]["epochs"] == 1
    assert "estimate" in result.stderr
    # The same command gives the same weights.
    for part in ("tuned", "anchor", "base"):
        name = f"{part}.safetensors"
        assert (out / name).read_bytes() == (run_folder / name).read_bytes()


def test_info_shows_and_verifies(run_folder: Path) -> None:
    info = fastntk_command("info", run_folder)
    assert info.exit_code == 0
    for part in ("resnet20", "cifar100", "12 samples", "digits", "tuned.safetensors", "as they were written"):
        assert part in info.stdout
    record = json.loads(fastntk_command("info", run_folder, "--json").stdout)
    assert record["verified"] is True
    assert record["data"]["count"] == 12


def test_pretrain_makes_weights_that_finetune_takes(tmp_path: Path) -> None:
    weights, out = tmp_path / "w.safetensors", tmp_path / "run"
    options = ["--data", "digits", "--images-per-class", "2", "--epochs", "1", "--batch-size", "10"]
    result = fastntk_command("pretrain", "resnet20", *options, "--out", weights, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["classes"] == 10
    assert "estimate" in result.stderr
    assert fastntk_command("finetune", "resnet20", "--weights", weights, *SMALL, "--out", out).exit_code == 0
    assert read_manifest(out)["model"]["card"]["weights_sha256"] == json.loads(result.stdout)["sha256"]


def test_the_demo_replaces_its_own_output_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "EPOCHS", 1)
    monkeypatch.setattr(demo_module, "RELEARN_CAP", 3)
    monkeypatch.setattr(demo_module, "SOURCE", {**demo_module.SOURCE, "images_per_class": 3})
    monkeypatch.setattr(demo_module, "METHODS", ("full", "max-loss", "path-replay", "retrain"))
    monkeypatch.setattr(demo_module, "METHODS_SINGLE", ("full", "path-replay, head", "path-replay", "retrain"))
    out = tmp_path / "demo"
    result = fastntk_command("demo", "--out", out)
    assert result.exit_code == 0, result.output
    assert "fine-tuned" in result.stdout
    assert demo_module.check_demo(out)  # what a second one asks before it replaces the first
    record = json.loads((out / "demo.json").read_text())
    jsonschema.Draft202012Validator(fastntk.schemas.load("demo")).validate(record)  # what --json prints is the same object
    assert [row["model"] for row in record["rows"]] == ["before fine-tuning", "fine-tuned"]
    digit, images = record["requests"]
    assert [row["method"] for row in digit["rows"]] == list(demo_module.METHODS)
    assert [row["method"] for row in images["rows"]] == list(demo_module.METHODS_SINGLE)
    assert (digit["forget"], images["forget"]) == (3, 15)
    for request in (digit, images):
        for row in request["rows"]:
            assert row["method"] in result.stdout
            assert 0 <= row["retain"] <= 1
        before, *_, retrain = request["rows"]
        assert (before["method"], before["rose"]) == ("full", 0)
        assert retrain["of_retrain"] == 1
        assert retrain["distance"]["forget"] > 0  # to other seeds, not to itself
    for line in demo_module.TWO_LINES.splitlines():
        assert line.strip() in result.stdout
    original = load_run(out / "run", samples=source_samples(read_manifest(out / "run")))
    for name, page in zip(demo_module.RESULTS, record["reports"]):
        assert load_result(out / name, original).method == demo_module.REPORTED
        assert json.loads((out / name / "audit.json").read_text())["verdict"]["level"] in Path(page).read_text("utf-8").lower()
    load_run(out / "run", samples=source_samples(read_manifest(out / "run")))
    (out / "demo.json").unlink()
    refused = fastntk_command("demo", "--out", out)
    assert refused.exit_code == 2
    assert "not replaced" in refused.stderr
    assert (out / "run").is_dir()


def test_a_row_of_the_demo_finds_nothing_that_another_row_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its cost is that of a request by this method alone; and it draws with the seed of the demo."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("fastntk.unlearning.unlearn", lambda run, **options: asked.append(options))
    rows = SimpleNamespace(memo={"left": "by another"})
    run: Any = SimpleNamespace(recipe=fastntk.Recipe(seed=5))
    for label in demo_module.METHODS:
        demo_module._unlearned(run, label, {"classes": [0]}, rows)
        assert (asked[-1]["linearisation"] is rows) == (not rows.memo)
        rows.memo["left"] = "by another"
    assert {each["method"]: each.get("seed") for each in asked}["random-label"] == 5
    demo_module._unlearned(run, "retrain", {"classes": [0], "seed": 6}, None)
    assert asked[-1]["seed"] == 6


def test_random_weights_are_drawn_from_the_seed() -> None:
    source = {"data": "digits", "images_per_class": 1, "only_classes": 2}
    prompts: dict[str, Any] = {}
    drawn = [
        prepare("resnet20", source, spec="head", weights=None, image_size=None, prompts=prompts, seed=seed)[0].model.state_dict()
        for seed in (0, 0, 1)
    ]
    name = next(iter(drawn[0]))
    assert torch.equal(drawn[0][name], drawn[1][name])
    assert not torch.equal(drawn[0][name], drawn[2][name])


def test_the_demo_compares_every_method_of_the_paper() -> None:
    of_the_paper = {"fast-ntk", "retrain", "full", "max-loss", "random-label"}
    shown = {demo_module.OPTIONS.get(label, {"method": label})["method"] for label in demo_module.METHODS}
    assert of_the_paper < shown == of_the_paper | {"path-replay", "tangent-replay"} <= set(METHODS)
    assert set(demo_module.METHODS_SINGLE) < set(demo_module.METHODS)
    assert set(demo_module.OPTIONS) <= set(demo_module.METHODS)


def test_recipe_defaults_are_those_of_the_library() -> None:
    options = inspect.signature(finetune).parameters
    for name, value in fastntk.Recipe().to_dict().items():
        if name in options:
            assert options[name].default == value, name
    assert options["prompt_length"].default == inspect.signature(fastntk.tune).parameters["prompt_length"].default
    assert options["prompt_blocks"].default == inspect.signature(fastntk.tune).parameters["prompt_blocks"].default


def test_every_command_teaches_by_example() -> None:
    top = fastntk_command("--help")
    commands = [info.callback.__name__ for info in app.registered_commands if info.callback]
    assert set(commands) >= {"demo", "finetune", "info", "plan", "pretrain", "unlearn"}
    for name in commands:
        assert name in top.stdout
        help_text = fastntk_command(name, "--help")
        assert help_text.exit_code == 0
        assert f"fastntk {name} " in help_text.stdout
        assert "Example" in help_text.stdout
        assert "--json" in help_text.stdout


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("kaboom"), 1, "RuntimeError: kaboom"),
        (KeyboardInterrupt(), 130, "interrupted, nothing was changed"),
        (OSError(28, "No space left on device", "/x"), 2, "No space left on device (/x)"),
        (OSError(5, "Input/output error", "/x"), 1, "please report"),
    ],
)
def test_what_escapes_becomes_a_message(error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fastntk.storage.manifest.read_bundle", fail)
    monkeypatch.setattr("fastntk.base.atomic._CHANGES", {})  # of this process, which ran other tests before
    result = fastntk_command("info", "anything")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert "Traceback" in fastntk_command("--debug", "info", "anything").stderr
    monkeypatch.setenv(app_module.DEBUG, "1")
    assert "Traceback" in fastntk_command("info", "anything").stderr


def test_sources_are_kept_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert portable("digits@test") == "digits@test"
    assert portable("hf:org/name@train") == "hf:org/name@train"
    (tmp_path / "kept").mkdir()
    assert portable("hf:kept@train") == f"hf:{tmp_path.resolve()}/kept@train"
    assert portable("photos@train") == f"{tmp_path.resolve()}/photos@train"
    assert portable("x.npz") == f"{tmp_path.resolve()}/x.npz"
    assert portable("cifar10:photos@test") == f"cifar10:{tmp_path.resolve()}/photos@test"
    assert portable("hf:someone/things@train") == "hf:someone/things@train"


@pytest.mark.parametrize(("seconds", "text"), [(0.044, "44 ms"), (0.44, "0.44 s"), (35, "35 s"), (240, "4 min"), (9000, "2.5 h")])
def test_durations_are_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_real_process_prints_json(run_folder: Path) -> None:
    child = process("info", run_folder, "--json")
    stdout, stderr = child.communicate(timeout=120)
    assert child.returncode == 0, stderr
    assert json.loads(stdout)["kind"] == "run"


def test_a_real_process_fails_with_exit_code_2(tmp_path: Path) -> None:
    child = process("info", tmp_path / "nowhere")
    stdout, stderr = child.communicate(timeout=120)
    assert (child.returncode, stdout) == (2, "")
    assert stderr.startswith("Error: ")
    assert "Traceback" not in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_finetune_leaves_nothing(number: int, code: int, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    child = process("finetune", "resnet20", *SMALL[:-4], "--epochs", "100000", "--out", out)
    assert child.stdout is not None
    for line in child.stdout:  # the announcement ends with the estimate; training starts there
        if "estimate" in line:
            break
    time.sleep(0.2)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == code, stderr
    assert "Traceback" not in stderr
    if number == signal.SIGINT:
        assert "interrupted, nothing was changed" in stderr
    assert list(tmp_path.iterdir()) == []
