"""The key of the digests that stand for ids and hidden class names: in a file beside a folder, never in it.

    results/without-0                the result: digests of forgotten ids
    results/without-0.request.key    one key a line, readable by its owner alone

Ids and names can be guessed; with the key a guess can be tried, without it not. So whoever gets the folder alone learns nothing
from its digests, and its owner may move the file to a safer place, or delete it. The folder then still loads, and a trace in it
still names its (retained) samples; but nothing can say any more which samples went, so it can no longer be paired with its run
(audits, ``--after``), nor, without a trace, find its samples among those of the source.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastntk.base.atomic import write_file
from fastntk.base.digest import key_name
from fastntk.base.errors import InputError
from fastntk.data.samples import as_ids
from fastntk.unlearning.result import ids_digest

SUFFIX = ".request.key"


def key_file(folder: str | Path) -> Path:
    """Where the key of a folder is looked for."""
    path = Path(os.path.abspath(folder))
    return path.with_name(path.name + SUFFIX)


def read_key(folder: str | Path, name: str | None) -> bytes | None:
    """The key of this name, from the file beside the folder; None where it is not there."""
    places = dict.fromkeys((key_file(folder), key_file(os.path.realpath(folder))))  # the folder may be named by a link
    return next((key for place in places for key in _keys(place) if key_name(key) == name), None)


def check_keys(folder: str | Path) -> None:
    """Refuse a file of keys that cannot be read, before anything is removed."""
    _keys(key_file(folder))


def missing_key(folder: str | Path) -> str:
    """A sentence for whoever needs a key that is not there."""
    return (
        f"its key is not in {key_file(folder)}: the file was moved or deleted, or the folder was moved without it. Put it there."
    )


@contextlib.contextmanager
def stored_key(folder: Path, key: bytes | None) -> Iterator[None]:
    """Put a key beside a folder before the block writes the folder, and take it away again if that fails.

    Keys that are there stay: the folder that is about to be replaced, or was moved away, may need them.
    """
    path = key_file(folder)
    earlier = _keys(path)
    if key is None or key in earlier:
        yield
        return
    folders = [parent for parent in path.parents if not parent.exists()]
    _write(path, [*earlier, key])
    try:
        yield
    except BaseException:
        _write(path, earlier)
        with contextlib.suppress(OSError):
            for parent in folders:
                parent.rmdir()
        raise


def remove_key(folder: Path, name: str | None) -> None:
    """Take a key out of the file beside a folder, and the file away with the last one."""
    path = key_file(folder)
    earlier = _keys(path)
    rest = [key for key in earlier if key_name(key) != name]
    if len(rest) < len(earlier):
        _write(path, rest)


def verify_ids(ids: Any, *, digest: str, key: str | Path) -> bool:
    """Whether these are exactly the ids of a request, in any order.

    ``digest``: ``request.ids_digest`` of an audit record, or of ``details`` in a result. ``key``: the file of the result's key,
    or the result's folder, beside which it is.
    """
    path = Path(key)
    file = key_file(path) if path.is_dir() else path
    keys = _keys(file)
    if not keys:
        raise InputError(f"{file} holds no key: expected the file {SUFFIX} that was written beside the result.")
    names = as_ids(ids)
    return any(hmac.compare_digest(ids_digest(names, each), digest) for each in keys)


def _keys(path: Path) -> list[bytes]:
    try:
        return [bytes.fromhex(line) for line in path.read_text("ascii").split()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no file of keys ({error}): expected hexadecimal digits, one key a line.") from error


def _write(path: Path, keys: Iterable[bytes]) -> None:
    text = "".join(f"{key.hex()}\n" for key in keys)
    if text:
        write_file(path, text.encode(), overwrite=True, private=True)
    else:
        path.unlink(missing_ok=True)
