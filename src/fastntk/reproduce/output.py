"""The files of a table: Markdown, LaTeX, HTML and a plot, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastntk.base.atomic import write_file
from fastntk.reproduce.cells import Cell
from fastntk.reproduce.compare import compare
from fastntk.reproduce.plots import plot
from fastntk.reproduce.render import html, latex, markdown
from fastntk.reproduce.tables import table_of


def write_table(name: str, cells: Sequence[Cell], *, out: Path, suffix: str = "") -> list[Path]:
    """Write ``name``.md, .tex, .html, .svg and .png to ``out``, with a ``suffix``, from the records there; these cells alone."""
    comparisons = compare(name, cells, out=out)
    table = table_of(name, comparisons)
    contents = {
        "md": markdown(table).encode(),
        "tex": latex(table).encode(),
        "html": html(table).encode(),
        "svg": plot(table, comparisons, kind="svg"),
        "png": plot(table, comparisons, kind="png"),
    }
    return [write_file(out / f"{name}{suffix}.{kind}", content, overwrite=True) for kind, content in contents.items()]
