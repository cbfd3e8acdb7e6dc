"""Files and folders that appear whole or not at all.

Work happens in a hidden sibling, ``.name.tmp-<host>-<pid>-<random>``; it is flushed to disk and renamed into place.
After an exception (Ctrl-C too) nothing remains; after a kill the sibling may, and the next write to the same place by
this machine sweeps it. Nothing with such a name is ever read as a result.

Replacing a folder takes two renames: the old one steps aside as ``.name.old-…``, the new one takes its name. A kill
between the two leaves the old one aside; :func:`recover` puts it back.

Not for several writers of one target at once: the last rename wins or is refused, but neither result is mixed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from fastntk.base.errors import InputError

_LEFTOVER = re.compile(r"^\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<host>\w+)-(?P<pid>\d+)-[0-9a-f]+$")
_HOST = re.sub(r"\W", "_", platform.node()) or "host"


def is_temporary(path: Path) -> bool:
    """Whether a path carries the name of unfinished or displaced work."""
    return _LEFTOVER.match(path.name) is not None


def check_output(target: Path, *, overwrite: bool = False, replaceable: Callable[[Path], bool] | None = None) -> None:
    """Refuse, before any work, a target that could not be written afterwards; leaves nothing behind.

    ``replaceable`` decides, with ``overwrite``, whether what is there now may be replaced: overwriting a folder that
    this program did not make would delete somebody's files.
    """
    target = _absolute(target)
    if is_temporary(target):
        raise InputError(f"{target} is a name reserved for unfinished work; choose another output.")
    if os.path.lexists(target):
        if not overwrite:
            raise InputError(f"{target} exists already: choose another output or move it away first.")
        if target.is_symlink() or (replaceable is not None and not replaceable(target)):
            raise InputError(
                f"{target} exists and does not look like something this command wrote, so it is not replaced. "
                "Choose another output or move it away first."
            )
    nearest = next(parent for parent in target.parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise InputError(f"{target} cannot be made: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{target} cannot be made: no permission to write in {nearest}.")
    # The check above is not the last word (root's rights, special file systems): minutes of work are worth one try.
    probe = _sibling(nearest / target.name, "tmp")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise InputError(f"{target} cannot be made: {nearest} refuses a new folder ({error.strerror}).") from error


@contextlib.contextmanager
def new_folder(target: Path, *, overwrite: bool = False, replaceable: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes ``target`` when the block ends well, and vanishes otherwise."""
    target = _absolute(target)
    recover(target)
    check_output(target, overwrite=overwrite, replaceable=replaceable)
    with _parents(target):
        work = _sibling(target, "tmp")
        try:
            work.mkdir()
            yield work
            _flush_tree(work)
            _put_folder(work, target, overwrite=overwrite)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder below ``parent`` that its owner alone may read, and remove it when the block ends.

    What killed processes of this machine left there under the same name is swept first.
    """
    target = _absolute(parent / name)
    recover(target)
    work = _sibling(target, "tmp")
    work.mkdir(mode=0o700)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def new_file(target: Path, *, overwrite: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield a path to write; it becomes ``target`` when the block ends well, and vanishes otherwise.

    ``private``: its owner alone may read it.
    """
    target = _absolute(target)
    recover(target)
    check_output(target, overwrite=overwrite, replaceable=Path.is_file)
    with _parents(target):
        work = _sibling(target, "tmp")
        try:
            if private:
                os.close(os.open(work, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            yield work
            _flush(work)
            os.replace(work, target)
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        _flush(target.parent)


def write_file(target: Path, content: bytes, *, overwrite: bool = False, private: bool = False) -> Path:
    """Write a whole file atomically and return its path."""
    with new_file(target, overwrite=overwrite, private=private) as work:
        work.write_bytes(content)
    return target


def remove_folder(target: Path) -> None:
    """Remove a folder: for whoever looks it is there whole until it is gone altogether.

    It is renamed to unfinished work first; what a kill leaves of that is swept by the next :func:`recover`.
    """
    target = _absolute(target)
    aside = _sibling(target, "tmp")
    os.rename(target, aside)
    _flush(target.parent)
    shutil.rmtree(aside)
    _flush(target.parent)


def recover(target: Path) -> list[Path]:
    """Sweep what killed processes of this machine left beside ``target``; put back a folder that was set aside.

    Returns what was removed.
    """
    target, removed = _absolute(target), list[Path]()
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK):
        return removed
    for path in sorted(target.parent.glob(f".{_escape(target.name)}.*-*")):
        match = _LEFTOVER.match(path.name)
        if match is None or match["name"] != target.name or not _dead(match["host"], int(match["pid"])):
            continue
        if match["kind"] == "old" and not os.path.lexists(target):
            os.rename(path, target)
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def _put_folder(work: Path, target: Path, *, overwrite: bool) -> None:
    if not (overwrite and os.path.lexists(target)):
        if os.path.lexists(target):
            raise InputError(f"{target} was made by somebody else in the meantime; it is left as it is.")
        os.rename(work, target)
        _flush(target.parent)
        return
    aside = _sibling(target, "old")
    os.rename(target, aside)
    try:
        os.rename(work, target)
    except BaseException:
        os.rename(aside, target)
        raise
    _flush(target.parent)
    shutil.rmtree(aside) if aside.is_dir() else aside.unlink()


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


def _sibling(target: Path, kind: str) -> Path:
    return target.parent / f".{target.name}.{kind}-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}"


def _dead(host: str, pid: int) -> bool:
    """Whether the process is known to be gone; one of another machine never is."""
    if host != _HOST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


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
