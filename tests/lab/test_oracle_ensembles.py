"""The comparison of both kinds of ensembles in docs/metrics.md is what its record gives."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.oracle_ensembles import section

ROOT = Path(__file__).parents[2]


def test_the_section_is_that_of_the_record() -> None:
    record = json.loads((ROOT / "results" / "bench" / "oracle_ensembles.json").read_text("utf-8"))
    assert section(record) in (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert "–" not in section(record)
