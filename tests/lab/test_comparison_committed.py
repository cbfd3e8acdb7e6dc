"""The committed page and figure of the comparison."""

from __future__ import annotations

from pathlib import Path

from committed import ROOT, committed
from lab.comparison import comparison
from lab.comparison_figure import comparison_figure
from lab.comparison_page import comparison_page


def test_committed_documents_are_what_the_records_give(tmp_path: Path) -> None:
    """`make tables` again, byte for byte."""
    results = committed(tmp_path)
    settings = comparison(results)
    assert comparison_page(settings, out=results) == (ROOT / "docs" / "comparison.md").read_text("utf-8")
    assert comparison_figure(settings, out=results) == (ROOT / "docs" / "comparison.svg").read_bytes()
