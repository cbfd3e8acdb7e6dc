"""Unfinished work: locks tell live from dead, readers delete nothing, and writers sweep only what nobody holds."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastntk
from fastntk.base import atomic, locks
from fastntk.base.atomic import (
    changes,
    is_temporary,
    leftovers,
    new_folder,
    recover,
    remove_folder,
    scratch_folder,
    sweep,
    write_file,
)
from fastntk.base.errors import InputError
from fastntk.cli.app import app
from fastntk.storage.runs import load_run, save_run


def tiny_run() -> fastntk.Run:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    subset = fastntk.tune(model, "head")
    return fastntk.Run(model, subset, subset.get(), fastntk.Samples(torch.eye(4), [0, 1, 0, 1]))


def killed(target: Path, *kinds: str) -> list[Path]:
    """What a writer of this target leaves that is killed with such siblings in place."""
    script = f"""
import os, signal
from pathlib import Path
from fastntk.base import atomic
with atomic._claimed(Path({str(target)!r})) as claim:
    for kind in {kinds!r}:
        claim.path(kind).mkdir()
        (claim.path(kind) / "weights").write_text(kind)
        print(claim.path(kind))
    os.sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, text=True, stdout=subprocess.PIPE)
    assert done.returncode == -9
    return [Path(line) for line in done.stdout.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_writers_work_is_swept_by_the_next_writer_and_never_read(tmp_path: Path) -> None:
    (left,) = killed(tmp_path / "run", "tmp")
    assert is_temporary(left)
    with pytest.raises(InputError, match="unfinished work"):
        load_run(left)
    with pytest.raises(InputError, match="there is no such folder"):
        load_run(tmp_path / "run")
    assert left.exists()  # readers delete nothing
    tiny_run().save(tmp_path / "run")
    assert names(tmp_path) == ["run"]


def test_live_work_survives_readers_and_writers_that_cannot_see_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from another container: the same host name and disk, and no process of that number."""

    def unknown(pid: int, signal: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", unknown)
    save_run(tiny_run(), tmp_path / "run")
    with new_folder(tmp_path / "run", overwrite=True) as work:
        (work / "weights").write_text("live")
        load_run(tmp_path / "run", model=tiny_run().model)
        assert sweep(tmp_path / "run") == []
        CliRunner().invoke(app, ["erase", str(tmp_path / "run"), "--yes"])
        assert (work / "weights").read_text() == "live"
        assert leftovers(tmp_path / "run") == [work]
    assert names(tmp_path) == ["run"]


def test_erase_says_what_it_had_to_leave(tmp_path: Path) -> None:
    tiny_run().save(tmp_path / "run")
    with scratch_folder(tmp_path, "run") as work:
        outcome = CliRunner().invoke(app, ["erase", str(tmp_path / "run"), "--yes"])
        assert outcome.exit_code == 0
        assert f"{work.name}: unfinished work of a command that may be running" in outcome.output.replace("\n", "")


def test_another_machines_work_stays_whatever_its_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_HOST", "elsewhere")
    with scratch_folder(tmp_path, "run") as work:
        kept = atomic._claims(tmp_path / "run")[0]
        work.rename(tmp_path / "moved")
    (tmp_path / "moved").rename(work)
    kept.path("lock").touch()
    monkeypatch.undo()
    assert sweep(tmp_path / "run") == []
    assert work.exists()


def test_a_kill_between_the_two_renames_is_recovered_by_a_reader(tmp_path: Path) -> None:
    tiny_run().save(tmp_path / "before")
    aside, unfinished = killed(tmp_path / "run", "old", "tmp")
    (aside / "weights").unlink()
    aside.rmdir()
    (tmp_path / "before").rename(aside)
    load_run(tmp_path / "run", model=tiny_run().model)
    assert unfinished.exists()  # for the next writer
    assert sweep(tmp_path / "run") == [unfinished]
    assert names(tmp_path) == ["run"]


def test_a_live_writer_between_the_two_renames_is_left_alone(tmp_path: Path) -> None:
    with atomic._claimed(tmp_path / "run") as claim:
        claim.path("old").mkdir()
        recover(tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with pytest.raises(InputError, match=r"\.old-.* beside it is the earlier one"):
            load_run(tmp_path / "run")
        claim.path("old").rmdir()
    assert names(tmp_path) == []


def test_of_two_writers_the_first_to_finish_wins(tmp_path: Path) -> None:
    second_in, first_done = threading.Event(), threading.Event()
    refused: list[str] = []

    def second() -> None:
        try:
            with new_folder(tmp_path / "run") as work:
                (work / "who").write_text("second")
                second_in.set()
                first_done.wait(10)
        except InputError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second)
    with new_folder(tmp_path / "run") as work:
        (work / "who").write_text("first")
        thread.start()
        second_in.wait(10)
    first_done.set()
    thread.join(10)
    assert "made by somebody else in the meantime" in refused[0]
    assert (tmp_path / "run" / "who").read_text() == "first"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("faster", ["replaces", "only renames aside"])
def test_of_two_who_replace_neither_loses_the_folder(faster: str, tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "who").write_text("old")
    with new_folder(target, overwrite=True) as work:
        (work / "who").write_text("first")
        if faster == "replaces":
            with new_folder(target, overwrite=True) as other:
                (other / "who").write_text("second")
        else:
            target.rename(tmp_path / "aside")
    assert (target / "who").read_text() == "first"
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_everything_works_and_nothing_is_swept(
    problem: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(handle: int, what: int) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(locks.fcntl, "flock", refuses)
    with scratch_folder(tmp_path, "run") as work:
        assert names(tmp_path) == [work.name]
        assert sweep(tmp_path / "run") == []
        monkeypatch.undo()
        assert sweep(tmp_path / "run") == []  # nor by somebody who has locks
        assert work.exists()
    write_file(tmp_path / "file", b"content")
    assert names(tmp_path) == ["file"]


def test_work_that_could_not_be_removed_is_swept_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
    with scratch_folder(tmp_path, "rows") as work:
        pass
    monkeypatch.undo()
    assert work.exists()
    assert sweep(tmp_path / "rows") == [work]
    assert names(tmp_path) == []


def test_an_abandoned_recording_leaves_neither_folder_nor_lock(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss=nn.functional.cross_entropy, trace=tmp_path / "trace")
    assert len(names(tmp_path)) == 2  # the folder and its lock
    recorder.close()
    assert names(tmp_path) == []


def test_changes_are_those_that_stand(tmp_path: Path) -> None:
    write_file(tmp_path / "kept", b"1")
    with contextlib.suppress(RuntimeError), new_folder(tmp_path / "undone") as work:
        write_file(work / "inside", b"1")
        assert not any(str(work) in line for line in changes())
        raise RuntimeError
    with new_folder(tmp_path / "gone"):
        pass
    remove_folder(tmp_path / "gone")
    mine = [line for line in changes() if str(tmp_path) in line]
    assert mine == [f"{tmp_path / 'kept'} was written", f"{tmp_path / 'gone'} was removed"]


def test_what_a_kill_leaves_of_the_first_try_is_swept(tmp_path: Path) -> None:
    """Found by the kills of `report`: before any work a folder is made and removed to see whether that is allowed."""
    script = f"""
import os, signal
from pathlib import Path
from fastntk.base import atomic
Path.rmdir = lambda path: os.kill(os.getpid(), signal.SIGKILL)
atomic.check_output(Path({str(tmp_path / "page.html")!r}))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert len(leftovers(tmp_path / "page.html")) == 1
    write_file(tmp_path / "page.html", b"x")
    assert names(tmp_path) == ["page.html"]


def test_a_full_disk_has_a_name(tmp_path: Path) -> None:
    def fill() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write says it: of no file

    with pytest.raises(OSError, match="No space left") as full, new_folder(tmp_path / "out"):
        fill()
    assert full.value.filename == str(tmp_path)
    assert not list(tmp_path.iterdir())
