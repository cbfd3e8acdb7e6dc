"""The tables of :mod:`lab.packed`: replays and both kinds of Retrain, measured by each kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fastntk.auditing.ulira import LEAST, u_lira
from fastntk.base.schema import read_json
from fastntk.reproduce.costs import images
from fastntk.reproduce.setting import Setting
from fastntk.reproduce.summary import Figure
from lab.packed import FULL, OWN_BATCHES, RETRAIN, record_file
from lab.path_targets import BEST
from lab.provenance import provenance
from lab.settings import PACKED
from lab.unlearning_page import figure_text

PLACES = ("forget", "holdout")
TITLES = {
    RETRAIN: "retrain, recorded batches",
    OWN_BATCHES: "retrain, batches of its own",
    BEST: "path-replay, best",
    "head": "path-replay, head",
    "auto": "path-replay, auto",
}
WORDS = """## Is the yardstick made for the replay?

The Retrain of these pages has the batches of the fine-tuning, less the forgotten samples: then nothing else differs, and a replay
follows the same batches. A sceptic may object that nobody retrains like that. So here are Retrains that were trained on the
retained samples alone: shuffled among themselves, in full batches and a smaller last one. Distances are to Retrains of *other*
seeds, which share no batch with the replay in either column. Each column has a unit of its own: the mean distance between two
Retrains of that kind, so another Retrain of it is at 1.
"""
COLUMNS = (
    "model", "seeds", "to Retrains, recorded batches: D_f / hold-out", "to Retrains, batches of their own: D_f / hold-out",
    "accuracy: retain / forget / hold-out", "recovered", "U-LiRA: recorded / own batches",
)  # fmt: skip


def packed_section(*, out: Path, settings: Sequence[Setting] = PACKED) -> str:
    """The section of the settings that were run."""
    run = [setting for setting in settings if record_file(setting, out).exists()]
    if not run:
        return f"{WORDS}\nNot run yet.\n"
    records = {setting.name: read_json(record_file(setting, out)) for setting in run}
    parts = [WORDS, provenance(list(records.values()))]
    for setting in run:
        for request in setting.requests:
            names = [FULL, *(row.label for row in setting.methods), RETRAIN, OWN_BATCHES]
            table = _table(records[setting.name]["requests"][request.name], names)
            facts = _facts(setting, records[setting.name]["requests"][request.name])
            parts += [f"### {setting.name}: forget {request.title}", "", table, "", facts, ""]
    return "\n".join(parts)


def multiple(request: dict[str, Any], name: str, kind: str, place: str) -> Figure:
    """A model's distance to Retrains of a kind and of other seeds, in units of that kind's spread, over its seeds."""
    unit = _mean_distance(request, kind, kind, place).mean
    found = _mean_distance(request, name, kind, place)
    assert unit
    assert found.mean is not None
    return Figure(found.mean / unit, None if found.std is None else found.std / unit, found.count)


def wider(request: dict[str, Any], place: str) -> float:
    """How far two Retrains with batches of their own lie apart, over the distance of two with recorded ones."""
    own, recorded = (_mean_distance(request, kind, kind, place).mean for kind in (OWN_BATCHES, RETRAIN))
    assert own
    assert recorded
    return own / recorded


def _facts(setting: Setting, request: dict[str, Any]) -> str:
    apart = " / ".join(f"{wider(request, place):.1f}" for place in PLACES)
    forgotten = len(next(iter(request["models"][RETRAIN].values()))["confidences"])
    last = (images(setting) - forgotten) % setting.recipe.batch_size
    return (
        f"Two Retrains with batches of their own lie {apart} times as far apart as two with recorded batches, on D_f / hold-out: "
        f"for distances the first yardstick is the stricter one. (Their last batch has {last} images, and Adam takes a step "
        "for it as for any other.) For U-LiRA it is not: it tells the two kinds of Retrain apart "
        f"({area(request, RETRAIN, OWN_BATCHES)}), so a replay along the recorded batches can hardly be below that in its "
        "second figure."
    )


def _mean_distance(request: dict[str, Any], name: str, kind: str, place: str) -> Figure:
    by_seed = request["distances"][name][kind].values()
    return Figure.of(fmean(pair[place] for pair in others.values()) for others in by_seed)


def _table(request: dict[str, Any], names: Sequence[str]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for name in names:
        by_seed = request["models"][name]
        apart = [
            " / ".join(figure_text(multiple(request, name, kind, place), 2) for place in PLACES)
            for kind in (RETRAIN, OWN_BATCHES)
        ]
        right = " / ".join(
            figure_text(Figure.of(100 * each["accuracy"][place] for each in by_seed.values()), 1) for place in ("retain", *PLACES)
        )
        recovered = figure_text(Figure.of(each["recovered"] for each in by_seed.values()), 2)
        areas = " / ".join("–" if name == kind else area(request, name, kind) for kind in (RETRAIN, OWN_BATCHES))
        lines.append("| " + " | ".join([TITLES.get(name, name), str(len(by_seed)), *apart, right, recovered, areas]) + " |")
    return "\n".join(lines)


def area(request: dict[str, Any], name: str, kind: str) -> str:
    """U-LiRA of a model's seeds against Retrains of a kind."""
    sides = [[each["confidences"] for each in request["models"][side].values()] for side in (name, kind)]
    if any(None in side or len(side) < LEAST for side in sides):
        return "too few models"
    attack = u_lira(*sides)
    return f"{attack.auc:.2f} ± {attack.auc_standard_error:.2f}"
