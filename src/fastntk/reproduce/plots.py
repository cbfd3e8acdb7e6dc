"""A plot per table: the paper's figures hollow, ours filled, one panel a metric; the same records give the same bytes.

A triangle at the cap is a right-censored count of epochs. Knows no torch.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from fastntk.reproduce.compare import Comparison, Metric
from fastntk.reproduce.setting import PATH_AUTO, PATH_BEST, PATH_HEAD
from fastntk.reproduce.tables import Table

COLOURS = {
    "full": "#7f7f7f", "max-loss": "#d62728", "random-label": "#ff7f0e", "fast-ntk-ridge": "#aec7e8", "fast-ntk": "#1f77b4",
    "tangent-replay": "#17a398", PATH_HEAD.label: "#98df8a", PATH_AUTO.label: "#2ca02c", PATH_BEST.label: "#14560f",
    "retrain": "#111111", "pre-trained": "#9467bd", "random-init": "#c49c94",
}  # fmt: skip
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "fastntk",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot(table: Table, comparisons: Sequence[Comparison], *, kind: str) -> bytes:
    """The picture as ``svg`` or ``png``."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = [metric for metric in comparisons[0].metrics if metric.published is not None]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(1.2 + 1.5 * len(comparisons), 2.1 * len(metrics)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axis, metric in zip(axes, metrics):
            _panel(axis, comparisons, metric)
        axes[-1].set_xticks(range(len(comparisons)), [_name(comparison) for comparison in comparisons])
        handles = _legend([entry.label for entry in comparisons[0].entries])
        figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, title=table.title)
        stream = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(stream, format=kind, dpi=110, metadata=metadata)
    return stream.getvalue()


def _panel(axis: Any, comparisons: Sequence[Comparison], metric: Metric) -> None:
    for place, comparison in enumerate(comparisons):
        count = len(comparison.entries)
        for number, entry in enumerate(comparison.entries):
            x = place + 0.8 * ((number + 0.5) / count - 0.5)
            colour, ours, theirs = COLOURS[entry.label], entry.ours[metric.key], entry.published[metric.key]
            if theirs is not None:
                point = (theirs.censored, None) if theirs.mean is None else (theirs.mean, theirs.std)
                _point(axis, x - 0.03, point, colour, censored=theirs.mean is None, fill="none")
            if ours is not None and ours.figure.mean is not None:
                point = ours.figure.mean, ours.figure.std
                _point(axis, x + 0.03, point, colour, censored=bool(ours.censored), fill=colour)
    axis.set_ylabel(metric.title + ("" if metric.key == "relearn" else ", %"))
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", linewidth=0.3)


def _point(axis: Any, x: float, point: tuple[Any, Any], colour: str, *, censored: bool, fill: str) -> None:
    axis.errorbar(
        x, point[0], yerr=point[1], fmt="^" if censored else "o", color=colour, markerfacecolor=fill, markersize=4,
        elinewidth=0.8, clip_on=False,
    )  # fmt: skip


def _name(comparison: Comparison) -> str:
    cell, column = comparison.cell, comparison.column
    paper = f"paper: {column.title.split(',')[0]}\n{column.classes} × {column.images_per_class}"
    if not comparison.run:
        return f"{paper}\nours: not run"
    return f"{paper}\nours: {cell.title}" + ("\n(stand-in)" if cell.stand_in else "")


def _legend(labels: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4}
    methods = [Line2D([], [], color=COLOURS[label], label=label, **style) for label in labels]
    kinds = [("ours", "black"), ("paper", "none")]
    return methods + [Line2D([], [], color="black", markerfacecolor=fill, label=name, **style) for name, fill in kinds]
