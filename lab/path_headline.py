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
    "vit-caltech-20x50": ("ViT-S/14 on Caltech, prompts and head", ("head",)),
    "resnet20-100": ("ResNet-20 on CIFAR-10, norms and head", ("head", "auto", BEST)),
    "augmented": ("ResNet-20 in a plain PyTorch loop, augmented", ("head", "auto", BEST)),
}
"""By setting, what it is and which depths are shown."""
DEPTHS = {BEST: "best"}
COLUMNS = (
    "training",
    "forget",
    "depth",
    "cost: first, next",
    "accuracy on forgotten: before → after (Retrain)",
    "distance: before → after",
    "U-LiRA (of Retrains)",
)


def path_headline(settings: Sequence[Setting], *, out: Path) -> str:
    """One compact table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    by_name = {setting.name: setting for setting in settings}
    for name, (words, depths) in SHOWN.items():
        records = PathRecords.read(by_name[name], out=out)
        title = f"{words} ({len(records.seeds)} seeds)"
        for request in by_name[name].requests:
            for number, cells in enumerate(_rows(records, request, depths)):
                lines.append("| " + " | ".join([*((title, request.title) if number == 0 else ("", "")), *cells]) + " |")
                title = ""
    if len(lines) == 2:
        return "Not run yet.\n"
    note = (
        "*Cost*: CPU time over Retrain's. *First*: what every command pays, and in Python the first request of a run. *Next*: a "
        "further request of the same run in the same Python process, which reuses gradients of single images. *Distance*: of the "
        "class probabilities to those of Retrains of other seeds, on forgotten / hold-out images. *U-LiRA*: area under the ROC "
        "curve of an attack that looks at each forgotten image and tells the models from Retrains; 0.5 is not told apart. In "
        "brackets the same of Retrains against Retrains. One model a seed is too few for small differences: [more "
        "models](docs/results-attacks.md). *best*: `--depth all --checkpoints 2 --correction 2 --option exact=2`."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _rows(records: PathRecords, request: Request, depths: Sequence[str]) -> list[list[str]]:
    """The cells of a request, after its title."""
    full, null = records.row(FULL, request), records.retrain_row(request)
    if full is None or null is None:
        return []
    found = []
    for label in depths:
        row = records.row(label, request)
        if row is None or row.others["forget"].mean is None:
            continue
        cost = f"{_figure(row.first, 3)}, {_figure(row.next, 3)}"
        right = [100 * (each.accuracy["forget"].mean or 0.0) for each in (full, row, null)]
        shares = f"{right[0]:.0f} → {right[1]:.0f} ({right[2]:.0f}) %"
        apart = " / ".join(
            f"{_figure(full.others[place], 1)} → {_figure(row.others[place], 2)}" for place in ("forget", "holdout")
        )
        found.append([DEPTHS.get(label, label), cost, shares, apart, _told(row, null)])
    return found


def _told(row: PathRow, null: PathRow) -> str:
    """U-LiRA with its standard error, in brackets that of the null; a dash where there are too few models."""
    if row.u_lira is None or null.u_lira is None:
        return "–"
    own, none = (f"{attack.auc:.2f} ± {attack.auc_standard_error:.2f}" for attack in (row.u_lira, null.u_lira))
    return f"{own} ({none})"


def _figure(figure: Figure, digits: int) -> str:
    return "–" if figure.mean is None else f"{figure.mean:.{digits}f}"
