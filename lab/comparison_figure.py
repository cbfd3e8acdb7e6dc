"""The comparison's figure: distance to Retrains of other seeds against cost, one marker a method, a panel a request."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastntk.reproduce.plots import SETTINGS
from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import MethodRow, Setting
from lab.comparison_page import is_own, multiple
from lab.rows import row_of

OURS, THEIRS, BOUNDS = "#1f77b4", "#7f7f7f", "#111111"
LEAST_COST = 1e-3
"""Full costs nothing, which a logarithmic axis has no place for."""


def comparison_figure(settings: Sequence[Setting], *, out: Path) -> bytes:
    """SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(SETTINGS):
        figure = Canvas(figsize=(8.4, 0.4 + 4.6 * len(settings)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(settings), 1, squeeze=False)
        for (axis,), setting in zip(axes, settings):
            _panel(axis, setting, folder=setting_folder(out, setting.name))
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _panel(axis: Any, setting: Setting, *, folder: Path) -> None:
    request = setting.requests[0]
    for method in setting.methods:
        row = row_of(setting, request, method, folder=folder)
        if row is None:
            continue
        distance, cost = multiple(row, "others", "forget"), 1.0 if method.method == "retrain" else row.ratio_with_rows.mean
        if distance.mean is None or cost is None:
            continue
        colour = _colour(method)
        marker = "D" if method.method in ("full", "retrain") else "o"
        place = max(cost, LEAST_COST)
        # On a logarithmic axis a bar that reaches below zero has no end.
        spread = min(distance.std or 0.0, 0.9 * distance.mean)
        axis.errorbar(place, distance.mean, yerr=spread, fmt=marker, color=colour, markersize=5, elinewidth=0.8)
        axis.annotate(method.label, (place, distance.mean), xytext=(5, 3), textcoords="offset points", color=colour, fontsize=7)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.axhline(1.0, color=BOUNDS, linewidth=0.6, linestyle="--")
    axis.set_xlabel("CPU seconds of a first request, × Retrain")
    axis.set_ylabel("total variation on D_f to Retrains\nof other seeds, × their own spread")
    axis.set_title(f"forget {request.title} (blue: ours; dashed: a Retrain on average)", loc="left")
    axis.grid(linewidth=0.3)


def _colour(method: MethodRow) -> str:
    return BOUNDS if method.method in ("full", "retrain") else OURS if is_own(method) else THEIRS
