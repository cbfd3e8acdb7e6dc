"""The paper's tables at a glance: for each cell, what the methods cost and how far from Retrain they end. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastntk.reproduce.compare import COST, DISTANCES, Comparison
from fastntk.reproduce.setting import FAST_NTK, MAX_LOSS, PATH_AUTO, PATH_BEST, PATH_HEAD, RANDOM_LABEL, REPLAY, RIDGE

SHOWN = (MAX_LOSS, RANDOM_LABEL, RIDGE, FAST_NTK, REPLAY, PATH_HEAD, PATH_AUTO, PATH_BEST)
SHORT = {PATH_BEST.label: "path-replay, best"}
WORDS = (
    "Cost over Retrain's: distance to Retrains of other seeds on D_f / on hold-out, where two Retrains are at 1. *Best* is all "
    "parameters with 2 checkpoints, a correction and 2 exact epochs. A dash: not in the records of this table; "
    "[results-path.md](results-path.md) has `path-replay` on more settings. "
    "[comparison.md](comparison.md) has ResNet-20 with 100 images beside Retrains of ten seeds, so its distances differ a little."
)


def glance_table(comparisons: Sequence[Comparison]) -> str:
    """A row a cell, a column a method; the probing table has neither figure."""
    columns = ["cell", *(SHORT.get(row.label, row.label) for row in SHOWN)]
    lines = [WORDS, "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for comparison in comparisons:
        if comparison.run and not comparison.cell.probed:
            cell = comparison.cell
            name = f"{cell.title}, {cell.classes} × {cell.images_per_class}"
            lines.append("| " + " | ".join([name, *(_figures(comparison, row.label) for row in SHOWN)]) + " |")
    return "\n".join(lines) + "\n"


def _figures(comparison: Comparison, label: str) -> str:
    cost = comparison.mean(label, COST.key)
    apart = [comparison.mean(label, metric.key) for metric in DISTANCES]
    if cost is None or None in apart:
        return "–"
    return f"{cost:.3f}: " + " / ".join(f"{figure:.2f}" for figure in apart)
