"""The comparison's figure: distance to Retrains of other seeds against cost, one marker a method, a panel a request."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastntk.reproduce.plots import SETTINGS
from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import PATH_BEST, MethodRow, Setting
from lab.comparison_nearest import is_own
from lab.figure_labels import place_labels
from lab.rows import row_of

OURS, THEIRS, BOUNDS = "#1f77b4", "#6b6b6b", "#111111"
LEAST_COST = 1e-3
"""Full costs nothing, which a logarithmic axis has no place for."""
COSTS = {LEAST_COST: "none", 0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}
DISTANCES = (1, 1.5, 2, 3, 5, 10, 20)


class Point(NamedTuple):
    """A method's marker."""

    method: MethodRow
    cost: float
    distance: float
    spread: float

    @property
    def label(self) -> str:
        """Short enough for a picture."""
        return "path-replay, best" if self.method.label == PATH_BEST.label else self.method.label

    @property
    def colour(self) -> str:
        """Ours, theirs, or the two bounds."""
        return BOUNDS if self.method.method in ("full", "retrain") else OURS if is_own(self.method) else THEIRS


def comparison_figure(settings: Sequence[Setting], *, out: Path) -> bytes:
    """SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(SETTINGS):
        figure = Canvas(figsize=(0.6 + 5.2 * len(settings), 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        figure.patch.set_facecolor("white")
        axes = figure.subplots(1, len(settings), squeeze=False)[0]
        panels = [points(setting, folder=setting_folder(out, setting.name)) for setting in settings]
        for axis, setting, known in zip(axes, settings, panels):
            _panel(axis, known, title=f"forget {setting.requests[0].title}")
        axes[0].set_ylabel("distance to Retrains of other seeds, forgotten samples (× spread)")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels go where they fit, which moves nothing else
        for axis, known in zip(axes, panels):
            place_labels(axis, [(point.label, point.cost, point.distance, point.colour) for point in known], level=1.0)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def points(setting: Setting, *, folder: Path) -> list[Point]:
    """A point for every row that was run."""
    found = []
    for method in setting.methods:
        row = row_of(setting, setting.requests[0], method, folder=folder)
        if row is None:
            continue
        known = {"full": 0.0, "retrain": 1.0}
        distance, cost = row.multiple("others", "forget"), known.get(method.method, row.ratio_with_rows.mean)
        if distance.mean is not None and cost is not None:
            found.append(Point(method, max(cost, LEAST_COST), distance.mean, distance.std or 0.0))
    return found


def _panel(axis: Any, known: Sequence[Point], *, title: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.axhline(1.0, color=BOUNDS, linewidth=0.6, linestyle="--")
    for point in known:
        marker = "D" if point.colour == BOUNDS else "o"
        # On a logarithmic axis a bar that reaches below zero has no end.
        reach = min(point.spread, 0.9 * point.distance)
        axis.errorbar(point.cost, point.distance, yerr=reach, fmt=marker, color=point.colour, markersize=5, elinewidth=0.8)
    highest = max((point.distance + point.spread for point in known), default=1.0)
    axis.set_xlim(LEAST_COST * 0.7, 2.2)
    axis.set_ylim(0.6, highest * 1.25)
    axis.set_xticks(list(COSTS), list(COSTS.values()))
    ticks = [value for value in DISTANCES if value < highest * 1.25]
    axis.set_yticks(ticks, [f"{value}×" for value in ticks])
    axis.minorticks_off()
    axis.set_xlabel("CPU time of a first request over a Retrain's")
    axis.set_title(title, loc="left")
    axis.set_title("blue: this package's · grey: baselines, tuned · dashed: a Retrain", loc="right", fontsize=7)
    axis.grid(linewidth=0.3)
