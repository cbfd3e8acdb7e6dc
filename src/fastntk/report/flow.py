"""What the models predict for the forgotten samples, beside Retrain's predictions.

``flow`` in the record counts (true label → prediction) for each model. A request that names a class has few true labels: one
plot each. A request of single samples may touch every class: there one plot tells correct predictions from others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastntk.auditing.record import AuditRecord
from fastntk.report.blocks import Section, Table
from fastntk.report.plots import flow_bars
from fastntk.report.sections import without_retrain
from fastntk.report.words import clean, join, model_name, percent, samples

PLOTS = 3
"""Up to so many true labels are shown one by one."""
NAMES = 6
"""So many predictions are shown one by one, the rest together."""

Counts = Sequence[Sequence[float]]


def flow(record: AuditRecord) -> Section:
    """Where the predictions went, in plots, sentences and a table."""
    matrices: dict[str, Counts] = dict(record.flow.items())
    names = record.flow.classes
    labels = [row for row in range(len(names)) if any(sum(matrix[row]) for matrix in matrices.values())]
    plots = []
    if len(labels) > PLOTS:
        plots.append(
            flow_bars(_own_label(matrices, labels), name="flow-all", title="All forgotten samples are now classified as")
        )
    else:
        for label in labels:
            title = f"Samples labelled “{clean(names[label], most=40)}” are now classified as"
            plots.append(flow_bars(_predictions(matrices, label, names), name=f"flow-{label}", title=title))
    remarks = tuple(_sentence(model, matrix, labels, names) for model, matrix in matrices.items())
    tables = (_table(matrices, labels, names),) if labels else ()
    return Section(tuple(plots), tables, remarks, () if "retrain" in matrices else (without_retrain(record),))


def _predictions(matrices: Mapping[str, Counts], label: int, names: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
    """Shares of the predictions for one true label: the label itself first, then by size over all models."""
    shares = {model: _share(matrix[label]) for model, matrix in matrices.items()}
    others = [
        predicted for predicted in range(len(names)) if predicted != label and any(row[predicted] for row in shares.values())
    ]
    others.sort(key=lambda predicted: (-sum(row[predicted] for row in shares.values()), predicted))
    separate = others if len(others) <= NAMES else others[: NAMES - 1]
    table = [(f"{names[predicted]}", {m: row[predicted] for m, row in shares.items()}) for predicted in [label, *separate]]
    rest = [predicted for predicted in others if predicted not in separate]
    if rest:
        table.append((f"{len(rest)} others", {m: sum(row[a] for a in rest) for m, row in shares.items()}))
    return table


def _own_label(matrices: Mapping[str, Counts], labels: Sequence[int]) -> list[tuple[str, dict[str, float]]]:
    own = {model: _accuracy(matrix, labels) for model, matrix in matrices.items()}
    return [("their own label", own), ("something else", {model: 1 - share for model, share in own.items()})]


def _sentence(model: str, matrix: Counts, labels: Sequence[int], names: Sequence[str]) -> str:
    """One model's predictions in words."""
    totals: dict[int, float] = {}
    for label in labels:
        for predicted, number in enumerate(matrix[label]):
            if predicted != label and number:
                totals[predicted] = totals.get(predicted, 0.0) + number
    correct = _accuracy(matrix, labels)
    text = f"{model_name(model)}: {percent(correct) if correct else 'none'} are classified correctly"
    most = sorted(totals, key=lambda predicted: (-totals[predicted], predicted))[:3]
    if not most:
        return f"{text}."
    everything = sum(sum(matrix[label]) for label in labels)
    classes = join([f"“{clean(names[predicted], most=40)}” ({percent(totals[predicted] / everything)})" for predicted in most])
    return f"{text}, {'the others' if correct else 'but'} mostly {classes}."


def _table(matrices: Mapping[str, Counts], labels: Sequence[int], names: Sequence[str]) -> Table:
    """Every step from a label to a prediction that any model makes, with its counts."""
    steps = [
        (label, predicted)
        for label in labels
        for predicted in range(len(names))
        if any(matrix[label][predicted] for matrix in matrices.values())
    ]
    steps.sort(key=lambda step: (step[0], step[0] != step[1], -sum(m[step[0]][step[1]] for m in matrices.values()), step[1]))
    number = int(sum(sum(next(iter(matrices.values()))[label]) for label in labels))
    return Table(
        f"Predictions on {samples(number)}, counted",
        ("Label", "Prediction", *(model_name(model) for model in matrices)),
        tuple(
            (clean(names[label]), clean(names[predicted]), *(f"{matrix[label][predicted]:g}" for matrix in matrices.values()))
            for label, predicted in steps
        ),
    )


def _accuracy(matrix: Counts, labels: Sequence[int]) -> float:
    total = sum(sum(matrix[label]) for label in labels)
    return sum(matrix[label][label] for label in labels) / total if total else 0.0


def _share(row: Sequence[float]) -> list[float]:
    total = sum(row)
    return [number / total if total else 0.0 for number in row]
