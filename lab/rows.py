"""Means over seeds of one method, setting and request: what a table's row says, as numbers, projected from audits.

Numbers only; the pages word them. Knows no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import MethodRow, Request, Setting
from fastntk.reproduce.summary import (
    SETS,
    Figure,
    Record,
    accuracy,
    between_retrains,
    cost_ratio,
    distance,
    read_records,
    relearning,
    to_other_retrains,
)

PLACES = ("forget", "holdout")


@dataclass(frozen=True)
class Row:
    """One method's figures over its seeds.

    ``gap``: accuracy less that of the same seed's Retrain. ``relearn_ratio``: epochs over Retrain's, None where either is
    censored or was not measured: two models that both exceed the cap are not thereby equal.
    """

    method: MethodRow
    seeds: tuple[int, ...]
    wanted: int
    accuracy: dict[str, Figure]
    gap: dict[str, float]
    relearn: Figure
    relearn_censored: int
    relearn_ratio: float | None
    cap: int
    recovered: Figure
    same: dict[str, Figure]
    others: dict[str, Figure]
    spread: dict[str, Figure]
    weight_distance: Figure
    seconds: Figure
    ratio_with_rows: Figure
    ratio_without_rows: Figure
    uses_rows: bool
    verdicts: tuple[str, ...]

    def multiple(self, kind: Literal["same", "others"], place: str) -> Figure:
        """A distance in units of the seed-to-seed spread."""
        figure: Figure = getattr(self, kind)[place]
        unit = self.spread[place].mean
        if figure.mean is None or not unit:
            return Figure(None)
        return Figure(figure.mean / unit, None if figure.std is None else figure.std / unit, figure.count)


def records_of(setting: Setting, request: Request, method: MethodRow, *, folder: Path) -> list[Record]:
    """The records that exist, in the order of the seeds."""
    return read_records(setting.seeds_of(method), request, method, folder=folder)


def record_paths(setting: Setting, methods: Sequence[MethodRow], *, out: Path) -> list[Path]:
    """The files behind these rows of a setting, those that exist; a folder may hold those of others."""
    folders = [setting_folder(out, setting.name) / request.name for request in setting.requests]
    files = [f"{method.slug}-seed{seed}.json" for method in methods for seed in setting.seeds_of(method)]
    return [path for folder in folders for file in files if (path := folder / file).exists()]


def row_of(setting: Setting, request: Request, method: MethodRow, *, folder: Path) -> Row | None:
    """A method's row, None where no seed was run."""
    records = [record for record in records_of(setting, request, method, folder=folder) if "accuracy" in record["audit"]]
    if not records:
        return None
    relearned = [epochs for record in records if (epochs := relearning(record)) is not None]
    total = "total_variation"
    return Row(
        method=method,
        seeds=tuple(record["seed"] for record in records),
        wanted=len(setting.seeds_of(method)),
        accuracy={name: Figure.of(accuracy(record, name) for record in records) for name in SETS},
        gap={name: statistics.fmean(_gap(record, name) for record in records) for name in SETS},
        relearn=Figure.of(entry.epochs for entry in relearned),
        relearn_censored=sum(entry.censored for entry in relearned),
        relearn_ratio=_relearn_ratio(records),
        cap=relearned[0].cap,
        recovered=Figure.of(distance(record, "same_seed", "recovered") for record in records),
        same={place: Figure.of(distance(record, "same_seed", total, place) for record in records) for place in PLACES},
        others={place: Figure.of(to_other_retrains(record, place) for record in records) for place in PLACES},
        spread={place: between_retrains(records[0], place) for place in PLACES},
        weight_distance=Figure.of(distance(record, "same_seed", "weights") for record in records),
        seconds=Figure.of(_seconds(record) for record in records),
        ratio_with_rows=Figure.of(cost_ratio(record, "with_rows") for record in records),
        ratio_without_rows=Figure.of(cost_ratio(record, "without_rows") for record in records),
        uses_rows=any(record["timings"]["rows"] for record in records),
        verdicts=tuple(sorted({str(verdict) for record in records if (verdict := _verdict(record))})),
    )


def _relearn_ratio(records: Sequence[Record]) -> float | None:
    pairs = [(relearning(record), relearning(record, "retrain")) for record in records]
    if any(epochs is None or epochs.censored for pair in pairs for epochs in pair):
        return None
    ours, theirs = (sum(epochs.epochs for epochs in side if epochs is not None) for side in zip(*pairs))
    return ours / theirs if theirs > 0 else None


def _gap(record: Record, name: str) -> float:
    ours, theirs = accuracy(record, name), accuracy(record, name, "retrain")
    assert ours is not None
    assert theirs is not None
    return ours - theirs


def _seconds(record: Record) -> float:
    timings = record["timings"]
    return float(timings["method"]["cpu"] + (timings["rows"]["cpu"] if timings["rows"] else 0.0))


def _verdict(record: Record) -> str | None:
    verdict = record["audit"]["details"].get("validity", {}).get("verdict")
    return None if verdict in (None, "ok") else f"{verdict} (seed {record['seed']})"
