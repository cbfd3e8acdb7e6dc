"""``lab`` stands beside the package, not in it; its tests borrow the tiny cells of ``tests/reproduce``."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "reproduce")]
