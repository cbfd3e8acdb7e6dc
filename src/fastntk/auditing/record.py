"""The audit record: what ``fastntk audit`` writes and every reader reads, as frozen dataclasses with their constraints.

Parser, JSON Schema and JSON all come from these types (:mod:`fastntk.auditing.reading`, :func:`schema`, :func:`to_dict`); nothing
else says what a record looks like. Fractions are 0…1, losses and divergences are in nats, digests are SHA-256. A field that may
be left out is ``UNSET`` where it is; null means that a figure was tried and is no number. No torch here, and no figures computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fastntk.auditing.record_figures import (
    Accuracies,
    ByModel,
    Distances,
    Flow,
    Losses,
    LossHistogram,
    Membership,
    Numbers,
    Probes,
    RelearningByModel,
)
from fastntk.base.schema import Count, Fraction, JsonObject, Moment, Sha256, check_moment, parse
from fastntk.unlearning.details import Details

SCHEMA: Literal["fastntk-audit/1"] = "fastntk-audit/1"
SEAL = "record_sha256"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

Sentences = Annotated[tuple[str, ...], Meta(min_length=1)]
Level = Literal["like retrain", "differs from retrain", "memory left", "not to be trusted", "cannot be told", "no reference"]
Better = Literal["like retrain", "lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class RunDigests:
    """Digests of the run: its ``data``, its ``tuned`` vector, and the ``anchor`` it was fine-tuned from."""

    data: Sha256
    tuned: Sha256
    anchor: Sha256


@dataclass(frozen=True, kw_only=True)
class ResultDigests:
    """Digest of the ``tuned`` vector after unlearning."""

    tuned: Sha256


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which model, data, run and result the record is about.

    ``model``, ``weights``: the architecture and the pre-trained weights by name. ``tuned`` of ``parameters`` parameters may
    change, which is ``tuned_share``. ``classes``: names by label. ``samples``, ``holdout``: how many were trained on, and how
    many were not. ``recipe``: of the fine-tuning. ``method``, ``options``: of unlearning.
    """

    model: str
    weights: str | None
    tuned: Count
    tuned_share: Fraction
    parameters: Count
    classes: tuple[str, ...]
    samples: Count
    holdout: Count
    run: RunDigests
    result: ResultDigests
    recipe: JsonObject | None
    method: str
    options: JsonObject


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """The request: how many samples to ``forget`` and to ``retain``, classes that go entirely, a digest of the ids."""

    forget: Count
    retain: Count
    whole_classes: tuple[str, ...]
    ids_digest: Sha256


@dataclass(frozen=True, kw_only=True)
class ReferenceSummary:
    """Whether there is a Retrain, its ``seed`` (the run's own), and the seeds of further Retrains.

    Where not the run's recipe made them: ``made_by``, the training function, and ``changed_outside``, how many tensors outside
    the tuned ones Retrain has otherwise than the run.
    """

    made: bool
    seed: Count | None
    other_seeds: tuple[Count, ...]
    made_by: str | UnsetType = UNSET
    changed_outside: Count | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Outside:
    """The run's weights outside the tuned subset, which unlearning does not reach: are they those from before the training?

    ``count``: how many tensors were trained, or are unknown. ``accepted``: why the audit's owner goes on all the same.
    """

    status: Literal["none", "pre-trained", "differ", "unknown"]
    message: str
    count: Count = 0
    accepted: str | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class SampleEntry(ByModel[str]):
    """A forgotten sample in records of older releases; none is written any more, and no page shows one."""

    digest: Sha256
    label: str
    loss: Numbers


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and memory of unlearning, beside the seconds of Retrain and of this audit.

    ``stages``: seconds by stage. ``rows_made_before``: Jacobian rows were handed in, so that no stage counts them.
    """

    seconds: float
    retrain_seconds: float | None
    ratio_to_retrain: float | None
    peak_memory_bytes: Count | None
    stages: JsonObject
    audit_seconds: float
    rows_made_before: bool | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a figure is called, means, should be, and is measured in."""

    title: str
    definition: str
    better: Better
    unit: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A level, sentences on what was done and seen, why it is that level, and the number of the rules (not in older records)."""

    level: Level
    text: Sentences
    reasons: tuple[str, ...]
    rules: Count | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A condition on the audit, both its sides (null: not computed, or infinite), whether it holds, and a remark."""

    text: str
    left: float | None
    right: float | None
    passed: bool
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Everything that was measured: a record before it is judged. Fields as in :class:`AuditRecord`."""

    schema: Literal["fastntk-audit/1"]
    created: Moment
    fastntk: str
    environment: JsonObject
    subject: Subject
    request: RequestSummary
    details: JsonObject
    reference: ReferenceSummary
    accuracy: Accuracies
    loss: Losses
    relearn: RelearningByModel
    membership: Membership
    flow: Flow
    loss_histogram: LossHistogram
    cost: Cost
    definitions: dict[str, Definition]
    samples: tuple[SampleEntry, ...] | UnsetType = UNSET
    probes: Probes | UnsetType = UNSET
    distances: Distances | UnsetType = UNSET
    outside: Outside | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_moment(self.created)
        parse(self.details, Details, what="details")
        if self.reference.made and self.distances is UNSET:
            raise ValueError("the record has no field `distances`, though a Retrain was made")


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Measurements):
    """Written by `fastntk audit` and returned by fastntk.audit. Fractions are 0…1; what was not computed is absent or null.

    ``schema``, ``created``, ``fastntk``, ``environment``: the format, the time (ISO 8601), the release and what it ran on.
    ``subject``, ``request``, ``details``: the model, the request, and what the method said of itself. ``reference``: the
    Retrains. ``accuracy`` … ``cost``: figures, explained by ``definitions`` and in docs/metrics.md. ``verdict``,
    ``requirements``: the judgement. ``limits``: what the record does not show. ``record_sha256``: the digest of all the rest,
    which older releases did not write. Nothing in it is about a single sample. ``outside``: the weights that unlearning does not
    reach.
    """

    verdict: Verdict
    requirements: tuple[Requirement, ...]
    limits: Sentences
    record_sha256: Sha256 | UnsetType = UNSET


def to_dict(record: Any) -> dict[str, Any]:
    """A record, or a part of one, as plain JSON: dictionaries, lists, strings, finite numbers, true, false and null."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return plain


def record_digest(record: AuditRecord | Mapping[str, Any]) -> str:
    """SHA-256 of a record's content but for its seal: JSON with sorted keys and no spaces, so that formatting does not matter."""
    content = to_dict(record) if isinstance(record, AuditRecord) else record
    rest = {name: value for name, value in content.items() if name != SEAL}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A record's content with its own digest in it. That finds accidents and edits, not forgers, who can seal again."""
    return {**content, SEAL: record_digest(content)}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a record, generated from :class:`AuditRecord`."""
    parts = msgspec.json.schema(AuditRecord)["$defs"]
    record = parts.pop(AuditRecord.__name__)
    with_retrain = {"properties": {"reference": {"properties": {"made": {"const": True}}}}}
    return {
        "$schema": DRAFT,
        "$id": SCHEMA.replace("/", "-"),
        **record,
        "title": "Audit of an unlearned model",
        "if": with_retrain,
        "then": {"required": ["distances"]},
        "$defs": parts,
    }
