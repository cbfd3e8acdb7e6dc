"""Which rows of the comparison come nearest to Retrain: by the larger of the two distances to other seeds' Retrains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import MethodRow, Setting
from fastntk.unlearning.registry import METHODS
from lab.comparison import OWN, comparison
from lab.rows import row_of

PLACES = ("forget", "holdout")
SHARES = (0.5, 0.25, 0.03)
HEAD = "path-replay, head"


class Reached(NamedTuple):
    """How near a row comes, in multiples of the spread, and what it costs of a Retrain."""

    distance: float
    cost: float
    method: MethodRow

    @property
    def text(self) -> str:
        """In a sentence."""
        return f"`{self.method.label}` ({self.distance:.2f} ×, cost {self.cost:.{3 if self.cost < 0.1 else 2}f})"


def is_own(method: MethodRow) -> bool:
    """Whether a row is of our methods."""
    return method.method in {each.method for each in OWN}


def reached(setting: Setting, *, folder: Path) -> list[Reached]:
    """Every row that was run, Full and Retrain aside."""
    found = []
    for method in setting.methods:
        row = row_of(setting, setting.requests[0], method, folder=folder)
        if row is None or method.method in ("full", "retrain"):
            continue
        distances, cost = [row.multiple("others", place).mean for place in PLACES], row.ratio_with_rows.mean
        if cost is not None and None not in distances:
            found.append(Reached(max(value for value in distances if value is not None), cost, method))
    return found


def nearest_text(setting: Setting, *, folder: Path) -> str:
    """A sentence: the nearest of all, below some costs, and of the baselines; nothing where nothing was run."""
    found = reached(setting, folder=folder)
    baselines = [each for each in found if not is_own(each.method)]
    groups: list[tuple[str, Sequence[Reached]]] = [
        ("of all that cost less than a Retrain", [each for each in found if each.cost < 1]),
        *((f"below {share} of a Retrain", [each for each in found if each.cost < share]) for share in SHARES),
        ("of the baselines", baselines),
        (
            "of the baselines that need no record",
            [each for each in baselines if "trace" not in METHODS[each.method.method].needs],
        ),
    ]
    parts = [f"{words} {min(group).text}" for words, group in groups if group]
    return f"Nearest, by the larger of the two distances to other seeds: {'; '.join(parts)}." if parts else ""


def head_text(out: Path) -> str:
    """Depth ``head`` against every baseline of the comparison, a sentence for each request."""
    lines = []
    for setting in comparison(out):
        found = reached(setting, folder=setting_folder(out, setting.name))
        own = [each for each in found if each.method.label == HEAD]
        if own:
            nearer = sorted(each for each in found if not is_own(each.method) and each.distance < own[0].distance)
            named = ", ".join(each.text for each in nearer) if nearer else "none"
            lines.append(f"- {setting.requests[0].title}, {own[0].text}: baselines that are nearer: {named}.")
    if not lines:
        return ""
    return "\n".join(
        ["Depth `head` is wanted nearer than every baseline of [comparison.md](comparison.md), tuned:", "", *lines, ""]
    )
