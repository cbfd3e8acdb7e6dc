"""Evidence on an unlearned model: how it answers, how it compares with Retrain, what an attacker can tell."""

from typing import Any

from fastntk import schemas
from fastntk.auditing.api import audit
from fastntk.auditing.distances import agreement, jensen_shannon, tug_of_war, weight_distance
from fastntk.auditing.metrics import accuracy, margins, mean_loss, recovered, total_variation
from fastntk.auditing.relearn import Relearned, relearn

__all__ = [
    "Relearned",
    "accuracy",
    "agreement",
    "audit",
    "jensen_shannon",
    "margins",
    "mean_loss",
    "recovered",
    "relearn",
    "schema",
    "total_variation",
    "tug_of_war",
    "weight_distance",
]


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the record that :func:`audit` returns."""
    return schemas.load("audit-1")
