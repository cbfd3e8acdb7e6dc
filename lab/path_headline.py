"""The rows of path replay that the README shows, from the records of the path experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastntk.reproduce.setting import Setting
from fastntk.reproduce.summary import Figure
from lab.path_rows import PathRecords, PathRow
from lab.path_targets import BEST

MARKS = "path"
ROWS = ("head", "auto", BEST)
COLUMNS = (
    "run",
    "forget",
    "depth",
    "seeds",
    "cost: first, next",
    "distance to the same seed's Retrain",
    "to others",
    "recovered",
    "U-LiRA, seed-only",
    "shift",
)


def path_headline(settings: Sequence[Setting], *, out: Path) -> str:
    """One compact table: the first setting in full, of the other networks one request and the cheapest and the best row."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for setting in settings:
        if setting.model == settings[0].model and setting is not settings[0]:
            continue
        records, first = PathRecords.read(setting, out=out), setting is settings[0]
        for request in setting.requests if first else setting.requests[:1]:
            for label in ROWS if first else (ROWS[0], ROWS[-1]):
                row = records.row(label, request)
                if row is None or row.same["forget"].mean is None:
                    continue
                cost = f"{_figure(row.first, 3)}, {_figure(row.next, 3)}"
                apart = [
                    " / ".join(f"{_figure(part[place], 2)}×" for place in ("forget", "holdout"))
                    for part in (row.same, row.others)
                ]
                cells = [setting.name, request.title, label, str(row.seeds), cost, *apart, _figure(row.recovered, 2), *_told(row)]
                lines.append("| " + " | ".join(cells) + " |")
            null = records.retrain_row(request)
            if first and null is not None:
                dashes = ["–"] * (len(COLUMNS) - 6)
                cells = [setting.name, request.title, "Retrain itself", str(null.seeds), *dashes, *_told(null)]
                lines.append("| " + " | ".join(cells) + " |")
    if len(lines) == 2:
        return "Not run yet.\n"
    note = (
        "*Cost*: CPU time over Retrain's, for a first request and a next one on the same run. *Distance*: total variation "
        "of the class probabilities on forgotten / hold-out images, in units of the distance between two Retrains of "
        "different seeds. *Recovered*: how much of Retrain's rise in the forgotten images' loss is there (1 = all). A "
        "Retrain of another seed is at 1× of the distance to others; that a row is there does not say that nothing tells "
        "it from Retrain. *U-LiRA*: how well a test of each forgotten image tells the row's models from Retrains, ± its "
        "standard error, with the models a side; in the row *Retrain itself* the null, Retrains against Retrains, which "
        "share no seeds and so scatter more. *Shift*: median shift of the log-odds of forgotten images, in Retrain's "
        "standard deviations. With few models both are rough: [more of them](docs/results-attacks.md)."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _told(row: PathRow) -> list[str]:
    """U-LiRA and the median shift with their standard errors; a dash where there are too few models."""
    if row.u_lira is None or row.shift is None:
        return ["–", "–"]
    attack, shift = row.u_lira, row.shift
    return [
        f"{attack.auc:.2f} ± {attack.auc_standard_error:.2f} ({row.models})",
        f"{shift.median:+.1f} ± {shift.standard_error:.1f}",
    ]


def _figure(figure: Figure, digits: int) -> str:
    return "–" if figure.mean is None else f"{figure.mean:.{digits}f}"
