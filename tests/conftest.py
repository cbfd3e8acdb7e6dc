"""Fixtures used across the tests: where the real data lies, and quiet, repeatable torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SHARED = Path(os.environ.get("FASTNTK_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Return the path of a file of ../shared, or skip the test with the reason."""

    def find(relative: str) -> Path:
        path = SHARED / relative
        if not path.exists():
            pytest.skip(f"needs {path}, which is not on this machine (set FASTNTK_SHARED)")
        return path

    return find


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
