"""The rows of path replay that the README shows: three trainings, from the records of the path experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import Request, Setting
from fastntk.reproduce.summary import Figure
from lab.attacks import FOLDER, SCHEMA, SETTING
from lab.path_rows import FULL, PathRecords, PathRow
from lab.path_targets import BEST

MARKS = "path"
SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "vit-caltech-20x50": ("ViT, prompts and head", ("head",)),
    "resnet20-100": ("ResNet-20, norms and head", ("head", "auto", BEST)),
    "augmented": ("ResNet-20, own loop, augmented", ("head", "auto")),
}
"""By setting, what it is and which depths are shown."""
DEPTHS = {BEST: "best"}
ATTACKED = {
    "`head`": "path-replay, head",
    "`auto`": "path-replay, auto",
    "`best`": "path-replay, best",
    "NegGrad+": "neggrad+",
    "nothing done": "full",
    "Retrains against Retrains": "Retrain",
}
"""By what the sentence calls them, rows of the attacks with many models."""
COLUMNS = (
    "training",
    "forget",
    "depth",
    "seeds",
    "cost: first, next",
    "right on forgotten: before → after (Retrain)",
    "distance to other Retrains",
    "U-LiRA, seed-only",
    "shift",
)


def path_headline(settings: Sequence[Setting], *, out: Path) -> str:
    """One compact table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    by_name = {setting.name: setting for setting in settings}
    for name, (words, depths) in SHOWN.items():
        title = words
        records = PathRecords.read(by_name[name], out=out)
        for request in by_name[name].requests:
            for number, cells in enumerate(_rows(records, request, depths)):
                lines.append("| " + " | ".join([*((title, request.title) if number == 0 else ("", "")), *cells]) + " |")
                title = ""
    if len(lines) == 2:
        return "Not run yet.\n"
    note = (
        "*Cost*: CPU time over Retrain's, for a first request and a next one on the same run. *Distance*: total variation "
        "of the class probabilities on forgotten / hold-out images to Retrains of other seeds, in units of the distance "
        "between two of those; a Retrain is at 1×, but being there does not say that nothing tells the two apart. *U-LiRA*: "
        "how well a test of each forgotten image tells the row's models from Retrains (0.5: not at all), ± its standard error, "
        "with the models a side; *Retrain itself* is the null. *Shift*: of the log-odds of forgotten images, in Retrain's "
        "standard deviations."
    )
    return "\n".join([*lines, "", note, *_more_models(out)]) + "\n"


def _more_models(out: Path) -> list[str]:
    """U-LiRA with more models, which the table has too few of: a sentence for every request that was run."""
    found = []
    for request in SETTING.requests:
        path = out / FOLDER / f"{request.name}.json"
        if path.exists():
            record = read_record(path, schema=SCHEMA)
            shown = {name: record["rows"][label]["u_lira"] for name, label in ATTACKED.items() if label in record["rows"]}
            areas = ", ".join(f"{name} {each['auc']:.2f} ± {each['standard_error']:.2f}" for name, each in shown.items())
            found.append(f"{request.title} ({record['models']} models a side): {areas}")
    if not found:
        return []
    return [
        "",
        f"With few models U-LiRA and shift are rough. With more of them, ResNet-20, {SETTING.images_per_class} images a class, "
        f"U-LiRA on {'; on '.join(found)} ([all rows](docs/results-attacks.md)).",
    ]


def _rows(records: PathRecords, request: Request, depths: Sequence[str]) -> list[list[str]]:
    """The cells of a request, after its title; the null last, where it was run."""
    full, null = records.row(FULL, request), records.retrain_row(request)
    if full is None or null is None:
        return []
    found = []
    for label in depths:
        row = records.row(label, request)
        if row is None or row.others["forget"].mean is None:
            continue
        cost = f"{_figure(row.first, 3)}, {_figure(row.next, 3)}"
        before, after, retrain = (100 * (each.accuracy["forget"].mean or 0.0) for each in (full, row, null))
        shares = f"{before:.0f} → {after:.0f} ({retrain:.0f}) %"
        apart = " / ".join(f"{_figure(row.others[place], 2)}×" for place in ("forget", "holdout"))
        found.append([DEPTHS.get(label, label), str(row.seeds), cost, shares, apart, *_told(row)])
    if null.u_lira is not None:
        found.append(["*Retrain itself*", str(null.seeds), "1", "–", "1×", *_told(null)])
    return found


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
