"""What a method says of itself in ``Unlearned.details``, as far as others read it. No torch here: reports read it too."""

from __future__ import annotations

from typing import Required, TypedDict

from fastntk.base.schema import Count, JsonObject


class Validity(TypedDict, total=False):
    """A method's check of its own step."""

    verdict: Required[str]
    reasons: list[str]


class Outside(TypedDict, total=False):
    """What is known of the weights outside the tuned subset."""

    status: str
    message: str


class Details(TypedDict, total=False):
    """What a method says of itself, as far as others read it: results are loaded, and audits made, from files."""

    method: str
    summary: str
    options: JsonObject
    seed: Count
    seconds: dict[str, float]
    peak_memory_bytes: Count | None
    rows_reused: bool
    moved: list[str]
    left: list[str]
    validity: Validity
    outside_subset: Outside
    batch_norm_statistics: str | None
