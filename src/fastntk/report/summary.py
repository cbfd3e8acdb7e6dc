"""The first screen and the paperwork: verdict, key figures, what was asked and done, definitions, the forgotten samples."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastntk.base.errors import InputError
from fastntk.report.blocks import Fact
from fastntk.report.evidence_plots import epochs
from fastntk.report.words import MODELS, clean, date, figure, join, model_name, percent, plain, samples, value, whole

HEADLINES = {
    "like retrain": ("good", "✓", "The model now answers like one that never saw this data."),
    "differs from retrain": ("warn", "!", "The model answers differently from one that never saw this data."),
    "memory left": ("bad", "✗", "The model still shows memory of this data."),
    "not to be trusted": ("bad", "✗", "This result is not to be trusted: retrain instead."),
    "no reference": ("open", "?", "Undecided: there was no model without this data to compare with."),
}
METHODS = {
    "fast-ntk": "one computed step of the tuned weights, from a linear model of the network",
    "tangent-replay": "the fine-tuning replayed without the forgotten samples, on a linear model of the network",
    "retrain": "fine-tuned again from the start without the forgotten samples",
    "full": "nothing was done: the model as it was",
}


@dataclass(frozen=True)
class Sample:
    """A forgotten sample: the digest of its id, its label, the answers (answer, loss) by model, and maybe its picture."""

    digest: str
    label: str
    answers: tuple[tuple[str, str], ...]
    same: str
    picture: str


@dataclass(frozen=True)
class Definitions:
    """Definitions of one kind of figure, the ``key`` of the record: an anchor, a heading, and (title, words, remark) each."""

    key: str
    anchor: str
    title: str
    entries: tuple[tuple[str, str, str], ...]


def tiles(record: Mapping[str, Any]) -> list[Fact]:
    """The figures for the first screen: what was asked, three comparisons, the requirements."""
    request = record["request"]
    total = request["forget"] + request["retain"]
    found = [Fact("Asked to forget", samples(request["forget"]), f"of {whole(total)}{_classes(request, ': class ')}")]
    for group, name in (("forget", "Forgotten, answered right"), ("holdout", "Never seen, answered right")):
        figures = record["accuracy"].get(group) or {}
        if figures.get("unlearned") is not None:
            found.append(Fact(name, percent(figures["unlearned"]), _beside({m: percent(v) for m, v in figures.items()})))
    relearned = {model: found for model, found in (record.get("relearn") or {}).items() if found}
    if "unlearned" in relearned:
        shown = {model: epochs(found) for model, found in relearned.items()}
        found.append(Fact("Epochs to relearn them", shown["unlearned"].capitalize(), _beside(shown)))
    required = record.get("requirements") or []
    if required:
        passed = sum(each["passed"] for each in required)
        found.append(Fact("Requirements passed", f"{passed} of {len(required)}", "stated for this audit"))
    return found


def asked_and_done(record: Mapping[str, Any]) -> list[Fact]:
    """What was asked, what was done, to which checkpoint, when and by what."""
    subject, request, details = record["subject"], record["request"], record.get("details") or {}
    total = request["forget"] + request["retain"]
    share = percent(request["forget"] / total, 1) if total else ""
    facts = [
        Fact("Asked", f"Forget {samples(request['forget'])} of {whole(total)} ({share})", _classes(request, "All of class ")),
        Fact("Method", subject["method"], METHODS.get(subject["method"], "")),
    ]
    if subject.get("options"):
        facts.append(Fact("Options", value(subject["options"])))
    facts.append(Fact("Model", clean(subject["model"]), f"pre-trained weights: {value(subject.get('weights'))}"))
    if subject.get("tuned") is not None:
        parts = f"{whole(subject['tuned'])} of {whole(subject.get('parameters'))} parameters"
        facts.append(Fact("Tuned, and so changed", parts, f"{percent(subject.get('tuned_share'), 2)} of the model"))
    facts += _checks(details)
    facts.append(Fact("Compared with", *_reference(record)))
    if subject.get("holdout") is not None:
        facts.append(Fact("Never-seen samples", samples(subject["holdout"])))
    if subject.get("recipe"):
        facts.append(Fact("Fine-tuned with", value(subject["recipe"])))
    facts.append(Fact("Audited", date(record.get("created")), f"fastntk {record.get('fastntk') or 'of unknown version'}"))
    if record.get("environment"):
        facts.append(Fact("On", value(record["environment"])))
    return facts


def checkpoints(record: Mapping[str, Any]) -> list[Fact]:
    """The SHA-256 digests that tie this page to files."""
    subject, request = record["subject"], record["request"]
    run, result = subject.get("run") or {}, subject.get("result") or {}
    named = {
        "Tuned weights before": run.get("tuned"),
        "Tuned weights after": result.get("tuned"),
        "Weights before fine-tuning": run.get("anchor"),
        "Data of the fine-tuning": run.get("data"),
        "Ids asked for": request.get("ids_digest"),
    }
    return [Fact(name, digest, code=True) for name, digest in named.items() if digest]


def forgotten(record: Mapping[str, Any], pictures: Mapping[str, bytes] | None = None) -> tuple[list[str], list[Sample]]:
    """The models with answers, and the forgotten samples; pictures are PNG bytes by digest."""
    entries = record.get("samples") or []
    models = [model for model in MODELS if any(entry.get(model) is not None for entry in entries)]
    found = []
    for entry in entries:
        loss = entry.get("loss") or {}
        answers = tuple((clean(str(entry.get(model) or "–")), figure(loss.get(model))) for model in models)
        now, reference = entry.get("unlearned"), entry.get("retrain")
        same = "" if now is None or reference is None else "yes" if now == reference else "no"
        found.append(
            Sample(entry["digest"], clean(entry.get("label") or "–"), answers, same, _data_uri(pictures, entry["digest"]))
        )
    return models, found


def check_pictures(record: Mapping[str, Any], pictures: Mapping[str, bytes]) -> None:
    """Refuse pictures that belong to no sample of the record, or are no PNG files."""
    known = {entry["digest"] for entry in record.get("samples") or []}
    strangers = [digest for digest in pictures if digest not in known]
    if strangers:
        raise InputError(f"{len(strangers)} of {len(pictures)} pictures belong to no forgotten sample of this record.")
    wrong = [digest for digest, data in pictures.items() if not data.startswith(b"\x89PNG\r\n\x1a\n")]
    if wrong:
        raise InputError(f"The picture of sample {wrong[0][:12]}… is not a PNG file.")


def definitions(record: Mapping[str, Any]) -> list[Definitions]:
    """All definitions of the record, grouped by the first part of their keys."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, entry in (record.get("definitions") or {}).items():
        remark = "; ".join(
            part
            for part in (
                f"unit: {entry['unit']}" if entry.get("unit") else "",
                f"better: {entry['better']}" if entry.get("better") else "",
            )
            if part
        )
        groups.setdefault(key.partition(".")[0], []).append((clean(entry["title"]), clean(entry["definition"]), remark))
    return [
        Definitions(key, f"define-{number}", plain(key).capitalize(), tuple(entries))
        for number, (key, entries) in enumerate(groups.items())
    ]


def _checks(details: Mapping[str, Any]) -> list[Fact]:
    """What the method said about its own step, and what else may remember."""
    facts = []
    validity = details.get("validity")
    if isinstance(validity, Mapping) and validity.get("verdict"):
        facts.append(Fact("The method’s own check", value(validity["verdict"]), value(validity.get("reasons") or [])))
    outside = details.get("outside_subset")
    if isinstance(outside, Mapping) and outside.get("message"):
        facts.append(Fact("All other weights", value(outside["message"])))
    if details.get("batch_norm_statistics") is not None:
        facts.append(Fact("BatchNorm statistics", value(details["batch_norm_statistics"])))
    return facts


def _reference(record: Mapping[str, Any]) -> tuple[str, str]:
    reference = record.get("reference") or {}
    if not reference.get("made"):
        return "nothing: Retrain was not made", ""
    others = reference.get("other_seeds") or []
    more = f"and {len(others)} more of other seeds ({join([str(seed) for seed in others])})" if others else ""
    seed = "" if reference.get("seed") is None else f", seed {reference['seed']}"
    return f"Retrain: fine-tuned anew without the forgotten samples{seed}", more


def _classes(request: Mapping[str, Any], lead: str) -> str:
    names = request.get("whole_classes") or []
    shown = [f"“{clean(name, most=30)}”" for name in names[:4]] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return f"{lead}{join(shown)}" if names else ""


def _beside(shown: Mapping[str, str]) -> str:
    """The figures to compare with: before 99.0 %, Retrain 0.0 %."""
    return ", ".join(f"{model_name(model).lower() if model == 'full' else model_name(model)} {shown[model]}"
                     for model in ("full", "retrain") if model in shown)  # fmt: skip


def _data_uri(pictures: Mapping[str, bytes] | None, digest: str) -> str:
    if not pictures or digest not in pictures:
        return ""
    return "data:image/png;base64," + base64.b64encode(pictures[digest]).decode("ascii")
