"""Placeholder."""

from __future__ import annotations
from typing import Any, Literal

EnsembleKind = Literal["real", "tangent"]


def ensemble_figures(run: Any, result: Any, **k: Any) -> dict[str, Any]:
    raise NotImplementedError
