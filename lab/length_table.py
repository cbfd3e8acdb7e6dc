"""How long one trains, beside the paper's figures: accuracies and relearning of Full and Retrain by epochs. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fastntk.reproduce.cells import cells_of
from fastntk.reproduce.compare import ACCURACIES, RELEARN, Comparison, Entry, compare
from fastntk.reproduce.setting import FULL, RETRAIN, Setting
from fastntk.reproduce.tables import our_text, paper_text

SHOWN = (
    *((FULL.label, metric) for metric in ACCURACIES),
    *((RETRAIN.label, metric) for metric in (*ACCURACIES, RELEARN) if metric.key != "forget"),
)
"""What is looked at; on the forgotten class a Retrain is at 0."""


def length_table(settings: Sequence[Setting], *, out: Path) -> str:
    """A row a network and number of epochs, and one for what the paper prints; only networks with more than one length."""
    columns = ["network", "epochs", "seeds", *(f"{label}: {metric.title}" for label, metric in SHOWN)]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for cell in cells_of("table1", real=False):
        shorter = [setting for setting in settings if setting.name.rpartition("-")[0] == cell.setting.name]
        cells = [replace(cell, setting=setting) for setting in (*shorter, cell.setting)]
        run = [comparison for comparison in compare("table1", cells, out=out) if comparison.run]
        if shorter and len(run) > 1:
            lines += [_ours(comparison) for comparison in run]
            lines.append(_papers(run[0]))
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Not run yet.\n"


def _ours(comparison: Comparison) -> str:
    cell, entries = comparison.cell, _entries(comparison)
    figures = [our_text(entries[label].ours[metric.key]) for label, metric in SHOWN]
    seeds = min(entry.seeds for entry in entries.values())
    return "| " + " | ".join([cell.title, str(cell.setting.recipe.epochs), str(seeds), *figures]) + " |"


def _papers(comparison: Comparison) -> str:
    entries = _entries(comparison)
    figures = [paper_text(entries[label].published[metric.key]) for label, metric in SHOWN]
    return "| " + " | ".join([f"*the paper's {comparison.column.title.split(',')[0]}*", "–", "5", *figures]) + " |"


def _entries(comparison: Comparison) -> dict[str, Entry]:
    return {entry.label: entry for entry in comparison.entries if entry.label in (FULL.label, RETRAIN.label)}
