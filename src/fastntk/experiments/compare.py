"""Our figures beside the paper's, as numbers: for each published column, the cell that stands in it and its records' means.

Accuracies in per cent. Nothing is filled in: what was not run has no figure. :mod:`fastntk.experiments.sheets` words them.
Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastntk.experiments import paper
from fastntk.experiments.cells import Cell
from fastntk.experiments.records import read_record, setting_folder
from fastntk.experiments.summary import Figure


@dataclass(frozen=True)
class Metric:
    """A figure of a table: its name in words and the published metric it stands beside."""

    key: str
    title: str
    published: str


ACCURACIES = (
    Metric("retain", "accuracy on D_r", "accuracy_retain"),
    Metric("forget", "accuracy on D_f", "accuracy_forget"),
    Metric("holdout", "accuracy on hold-out", "accuracy_holdout"),
)
RELEARN = Metric("relearn", "relearning epochs", "relearn_epochs")
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
        found = None if entry is None else entry.ours[metric]
        return None if found is None or found.censored else found.figure.mean


def compare(table: str, cells: Sequence[Cell], *, out: Path) -> tuple[Comparison, ...]:
    """One comparison a cell, in the order of the published columns."""
    published = paper.table(table)
    made = []
    for cell in sorted(cells, key=lambda cell: (cell.column, cell.real)):
        folder = setting_folder(out, cell.setting.name)
        entries = (_probe_entries if cell.probed else _entries)(cell, published, folder)
        metrics = PROBES if cell.probed else (*ACCURACIES, RELEARN)
        made.append(Comparison(table, published.columns[cell.column], cell, metrics, tuple(entries)))
    return tuple(made)


def _entries(cell: Cell, published: paper.Table, folder: Path) -> Iterator[Entry]:
    for method in cell.setting.methods:
        # Extra Retrains serve the seed-to-seed spread: here each method has the seeds of the runs.
        records = _records(cell, method.slug, folder)
        theirs = {m.key: published.figure(m.published, method.label, cell.column) for m in (*ACCURACIES, RELEARN)}
        ours: dict[str, Ours | None] = dict.fromkeys(theirs)
        if records:
            for metric in ACCURACIES:
                ours[metric.key] = Ours(Figure.of(100 * record["accuracy"]["method"][metric.key] for record in records))
            ours[RELEARN.key] = _relearned(records)
        recovered = Figure.of(record["recovered"] for record in records).mean
        yield Entry(method.label, len(records), len(cell.setting.seeds), ours, theirs, recovered)


def _probe_entries(cell: Cell, published: paper.Table, folder: Path) -> Iterator[Entry]:
    for label in cell.probed:
        records = _records(cell, f"probe-{label}", folder)
        # The anchor does not depend on the seed.
        wanted = 1 if label == "pre-trained" else len(cell.setting.seeds)
        theirs = {metric.key: published.figure(metric.published, label, cell.column) for metric in PROBES}
        ours = {metric.key: _probed(records, *metric.key.split(".")) for metric in PROBES}
        yield Entry(label, len(records), wanted, ours, theirs)


def _records(cell: Cell, name: str, folder: Path) -> list[dict[str, Any]]:
    paths = [folder / cell.request.name / f"{name}-seed{seed}.json" for seed in cell.setting.seeds]
    return [read_record(path) for path in paths if path.exists()]


def _relearned(records: Sequence[dict[str, Any]]) -> Ours:
    """A censored run counts as the cap: the mean is then a lower bound, and is shown as one."""
    found = [record["relearn"] for record in records]
    epochs = Figure.of(float(one["cap"] if one["censored"] else one["epochs"]) for one in found)
    return Ours(epochs, sum(one["censored"] for one in found), found[0]["cap"])


def _probed(records: Sequence[dict[str, Any]], kind: str, where: str) -> Ours | None:
    known = [record[kind] for record in records if record[kind] is not None]
    return Ours(Figure.of(100 * one[where] for one in known)) if known else None
