"""The plots about predictions: accuracies, predictions on the forgotten samples, losses.

Every function takes plain figures from the record and returns a :class:`~fastntk.report.svg.Plot`. Models differ in
colour and also in fill or dash: before is hollow or dotted, after is solid, Retrain is hatched or dashed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fastntk.report.svg import COLOUR, Plot, drawing, finish
from fastntk.report.words import clean, join, model_name, percent

BAR: dict[str, dict[str, Any]] = {
    "full": {"facecolor": "none", "edgecolor": COLOUR["full"], "linewidth": 1.2},
    "unlearned": {"facecolor": COLOUR["unlearned"], "edgecolor": COLOUR["unlearned"], "linewidth": 1.2},
    "retrain": {"facecolor": "none", "edgecolor": COLOUR["retrain"], "linewidth": 1.2, "hatch": "////"},
}
LINE: dict[str, dict[str, Any]] = {
    "full": {"color": COLOUR["full"], "linewidth": 2.2, "linestyle": (0, (1, 1.4))},
    "unlearned": {"color": COLOUR["unlearned"], "linewidth": 2.2, "linestyle": "-"},
    "retrain": {"color": COLOUR["retrain"], "linewidth": 2.2, "linestyle": (0, (5, 2))},
}
OTHER: dict[str, Any] = {"facecolor": COLOUR["grid"], "edgecolor": COLOUR["soft"], "linewidth": 1.2}
ROW = 26


def bars(
    rows: Sequence[tuple[str, str, float, str]], *, name: str, title: str, words: str, limit: float | None = None, label: str = ""
) -> Plot:
    """Horizontal bars, one a row of (label, model, value, value in words); ``limit`` ends the axis."""
    most = limit if limit is not None else max((row[2] for row in rows), default=0.0)
    most = most if most > 0 else 1.0
    with drawing(ROW * len(rows) + (18 if label else 4)) as (canvas, axes):
        for position, (_, model, value, text) in enumerate(rows):
            axes.barh(position, value, height=0.6, **BAR.get(model, OTHER))
            axes.annotate(text, (value, position), xytext=(5, 0), textcoords="offset points", va="center", fontsize=11.5)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_xlim(0, most * 1.32)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        if label:
            axes.set_xlabel(label, fontsize=11.5)
        return finish(canvas, name, title=title, words=words)


def accuracy_bars(figures: Mapping[str, float | None], *, name: str, title: str) -> Plot:
    """Accuracy of each model on one set of samples."""
    rows = [(model_name(key), key, value, percent(value)) for key, value in figures.items() if value is not None]
    words = f"{title}: " + join([f"{label} {text}" for label, _, _, text in rows]) + " classified correctly."
    return bars(rows, name=name, title=title, words=words, limit=1.0)


def flow_bars(table: Sequence[tuple[str, Mapping[str, float]]], *, name: str, title: str) -> Plot:
    """Share of the forgotten samples that each model predicts to be of a class; one group of bars a class."""
    models = [model for model in ("full", "unlearned", "retrain") if any(model in shares for _, shares in table)]
    step = len(models) + 0.8
    with drawing(16 * step * len(table) + 34) as (canvas, axes):
        for group, (_, shares) in enumerate(table):
            for place, model in enumerate(models):
                where, value = group * step + place, shares.get(model, 0.0)
                axes.barh(where, value, height=0.78, **BAR[model])
                axes.annotate(
                    percent(value, 0), (value, where), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10.5
                )
        middle = (len(models) - 1) / 2
        axes.set_yticks([group * step + middle for group in range(len(table))], [clean(label, most=16) for label, _ in table])
        axes.set_ylim(step * len(table) - 1.2, -0.8)
        axes.set_xlim(0, 1.2)
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        canvas.legend(
            handles=[Patch(label=model_name(model), **BAR[model]) for model in models], loc="outside upper left", ncols=3
        )
        words = "; ".join(
            f"{model_name(model)}: " + join([f"{percent(s.get(model, 0.0), 0)} {clean(label)}" for label, s in table])
            for model in models
        )
        return finish(canvas, name, title=title, words=f"{title}. {words}.")


def loss_steps(
    groups: Mapping[str, Sequence[float]], edges: Sequence[float | None], *, name: str, title: str, top: float
) -> Plot:
    """Shares of samples by loss; bins of unequal width are drawn equally wide, so that both ends can be read."""
    names = {"forget": "forgotten", "retain": "retained", "holdout": "never seen"}
    bins = _even(edges) or list(range(len(edges)))
    with drawing(190) as (canvas, axes):
        axes.grid(axis="y")
        for group, shares in groups.items():
            if group == "forget":
                fill = {"fill": True, "facecolor": COLOUR["forget"], "alpha": 0.35, "linewidth": 0}
                axes.stairs(shares, bins, **fill)
                axes.stairs(shares, bins, color=COLOUR["forget"], linewidth=1.8, label=names[group])
            else:
                style = "-" if group == "retain" else (0, (4, 2))
                colour = COLOUR["ink"] if group == "retain" else COLOUR["other"]
                axes.stairs(shares, bins, color=colour, linewidth=1.6, linestyle=style, label=names.get(group, group))
        if _even(edges) is None:
            marks = _marks(edges)
            axes.set_xticks(marks, [_edge(edges[mark]) for mark in marks])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlim(bins[0], bins[-1])
        axes.set_ylim(0, top * 1.06)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set_xlabel("loss of a sample (nats)")
        canvas.legend(loc="outside upper left", ncols=3)
        words = " ".join(_typical(names.get(group, group), shares, edges) for group, shares in groups.items())
        return finish(canvas, name, title=title, words=f"{title}. {words}")


def _typical(group: str, shares: Sequence[float], edges: Sequence[float | None]) -> str:
    """Where the median sample lies, in words."""
    total = 0.0
    for position, share in enumerate(shares):
        total += share
        if total >= 0.5 - 1e-12:
            low, high = _edge(edges[position]), _edge(edges[position + 1])
            return f"Half of the {group} samples have a loss below {high} (the middle one lies between {low} and {high})."
    return f"No {group} samples."


def _marks(edges: Sequence[float | None]) -> list[int]:
    """Which edges to write under the axis: at most six, evenly, with both ends."""
    last = len(edges) - 1
    every = max(1, -(-last // 5))
    marks = list(range(0, last + 1, every))
    if last - marks[-1] >= every / 2:
        marks.append(last)
    else:
        marks[-1] = last
    return marks


def _even(edges: Sequence[float | None]) -> list[float] | None:
    """The edges where they are evenly spaced, else None."""
    numbers = [float(edge) for edge in edges if edge is not None]
    widths = [high - low for low, high in itertools.pairwise(numbers)]
    return numbers if len(numbers) == len(edges) and widths and max(widths) - min(widths) < 1e-3 * max(widths) else None


def _edge(value: float | None) -> str:
    return "∞" if value is None else f"{value:.2g}"
