"""Means over seeds, from the records of one setting and request: what a table's row says, as numbers.

Numbers only; :mod:`fastntk.experiments.pages` words them. Knows no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastntk.experiments.records import read_record
from fastntk.experiments.setting import Method, Request, Setting

SETS = ("retain", "forget", "holdout")


@dataclass(frozen=True)
class Figure:
    """Mean, sample standard deviation (None for one value) and count of what is known; empty where nothing is."""

    mean: float | None
    std: float | None = None
    count: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figure:
        """Over the values that are there."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(None)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Row:
    """One method's figures over its seeds.

    ``gap``: accuracy less that of the same seed's Retrain. ``relearn_ratio``: epochs over Retrain's, None where either is
    censored: two models that both exceed the cap are not thereby equal.
    """

    method: Method
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

    def multiple(self, kind: str, where: str) -> float | None:
        """A distance in units of the seed-to-seed spread; ``kind`` is "same" or "others"."""
        figure, spread = getattr(self, kind)[where], self.spread[where].mean
        return None if figure.mean is None or not spread else figure.mean / spread


def read_records(setting: Setting, request: Request, method: Method, *, folder: Path) -> list[dict[str, Any]]:
    """The records that exist, in the order of the seeds."""
    paths = [folder / request.name / f"{method.slug}-seed{seed}.json" for seed in setting.seeds_of(method)]
    return [read_record(path) for path in paths if path.exists()]


def row_of(setting: Setting, request: Request, method: Method, *, folder: Path) -> Row | None:
    """A method's row, None where no seed was run."""
    records = read_records(setting, request, method, folder=folder)
    if not records:
        return None
    reference = {r["seed"]: r for r in read_records(setting, request, _retrain(setting), folder=folder)}
    relearned = [_epochs(record) for record in records]
    paired = [reference[record["seed"]] for record in records if record["seed"] in reference]
    known = len(paired) == len(records) and not any(record["relearn"]["censored"] for record in [*records, *paired])
    base = sum(_epochs(record) for record in paired)
    ratio = sum(relearned) / base if known and base > 0 else None
    where = ("forget", "holdout")
    return Row(
        method=method,
        seeds=tuple(record["seed"] for record in records),
        wanted=len(setting.seeds_of(method)),
        accuracy={name: Figure.of(record["accuracy"]["method"][name] for record in records) for name in SETS},
        gap={name: statistics.fmean(_gap(record, name) for record in records) for name in SETS},
        relearn=Figure.of(relearned),
        relearn_censored=sum(record["relearn"]["censored"] for record in records),
        relearn_ratio=ratio,
        cap=records[0]["relearn"]["cap"],
        recovered=Figure.of(record["recovered"] for record in records),
        same={place: Figure.of(record["total_variation"][place]["same_seed"] for record in records) for place in where},
        others={place: Figure.of(_others(record, place) for record in records) for place in where},
        spread={place: Figure.of(records[0]["retrain_spread"][place].values()) for place in where},
        weight_distance=Figure.of(record["weight_distance"] for record in records),
        seconds=Figure.of(_seconds(record) for record in records),
        ratio_with_rows=Figure.of(_ratio(record, "with_rows") for record in records),
        ratio_without_rows=Figure.of(_ratio(record, "without_rows") for record in records),
        uses_rows=any(record["timings"]["rows"] for record in records),
        verdicts=tuple(sorted({str(verdict) for record in records if (verdict := _verdict(record))})),
    )


def _retrain(setting: Setting) -> Method:
    found: Sequence[Method] = [m for m in setting.methods if m.method == "retrain" and not m.options]
    return found[0] if found else Method("retrain", "retrain")


def _epochs(record: dict[str, Any]) -> float:
    """Relearn epochs; a censored one counts as the cap, a lower bound."""
    relearn = record["relearn"]
    return float(relearn["cap"] if relearn["censored"] else relearn["epochs"])


def _others(record: dict[str, Any], place: str) -> float | None:
    """The mean distance to the Retrains of other seeds."""
    return Figure.of(record["total_variation"][place]["other_seeds"].values()).mean


def _ratio(record: dict[str, Any], kind: str) -> float:
    return float(record["timings"]["ratio_to_retrain"]["cpu"][kind])


def _gap(record: dict[str, Any], name: str) -> float:
    return float(record["accuracy"]["method"][name] - record["accuracy"]["retrain"][name])


def _seconds(record: dict[str, Any]) -> float:
    timings = record["timings"]
    return float(timings["method"]["cpu"] + (timings["rows"]["cpu"] if timings["rows"] else 0.0))


def _verdict(record: dict[str, Any]) -> str | None:
    verdict = record["details"].get("validity", {}).get("verdict")
    return None if verdict in (None, "ok") else f"{verdict} (seed {record['seed']})"
