"""The rows of path replay that the README shows: three trainings, from the records of the path experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
COLUMNS = ("training", "depth", "first", "next", "{0}: accuracy, %", "{0}: distance", "U-LiRA", "{1}: distance", "U-LiRA")
"""The braces are the titles of both requests."""
PLACE = "forget"
"""Where distances are taken: on the forgotten samples. Those on held-out ones are on the page of the path."""


def path_headline(settings: Sequence[Setting], *, out: Path) -> str:
    """One compact table: a line for each depth, the requests side by side."""
    by_name = {setting.name: setting for setting in settings}
    requests = by_name[next(iter(SHOWN))].requests
    columns = [column.format(*(request.title for request in requests)) for column in COLUMNS]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    nulls: list[float] = []
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
            costs = [_figure(row.first, 3), _figure(row.next, 3)]
            (accuracy, *first), (_, *second) = (cells for cells in shown if cells)
            lines.append("| " + " | ".join([title, DEPTHS.get(label, label), *costs, accuracy, *first, *second]) + " |")
            title = ""
            nulls += [null.u_lira.auc for null in map(records.retrain_row, requests) if null and null.u_lira]
    if len(lines) == 2:
        return "Not run yet.\n"
    between = f" ({min(nulls):.2f} to {max(nulls):.2f} for Retrains themselves)" if nulls else ""
    counted = " and ".join(map(str, dict.fromkeys(seeds.values())))
    note = (
        "ViT-S/14 on Caltech-101, with prompts and head tuned; ResNet-20 on CIFAR-10, with norm layers and head tuned, and in a "
        f"plain PyTorch loop with augmented images. Means over {counted} seeds ([their scatter](docs/results-path.md)). *First*, "
        "*next*: CPU time over Retrain's; first is what every command pays, and in Python the first request of a run, next a "
        "further one in the same process. *Accuracy*, on the forgotten images: before → after (Retrain). *Distance*, of their "
        "class probabilities, to Retrains of other seeds: before → after. *U-LiRA*: area under the ROC curve of an attack "
        f"that tells each forgotten image's model from Retrains; 0.5 is not told apart{between}; one model a seed is few: "
        "[more models](docs/results-attacks.md). *best*: `--depth all --checkpoints 2 --correction 2 --option exact=2`."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _cells(records: PathRecords, request: Request, label: str) -> list[str] | None:
    """Accuracies, distances and the attack on one request; None where it was not run."""
    full, null, row = records.row(FULL, request), records.retrain_row(request), records.row(label, request)
    if full is None or null is None or row is None or row.others[PLACE].mean is None:
        return None
    right = [100 * (each.accuracy[PLACE].mean or 0.0) for each in (full, row, null)]
    accuracy = f"{right[0]:.0f} → {right[1]:.0f} ({right[2]:.0f})"
    distance = f"{_figure(full.others[PLACE], 1)} → {_figure(row.others[PLACE], 2)}"
    return [cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in (accuracy, distance, _told(row))]


def _told(row: PathRow) -> str:
    """U-LiRA; a dash where there are too few models."""
    return "–" if row.u_lira is None else f"{row.u_lira.auc:.2f}"


def _figure(figure: Figure, digits: int) -> str:
    return "–" if figure.mean is None else f"{figure.mean:.{digits}f}"
