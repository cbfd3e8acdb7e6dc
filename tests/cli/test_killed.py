"""SIGKILL at random moments: afterwards the target is absent or whole, the run is untouched, the next write sweeps up.

A kill can hit anything from the start of the work to the last rename. Moments are spread over a whole command's length, and
`seen` makes sure that both ends of the story occurred.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastntk.cli.app import app
from fastntk.storage.data import source_samples
from fastntk.storage.manifest import read_manifest
from fastntk.storage.results import load_result
from fastntk.storage.runs import load_run

TIMES = 20
TUNE = ["finetune", "resnet20", "--weights", "cifar100", "--data", "digits", "--images-per-class", "4"]
TUNE += ["--only-classes", "3", "--epochs", "40", "--seed", "1"]
FORGET = ["--classes", "0", "--method", "fast-ntk"]

pytestmark = pytest.mark.slow


def in_process(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def start(*arguments: object) -> subprocess.Popen[str]:
    """A real process, returned when it has announced what it is about to do."""
    command = [sys.executable, "-u", "-m", "fastntk.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    for line in child.stdout:
        if "estimate" in line:
            break
    return child


def kill_again_and_again(out: Path, *arguments: object) -> set[str]:
    """Kill the command so many times; check the target after each; return what was seen: absent, whole."""
    child = start(*arguments, "--out", out)
    started = time.perf_counter()
    assert child.wait(timeout=600) in (0, 3)  # 3: written, though a dozen digits may not pass the step's own check
    length = time.perf_counter() - started
    draw, outcomes = random.Random(0), set()
    moments = [1.3 * length * (number + draw.random()) / TIMES for number in range(TIMES)]
    draw.shuffle(moments)
    for number, moment in enumerate(moments):
        overwrite = ["--overwrite"] if number % 2 else []
        if not overwrite and out.exists():
            out.rename(out.parent / f"moved-{number}")
        written = out.exists()
        child = start(*arguments, "--out", out, *overwrite)
        time.sleep(moment)
        child.kill()
        child.communicate(timeout=60)
        info = in_process("info", out)  # verifies every byte
        assert out.exists() == (info.exit_code == 0), info.output
        assert out.exists() or not written  # what was to be replaced is back
        outcomes.add("whole" if out.exists() else "absent")
    return outcomes


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_finetune(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert kill_again_and_again(out, *TUNE) == {"absent", "whole"}
    assert in_process(*TUNE, "--out", out, "--overwrite").exit_code == 0
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    load_run(out, samples=source_samples(read_manifest(out)))


def test_unlearn(tmp_path: Path) -> None:
    run, out = tmp_path / "runs" / "run", tmp_path / "results" / "result"
    assert in_process(*TUNE, "--out", run).exit_code == 0
    before = contents(run)
    assert kill_again_and_again(out, "unlearn", run, *FORGET) == {"absent", "whole"}
    assert contents(run) == before
    assert in_process("unlearn", run, *FORGET, "--out", out, "--overwrite").exit_code in (0, 3)
    assert not [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
    loaded = load_run(run, samples=source_samples(read_manifest(run)))
    assert len(load_result(out, loaded).forgotten) == 4
