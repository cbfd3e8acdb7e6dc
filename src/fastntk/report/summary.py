"""The first screen and the paperwork: verdict, key figures, what was asked and done, definitions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastntk.auditing.record import AuditRecord, Level, RequestSummary
from fastntk.auditing.record_figures import known
from fastntk.base.errors import InputError
from fastntk.base.schema import JsonObject
from fastntk.report.blocks import Fact
from fastntk.report.evidence_plots import epochs
from fastntk.report.words import clean, date, join, model_name, percent, plain, samples, value, whole

HEADLINES: dict[Level, tuple[str, str, str]] = {
    "like retrain": ("good", "✓", "The model now predicts like one that never saw this data."),
    "differs from retrain": ("warn", "!", "The model predicts differently from one that never saw this data."),
    "memory left": ("bad", "✗", "The model still shows memory of this data."),
    "not to be trusted": ("bad", "✗", "This result is not to be trusted: retrain instead."),
    "cannot be told": ("warn", "!", "It cannot be told whether this data was forgotten."),
    "no reference": ("open", "?", "Undecided: there was no model without this data to compare with."),
}


@dataclass(frozen=True)
class Definitions:
    """Definitions of one kind of figure, the ``key`` of the record: an anchor, a heading, and (title, words, remark) each."""

    key: str
    anchor: str
    title: str
    entries: tuple[tuple[str, str, str], ...]


def tiles(record: AuditRecord) -> list[Fact]:
    """The figures for the first screen: what was asked, three comparisons, the requirements."""
    request, accuracy = record.request, record.accuracy
    total = request.forget + request.retain
    facts = [Fact("Asked to forget", samples(request.forget), f"of {whole(total)}{_classes(request, ': class ')}")]
    of_kept = known(accuracy.holdout_kept_classes)
    # Over all classes the figure falls with the forgotten ones, which is no damage.
    holdout = (accuracy.holdout, "Never seen, classified correctly")
    if of_kept is not None:
        holdout = (of_kept, "Never seen, of the kept classes, classified correctly")
    for figures, name in ((accuracy.forget, "Forgotten, classified correctly"), holdout):
        facts.append(Fact(name, percent(figures.unlearned), _beside({m: percent(v) for m, v in figures.items()})))
    relearning = {model: epochs(figures) for model, figures in record.relearn.items()}
    facts.append(Fact("Epochs to relearn them", relearning["unlearned"].capitalize(), _beside(relearning)))
    if record.requirements:
        pass_count = sum(each.passed for each in record.requirements)
        facts.append(Fact("Requirements passed", f"{pass_count} of {len(record.requirements)}", "stated for this audit"))
    return facts


def request_facts(record: AuditRecord) -> list[Fact]:
    """What was asked, what was done, to which checkpoint, when and by what."""
    subject, request = record.subject, record.request
    total = request.forget + request.retain
    share = percent(request.forget / total, 1) if total else ""
    facts = [
        Fact("Asked", f"Forget {samples(request.forget)} of {whole(total)} ({share})", _classes(request, "All of class ")),
        Fact("Method", subject.method, value(record.details.get("summary", ""))),
    ]
    if subject.options:
        facts.append(Fact("Options", value(subject.options)))
    facts.append(Fact("Model", clean(subject.model), f"pre-trained weights: {value(subject.weights)}"))
    parts = f"{whole(subject.tuned)} of {whole(subject.parameters)} parameters"
    facts.append(Fact("Tuned, and so changed", parts, f"{percent(subject.tuned_share, 2)} of the model"))
    facts += _checks(record.details)
    facts.append(Fact("Compared with", *_reference(record)))
    facts.append(Fact("Never-seen samples", samples(subject.holdout)))
    if subject.recipe:
        facts.append(Fact("Fine-tuned with", value(subject.recipe)))
    facts.append(Fact("Audited", date(record.created), f"fastntk {record.fastntk}"))
    if record.environment:
        facts.append(Fact("On", value(record.environment)))
    return facts


def checkpoints(record: AuditRecord) -> list[Fact]:
    """The SHA-256 digests that tie this page to files."""
    run = record.subject.run
    digests = {
        "Tuned weights before": run.tuned,
        "Tuned weights after": record.subject.result.tuned,
        "Weights before fine-tuning": run.anchor,
        "Data of the fine-tuning": run.data,
        "Ids asked for": record.request.ids_digest,
    }
    return [Fact(name, digest, code=True) for name, digest in digests.items()]


def data_uris(pictures: Sequence[bytes]) -> list[str]:
    """PNG files as addresses that hold them; what is no PNG file is refused."""
    wrong = [number for number, data in enumerate(pictures) if not data.startswith(b"\x89PNG\r\n\x1a\n")]
    if wrong:
        raise InputError(f"Picture {wrong[0] + 1} of {len(pictures)} is not a PNG file.")
    return ["data:image/png;base64," + base64.b64encode(data).decode("ascii") for data in pictures]


def definitions(record: AuditRecord) -> list[Definitions]:
    """All definitions of the record, grouped by the first part of their keys."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, entry in record.definitions.items():
        remark = "; ".join(([f"unit: {entry.unit}"] if entry.unit else []) + [f"better: {entry.better}"])
        groups.setdefault(key.partition(".")[0], []).append((clean(entry.title), clean(entry.definition), remark))
    return [
        Definitions(key, f"define-{number}", plain(key).capitalize(), tuple(entries))
        for number, (key, entries) in enumerate(groups.items())
    ]


def _checks(details: JsonObject) -> list[Fact]:
    """What the method said about its own step, and what else may remember."""
    facts = []
    validity = details.get("validity")
    if isinstance(validity, Mapping) and validity.get("verdict"):
        facts.append(Fact("The method’s own check", value(validity["verdict"]), value(validity.get("reasons") or [])))
    names = details.get("left")
    if isinstance(names, Sequence) and not isinstance(names, str):
        start = f"{len(details.get('moved') or [])} tensors moved"
        rest = f"{len(names)} were left where the forgotten samples helped to put them" if names else "none was left"
        facts.append(Fact("Tuned parameters", f"{start}, {rest}", value(list(names[:4]) + (["…"] if len(names) > 4 else []))))
    outside = details.get("outside_subset")
    if isinstance(outside, Mapping) and outside.get("message"):
        facts.append(Fact("All other weights", value(outside["message"])))
    if details.get("batch_norm_statistics") is not None:
        facts.append(Fact("BatchNorm statistics", value(details["batch_norm_statistics"])))
    return facts


def _reference(record: AuditRecord) -> tuple[str, str]:
    reference = record.reference
    if not reference.made:
        how = "the run has no recipe to repeat: it takes a training function of your own (--retrain-with MODULE:FUNCTION)"
        return "nothing: Retrain was not made", how if record.subject.recipe is None else ""
    others = reference.other_seeds
    more = f"and {len(others)} more of other seeds ({join([str(seed) for seed in others])})" if others else ""
    seed = "" if reference.seed is None else f", seed {reference.seed}"
    maker = known(reference.made_by)
    by = "" if maker is None else f" by {clean(maker)}"
    return f"Retrain: fine-tuned anew without the forgotten samples{by}{seed}", more


def _classes(request: RequestSummary, lead: str) -> str:
    names = request.whole_classes
    texts = [f"“{clean(name, most=30)}”" for name in names[:4]] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return f"{lead}{join(texts)}" if names else ""


def _beside(texts: Mapping[str, str]) -> str:
    """The figures to compare with: before 99.0 %, Retrain 0.0 %."""
    return ", ".join(f"{model_name(model).lower() if model == 'full' else model_name(model)} {texts[model]}"
                     for model in ("full", "retrain") if model in texts)  # fmt: skip
