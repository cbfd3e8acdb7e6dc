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
    lines, words = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)], [""]
    for cell in cells_of("table1", real=False):
        shorter = [setting for setting in settings if setting.name.rpartition("-")[0] == cell.setting.name]
        cells = [replace(cell, setting=setting) for setting in (*shorter, cell.setting)]
        run = [comparison for comparison in compare("table1", cells, out=out) if comparison.run]
        if shorter and len(run) > 1:
            lines += [_ours(comparison) for comparison in run]
            lines.append(_papers(run[0]))
            words.append(_nearest(run))
    return "\n".join([*lines, *words]) + "\n" if len(lines) > 2 else "Not run yet.\n"


def _nearest(run: Sequence[Comparison]) -> str:
    """At which length the accuracies come nearest to the paper's, and what relearning takes at each."""
    farthest = {comparison.cell.setting.recipe.epochs: _farthest(comparison) for comparison in run}
    best, *others = sorted(farthest, key=lambda epochs: farthest[epochs])
    counts = [our_text(_entries(comparison)[RETRAIN.label].ours[RELEARN.key]) for comparison in run]
    theirs = paper_text(_entries(run[0])[RETRAIN.label].published[RELEARN.key])
    rest = ", ".join(f"{farthest[epochs]:.1f} with {epochs}" for epochs in sorted(others))
    return (
        f"- {run[0].cell.title}: with {best} epochs every accuracy is within {farthest[best]:.1f} points of the paper's ({rest})."
        f" A Retrain relearns in {', '.join(counts)} epochs, the paper's in {theirs}."
    )


def _farthest(comparison: Comparison) -> float:
    """The largest difference between an accuracy and the paper's, in points."""
    entries, apart = _entries(comparison), [0.0]
    for label, metric in SHOWN:
        ours, theirs = entries[label].ours[metric.key], entries[label].published[metric.key]
        if metric is not RELEARN and ours is not None and theirs is not None and None not in (ours.figure.mean, theirs.mean):
            apart.append(abs((ours.figure.mean or 0.0) - (theirs.mean or 0.0)))
    return max(apart)


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
