"""A table in words, before any format: blocks of cells, ours beside the paper's with the difference.

Mean ± sample standard deviation over seeds. What was not run says "not run"; what is not defined or not published is a dash.
Relearning that exceeded the cap in every run is ``>100``, in some a lower bound with their number. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastntk.reproduce.compare import Comparison, Entry, Metric, Ours
from fastntk.reproduce.paper import Published, published_table

NONE, MISSING = "–", "not run"


@dataclass(frozen=True)
class Block:
    """A cell: its title, remarks, groups of columns (name, sub-columns) and rows of text."""

    title: str
    remarks: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """A whole table."""

    name: str
    title: str
    blocks: tuple[Block, ...]


def table_of(name: str, comparisons: Sequence[Comparison]) -> Table:
    """The table of these comparisons."""
    title = f"Table {name.removeprefix('table')}: {published_table(name).title}"
    return Table(name, title, tuple(_block(comparison) for comparison in comparisons))


def _block(comparison: Comparison) -> Block:
    cell = comparison.cell
    ours = "ours (stand-in)" if cell.stand_in else "ours"
    columns = {True: (ours, "paper", "difference"), False: (ours,)}
    groups = [("", ("method", "seeds")), *((m.title, columns[m.published is not None]) for m in comparison.metrics)]
    rows = tuple((entry.label, _seeds(entry), *_figures(entry, comparison.metrics)) for entry in comparison.entries)
    return Block(heading(comparison), _remarks(comparison), tuple(groups), rows)


def heading(comparison: Comparison) -> str:
    """Whose figures stand beside whose."""
    cell, column = comparison.cell, comparison.column
    size = f"{cell.classes} classes × {cell.images_per_class} images"
    what = f"{cell.title} (stand-in)" if cell.stand_in else cell.title
    return f"{what}, {size}, beside the paper's {column.title.split(',')[0]}"


def _remarks(comparison: Comparison) -> tuple[str, ...]:
    cell, remarks = comparison.cell, []
    if cell.stand_in:
        remarks.append(f"Stand-in: {cell.stand_in}.")
    if cell.note:
        remarks.append(f"{cell.note[0].upper()}{cell.note[1:].rstrip('.')}.")
    if not comparison.run:
        remarks.append("Not run.")
    return tuple(remarks)


def _seeds(entry: Entry) -> str:
    if not entry.seeds:
        return MISSING
    return str(entry.seeds) if entry.seeds == entry.wanted else f"{entry.seeds} of {entry.wanted}"


def _figures(entry: Entry, metrics: Sequence[Metric]) -> list[str]:
    cells = []
    for metric in metrics:
        ours, theirs = entry.ours[metric.key], entry.published[metric.key]
        cells.append(MISSING if not entry.seeds else our_text(ours, digits=metric.digits))
        cells += [] if metric.published is None else [paper_text(theirs), difference(ours, theirs)]
    return cells


def our_text(ours: Ours | None, *, digits: int = 2) -> str:
    """A figure of ours."""
    if ours is None or ours.figure.mean is None:
        return NONE
    if ours.censored == ours.figure.count:
        return f">{ours.cap}"
    if ours.censored:
        return f"≥ {ours.figure.mean:.2f} ({ours.censored} of {ours.figure.count} >{ours.cap})"
    spread = "" if ours.figure.std is None else f" ± {ours.figure.std:.{digits}f}"
    return f"{ours.figure.mean:.{digits}f}{spread}"


def paper_text(theirs: Published | None) -> str:
    """A figure of the paper's."""
    if theirs is None:
        return NONE
    if theirs.mean is None:
        return f">{theirs.censored}"
    return f"{theirs.mean:.2f} ± {theirs.std:.2f}"


def difference(ours: Ours | None, theirs: Published | None) -> str:
    """Ours less the paper's; none where either is unknown or only bounded."""
    if ours is None or theirs is None or ours.censored or ours.figure.mean is None or theirs.mean is None:
        return NONE
    return f"{ours.figure.mean - theirs.mean + 0.0:+.2f}"
