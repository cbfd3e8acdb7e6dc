"""Rows on disk: the same as in memory, the same bytes after a kill, and no mess after a failure."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import BudgetError, InputError
from fastntk.tangent import RowEngine, checked_engine
from fastntk.tangent import on_disk as store
from fastntk.tangent.in_memory import rows_in_memory
from fastntk.tangent.on_disk import BODY, FEATURES, STATE, rows_on_disk

SCRIPT = Path(__file__)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    ).eval()


def images(count: int = 23) -> Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(5))


def engine(spec: str = "norm+head", *, shift: float = 0.0) -> RowEngine:
    model = network()
    subset = fastntk.tune(model, spec)
    subset.set(subset.get() + shift)
    return checked_engine(model, subset, images())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("spec", ["norm+head", "norm", "head", "norm+5.bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_on_disk_are_the_rows_in_memory(tmp_path: Path, spec: str, dtype: torch.dtype) -> None:
    model = network().to(dtype)
    checked = checked_engine(model, fastntk.tune(model, spec), images().to(dtype))
    expected = rows_in_memory(checked, images().to(dtype), chunk=5).dense()
    for _ in range(2):  # made, then found
        found = rows_on_disk(checked, images().to(dtype), tmp_path / "rows", chunk=5)
        assert found.body.dtype == dtype
        assert torch.equal(found.dense(), expected)
    assert (tmp_path / "rows" / FEATURES).exists() == (spec in ("norm+head", "head"))


def test_a_finished_folder_is_not_computed_again_and_cannot_be_changed_through_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = engine()
    rows = rows_on_disk(checked, images(), tmp_path, chunk=4)
    before = content(tmp_path)
    rows.body.zero_()
    assert content(tmp_path) == before
    monkeypatch.setattr(RowEngine, "rows", lambda *_: pytest.fail("rows were computed again"))
    again = rows_on_disk(checked, images(), tmp_path, chunk=4)
    assert again.body.abs().sum() > 0


def killed_after(folder: Path, chunks: int) -> subprocess.CompletedProcess[str]:
    """Write rows in another process that is killed (SIGKILL) while it makes its last chunk."""
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        import test_on_disk as case
        from fastntk.tangent import RowEngine, on_disk as store
        store.SECONDS_BETWEEN_STATES = 0.0
        plain, calls = RowEngine.rows, 0
        checked = case.engine()
        def rows(self, inputs):
            global calls
            calls += 1
            if calls > {chunks}:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(self, inputs)
        RowEngine.rows = rows
        store.rows_on_disk(checked, case.images(), {str(folder)!r}, chunk=4)
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False)


def test_a_killed_job_resumes_and_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_on_disk(engine(), images(), tmp_path / "whole", chunk=4)
    folder = tmp_path / "killed"
    job = killed_after(folder, 3)
    assert job.returncode == -signal.SIGKILL, job.stderr
    state = json.loads((folder / STATE).read_text())
    assert state["chunks"] == 3
    assert not state["complete"]
    # What a kill in the middle of a write leaves beyond the recorded chunks must not survive.
    with (folder / BODY).open("r+b") as handle:
        handle.seek(-40, os.SEEK_END)
        handle.write(b"x" * 40)
    sizes: list[int] = []
    plain = RowEngine.rows
    monkeypatch.setattr(RowEngine, "rows", lambda self, inputs: (sizes.append(len(inputs)), plain(self, inputs))[1])
    resumed = rows_on_disk(engine(), images(), folder, chunk=4)
    assert sum(sizes[1:]) == len(images()) - 12  # the first call is the guards'
    assert content(folder) == content(tmp_path / "whole")
    assert torch.equal(resumed.dense(), rows_in_memory(engine(), images(), chunk=4).dense())


def test_killed_before_the_first_state_starts_again(tmp_path: Path) -> None:
    job = killed_after(tmp_path / "rows", 0)
    assert job.returncode == -signal.SIGKILL, job.stderr
    assert json.loads((tmp_path / "rows" / STATE).read_text())["chunks"] == 0
    rows = rows_on_disk(engine(), images(), tmp_path / "rows", chunk=4)
    assert torch.equal(rows.dense(), rows_in_memory(engine(), images(), chunk=4).dense())


def test_progress_is_recorded_now_and_then_not_every_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    plain = store._record
    monkeypatch.setattr(store, "_record", lambda *a, **k: (recorded.append(a[1]["chunks"]), plain(*a, **k))[1])
    rows_on_disk(engine(), images(), tmp_path / "a", chunk=2)
    assert recorded == [0, 12]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: {"engine": engine(shift=1e-6)}, "weights"),
        (lambda: {"inputs": images() + 1e-6}, "inputs"),
        (lambda: {"inputs": images(22)}, "input shape"),
        (lambda: {"chunk": 5}, "chunk"),
        (lambda: {"engine": engine("norm")}, "tuned parameters"),
    ],
    ids=["weights", "inputs", "count", "chunk", "subset"],
)
def test_a_folder_of_other_rows_is_refused_and_left_alone(tmp_path: Path, change: Any, named: str) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    before = content(tmp_path)
    given: dict[str, Any] = {"engine": engine(), "inputs": images(), "chunk": 4, **change()}
    with pytest.raises(InputError, match=f"differs in .*{named}"):
        rows_on_disk(given["engine"], given["inputs"], tmp_path, chunk=given["chunk"])
    assert content(tmp_path) == before


def test_a_change_outside_the_subset_counts_too(tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    other = engine()
    with torch.no_grad():
        other.model[0].weight.add_(1e-6)  # type: ignore[index,union-attr,operator]
    with pytest.raises(InputError, match="weights"):
        rows_on_disk(other, images(), tmp_path, chunk=4)


def test_a_known_digest_stands_in_for_the_inputs(tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4, samples_digest="abc")
    assert json.loads((tmp_path / STATE).read_text())["key"]["inputs"] == "abc"
    with pytest.raises(InputError, match="inputs"):
        rows_on_disk(engine(), images(), tmp_path, chunk=4, samples_digest="def")


def test_the_state_holds_no_data_and_the_files_are_private(tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    state = json.loads((tmp_path / STATE).read_text())
    assert set(state) == {"key", "chunks", "complete", "digests"}
    assert all(isinstance(value, str | int | list | dict) for value in state["key"].values())
    for name in (BODY, FEATURES):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_damage_is_noticed(tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    os.truncate(tmp_path / BODY, 100)
    with pytest.raises(InputError, match=r"body\.bin should have .* has 100"):
        rows_on_disk(engine(), images(), tmp_path, chunk=4)
    (tmp_path / STATE).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        rows_on_disk(engine(), images(), tmp_path, chunk=4)


@pytest.mark.parametrize("name", [BODY, FEATURES])
def test_a_flipped_bit_in_stored_rows_is_refused(name: str, tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name} was changed: the SHA-256 of its chunks \d"):
        rows_on_disk(engine(), images(), tmp_path, chunk=4)


def test_a_flipped_bit_is_noticed_before_an_interrupted_job_goes_on(tmp_path: Path) -> None:
    killed_after(tmp_path, 2)
    with (tmp_path / BODY).open("r+b") as stream:
        stream.write(b"\xff")
    with pytest.raises(InputError, match=r"body\.bin was changed: the SHA-256 of its chunks 0 "):
        rows_on_disk(engine(), images(), tmp_path, chunk=4)


def test_of_large_rows_a_sample_with_both_ends_is_checked_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=1)
    monkeypatch.setattr(store, "CHECKED_BYTES", 0)
    with pytest.warns(UserWarning, match=rf"2 of {len(images())} chunks of the stored rows were compared"):
        rows_on_disk(engine(), images(), tmp_path, chunk=1)
    data = bytearray((tmp_path / BODY).read_bytes())
    data[-1] ^= 1
    (tmp_path / BODY).write_bytes(data)
    with pytest.warns(UserWarning, match="were compared"), pytest.raises(InputError, match="was changed"):
        rows_on_disk(engine(), images(), tmp_path, chunk=1)


@pytest.mark.parametrize("change", [{"chunks": 1}, {"complete": False}, {"digests": {}}, {"chunks": -1}, {"complete": 1}])
def test_a_state_that_contradicts_itself_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    rows_on_disk(engine(), images(), tmp_path, chunk=4)
    state = json.loads((tmp_path / STATE).read_text())
    (tmp_path / STATE).write_text(json.dumps(state | change))
    with pytest.raises(InputError, match=r"state\.json (contradicts itself|cannot be used)"):
        rows_on_disk(engine(), images(), tmp_path, chunk=4)


def test_somebody_elses_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        rows_on_disk(engine(), images(), tmp_path)
    assert content(tmp_path) == {"thesis.tex": b"x"}


@pytest.mark.parametrize("where", ["file", "proc"])
def test_an_unwritable_folder_is_explained(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" / "rows" if where == "file" else Path("/proc/fastntk-rows")
    with pytest.raises(InputError, match=r"cannot be written to .*nothing was left behind"):
        rows_on_disk(engine(), images(), folder)
    assert content(tmp_path) == {"file": b"x"}


def test_a_disk_too_small_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(BudgetError, match=r"The rows need .* 1 kB are free\. Free some space"):
        rows_on_disk(engine(), images(), tmp_path / "deep" / "rows")
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 2 kB: what a quota does. Only around the call: pytest writes files too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_real_limit_leaves_nothing_behind(tmp_path: Path) -> None:
    checked, inputs = engine(), images(60)
    with pytest.raises(BudgetError, match=r"is full.*nothing was left behind"), small_files():
        rows_on_disk(checked, inputs, tmp_path / "deep" / "rows")
    assert list(tmp_path.iterdir()) == []


class FullDisk:
    """A file handle on a disk that fills up after some writes."""

    def __init__(self, handle: Any, *, after: int) -> None:
        self.handle, self.after = handle, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def write(self, data: Any) -> int:
        self.after -= 1
        if self.after < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.handle.write(data))


@pytest.mark.parametrize("after", [0, 3])
def test_a_disk_that_fills_up_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    monkeypatch.setattr(store, "SECONDS_BETWEEN_STATES", 0.0)
    plain = store._write_chunks

    def filling(engine: Any, inputs: Any, files: Any, handles: Any, **rest: Any) -> Iterator[int]:
        return plain(engine, inputs, files, [FullDisk(handles[0], after=after), *handles[1:]], **rest)

    monkeypatch.setattr(store, "_write_chunks", filling)
    left = "3 finished chunks are kept" if after else "nothing was left behind"
    with pytest.raises(BudgetError, match=f"is full.*{left}"):
        rows_on_disk(engine(), images(), tmp_path / "rows", chunk=4)
    assert (tmp_path / "rows").exists() == bool(after)
    monkeypatch.setattr(store, "_write_chunks", plain)
    rows = rows_on_disk(engine(), images(), tmp_path / "rows", chunk=4)
    assert torch.equal(rows.dense(), rows_in_memory(engine(), images(), chunk=4).dense())


def test_a_file_system_that_cannot_reserve_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(store.os, "posix_fallocate", refuse)
    rows = rows_on_disk(engine(), images(), tmp_path / "rows", chunk=4)
    assert torch.equal(rows.dense(), rows_in_memory(engine(), images(), chunk=4).dense())


def test_two_writers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SECONDS_BETWEEN_STATES", 0.0)
    plain = store._record

    def meanwhile(folder: Path, state: Any) -> None:
        plain(folder, state)
        if state["chunks"] == 2:
            with pytest.raises(InputError, match="Another process is writing"):
                rows_on_disk(engine(), images(), folder, chunk=4)

    monkeypatch.setattr(store, "_record", meanwhile)
    rows = rows_on_disk(engine(), images(), tmp_path, chunk=4)
    assert torch.equal(rows.dense(), rows_in_memory(engine(), images(), chunk=4).dense())


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    coarse = engine()
    coarse.model.bfloat16()
    with pytest.raises(InputError, match="bfloat16 on cpu cannot be stored"):
        rows_on_disk(coarse, images().bfloat16(), tmp_path)
    with pytest.raises(InputError, match="chunk must be"):
        rows_on_disk(engine(), images(), tmp_path, chunk=0)
