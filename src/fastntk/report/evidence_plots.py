"""The plots about memory and cost: relearning, attacks, distances to Retrain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from fastntk.auditing.record_figures import Attack, Relearning
from fastntk.report.plots import LINE, bars
from fastntk.report.svg import COLOUR, Plot, drawing, finish
from fastntk.report.words import duration, figure, join, model_name

_DECADES = [10.0**power for power in range(-9, 4)]


def relearn_curves(relearned: Mapping[str, Relearning], *, name: str, title: str) -> Plot:
    """Loss on the forgotten samples against epochs of training on them again, and the threshold."""
    threshold = next(iter(relearned.values())).threshold
    with drawing(235) as (canvas, axes):
        axes.grid(axis="y")
        for model, figures in relearned.items():
            losses = _losses(figures)
            axes.plot(range(len(losses)), losses, label=model_name(model), clip_on=False, **LINE[model])
            axes.plot(len(losses) - 1, losses[-1], marker="o", markersize=5, clip_on=False, color=LINE[model]["color"])
        axes.axhline(threshold, color=COLOUR["ink"], linewidth=1)
        axes.annotate(
            f"below {threshold:g}: learned",
            (0, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(5, -7),
            textcoords="offset points",
            va="top",
            fontsize=11,
        )
        axes.set_yscale("log")
        low, high = _range(relearned, threshold)
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(FixedLocator([tick for tick in _ticks(low, high) if low <= tick <= high]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlim(left=0)
        axes.set_xlabel("epochs of training on them")
        axes.set_ylabel("loss (nats)")
        canvas.legend(loc="outside upper left", ncols=3)
        words = join([f"{model_name(model)} {epochs(figures)}" for model, figures in relearned.items()])
        return finish(canvas, name, title=title, words=f"Epochs until the loss is below {threshold:g}: {words}.")


def epochs(figures: Relearning) -> str:
    """Epochs in words; a model that never got there needed more than the cap."""
    return f"more than {figures.cap}" if figures.epochs is None else str(figures.epochs)


def roc_curves(attack: Mapping[str, Attack], *, name: str, title: str) -> Plot:
    """True against false positives of an attack that guesses who was a member, for each model."""
    with drawing(315) as (canvas, axes):
        axes.plot([0, 1], [0, 1], color=COLOUR["soft"], linewidth=1, linestyle=(0, (2, 3)), label="guessing")
        for model, figures in attack.items():
            label = f"{model_name(model)}, AUC {figures.auc:.2f}"
            axes.plot(figures.roc.fpr, figures.roc.tpr, label=label, clip_on=False, **LINE[model])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.grid()
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("false alarms")
        axes.set_ylabel("found")
        canvas.legend(loc="outside upper left", ncols=2)
        words = join([f"{model_name(model)} {figures.auc:.2f}" for model, figures in attack.items()])
        return finish(canvas, name, title=title, words=f"Area under the curve, where 0.5 is guessing: {words}.")


def distance_bars(rows: Sequence[tuple[str, str, float]], *, name: str, title: str) -> Plot:
    """One distance between pairs of models, one bar a pair of (label, model, value)."""
    entries = [(label, model, value, figure(value)) for label, model, value in rows]
    words = f"{title}: " + join([f"{label} {text}" for label, _, _, text in entries]) + "."
    return bars(entries, name=name, title=title, words=words)


def cost_bars(seconds: float, retrain: float, *, name: str, title: str) -> Plot:
    """Seconds of unlearning beside those of Retrain."""
    rows = [
        ("Unlearning", "unlearned", seconds, duration(seconds)),
        ("Retrain", "retrain", retrain, duration(retrain)),
    ]
    words = f"Unlearning took {duration(seconds)}, Retrain {duration(retrain)}."
    return bars(rows, name=name, title=title, words=words)


def _losses(figures: Relearning) -> list[float]:
    """The curve for a logarithmic axis; a loss that was no number is a gap."""
    return [math.nan if loss is None else max(loss, 1e-9) for loss in figures.curve]


def _range(relearned: Mapping[str, Relearning], threshold: float) -> tuple[float, float]:
    """The losses shown, a little wider than what is there."""
    losses = [loss for figures in relearned.values() for loss in _losses(figures) if loss == loss] + [threshold]
    return min(min(losses) / 1.5, threshold / 3), max(losses) * 1.6


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where few of those are in sight."""
    powers = [tick for tick in _DECADES if low <= tick <= high]
    if len(powers) > 3:
        return powers
    return sorted(tick * factor for tick in _DECADES for factor in (1, 2, 5))
