"""Records that agree with their digest and hold no figures: found by the fuzzer (record-22 of seed 0)."""

from __future__ import annotations

from typing import Any

import pytest

from fastntk.base.errors import InputError
from fastntk.reproduce.summary import accuracy, distance, relearning


@pytest.mark.parametrize(
    "audit",
    [
        {"distances": {"same_seed": {"recovered": {"forget": 0.1}}}, "accuracy": [], "relearn": {"unlearned": {"epochs": 1}}},
        {"distances": "x", "accuracy": {"forget": {"unlearned": True}}, "relearn": {"unlearned": []}},
        {
            "distances": {"same_seed": 1},
            "accuracy": {"forget": {"unlearned": "1"}},
            "relearn": {"unlearned": {"epochs": None, "censored": False, "cap": 3}},
        },
    ],
)
def test_what_is_no_figure_is_refused(audit: Any) -> None:
    record = {"audit": audit}
    for read in (
        lambda: distance(record, "same_seed", "recovered"),
        lambda: accuracy(record, "forget"),
        lambda: relearning(record),
    ):
        with pytest.raises(InputError, match="of a record"):
            read()
    whole = {"accuracy": {"forget": {"unlearned": 1}}, "relearn": {"unlearned": {"epochs": 2, "censored": False, "cap": 3}}}
    assert accuracy({"audit": whole}, "forget") == 1
    assert relearning({"audit": whole}).epochs == 2  # type: ignore[union-attr]
