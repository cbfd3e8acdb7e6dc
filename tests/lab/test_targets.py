"""Targets: what keeps its limit, what misses it, and what cannot be judged."""

from __future__ import annotations

import dataclasses

from lab.rows import Row
from lab.targets import TARGETS, check_cells

from fastntk.reproduce import MethodRow, Request
from fastntk.reproduce.summary import Figure

CLASS, RANDOM = Request("class", 0), Request("random", 0.1)


def row(**changes: object) -> Row:
    figure = Figure(1.0, None, 1)
    base = Row(
        method=MethodRow("tangent-replay", "tangent-replay"),
        seeds=(0,),
        wanted=1,
        accuracy=dict.fromkeys(("retain", "forget", "holdout"), figure),
        gap={"retain": 0.01, "forget": -0.01, "holdout": 0.0},
        relearn=figure,
        relearn_censored=0,
        relearn_ratio=1.1,
        cap=100,
        recovered=Figure(0.9, None, 1),
        same={"forget": Figure(0.02), "holdout": Figure(0.01)},
        others={"forget": Figure(0.01), "holdout": Figure(0.025)},
        spread={"forget": Figure(0.02), "holdout": Figure(0.02)},
        weight_distance=figure,
        seconds=figure,
        ratio_with_rows=figure,
        ratio_without_rows=figure,
        uses_rows=True,
        verdicts=(),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_limits_themselves_are_kept() -> None:
    cells = check_cells(row(), CLASS, TARGETS["tangent-replay"])
    assert cells == ["+1.00", "-1.00", "+0.00", "1.00×", "1.25×", "0.90", "1.10", "yes"]


def test_what_misses_is_bold_and_counted() -> None:
    missed = row(gap={"retain": 0.011, "forget": 0.015, "holdout": 0.0}, recovered=Figure(1.11, None, 1))
    cells = check_cells(missed, CLASS, TARGETS["tangent-replay"])
    assert cells[:2] == ["**+1.10**", "**+1.50**"]
    assert cells[5] == "**1.11**"
    assert cells[-1] == "4 of 7"
    assert check_cells(missed, RANDOM, TARGETS["tangent-replay"])[1] == "+1.50"


def test_censored_relearning_is_not_judged() -> None:
    cells = check_cells(row(relearn_ratio=None), CLASS, TARGETS["tangent-replay"])
    assert cells[-2:] == ["unknown", "yes"]


def test_fast_ntk_is_asked_less() -> None:
    far = row(gap={"retain": 0.02, "forget": 0.3, "holdout": 0.5}, others={"forget": Figure(0.1), "holdout": Figure(0.1)})
    assert check_cells(far, RANDOM, TARGETS["fast-ntk"])[-1] == "yes"
    assert check_cells(far, CLASS, TARGETS["fast-ntk"])[-1] == "2 of 3"
