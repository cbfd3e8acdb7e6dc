"""Which rows are nearest to Retrain: the least distance of every group, and the baselines that beat a depth."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.comparison import PATH_ROWS, comparison
from lab.comparison_nearest import Reached, head_text, nearest_text

from fastntk.reproduce.setting import MethodRow
from lab import comparison_nearest as module

ROWS = [
    Reached(2.0, 0.01, PATH_ROWS[0]),
    Reached(1.2, 0.4, MethodRow("path-replay, all", "path-replay")),
    Reached(1.1, 0.7, MethodRow("deltagrad", "deltagrad")),
    Reached(3.0, 0.2, MethodRow("neggrad+", "neggrad+")),
]


def test_the_nearest_of_every_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "reached", lambda setting, *, folder: ROWS)
    text = nearest_text(comparison(tmp_path)[0], folder=tmp_path)
    assert "of all that cost less than a Retrain `deltagrad` (1.10 ×, cost 0.70)" in text
    assert "below 0.5 of a Retrain `path-replay, all` (1.20 ×, cost 0.40)" in text
    assert "below 0.25 of a Retrain `path-replay, head` (2.00 ×, cost 0.010)" in text
    assert "of the baselines that need no record `neggrad+`" in text
    assert head_text(tmp_path).count("nearer: `deltagrad` (1.10 ×, cost 0.70).") == 2
    monkeypatch.setattr(module, "reached", lambda setting, *, folder: ROWS[:1])
    assert head_text(tmp_path).count("nearer: none.") == 2


def test_nothing_run_nothing_said(tmp_path: Path) -> None:
    assert nearest_text(comparison(tmp_path)[0], folder=tmp_path) == head_text(tmp_path) == ""
