"""The few kinds of things a section of the page is made of; the template knows how each looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastntk.report.svg import Plot
from fastntk.report.words import NONE, model_name


@dataclass(frozen=True)
class Table:
    """A caption, column heads, and rows whose first cell is the row's head; all words, escaped by the template."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """What a section shows. ``missing``: what was not computed and how to get it; a section may be nothing else."""

    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    remarks: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Fact:
    """A name and its value; ``code`` marks digests and commands, ``note`` is a smaller second line."""

    name: str
    value: str
    note: str = ""
    code: bool = False


def table(caption: str, corner: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, str]]) -> Table:
    """A table with one column a key; a cell that is not there is a dash."""
    return Table(
        caption,
        (corner, *(model_name(column) for column in columns)),
        tuple((head, *(cells.get(column, NONE) for column in columns)) for head, cells in rows.items()),
    )
