"""Requests one after another on the command line: a result is the run of the next one, the first run is erased, the pictures go,
and nothing of what was forgotten is in the files of a result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import typer
from invoking import command
from PIL import Image

import fastntk.schemas
from fastntk.base.atomic import _claim, sweep
from fastntk.base.errors import InputError
from fastntk.cli import erase as erase_module
from fastntk.storage.manifest import read_manifest
from fastntk.storage.runs import load_run
from fastntk.storage.traces import trace_places

CLASSES = ("ape", "bee", "cat")
EACH = 5


def printed(*arguments: object) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(command(*arguments, "--json").stdout)
    jsonschema.validate(record, fastntk.schemas.load(str(arguments[0])))
    return record


def names_of(label: str) -> list[str]:
    return [f"{label}/photo-of-{label}-{number}.png" for number in range(EACH)]


def pictures(folder: Path, each: int, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for label, tone in zip(CLASSES, (40, 120, 200)):
        (folder / label).mkdir(parents=True)
        for name in names_of(label)[:each]:
            pixels = torch.randint(tone - 40, tone + 40, (32, 32, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures and a recorded run on them."""
    folder = tmp_path_factory.mktemp("over-time")
    pictures(folder / "photos", EACH, seed=1)
    options = ["--weights", "cifar100", "--data", folder / "photos", "--epochs", "2", "--batch-size", "4"]
    outcome = command("finetune", "resnet20", *options, "--out", folder / "run")
    assert "will be recorded" in outcome.stdout
    assert "Recorded" in outcome.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["photos", "run"]
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may delete from."""
    shutil.copytree(made / "photos", tmp_path / "photos")
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path


def unlearn(place: Path, run: str, out: str, *request: object) -> dict[str, Any]:
    return printed("unlearn", place / run, *request, "--data", place / "photos", "--out", place / out)


@pytest.mark.parametrize("depth", ["head", "1"])
def test_a_class_goes_then_its_pictures_and_the_run_then_more(place: Path, depth: str) -> None:
    first = unlearn(place, "run", "first", "--classes", "bee", "--depth", depth)
    assert first["method"] == first["details"]["method"] == "path-replay"
    assert first["trace"]["samples"] == 2 * EACH
    shutil.rmtree(place / "photos" / "bee")
    printed("erase", place / "run", "--yes")
    second = unlearn(place, "first", "second", "--ids", names_of("cat")[1], "--depth", depth)
    assert second["details"]["request"] | {"ids_digest": None} == {
        "forget": 1,
        "retain": 2 * EACH - 1,
        "whole_classes": [],
        "ids_digest": None,
        "chained": False,
    }
    run = load_run(place / "second")
    assert run.listed.ids == tuple(name for name in names_of("ape") + names_of("cat") if name != names_of("cat")[1])
    assert run.listed.classes == CLASSES
    assert set(run.listed.labels.tolist()) == {0, 2}
    assert run.model.fc.out_features == 3  # type: ignore[union-attr]
    assert run.trace is not None
    assert run.trace.facts.requests == 2
    # And the last pictures of a class by its name: the label is still 2.
    third = unlearn(place, "second", "third", "--classes", "cat", "--method", "retrain")
    assert third["details"]["request"]["whole_classes"] == [2]
    assert third["trace"] is None
    command("info", place / "third")


@pytest.mark.parametrize("emptied", [False, True])
def test_a_hold_out_set_without_a_class_is_said_and_audited(place: Path, emptied: bool) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    pictures(place / "unseen", 2, seed=9)
    shutil.rmtree(place / "unseen" / "bee")
    if emptied:
        (place / "unseen" / "bee").mkdir()
    options = ["--data", place / "photos", "--holdout", place / "unseen", "--no-probes", "--relearn-cap", "1"]
    outcome = command("audit", place / "run", place / "first", *options)
    assert "none of bee: nothing is measured on new images of these" in " ".join(outcome.stdout.split())
    record = json.loads((place / "first" / "audit.json").read_text())
    assert any("No hold-out sample is of these trained classes: bee. No figure" in sentence for sentence in record["limits"])
    shutil.rmtree(place / "unseen")
    (place / "unseen" / "yak").mkdir(parents=True)
    shutil.copy(place / "photos" / names_of("ape")[0], place / "unseen" / "yak")
    refused = command("audit", place / "run", place / "first", *options, "--overwrite", code=2)
    assert "has no images of the classes" in refused.stderr


def test_the_command_line_does_what_the_library_does(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    unlearn(place, "first", "second", "--ids", names_of("ape")[0], "--depth", "head")
    run = load_run(place / "run")
    step = fastntk.unlearn(run, classes=["bee"], method="path-replay", depth="head").as_run()
    expected = fastntk.unlearn(step, ids=[names_of("ape")[0]], method="path-replay", depth="head")
    assert torch.equal(load_run(place / "second").subset.get(), expected.subset.get())


def test_without_any_picture_the_trace_goes_on(place: Path) -> None:
    unlearn(place, "run", "with-pictures", "--classes", "bee", "--depth", "head")
    manifest = read_manifest(place / "run")
    source = Path(manifest["source"]["data"])
    hidden = source.rename(source.parent / "hidden")
    try:
        outcome = command("unlearn", place / "run", "--classes", "bee", "--out", place / "first")
        assert "cannot be opened" in outcome.stderr
        assert "Going on with the trace alone: depth head" in outcome.stderr
        assert "not measured" in outcome.stdout
        assert "path-replay: the run has a trace" in outcome.stdout
        second = printed("unlearn", place / "first", "--ids", names_of("cat")[1], "--out", place / "second")
        assert second["accuracy"] is None
        for wrong in (["--depth", "1"], ["--depth", "all"], ["--method", "retrain"], ["--method", "tangent-replay"]):
            refused = command("unlearn", place / "first", "--classes", "cat", *wrong, "--out", place / "no", code=2)
            assert "needs the images" in refused.stderr
        assert "digest unknown" in command("info", place / "second").stdout
    finally:
        hidden.rename(source)
    assert torch.equal(load_run(place / "first").subset.get(), load_run(place / "with-pictures").subset.get())
    # The pictures are back: ids and labels are compared, and what needs pictures works on the result of what did not.
    third = printed("unlearn", place / "second", "--classes", "cat", "--method", "retrain", "--out", place / "third")
    assert third["details"]["request"]["whole_classes"] == [2]


def test_images_can_be_left_out_and_changed_ones_are_refused(place: Path) -> None:
    outcome = command("unlearn", place / "run", "--classes", "bee", "--no-images", "--out", place / "first")
    assert "as asked (--no-images)" in outcome.stderr
    shutil.copy(place / "photos" / names_of("cat")[0], place / "photos" / names_of("cat")[1])
    request = ["unlearn", place / "run", "--classes", "bee", "--data", place / "photos", "--out", place / "second"]
    assert "other pixels or labels" in command(*request, code=2).stderr


def test_no_trace(place: Path) -> None:
    options = ["--weights", "cifar100", "--data", place / "photos", "--epochs", "1"]
    record = printed("finetune", "resnet20", *options, "--no-trace", "--out", place / "plain")
    assert record["trace"] is None
    assert "--no-trace" in record["no_trace_because"]
    record = printed("finetune", "resnet20", *options, "--tune", "norm+fc.bias", "--out", place / "norm")
    assert "is not tuned" in record["no_trace_because"]
    refused = command("finetune", "resnet20", *options, "--tune", "norm+fc.bias", "--trace", "--out", place / "no", code=2)
    assert "is not tuned" in refused.stderr
    untuned = command("finetune", "resnet20", *options, "--tune", "norm", "--out", place / "no", code=2)
    assert "The head (fc) is all zero and not tuned" in " ".join(untuned.stderr.split())
    assert not (place / "no").exists()
    assert (
        "nothing else stands in"
        in command("unlearn", place / "plain", "--classes", "bee", "--no-images", "--out", place / "no", code=2).stderr
    )
    default = command("unlearn", place / "plain", "--classes", "bee", "--option", "validate=false", "--out", place / "result")
    assert "tangent-replay: the run has no trace" in default.stdout
    # A result without a trace is a run too: its samples are the source's less those whose digests it keeps.
    shutil.rmtree(place / "photos" / "bee")
    second = printed("unlearn", place / "result", "--ids", names_of("cat")[1], "--method", "full", "--out", place / "second")
    assert second["details"]["request"]["retain"] == 2 * EACH - 1
    third = printed("unlearn", place / "second", "--ids", names_of("cat")[2], "--method", "full", "--out", place / "third")
    assert third["details"]["request"]["retain"] == 2 * EACH - 2


def test_a_plan_of_a_result_with_and_without_images(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "1")
    asked = ["plan", place / "first", "--ids", names_of("cat")[1]]
    assert "path-replay" in printed(*asked, "--data", place / "photos")["chosen"]
    alone = command(*asked, "--no-images")
    assert "Planning with the trace alone" in alone.stderr
    assert "What Retrain would take was not measured, for there are no images" in alone.stdout
    assert list(printed(*asked, "--no-images")["chosen"]) == ["path-replay"]
    assert alone.stdout.count("needs the images") == 2  # fast-ntk and tangent-replay are listed as out


def test_a_trace_of_a_run_made_in_python_needs_no_source(place: Path) -> None:
    run = load_run(place / "run")
    fastntk.save_run(dataclasses.replace(run, source=None), place / "unsourced")
    outcome = command("unlearn", place / "unsourced", "--classes", "bee", "--out", place / "first")
    assert "does not say where its data came from" in outcome.stderr
    command("unlearn", place / "first", "--classes", "cat", "--out", place / "second")


def test_a_result_is_audited_against_the_result_it_came_from(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    shutil.rmtree(place / "photos" / "bee")
    unlearn(place, "first", "second", "--ids", names_of("cat")[1], "--depth", "head")
    pictures(place / "holdout", 2, seed=2)
    shutil.rmtree(place / "holdout" / "bee")
    asked = ["--holdout", place / "holdout", "--data", place / "photos", "--relearn-cap", "1"]
    command("audit", place / "first", place / "second", *asked)
    assert (place / "second" / "audit.json").is_file()


def test_info_shows_the_trace(place: Path) -> None:
    text = command("info", place / "run").stdout
    assert f"{2 * 3 * EACH} visits of {3 * EACH} samples" in text
    record = printed("info", place / "run")
    assert record["trace"]["visits"] == 2 * 3 * EACH
    (place / "run" / "trace" / "features.bin").write_bytes(b"")
    assert "features.bin has 0 bytes" in command("info", place / "run", code=2).stderr


# Nothing of the forgotten samples.


@pytest.mark.parametrize("depth", ["head", "1", "all"])
@pytest.mark.parametrize("request_by", ["class", "ids"])
def test_no_file_of_a_result_holds_anything_of_the_forgotten(place: Path, depth: str, request_by: str) -> None:
    asked = ["--classes", "bee"] if request_by == "class" else ["--ids", ",".join(names_of("cat")[1:3])]
    unlearn(place, "run", "result", *asked, "--depth", depth)
    needles = remains(place / "run", names_of("bee") if request_by == "class" else names_of("cat")[1:3])
    assert found(needles, place / "run")  # the search finds what is there
    assert found(needles, place / "result") == []


def remains(folder: Path, ids: list[str]) -> list[bytes]:
    """Ids, features of the visits, and gradients of the steps that met them, in several dtypes."""
    run = load_run(folder)
    trace = run.trace
    assert trace is not None
    assert trace.gradients is not None
    rows = torch.isin(trace.visited, run.listed.index_of(ids)).nonzero().flatten().tolist()
    steps = sorted({int(torch.searchsorted(trace.bounds, row, right=True)) - 1 for row in rows})
    sizes = [run.subset.parameters[name].numel() for name in trace.facts.body]
    parts = [
        part[:8] for step in steps for part in trace.gradients[step].split(sizes)
    ]  # of each tensor, for one may be kept alone
    vectors = [trace.features[row] for row in rows] + [part for part in parts if bool(part.all())]  # a head of zeros: no gradient
    assert len(vectors) > len(rows)
    kinds = (torch.float16, torch.float32, torch.float64)
    needles = [vector.to(kind).numpy().tobytes() for vector in vectors for kind in kinds]
    spelled = [text for name in ids for text in (name, Path(name).name, json.dumps(name), json.dumps(name)[1:-1])]
    return needles + [text.encode(coding) for text in spelled for coding in ("utf-8", "utf-16-le")]


def found(needles: list[bytes], folder: Path) -> list[tuple[str, bytes]]:
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [(path, needle) for path, data in files.items() for needle in needles if needle in data]


# Erasing.


def test_erase_says_what_goes_and_removes_all_of_it(place: Path) -> None:
    (place / "run" / "rows").mkdir()
    (place / "run" / "rows" / "part.bin").write_bytes(b"x" * 1000)
    outcome = command("erase", place / "run", "--yes")
    for part in ("weights", "trace (features", "folder rows", "Removed", "the data itself", "overwritten with zeros"):
        assert part in outcome.stdout
    assert sorted(path.name for path in place.iterdir()) == ["photos"]
    assert "there is no such folder" in command("erase", place / "run", "--yes", code=2).stderr


def test_what_a_killed_erase_leaves_is_swept_by_the_next(place: Path) -> None:
    claim = _claim(place / "run")
    claim.path("lock").touch()  # which nobody holds
    (place / "run").rename(claim.path("tmp"))
    assert "remainder of an interrupted command" in command("erase", place / "run", "--yes").stdout
    assert sorted(path.name for path in place.iterdir()) == ["photos"]


@pytest.mark.parametrize("there", [True, False])
def test_erase_removes_what_a_killed_training_left_of_its_trace(place: Path, there: bool) -> None:
    if not there:
        shutil.rmtree(place / "run")
    claim = _claim(trace_places(place / "run")[0])
    claim.path("lock").touch()  # which nobody holds
    (claim.path("tmp") / "trace").mkdir(parents=True)
    command("erase", place / "run", "--yes")
    assert sorted(path.name for path in place.iterdir()) == ["photos"]


@pytest.mark.parametrize("by", ["erase", "finetune"])
def test_nor_is_it_forgotten_once_the_folder_above_was_made(place: Path, by: str) -> None:
    out = place / "runs" / "first"
    claim = _claim(trace_places(out)[0])
    assert claim.target.parent == place
    claim.path("lock").touch()  # which nobody holds
    (claim.path("tmp") / "trace").mkdir(parents=True)
    out.parent.mkdir()
    other = _claim(trace_places(place / "first")[0])  # of a run of that name elsewhere
    other.path("lock").touch()
    other.path("tmp").mkdir()
    if by == "erase":
        command("erase", out, "--yes")
    else:
        options = ["--data", place / "photos", "--epochs", "1", "--batch-size", "4"]
        command("finetune", "resnet20", *options, "--out", out)
    assert not claim.present
    assert other.present


def test_a_link_to_an_erased_picture_is_an_erased_picture(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    picture = next((place / "photos" / "cat").iterdir())
    picture.unlink()
    picture.symlink_to(place / "gone.png")
    moved = ["--data", place / "photos", "--out", place / "second"]
    refused = command("unlearn", place / "first", "--classes", "ape", *moved, code=2)  # without --data: on with the trace alone
    assert f"cat/{picture.name}. If it was moved, say where it is: --data SRC." in refused.stderr


def test_erase_asks_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(place)
    assert "Add --yes" in command("erase", place / "run", code=2).stderr
    assert contents(place) == before

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = iter([False, True])
    monkeypatch.setattr(typer, "confirm", lambda *words, **options: next(answers))
    with pytest.raises(typer.Exit) as declined:
        erase_module.erase(place / "run")
    assert declined.value.exit_code == 130
    assert contents(place) == before
    erase_module.erase(place / "run")
    assert not (place / "run").exists()


def test_erase_refuses_what_is_not_ours(place: Path) -> None:
    (place / "link").symlink_to(place / "run")
    (place / "file").write_text("x")
    before = contents(place)
    for name, reason in (("photos", "was not written by"), ("link", "is a link"), ("file", "it is a file")):
        assert reason in command("erase", place / name, "--yes", code=2).stderr
    assert contents(place) == before
    (place / "run" / "manifest.json").write_text('{"format": "fastntk", "kind": "run"')  # not even a manifest any more
    assert "was not written by" in command("erase", place / "run", "--yes", code=2).stderr
    (place / "run" / "manifest.json").write_text('{"format": "fastntk", "kind": "run"}')  # damaged, but ours
    command("erase", place / "run", "--yes")


# Kills.

WORKER = """
import contextlib, io, os, signal, sys, time
from pathlib import Path
import fastntk
from fastntk.cli.erase import erase
from fastntk.storage.results import save_result
from fastntk.storage.runs import load_run
place, task = Path(sys.argv[1]), sys.argv[2]
result = fastntk.unlearn(load_run(place / "run"), classes=["bee"], method="path-replay", depth="head")
for line in sys.stdin:
    started, child = time.perf_counter(), os.fork()
    if not child:
        with contextlib.redirect_stdout(io.StringIO()):
            save_result(result, place / "result", overwrite=True) if task == "write" else erase(place / "victim", yes=True)
        os._exit(0)
    if line.strip() != "wait":
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)  # its own child, not waited for yet: the id is nobody else's
    os.waitpid(child, 0)
    print(time.perf_counter() - started, flush=True)
"""


class Worker:
    """A process that starts a child a request, which writes a result or erases a run, and may kill it at that."""

    def __init__(self, place: Path, task: str) -> None:
        arguments = [sys.executable, "-c", WORKER, str(place), task]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one thread: it is safe to fork
        self._process = subprocess.Popen(arguments, text=True, stdin=-1, stdout=-1, env=environment)

    def once(self, *, kill_after: float | None = None) -> float:
        """Start a child, kill it after so many seconds or let it end; return how long it was there."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("wait\n" if kill_after is None else f"{kill_after}\n")
        stdin.flush()
        return float(stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


KILLS = [6, pytest.param(30, marks=pytest.mark.slow)]


@pytest.mark.parametrize("times", KILLS)
def test_a_kill_while_a_result_is_written_leaves_it_whole_or_absent(place: Path, times: int) -> None:
    """Moments are spread over the writing of a result with its trace; every other time one is there to be replaced."""
    worker, draw, outcomes = Worker(place, "write"), random.Random(0), set()
    worker.once()
    length = worker.once()
    for number in range(times):
        if number % 2:
            shutil.rmtree(place / "result")
        written = (place / "result").exists()
        worker.once(kill_after=1.1 * length * (number + draw.random()) / times)
        outcomes.add(whole_or_absent(place / "result"))
        assert (place / "result").exists() or not written  # what was to be replaced is there, or back
        deadline = time.monotonic() + 10  # the system may let go of a dead process's lock a moment later
        while any(path.name.startswith(".result") for path in place.iterdir()) and time.monotonic() < deadline:
            sweep(place / "result")  # as the next writer does
        assert not [path.name for path in place.iterdir() if path.name.startswith(".result")]
        if not (place / "result").exists():
            worker.once()
    worker.close()
    assert "whole" in outcomes
    assert times < 30 or "absent" in outcomes


@pytest.mark.parametrize("times", KILLS)
def test_a_kill_while_a_run_is_erased_leaves_it_whole_or_absent(place: Path, times: int) -> None:
    """Moments are spread over the removal of a run with many files."""
    (place / "run" / "rows").mkdir()
    for number in range(500):
        (place / "run" / "rows" / f"{number}.bin").write_bytes(b"0")
    expected, worker, draw, outcomes = contents(place / "run"), Worker(place, "erase"), random.Random(0), set()
    shutil.copytree(place / "run", place / "victim")
    length = worker.once()
    for number in range(times):
        shutil.rmtree(place / "victim", ignore_errors=True)
        shutil.copytree(place / "run", place / "victim")
        worker.once(kill_after=1.1 * length * (number + draw.random()) / times)
        assert not (place / "victim").exists() or contents(place / "victim") == expected
        outcomes.add(whole_or_absent(place / "victim"))
        sweep(place / "victim")
        assert not [path.name for path in place.iterdir() if path.name.startswith(".victim")]
    worker.close()
    assert "absent" in outcomes
    assert times < 30 or "whole" in outcomes


def whole_or_absent(folder: Path) -> str:
    """What is there to a reader, every byte verified; reading sweeps what the kill left."""
    try:
        run = load_run(folder)
    except InputError as error:
        assert "there is no such folder" in str(error)  # noqa: PT017
        return "absent"
    assert run.trace is not None
    return "whole"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_result_inside_the_folder_of_its_run_is_refused(place: Path) -> None:
    refused = command("unlearn", place / "run", "--classes", "bee", "--out", place / "run" / "results" / "first", code=2)
    assert "`fastntk erase` would remove it with that folder" in " ".join(refused.stderr.split())


def test_nor_inside_another_result(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    before = contents(place / "first")
    refused = command("unlearn", place / "run", "--classes", "cow", "--out", place / "first" / "second", code=2)
    assert f"{place / 'first'}: `fastntk erase` would remove it" in " ".join(refused.stderr.split())
    assert contents(place / "first") == before
    shutil.copytree(place / "first", place / "run" / "results of mine")  # by hand, or by an older release
    assert "results of mine, a run or result of its own" in command("erase", place / "run", "--yes").output


def test_a_damaged_trace_can_be_left_out(place: Path) -> None:
    with (place / "run" / "trace" / "samples.bin").open("ab") as file:
        file.write(b"x")
    refused = command("unlearn", place / "run", "--classes", "bee", "--out", place / "first", code=2)
    assert "--no-trace" in refused.stderr
    plan = command("plan", place / "run", "--classes", "bee", "--no-trace").output
    assert "path-replay" not in plan
    assert "--no-trace" in plan
    unlearn(place, "run", "first", "--classes", "bee", "--method", "retrain", "--no-trace")
    audit = ("--holdout", place / "photos", "--reference", "retrain", "--no-trace", "--relearn-cap", "1", "--no-probes")
    refused = command("audit", place / "run", place / "first", *audit, code=2)
    assert "hold-out samples are training samples" in " ".join(refused.stderr.split())  # so far without the trace
    refused = command("unlearn", place / "run", "--classes", "bee", "--no-trace", "--no-images", "--out", place / "x", code=2)
    assert "contradict each other" in " ".join(refused.stderr.split())


def test_a_result_in_the_place_of_its_run_is_refused(place: Path) -> None:
    unlearn(place, "run", "first", "--classes", "bee", "--depth", "head")
    before = contents(place / "first")
    refused = command("unlearn", place / "first", "--ids", "cow/*", "--out", place / "first", "--overwrite", code=2)
    assert "is the run of this request: without it the result could not be audited" in " ".join(refused.stderr.split())
    assert contents(place / "first") == before
