"""Evidence on an unlearned model: what it predicts, how it compares with Retrain, what an attacker can tell.

Names are loaded when they are first used: the record and its readers need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastntk.base.lazy import lazy_names

if TYPE_CHECKING:
    from fastntk.auditing.api import audit
    from fastntk.auditing.distances import agreement, jensen_shannon, tug_of_war, weight_distance
    from fastntk.auditing.metrics import accuracy, margins, mean_loss, recovered, total_variation
    from fastntk.auditing.predictions import PredictionCache
    from fastntk.auditing.reading import parse_record
    from fastntk.auditing.record import AuditRecord, schema, to_dict
    from fastntk.auditing.relearning import Relearned, relearn

__all__ = [
    "AuditRecord",
    "PredictionCache",
    "Relearned",
    "accuracy",
    "agreement",
    "audit",
    "jensen_shannon",
    "margins",
    "mean_loss",
    "parse_record",
    "recovered",
    "relearn",
    "schema",
    "to_dict",
    "total_variation",
    "tug_of_war",
    "weight_distance",
]

_HOMES = {
    "AuditRecord": "record",
    "PredictionCache": "predictions",
    "accuracy": "metrics",
    "agreement": "distances",
    "audit": "api",
    "jensen_shannon": "distances",
    "margins": "metrics",
    "mean_loss": "metrics",
    "parse_record": "reading",
    "recovered": "metrics",
    "Relearned": "relearning",
    "relearn": "relearning",
    "schema": "record",
    "to_dict": "record",
    "total_variation": "metrics",
    "tug_of_war": "distances",
    "weight_distance": "distances",
}


__getattr__ = lazy_names(__name__, _HOMES)
