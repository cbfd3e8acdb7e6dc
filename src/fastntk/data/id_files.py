"""Ids as people write them down: patterns, text files of ids, and a table that says which samples are of which person.

All three give plain ids of the data at hand, for ``ids=`` of a request; what names nothing is an error, never an empty answer.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from fastntk.base.errors import InputError, listing
from fastntk.base.files import read_text
from fastntk.data.samples import Samples, as_ids

_COLUMNS = ("id", "person")
# Around an id in a text file; files that were joined have byte-order marks in the middle.
_BLANKS = " \t\v\f\ufeff"


def matching_ids(patterns: Iterable[int | str] | int | str, samples: Samples) -> tuple[str, ...]:
    """Return the ids that are given or match a pattern, as in a shell: ``cats/*.png``, ``cats/**``, ``img-0[0-4]?``.

    ``*`` and ``?`` stop at "/", ``**`` stands for any number of folders. An id that is there literally counts as itself, whatever
    characters it has. A pattern without a match is an error; ids without pattern characters are returned as given.
    """
    words, all_ids = as_ids(patterns), frozenset(samples.ids)
    plain = [word for word in words if word in all_ids or not _is_pattern(word)]
    exact_ids = frozenset(plain)
    ids_by_pattern = {word: [name for name in samples.ids if _matches(name, word)] for word in words if word not in exact_ids}
    nothing = [word for word, names in ids_by_pattern.items() if not names]
    if nothing:
        advice = " (* stops at /, ** does not)" if any("/" in name for name in samples.ids) else ""
        raise InputError(
            f"no id matches {listing(nothing)}{advice}; the data has {len(samples)} ids: {listing(samples.ids, most=3)}"
        )
    further = dict.fromkeys(name for names in ids_by_pattern.values() for name in names if name not in exact_ids)
    return (*plain, *further)


def id_lines(path: str | Path) -> list[str]:
    """The lines of a text file of ids that are not blank, comments among them."""
    text = read_text(Path(path), expected="a text file (UTF-8) with one id a line")
    lines = [line.strip(_BLANKS) for line in re.split(r"\r\n|\r|\n", text)]
    lines = [line for line in lines if line]
    if not lines:
        raise InputError(_no_id(path))
    return lines


def words_in_file(path: str | Path, samples: Samples) -> list[str]:
    """The ids and patterns of a text file. A line that is an id counts as that, whatever characters it has; of others ``#``
    begins a comment, at the line's start and after a blank."""
    all_ids = frozenset(samples.ids)
    lines = [
        line if line in all_ids else re.split(r"(?:^|[ \t])#", line, maxsplit=1)[0].strip(_BLANKS) for line in id_lines(path)
    ]
    words = [line for line in lines if line]
    if not words:
        raise InputError(_no_id(path))
    return words


def _no_id(path: str | Path) -> str:
    return f"{path} holds no id: expected one id a line."


def ids_in_file(path: str | Path, samples: Samples) -> tuple[str, ...]:
    """Return the ids that a text file names: one id or pattern a line, see ``matching_ids``; ``#`` begins a comment."""
    return matching_ids(words_in_file(path, samples), samples)


def ids_of_persons(path: str | Path, persons: Sequence[str] | str, samples: Samples | None = None) -> tuple[str, ...]:
    """Return the ids that a CSV with the columns ``id`` and ``person`` gives to these persons, each once.

    A sample may be of several persons, and the table may list samples that are not in the data; but with ``samples``, those of
    the persons asked for have to be there.
    """
    table = _read_persons(Path(path))
    names = [persons] if isinstance(persons, str) else list(persons)
    names = [str(name) for name in names]
    unknown = [name for name in names if name.strip() not in table]
    if unknown or not names:
        who = f"does not know {listing(map(repr, unknown))}" if unknown else "was asked for nobody"
        raise InputError(f"{path} {who}; it has {len(table)} persons: {listing(table, most=3)}")
    all_ids = None if samples is None else frozenset(samples.ids)
    for name in names:
        absent = [] if all_ids is None else [word for word in table[name.strip()] if word not in all_ids]
        if absent:
            raise InputError(
                f"{path} gives {name.strip()!r} ids that are not in the data: {listing(absent)}. Take these lines out if they "
                "were never trained on or are forgotten already, or correct the ids"
            )
    return tuple(dict.fromkeys(word for name in names for word in table[name.strip()]))


def _read_persons(path: Path) -> dict[str, list[str]]:
    expected = "a CSV file (UTF-8) with the columns id and person"
    text = read_text(path, expected=expected)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as {expected}: {error}.") from error
    header = lines[0][1] if lines else []
    if any(header.count(name) != 1 for name in _COLUMNS):
        raise InputError(
            f"{path} must begin with a line that names the columns id and person once each, not {','.join(header)!r}."
        )
    at_id, at_person = (header.index(name) for name in _COLUMNS)
    earlier: dict[tuple[str, str], int] = {}
    table: dict[str, list[str]] = {}
    for number, row in lines[1:]:
        if len(row) != len(header) or not row[at_id] or not row[at_person]:
            raise InputError(
                f"{path}, line {number}: expected {','.join(header)} with neither id nor person empty, not {','.join(row)!r}."
            )
        entry = row[at_id], row[at_person]
        if entry in earlier:
            raise InputError(f"{path}, line {number}: {','.join(entry)} is in line {earlier[entry]} already; keep one of them.")
        earlier[entry] = number
        table.setdefault(entry[1], []).append(entry[0])
    if not table:
        raise InputError(f"{path} has a header and no lines below it.")
    return table


def _is_pattern(word: str) -> bool:
    return any(character in word for character in "*?[")


def _matches(name: str, pattern: str) -> bool:
    parts = name.split("/")
    ends = {0}  # how many parts the patterns so far may have taken
    for part in pattern.split("/"):
        if part == "**":
            ends = set(range(min(ends), len(parts) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(parts) and fnmatchcase(parts[end], part)}
        if not ends:
            return False
    return len(parts) in ends
