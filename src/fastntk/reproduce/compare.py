"""Our figures beside the paper's, as numbers: for each published column, the cell that stands in it and its records' means.

Accuracies in per cent. Nothing is filled in: what was not run has no figure. :mod:`fastntk.reproduce.tables` words them.
Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastntk.reproduce import paper
from fastntk.reproduce.cells import Cell
from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import FULL
from fastntk.reproduce.summary import (
    Figure,
    Record,
    accuracy,
    between_retrains,
    cost_ratio,
    distance,
    is_probed,
    probe,
    read_records,
    relearning,
    to_other_retrains,
)


@dataclass(frozen=True)
class Metric:
    """A figure of a table: its name in words and the published metric it stands beside, None where the paper has none."""

    key: str
    title: str
    published: str | None
    digits: int = 2


ACCURACIES = (
    Metric("retain", "accuracy on D_r", "accuracy_retain"),
    Metric("forget", "accuracy on D_f", "accuracy_forget"),
    Metric("holdout", "accuracy on hold-out", "accuracy_holdout"),
)
RELEARN = Metric("relearn", "relearning epochs", "relearn_epochs")
COST = Metric("cost", "cost, × Retrain", None, digits=3)
DISTANCES = (
    Metric("distance.forget", "to Retrains of other seeds, × spread, D_f", None),
    Metric("distance.holdout", "to Retrains of other seeds, × spread, hold-out", None),
)
OWN = (COST, *DISTANCES)
"""Which the paper does not have: CPU seconds of a first request, and total variation, in units of two Retrains' distance."""
PROBES = (
    Metric("linear_probe.retain", "linear probe on D_r", "probe_accuracy_retain"),
    Metric("linear_probe.forget", "linear probe on D_f", "probe_accuracy_forget"),
    Metric("own_head.retain", "own head on D_r", "probe_accuracy_retain"),
    Metric("own_head.forget", "own head on D_f", "probe_accuracy_forget"),
)


@dataclass(frozen=True)
class Ours:
    """Mean and standard deviation of what was run; ``censored`` of the ``figure.count`` runs exceeded ``cap``."""

    figure: Figure
    censored: int = 0
    cap: int | None = None


@dataclass(frozen=True)
class Entry:
    """One method of one cell: figures by metric, None where not run or not defined, and how many seeds were run.

    ``recovered``: the share of Retrain's change of the forget loss that the method makes, where that was measured.
    """

    label: str
    seeds: int
    wanted: int
    ours: dict[str, Ours | None]
    published: dict[str, paper.Published | None]
    recovered: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A published column, the cell that stands in it, and an entry a method."""

    table: str
    column: paper.Column
    cell: Cell
    metrics: tuple[Metric, ...]
    entries: tuple[Entry, ...]

    @property
    def run(self) -> bool:
        """Whether there is any record."""
        return any(entry.seeds for entry in self.entries)

    def entry(self, label: str) -> Entry | None:
        """The entry of a method."""
        return next((entry for entry in self.entries if entry.label == label), None)

    def mean(self, label: str, metric: str) -> float | None:
        """Our mean, None where not run or censored."""
        entry = self.entry(label)
        ours = None if entry is None else entry.ours[metric]
        return None if ours is None or ours.censored else ours.figure.mean


def compare(table: str, cells: Sequence[Cell], *, out: Path) -> tuple[Comparison, ...]:
    """One comparison a cell, in the order of the published columns; the paper's own network before one that stands in for it."""
    published = paper.published_table(table)
    comparisons = []
    for cell in sorted(cells, key=lambda cell: (cell.column, cell.real, bool(cell.stand_in))):
        folder = setting_folder(out, cell.setting.name)
        entries = (_probe_entries if cell.probed else _entries)(cell, published, folder)
        metrics = PROBES if cell.probed else (*ACCURACIES, RELEARN, *OWN)
        comparisons.append(Comparison(table, published.columns[cell.column], cell, metrics, tuple(entries)))
    return tuple(comparisons)


def _entries(cell: Cell, published: paper.PublishedTable, folder: Path) -> Iterator[Entry]:
    for row in cell.methods:
        # Extra Retrains serve the seed-to-seed spread: here each method has the seeds of the runs.
        records = read_records(cell.setting.seeds, cell.request, row, folder=folder)
        theirs = {m.key: _published(published, m, row.label, cell.column) for m in (*ACCURACIES, RELEARN, *OWN)}
        ours = {m.key: _mean([_percent(accuracy(record, m.key)) for record in records]) for m in ACCURACIES}
        recovery = Figure.of(distance(record, "same_seed", "recovered") for record in records).mean
        audits = [record for record in records if accuracy(record, "retain") is not None]
        ours |= {RELEARN.key: _relearned(audits), COST.key: _mean([cost_ratio(record, "with_rows") for record in audits])}
        ours |= {m.key: _mean([_multiple(record, m.key.partition(".")[2]) for record in audits]) for m in DISTANCES}
        yield Entry(row.label, len(audits), len(cell.setting.seeds), ours, theirs, recovery)


UNTRAINED_MODELS = {"pre-trained": "pretrained", "random-init": "random"}
"""Rows of the probing table that are no method, by their names in an audit."""


def _probe_entries(cell: Cell, published: paper.PublishedTable, folder: Path) -> Iterator[Entry]:
    rows = {row.label: row for row in cell.setting.methods}
    for label in cell.probed:
        # The anchor does not depend on the seed.
        seeds = cell.setting.seeds[:1] if label == "pre-trained" else cell.setting.seeds
        records = read_records(seeds, cell.request, FULL if label in UNTRAINED_MODELS else rows[label], folder=folder)
        model = UNTRAINED_MODELS.get(label, "unlearned")
        records = [record for record in records if is_probed(record, model)]
        theirs = {metric.key: _published(published, metric, label, cell.column) for metric in PROBES}
        ours = {metric.key: _probed(records, model, *metric.key.split(".")) for metric in PROBES}
        yield Entry(label, len(records), len(seeds), ours, theirs)


def _published(table: paper.PublishedTable, metric: Metric, label: str, column: int) -> paper.Published | None:
    return None if metric.published is None else table.figure(metric.published, label, column)


def _multiple(record: Record, place: str) -> float | None:
    """The distance to Retrains of other seeds, in units of that between two of them."""
    away, spread = to_other_retrains(record, place), between_retrains(record, place).mean
    return None if away is None or not spread else away / spread


def _relearned(records: Sequence[Record]) -> Ours | None:
    """A censored run counts as the cap: the mean is then a lower bound, and is shown as one."""
    times = [epochs for record in records if (epochs := relearning(record)) is not None]
    if not times:
        return None
    return Ours(Figure.of(entry.epochs for entry in times), sum(entry.censored for entry in times), times[0].cap)


def _probed(records: Sequence[Record], model: str, kind: str, where: str) -> Ours | None:
    return _mean([_percent(probe(record, kind, model, where)) for record in records])


def _mean(values: Sequence[float | None]) -> Ours | None:
    figure = Figure.of(values)
    return None if figure.mean is None else Ours(figure)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
