"""The rows of path replay that the README shows: three trainings, from the records of the path experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastntk.auditing.record_figures import Attack
from fastntk.reproduce.setting import Request, Setting
from fastntk.reproduce.summary import Figure
from lab.path_rows import FULL, PathRecords, PathRow
from lab.path_targets import BEST

MARKS = "path"
SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "vit-caltech-20x50": ("ViT-S/14", ("head",)),
    "resnet20-100": ("ResNet-20", ("head", "auto", BEST)),
    "augmented": ("augmented", ("head", "auto", BEST)),
}
"""By setting, what it is and which depths are shown."""
DEPTHS = {BEST: "best"}
COLUMNS = (
    "training", "depth", "cost", "{0}: accuracy, %", "on new images, %", "{0}: distance", "U-LiRA", "{1}: distance", "U-LiRA",
)  # fmt: skip
"""The braces are the titles of both requests."""
PLACE = "forget"
"""Where distances are taken: on the forgotten samples. Those on held-out ones are on the page of the path."""


def path_headline(settings: Sequence[Setting], *, out: Path) -> str:
    """One compact table: a line for each depth, the requests side by side."""
    by_name = {setting.name: setting for setting in settings}
    requests = by_name[next(iter(SHOWN))].requests
    columns = [column.format(*(request.title for request in requests)) for column in COLUMNS]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    nulls: list[Attack] = []
    seeds: dict[str, int] = {}
    for name, (words, depths) in SHOWN.items():
        records = PathRecords.read(by_name[name], out=out)
        title, seeds[words] = words, len(records.seeds)
        for label in depths:
            shown = [_cells(records, request, label) for request in requests]
            if None in shown:
                continue
            row = records.row(label, requests[0])
            assert row is not None
            (*accuracies, near, told), (*_, other_near, other_told) = (cells for cells in shown if cells)
            cells = [title, DEPTHS.get(label, label), _figure(row.first, 3), *accuracies, near, told, other_near, other_told]
            lines.append("| " + " | ".join(cells) + " |")
            title = ""
            nulls += [null.u_lira for null in map(records.retrain_row, requests) if null and null.u_lira]
    if len(lines) == 2:
        return "Not run yet.\n"
    by_count = {count: [words for words, each in seeds.items() if each == count] for count in dict.fromkeys(seeds.values())}
    counted = " or ".join(f"{count} seeds ({', '.join(names)})" for count, names in by_count.items())
    between = f" Retrain against Retrain: {_range(nulls)}." if nulls else ""
    notes = (
        "ViT-S/14: 20 classes of Caltech-101, small images, prompts and head tuned. ResNet-20: CIFAR-10, norm layers and head "
        f"tuned. Augmented: the same in a plain PyTorch loop, with augmented images. Means over {counted}; one class, one random "
        "draw ([scatter, other networks, hold-out](docs/results-path.md)).",
        "*Cost*: CPU time over a Retrain's, without loading the run. *Accuracy*, *distance*: on the forgotten images, before → "
        "after (Retrain); new images are of all classes. Each request has its own unit: compare depths, not networks.",
        "*U-LiRA*: how surely an attack tells an unlearned model from a Retrain by a forgotten image; area under its ROC curve, "
        f"0.5 is a blind guess.{between} [With more models](docs/results-attacks.md).",
        "*best*: `--depth all --checkpoints 2 --correction 2 --option exact=2`. Deeper is not always nearer.",
    )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def _range(nulls: Sequence[Attack]) -> str:
    """From the lowest to the highest, and their standard errors."""
    areas, errors = ([getattr(null, name) for null in nulls] for name in ("auc", "auc_standard_error"))
    return f"{min(areas):.2f} to {max(areas):.2f}, standard error {min(errors):.2f} to {max(errors):.2f}"


def _cells(records: PathRecords, request: Request, label: str) -> list[str] | None:
    """Both accuracies, the distance and the attack on one request; None where it was not run."""
    full, null, row = records.row(FULL, request), records.retrain_row(request), records.row(label, request)
    if full is None or null is None or row is None or row.others[PLACE].mean is None:
        return None
    right = [[100 * (each.accuracy[place].mean or 0.0) for each in (full, row, null)] for place in (PLACE, "holdout")]
    accuracies = [f"{before:.0f} → {after:.0f} ({retrained:.0f})" for before, after, retrained in right]
    distance = f"{_figure(full.others[PLACE], 1)} → {_figure(row.others[PLACE], 2)}"
    return [cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in (*accuracies, distance, _told(row))]


def _told(row: PathRow) -> str:
    """U-LiRA; a dash where there are too few models."""
    return "–" if row.u_lira is None else f"{row.u_lira.auc:.2f}"


def _figure(figure: Figure, digits: int) -> str:
    return "–" if figure.mean is None else f"{figure.mean:.{digits}f}"
