"""Files and folders that appear whole or not at all.

Work happens in a hidden sibling, ``.name.tmp-<host>-<random>``; it is flushed to disk and renamed into place. After an exception
(Ctrl-C too) nothing remains; after a kill the sibling may. Nothing with such a name is ever read as a result.

Replacing a folder takes two renames: the old one steps aside as ``.name.old-…``, the new one takes its name. A kill between the
two leaves the old one aside; :func:`recover` puts it back.

Whether a sibling is live is decided by a lock, ``.name.lock-…``, that its writer holds (:mod:`fastntk.base.locks`). Only writers
sweep, and only siblings of this machine whose lock they get: on a network file system, locks of another machine may not be seen.
Siblings without a lock file (no locks there, or made by an older release) stay until somebody deletes them.

Several writers of one target do not mix: of folders the first to finish is there, the others are refused; of files the last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fastntk.base.errors import InputError
from fastntk.base.locks import Lock

Replaceable: TypeAlias = Callable[[Path], tuple[str, ...]]
"""Names what goes when a target is replaced; raises InputError with the reason where it has to stay."""

_LEFTOVER = re.compile(r"^\.(?P<name>.+)\.(?P<kind>tmp|old|lock)-(?P<host>\w+)-(?:\d+-)?(?P<token>[0-9a-f]+)$")
_HOST = re.sub(r"\W", "_", platform.node()) or "host"
_CHANGES: dict[Path, str] = {}


@dataclass(frozen=True)
class _Claim:
    """The names of one writer's siblings of a target."""

    target: Path
    host: str
    token: str

    def path(self, kind: str) -> Path:
        return self.target.parent / f".{self.target.name}.{kind}-{self.host}-{self.token}"

    @property
    def present(self) -> list[Path]:
        return [path for path in (self.path("old"), self.path("tmp")) if os.path.lexists(path)]


def is_temporary(path: Path) -> bool:
    """Whether a path carries the name of unfinished or displaced work."""
    return _LEFTOVER.match(path.name) is not None


def changes() -> list[str]:
    """What this process wrote or removed so far and is still so, as sentences; not what lies in unfinished work."""
    return [
        f"{path} was {verb}"
        for path, verb in _CHANGES.items()
        if os.path.lexists(path) == (verb == "written") and not any(is_temporary(parent) for parent in path.parents)
    ]


def check_output(target: Path, *, overwrite: bool = False, replaceable: Replaceable | None = None) -> tuple[str, ...]:
    """Refuse, before any work, a target that could not be written afterwards; leaves nothing behind.

    ``replaceable`` decides, with ``overwrite``, whether what is there now may be replaced: overwriting what this program did
    not make would delete somebody's files. Returns what would go.
    """
    target = _absolute(target)
    if is_temporary(target):
        raise InputError(f"{target} is a name reserved for unfinished work; choose another output.")
    going = _check_replaced(target, overwrite=overwrite, replaceable=replaceable)
    nearest = next(parent for parent in target.parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise InputError(f"{target} cannot be made: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{target} cannot be made: no permission to write in {nearest}.")
    # The check above is not the last word (root's rights, special file systems): minutes of work are worth one try.
    try:
        with _claimed(nearest / target.name) as claim:  # so that what a kill leaves of it is swept
            claim.path("tmp").mkdir()
            claim.path("tmp").rmdir()
    except OSError as error:
        raise InputError(f"{target} cannot be made: {nearest} refuses a new folder ({error.strerror}).") from error
    return going


def _check_replaced(target: Path, *, overwrite: bool, replaceable: Replaceable | None) -> tuple[str, ...]:
    if not os.path.lexists(target):
        return ()
    if not overwrite:
        replacing = "" if replaceable is None else " --overwrite (overwrite=True) replaces an output of the same kind."
        raise InputError(f"{target} exists already: choose another output or move it away first.{replacing}")
    try:
        if target.is_symlink():
            raise InputError("it is a link")
        return () if replaceable is None else replaceable(target)
    except InputError as error:
        raise InputError(
            f"{target} exists and does not look like something this command wrote, so it is not replaced: "
            f"{str(error).rstrip('.')}. Choose another output or move it away first."
        ) from error


@contextlib.contextmanager
def new_folder(target: Path, *, overwrite: bool = False, replaceable: Replaceable | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes ``target`` when the block ends well, and vanishes otherwise."""
    target = _absolute(target)
    sweep(target)
    check_output(target, overwrite=overwrite, replaceable=replaceable)
    with _parents(target), _claimed(target) as claim:
        work = claim.path("tmp")
        try:
            work.mkdir()
            yield work
            _flush_tree(work)
            if overwrite:  # again, for it may be hours later: somebody may have put files there
                _check_replaced(target, overwrite=True, replaceable=replaceable)
            _put_folder(claim, overwrite=overwrite)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder below ``parent`` that its owner alone may read, and remove it when the block ends.

    What killed processes of this machine left there under the same name is swept first.
    """
    target = _absolute(parent / name)
    sweep(target)
    with _claimed(target) as claim:
        work = claim.path("tmp")
        try:
            work.mkdir(mode=0o700)
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def new_file(
    target: Path, *, overwrite: bool = False, replaceable: Replaceable | None = None, private: bool = False
) -> Iterator[Path]:
    """Yield a path to write; it becomes ``target`` when the block ends well, and vanishes otherwise.

    ``private``: its owner alone may read it.
    """
    target = _absolute(target)
    sweep(target)
    check_output(target, overwrite=overwrite, replaceable=replaceable or (_any_file if overwrite else None))
    with _parents(target), _claimed(target) as claim:
        work = claim.path("tmp")
        try:
            if private:
                os.close(os.open(work, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            yield work
            _flush(work)
            os.replace(work, target)
            _CHANGES[target] = "written"
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        _flush(target.parent)


def write_file(
    target: Path, content: bytes, *, overwrite: bool = False, replaceable: Replaceable | None = None, private: bool = False
) -> Path:
    """Write a whole file atomically and return its path."""
    with new_file(target, overwrite=overwrite, replaceable=replaceable, private=private) as work:
        work.write_bytes(content)
    return target


def remove_folder(target: Path) -> None:
    """Remove a folder: for whoever looks it is there whole until it is gone altogether.

    It is renamed to unfinished work first; what a kill leaves of that is swept by the next writer of this name.
    """
    target = _absolute(target)
    with _claimed(target) as claim:
        os.rename(target, claim.path("tmp"))
        _CHANGES[target] = "removed"
        _flush(target.parent)
        rest = _remove_tree(claim.path("tmp"))
        if rest is not None:
            raise InputError(
                f"{target} is gone under its name, but not all of its files: the system refuses to remove {rest}. What is left "
                f"lies in {claim.path('tmp')}. Remove it with the rights that it takes."
            )
    _flush(target.parent)


def recover(target: Path) -> None:
    """Put back a folder that a killed writer had set aside; for readers, so nothing is deleted."""
    target = _absolute(target)
    if os.path.lexists(target):
        return
    for claim in _claims(target):
        lock = _dead(claim) if os.path.lexists(claim.path("old")) else None
        if lock is not None:
            with contextlib.suppress(OSError):
                if not os.path.lexists(target):
                    os.rename(claim.path("old"), target)
            lock.release(keep=bool(claim.present))


def sweep(target: Path) -> list[Path]:
    """Remove what killed processes of this machine left beside ``target``, after putting back a folder that was set aside.

    For writers only. Returns what was removed; what is live, or may be, stays (:func:`leftovers`), and so does what the system
    refuses to remove (:func:`refused`).
    """
    target, paths = _absolute(target), list[Path]()
    recover(target)
    for claim in _claims(target):
        lock = _dead(claim)
        if lock is None:
            continue
        for path in claim.present:
            if path.is_dir() and not path.is_symlink():
                _remove_tree(path)
            else:
                path.unlink(missing_ok=True)
            if not os.path.lexists(path):
                paths.append(path)
        lock.release(keep=bool(claim.present))
    return paths


def refused(target: Path) -> list[Path]:
    """What processes that are gone left beside ``target`` and a sweep could not remove."""
    paths = []
    for claim in _claims(_absolute(target)):
        lock = _dead(claim)
        if lock is not None:
            paths += claim.present
            lock.release(keep=bool(claim.present))
    return paths


def _remove_tree(folder: Path) -> str | None:
    """Remove a folder as far as that is possible, folders without write permission too; returns what the system refused first."""
    first: list[str] = []

    def again(remove: Callable[..., object], path: str, _: object) -> None:
        """Once more, with the owner's permissions on the folder that holds it."""
        try:
            for each in (Path(path).parent, Path(path)):
                if each.is_relative_to(folder) and each.is_dir() and not each.is_symlink():
                    each.chmod(stat.S_IRWXU)
            if remove in (os.open, os.scandir, os.lstat):
                shutil.rmtree(path)
            else:
                remove(path)
        except OSError as error:
            first.append(f"{path} ({error.strerror})")

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=again)
    else:
        shutil.rmtree(folder, onerror=again)
    return first[0] if first else None


def leftovers(target: Path) -> list[Path]:
    """Unfinished or displaced work beside ``target``, live or not."""
    name = _absolute(target).name
    paths = _absolute(target).parent.glob(f".{_escape(name)}.*-*")
    matches = [(path, _LEFTOVER.match(path.name)) for path in sorted(paths)]
    return [path for path, match in matches if match is not None and match["name"] == name and match["kind"] != "lock"]


def _put_folder(claim: _Claim, *, overwrite: bool) -> None:
    """Rename the work into place; with ``overwrite``, what is there now steps aside and goes."""
    work, target, aside = claim.path("tmp"), claim.target, claim.path("old")
    if overwrite:
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, aside)
    try:
        os.rename(work, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _remove_aside(aside)  # whoever was faster has replaced it
            raise InputError(f"{target} was made by somebody else in the meantime; it is left as it is.") from error
        _put_back(aside, target)
        raise
    except BaseException:
        _put_back(aside, target)
        raise
    _CHANGES[target] = "written"
    _flush(target.parent)
    _remove_aside(aside)


def _put_back(aside: Path, target: Path) -> None:
    if os.path.lexists(aside) and not os.path.lexists(target):
        os.rename(aside, target)


def _remove_aside(aside: Path) -> None:
    if aside.is_dir():
        shutil.rmtree(aside)


def _any_file(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise InputError("it is no file")
    return ()


@contextlib.contextmanager
def _claimed(target: Path) -> Iterator[_Claim]:
    """Names for work on a target, under a lock while the block runs."""
    claim = _claim(target)
    lock = Lock.new(claim.path("lock"))
    try:
        yield claim
    except OSError as error:
        if error.errno is not None and error.filename is None:  # writing to a full disk does not know where
            error.filename = str(target.parent)
        raise
    finally:
        if lock is not None:
            lock.release(keep=bool(claim.present))


def _claim(target: Path) -> _Claim:
    return _Claim(target, _HOST, secrets.token_hex(8))


def _claims(target: Path) -> list[_Claim]:
    """Whose siblings of a target are there, live or not, as far as their lock files tell."""
    paths = target.parent.glob(f".{_escape(target.name)}.lock-*")
    matches = [_LEFTOVER.match(path.name) for path in sorted(paths)]
    return [_Claim(target, match["host"], match["token"]) for match in matches if match and match["name"] == target.name]


def _dead(claim: _Claim) -> Lock | None:
    """The lock of a writer that is gone; None for one that lives or may."""
    return Lock.take(claim.path("lock")) if claim.host == _HOST else None


@contextlib.contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Make the missing parent folders, and unmake them if the block fails."""
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        _flush(path)
    _flush(folder)


def _absolute(path: Path) -> Path:
    """The absolute path, symlinks in the last component kept: a link is not what it points at."""
    return Path(os.path.abspath(path))


def _escape(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
