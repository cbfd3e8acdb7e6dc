"""The rows of the path experiment's tables, as numbers: means over the seeds of what the records hold.

What was not run is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastntk.auditing.record_figures import Attack, Shift
from fastntk.auditing.ulira import LEAST, median_shift, median_shift_null, u_lira, u_lira_null
from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import Request, Setting
from fastntk.reproduce.summary import Figure
from lab.path_between import FILE
from lab.path_between import SCHEMA as BETWEEN
from lab.path_models import SCHEMA, SETS

Record = dict[str, Any]
FULL, RETRAIN = "Full", "Retrain"


@dataclass(frozen=True)
class Relearn:
    """Epochs to relearn; censored ones count as the cap."""

    epochs: Figure
    censored: int
    cap: int


@dataclass(frozen=True)
class PathRow:
    """One row of one request.

    ``first`` and ``next``: CPU seconds over Retrain's, all requests of the setting together; ``wall``: the same in wall seconds.
    ``same`` and ``others``: multiples of Retrain's spread, by place. ``u_lira``, ``shift``: None with too few ``models``.
    """

    label: str
    seeds: int
    first: Figure
    next: Figure
    wall: dict[str, Figure]
    same: dict[str, Figure]
    others: dict[str, Figure]
    recovered: Figure
    accuracy: dict[str, Figure]
    relearn: Relearn | None
    u_lira: Attack | None
    shift: Shift | None
    models: int


@dataclass(frozen=True)
class PathRecords:
    """What was measured of a setting: records by seed, and what several seeds have in common, by request."""

    setting: Setting
    seeds: dict[int, Record]
    between: dict[str, Record]

    @classmethod
    def read(cls, setting: Setting, *, out: Path) -> PathRecords:
        """Those that exist."""
        folder = out / "path" / setting.name
        paths = {seed: folder / f"seed{seed}.json" for seed in setting.seeds}
        records = {seed: read_record(path, schema=SCHEMA) for seed, path in paths.items() if path.exists()}
        file = folder / FILE
        return cls(setting, records, read_record(file, schema=BETWEEN)["requests"] if file.exists() else {})

    def spread(self, request: Request) -> dict[str, Figure]:
        """Distances between Retrains of different seeds, by place."""
        pairs = self.between.get(request.name, {}).get("spread", {}).values()
        return {place: Figure.of(pair[place] for pair in pairs if pair) for place in SETS}

    def retrains(self, request: Request) -> dict[int, Record]:
        """Figures of every Retrain, by seed."""
        return {int(seed): entry for seed, entry in self.between.get(request.name, {}).get("retrains", {}).items()}

    def row(self, label: str, request: Request) -> PathRow | None:
        """A row of the setting, or :data:`FULL`."""
        if label == FULL:
            entries = self._references(request, "full")
            return self._row(label, request, entries, dict.fromkeys(entries)) if entries else None
        rows = {seed: record["rows"][label] for seed, record in self.seeds.items() if label in record["rows"]}
        entries = {seed: row["requests"][request.name] for seed, row in rows.items() if request.name in row["requests"]}
        digests = {seed: row["digest"] for seed, row in rows.items()}
        return self._row(label, request, entries, digests) if entries else None

    def _row(self, label: str, request: Request, entries: dict[int, Record], digests: dict[int, Any]) -> PathRow:
        spread, retrains = self.spread(request), self.retrains(request)
        same = [entry["same"] for entry in entries.values()]
        others = self._others(request, "full" if label == FULL else label, digests)
        paired = [seed for seed, entry in entries.items() if entry["confidences"] and seed in retrains]
        sides = [[side[seed]["confidences"] for seed in paired] for side in (entries, retrains)]
        return PathRow(
            label=label,
            seeds=len(entries),
            first=self._cost(label, "first", "cpu"),
            next=self._cost(label, "next", "cpu"),
            wall={place: self._cost(label, place, "wall") for place in ("first", "next")},
            same=_multiples(same, spread),
            others=_multiples(others, spread),
            recovered=Figure.of(entry["recovered"] for entry in entries.values()),
            accuracy=accuracies(entries.values()),
            relearn=relearned(entries.values()),
            u_lira=u_lira(*sides) if len(paired) >= LEAST else None,
            shift=median_shift(*sides) if len(paired) >= LEAST else None,
            models=len(paired),
        )

    def retrain_row(self, request: Request) -> PathRow | None:
        """Retrain itself, all seeds; its U-LiRA is that of Retrains against Retrains."""
        retrains = self.retrains(request)
        if not retrains:
            return None
        confidences = [entry["confidences"] for entry in retrains.values() if entry["confidences"]]
        one, zero = Figure(1.0), Figure(0.0)
        return PathRow(
            label=RETRAIN,
            seeds=len(retrains),
            first=one,
            next=one,
            wall={"first": one, "next": one},
            same=dict.fromkeys(SETS, zero),
            others=dict.fromkeys(SETS, one),
            recovered=one,
            accuracy=accuracies(retrains.values()),
            relearn=relearned(self._references(request, "retrain").values()),
            u_lira=u_lira_null(confidences) if len(confidences) >= 2 * LEAST else None,
            shift=median_shift_null(confidences) if len(confidences) >= 2 * LEAST else None,
            models=len(confidences) // 2,
        )

    def failures(self, label: str) -> dict[int, str]:
        """Why a row has nothing, by seed."""
        rows = {seed: record["rows"].get(label, {}) for seed, record in self.seeds.items()}
        return {seed: row["failed"] for seed, row in rows.items() if "failed" in row}

    def _references(self, request: Request, name: str) -> dict[int, Record]:
        parts = {seed: record["references"].get(request.name) for seed, record in self.seeds.items()}
        return {seed: part[name] for seed, part in parts.items() if part is not None}

    def _cost(self, label: str, place: str, clock: str) -> Figure:
        rows = [record["rows"].get(label, {}).get("requests", {}) for record in self.seeds.values()]
        return Figure.of(part["ratio"][clock] for row in rows for part in row.values() if part["place"] == place)

    def _others(self, request: Request, label: str, digests: dict[int, Any]) -> list[Record | None]:
        """Each seed's mean distance to the Retrains of other seeds; not of a row that was made again since then."""
        entries = self.between.get(request.name, {}).get("others", {}).get(label, {})
        known = [entries.get(str(seed)) for seed in digests if entries.get(str(seed), {}).get("digest") == digests[seed]]
        return [_mean_distance(entry["by_seed"]) for entry in known if entry is not None]


def _mean_distance(by_seed: dict[str, Record | None]) -> Record | None:
    known = [distance for distance in by_seed.values() if distance is not None]
    return {place: sum(each[place] for each in known) / len(known) for place in SETS} if known else None


def _multiples(distances: Iterable[Record | None], spread: dict[str, Figure]) -> dict[str, Figure]:
    known = [distance for distance in distances if distance is not None]
    units = {place: figure.mean for place, figure in spread.items()}
    return {place: Figure.of(each[place] / unit for each in known) if unit else Figure(None) for place, unit in units.items()}


def accuracies(entries: Iterable[Record]) -> dict[str, Figure]:
    """On retained, forgotten and held-out samples."""
    known = list(entries)
    return {name: Figure.of(entry["accuracy"][name] for entry in known) for name in ("retain", *SETS)}


def relearned(entries: Iterable[Record]) -> Relearn | None:
    """None where no model relearned."""
    known = [entry["relearn"] for entry in entries if "relearn" in entry]
    if not known:
        return None
    epochs = Figure.of(entry["cap"] if entry["censored"] else entry["epochs"] for entry in known)
    return Relearn(epochs, sum(entry["censored"] for entry in known), known[0]["cap"])
