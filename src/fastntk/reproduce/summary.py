"""Figures of records: small projections of the audit in each, and means over seeds. What is absent is None. Knows no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from fastntk.base.errors import InputError
from fastntk.base.schema import Count, parse
from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import MethodRow, Request

Record = dict[str, Any]
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
        numbers = [value for value in values if value is not None]
        if not numbers:
            return cls(None)
        return cls(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


@dataclass(frozen=True)
class Relearning:
    """Epochs until the forgotten samples are known again; a censored count is the cap, a lower bound."""

    epochs: float
    censored: bool
    cap: int


class _Entry(TypedDict):
    """What an audit says of a model's relearning."""

    epochs: Count | None
    censored: bool
    cap: Count


def read_records(seeds: Sequence[int], request: Request, row: MethodRow, *, folder: Path) -> list[Record]:
    """The records of a setting's folder that exist, in the order of the seeds."""
    paths = [folder / request.name / f"{row.slug}-seed{seed}.json" for seed in seeds]
    return [read_record(path) for path in paths if path.exists()]


def accuracy(record: Record, where: str, model: str = "unlearned") -> float | None:
    """Accuracy of a model of the audit on one of :data:`SETS`."""
    return _number(record, "accuracy", where, model)


def distance(record: Record, *names: str) -> float | None:
    """A figure of the audit's distances, such as ``"same_seed", "total_variation", "forget"``."""
    return _number(record, "distances", *names)


def to_other_retrains(record: Record, place: str) -> float | None:
    """The mean total variation to the Retrains of other seeds, on ``forget`` or ``holdout``."""
    seeds = [seed for seed in record["audit"]["distances"].get("by_seed", {}) if seed != str(record["seed"])]
    return Figure.of(distance(record, "by_seed", seed, "total_variation", place) for seed in seeds).mean


def between_retrains(record: Record, place: str) -> Figure:
    """The total variation between two Retrains of different seeds: their spread."""
    pairs = record["audit"]["distances"].get("retrain_pairs", {})
    return Figure.of(distance(record, "retrain_pairs", pair, "total_variation", place) for pair in pairs)


def cost_ratio(record: Record, kind: str) -> float:
    """CPU seconds over Retrain's, ``with_rows`` or ``without_rows``."""
    return float(record["timings"]["ratio_to_retrain"]["cpu"][kind])


def attack(record: Record, name: str) -> float | None:
    """A figure of the population attack on the unlearned model."""
    return _number(record, "membership", "population", "unlearned", name)


def probe(record: Record, kind: str, model: str, where: str) -> float | None:
    """Accuracy of a model's ``own_head`` or of a ``linear_probe`` on its features."""
    return _number(record, "probes", kind, model, where)


def is_probed(record: Record, model: str) -> bool:
    """Whether the audit probed the features of a model; the figures are None where they are not finite."""
    return model in (_part(record, "probes", "linear_probe") or {})


def relearning(record: Record, model: str = "unlearned") -> Relearning | None:
    """How long a model of the audit takes to relearn."""
    entry = _part(record, "relearn", model)
    if entry is None:
        return None
    fields = parse(entry, _Entry, what=f"audit.relearn.{model} of a record")
    epochs = fields["cap"] if fields["censored"] else fields["epochs"]
    if epochs is None:
        raise InputError(f"audit.relearn.{model} of a record: expected epochs, since it is not censored. Run it again.")
    return Relearning(float(epochs), fields["censored"], fields["cap"])


def _number(record: Record, *names: str) -> float | None:
    value = _part(record, *names)
    return None if value is None else float(parse(value, float, what=f"audit.{'.'.join(names)} of a record"))


def _part(record: Record, *names: str) -> Any:
    value: Any = record["audit"]
    for number, name in enumerate(names):
        if value is None:
            return None
        if not isinstance(value, dict):
            place = ".".join(("audit", *names[:number]))
            raise InputError(f"{place} of a record: expected an object, found {type(value).__name__}. Run the experiment again.")
        value = value.get(name)
    return value
