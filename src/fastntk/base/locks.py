"""Locks that tell live work from what a killed process left: the system frees a lock when its holder ends, however it ends.

A lock is a file that its holder keeps open and locked (``flock``). Process ids would not do: another container on the same disk
counts its processes anew. Where a file system knows no locks, there is no lock file, and what has none is never taken for dead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  # not on Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Lock:
    """A lock file that this process holds."""

    path: Path
    handle: int

    @classmethod
    def new(cls, path: Path) -> Lock | None:
        """Make a lock file and hold it; None, and no file, where the file system knows no locks."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        lock = cls(path, handle)
        # Whoever sweeps may have taken the file for a dead one's between its making and its locking: then it is gone.
        if _flock(handle) and os.fstat(handle).st_nlink:
            return lock
        lock.release()
        return None

    @classmethod
    def take(cls, path: Path) -> Lock | None:
        """Hold the lock file of somebody who is gone; None where its holder lives, where there is none, or it cannot be told."""
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            return None
        if _flock(handle) and os.fstat(handle).st_nlink:
            return cls(path, handle)
        os.close(handle)
        return None

    def release(self, *, keep: bool = False) -> None:
        """Let go; the file goes too, unless it is to ``keep`` vouching that its holder is gone."""
        if not keep:
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self.handle)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block with this lock file, which is gone afterwards; no lock where there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if fcntl is None:  # pragma: no cover  # not on Windows
            break
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else: its holder removed it while this one waited
            break
        os.close(handle)
    try:
        yield
    finally:
        Lock(path, handle).release()


def _flock(handle: int) -> bool:
    """Lock an open file without waiting; False where somebody holds it, or nobody can."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
