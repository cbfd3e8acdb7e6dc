"""The quick regression cases against values of the code before the house was rebuilt, and the comparison itself."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / "tools"
FILE = Path(__file__).with_name("expected.json")
TOLERANCE = 1e-6
"""Of float64 values: machines round differently, and nothing here enlarges that a millionfold."""
COMMITTED: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def tool(name: str) -> ModuleType:
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_file_and_the_cases_agree() -> None:
    assert list(tool("regression_cases").quick_cases()) == list(COMMITTED["cases"])
    assert len(COMMITTED["commit"]) == 40, "made from a commit, without changes"


@pytest.mark.parametrize("name", COMMITTED["cases"])
def test_a_case_gives_what_it_gave(name: str) -> None:
    regression = tool("regression")
    outcome = tool("regression_cases").quick_cases()[name]()
    present = regression.recorded(outcome)
    present["figures"] = regression.committed(present["figures"])
    judged = regression.judge(name, COMMITTED["cases"][name], present, tolerance=TOLERANCE)
    assert judged["status"] in ("identical", "rounding", "expected"), judged


def record(values: list[float], **figures: Any) -> dict[str, Any]:
    outcome = tool("regression_cases").Outcome({"delta": torch.tensor(values, dtype=torch.float64)}, figures)
    encoded: dict[str, Any] = tool("regression").recorded(outcome)
    return encoded


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (record([1.0, 2.0], loss=0.5), record([1.0, 2.0], loss=0.5), "identical"),
        (record([1.0, 2.0], loss=0.5), record([1.0, 2.0], loss=0.5, more=1), "identical"),
        (record([1.0, 2.0], note="old words"), record([1.0, 2.0], note="new words"), "identical"),
        (record([1.0, 2.0]), record([1.0, 2.0 + 1e-8]), "rounding"),
        (record([1.0, 2.0]), record([1.0, 2.0 + 1e-15]), "rounding"),
        (record([1.0, 2.0]), record([1.0, 2.1]), "different"),
        (record([1.0, 2.0]), record([1.0, float("nan")]), "different"),
        (record([1.0, 2.0]), record([1.0]), "different"),
        (record([1.0], loss=0.5), record([1.0], loss=0.6), "different"),
        (record([1.0], loss=0.5), record([1.0]), "different"),
        (record([1.0], digest="a" * 64), record([1.0], digest="b" * 64), "different"),
        (record([1.0], tuned="a" * 64), record([1.0], tuned="b" * 64), "rounding"),
        (record([1.0], solve={"iterations": 7}), record([1.0], solve={"iterations": 9}), "rounding"),
        (record([1.0], met=True), record([1.0], met=False), "different"),
        (record([1.0]), None, "missing"),
        (None, record([1.0]), "new"),
        (record([1.0]), {"error": "ValueError: no"}, "fails"),
        ({"error": "ValueError: no"}, {"error": "ValueError: no"}, "fails"),
    ],
)
def test_the_comparison_tells_what_differs(before: Any, after: Any, status: str) -> None:
    assert tool("regression").judge("case", before, after)["status"] == status


def test_a_difference_that_is_meant_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    regression = tool("regression")
    monkeypatch.setattr(regression, "EXPECTED", (regression.Expected("case*", "figures/loss", "a new definition"),))
    judged = regression.judge("case one", record([1.0], loss=0.5), record([1.0], loss=0.7))
    assert judged["status"] == "expected"
    assert judged["meant"] == {"figures/loss": "a new definition"}
    assert regression.judge("case one", record([1.0], loss=0.5), record([2.0], loss=0.7))["status"] == "different"
