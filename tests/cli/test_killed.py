"""SIGKILL at 200 moments of all commands that write: afterwards the target is absent or whole, what was to be replaced is there,
the next command works, and nothing else was touched.

Every other kill comes just before one of the command's changes of files, spread over all of them; the rest at moments spread over
its length. A kill counts where it ended the command. `FUZZ_FIGURES` names a file for the counts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
import safetensors.torch
from PIL import Image

from fastntk.report import read_record
from forked import Server, server

TUNE = ["finetune", "resnet20", "--weights", "cifar100", "--data", "digits", "--images-per-class", "4", "--only-classes", "3"]
TUNE += ["--epochs", "2", "--seed", "1"]
FORGET = ["--classes", "0", "--method", "path-replay", "--depth", "head"]
AUDIT = ["--holdout", "digits@test", "--reference", "retrain", "--retrains", "0", "--no-probes", "--relearn-cap", "1"]
PRETRAIN = ["pretrain", "resnet20", "--data", "digits", "--images-per-class", "2", "--epochs", "1"]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Killed:
    """A command that is killed, what it writes or removes below ``place``, and how to tell that this is whole."""

    times: int
    command: Callable[[Path], list[object]]
    target: str
    whole: Callable[[Server, Path], None]
    replaces: bool = True
    """Every other time its target is there before; otherwise it never is, or always, where it is removed."""


def in_place(name: str) -> Callable[[Server, Path], None]:
    return lambda process, place: read_all(process, place / name)


def read_all(process: Server, folder: Path) -> None:
    """`info` verifies every byte; a result is paired with its run, which needs its key."""
    outcome = process.run("info", folder)
    assert outcome.code == 0, outcome.printed


def whole_result(process: Server, place: Path) -> None:
    read_all(process, place / "result")
    outcome = process.run("info", place / "result", loaded=("forgotten", place / "result", place / "run"))
    assert len(outcome.loaded["forgotten"]) == 4, outcome.printed


def whole_page(process: Server, place: Path) -> None:
    assert (place / "result" / "report.html").read_text().rstrip().endswith("</html>")


def whole_demo(process: Server, place: Path) -> None:
    assert json.loads((place / "demo" / "demo.json").read_text())["format"] == "fastntk-demo"
    for name in ("run", "result", "result-images"):
        read_all(process, place / "demo" / name)
        assert name == "run" or (place / "demo" / name / "report.html").exists()


COMMANDS = {
    "finetune": Killed(36, lambda place: [*TUNE, "--out", place / "new-run"], "new-run", in_place("new-run")),
    "unlearn": Killed(36, lambda place: ["unlearn", place / "run", *FORGET, "--out", place / "result"], "result", whole_result),
    "audit": Killed(
        32,
        lambda place: ["audit", place / "run", place / "result", *AUDIT],
        "result/audit.json",
        lambda process, place: read_record(place / "result") and None,
    ),
    "report": Killed(32, lambda place: ["report", place / "result"], "result/report.html", whole_page),
    "erase": Killed(32, lambda place: ["erase", place / "victim", "--yes"], "victim", in_place("victim"), replaces=False),
    "pretrain": Killed(
        20,
        lambda place: [*PRETRAIN, "--out", place / "weights.safetensors"],
        "weights.safetensors",
        lambda process, place: safetensors.torch.load_file(place / "weights.safetensors") and None,
        replaces=False,
    ),
    "demo": Killed(12, lambda place: ["demo", "--out", place / "demo"], "demo", whole_demo),
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server"), "fuzz_loaded", "small_demo") as started:
        yield started


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, process: Server) -> Path:
    place = tmp_path_factory.mktemp("killed")
    process.inside(*TUNE, "--out", place / "run")
    process.inside("unlearn", place / "run", *FORGET, "--out", place / "result")
    process.inside("audit", place / "run", place / "result", *AUDIT)
    process.inside("report", place / "result")
    process.inside("info", place / "result")
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_kills(name: str, material: Path, process: Server, tmp_path: Path) -> None:
    killed, outcomes = COMMANDS[name], Counter[str]()
    place, draw = tmp_path / "place", Random(0)
    shutil.copytree(material, place)
    if name == "erase":
        shutil.copytree(place / "run", place / "victim")
    target, command = place / killed.target, killed.command(place)
    spare = tmp_path / "spare"
    if name in ("audit", "report", "unlearn"):
        remove(target)
    strangers(place, target)
    before = contents(place, without=target)
    if name == "erase":
        shutil.copytree(target, spare)
    length = process.run(*command, watch=place)
    assert length.code in (0, 3), length.printed
    for number in range(killed.times):
        if name == "erase" and not target.exists():
            shutil.copytree(spare, target)
        elif killed.replaces and number % 4 < 2 and not target.exists():
            assert process.run(*command).code in (0, 3)
        elif name != "erase" and (not killed.replaces or number % 4 >= 2):
            remove(target)
        there = target.exists()
        overwrite = ["--overwrite"] if there and killed.replaces and name != "demo" else []
        share, tries = (number + draw.random()) / killed.times, 0
        while True:
            at = 1 + int(share * length.changes) if number % 2 else None
            outcome = process.run(
                *command, *overwrite, watch=place, kill_at=at, kill_after=None if at else 0.9 * length.seconds * share
            )
            if outcome.code == -9:
                break
            assert outcome.code in (0, 3), outcome.printed  # the kill came too late
            assert (tries := tries + 1) < 20
            share *= 0.7
            if name == "erase":
                shutil.copytree(spare, target)
            elif not there:
                remove(target)
        if target.exists():
            killed.whole(process, place)
            assert name != "erase" or contents(target) == contents(spare)
        assert target.exists() or not there or name == "erase" or put_back(process, place, target)
        outcomes["whole" if target.exists() else "absent"] += 1
        assert contents(place, without=target) == before
    # The next one works, and sweeps up.
    again = process.run(*command, *(["--overwrite"] if target.exists() and killed.replaces and name != "demo" else []))
    assert again.code in (0, 3) or (name == "erase" and "there is no such folder" in again.printed), again.printed
    assert name == "erase" or killed.whole(process, place) is None
    assert contents(place, without=target) == before
    hidden = [path.name for path in target.parent.iterdir() if path.name.startswith(f".{target.name}.")]
    assert not [one for one in hidden if "mine" not in one]
    print(json.dumps({name: {"kills": killed.times, **outcomes}}))
    if "FUZZ_FIGURES" in os.environ:
        with open(os.environ["FUZZ_FIGURES"], "a") as stream:
            stream.write(json.dumps({name: {"kills": killed.times, **outcomes}}) + "\n")


def put_back(process: Server, place: Path, target: Path) -> bool:
    """A folder set aside by a killed writer is back as soon as somebody reads it."""
    process.run("info", target)
    return target.exists()


def strangers(place: Path, target: Path) -> None:
    """Files of somebody else, some with names like ours."""
    for name in ("notes.txt", f"{target.name}.bak", f".{target.name}.tmp-mine", f".{target.name}.old-mine-notes"):
        (target.parent / name).write_text("mine")
    (place / "photos").mkdir()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(place / "photos" / "x.png")


def remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def contents(folder: Path, *, without: Path | None = None) -> dict[str, bytes]:
    """Every file below a folder, less a target, its key and what a killed command left beside it."""
    parts = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        ours = without is not None and (
            path == without or without in path.parents or path.name == f"{without.name}.request.key" or leftover(inside, without)
        )
        if path.is_file() and not ours:
            parts[str(inside)] = path.read_bytes()
    return parts


def leftover(inside: Path, target: Path) -> bool:
    from fastntk.base.atomic import is_temporary

    return any(is_temporary(Path(part)) and target.name in part for part in inside.parts)
