"""Files that somebody else made: regular ones only, and none larger than was said.

Opening a pipe waits for ever, a device never ends, and a file of a terabyte may take no room on its disk. So what a file is and
how large is asked before it is opened. Not for what is in it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from fastntk.base.errors import InputError
from fastntk.base.text import byte_size

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

TEXT_BYTES = 1 << 28
"""Most bytes of a text file: lists of ids and of persons."""


def regular_file(path: Path, *, expected: str, most: int | None = None) -> Path:
    """Return the path of a regular file (links are followed) of at most ``most`` bytes; ``expected`` completes the errors."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path} is not there: expected {expected}.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path} cannot be opened ({error}): expected {expected}.") from error
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise InputError(f"{path} is {kind}, not a regular file: expected {expected}.")
    if most is not None and status.st_size > most:
        raise InputError(f"{path} has {byte_size(status.st_size)}: expected {expected}, of at most {byte_size(most)}.")
    return path


def read_bytes(path: Path, *, expected: str, most: int) -> bytes:
    """Return what a regular file of at most ``most`` bytes holds."""
    try:
        with regular_file(path, expected=expected, most=most).open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read as {expected}: {error.strerror or error}.") from error
    if len(content) > most:  # it grew, or its file system tells no sizes
        raise InputError(f"{path} has more than {byte_size(most)}: expected {expected}.")
    return content


def read_text(path: Path, *, expected: str) -> str:
    """Return a text file in UTF-8, without a byte-order mark, with line ends as they are."""
    try:
        return read_bytes(path, expected=expected, most=TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read as {expected}: {error}.") from error
