"""The experiment with recorded loops, on a tiny one: records are made once, and what must be exact is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.own_loop import LoopOptions
from lab.recorded_loops import LOOPS, WHOLE, Bench, _in_own_loop
from lab.recorded_page import COLUMNS, recorded_page
from torch import Tensor, nn

import fastntk
from lab import recorded


def bench(shared: Path) -> Bench:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int) -> fastntk.Samples:
        return fastntk.Samples(torch.randn(count, 2, 6, 6, generator=generator), torch.arange(count) % 3)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))

    known = samples(30)
    options = LoopOptions(epochs=2, batch_size=8, pad=1, dropout=0.2)
    train = _in_own_loop(make, "3.*", known, options)
    return Bench("a head alone", known, samples(20), {"head": WHOLE["head"]}, train, options, "digits")


def test_where_the_head_alone_is_tuned_a_replay_is_retrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOOPS, "tiny", bench)
    said: list[str] = []
    folders = {"out": tmp_path / "out", "work": tmp_path / "work", "shared": tmp_path}
    path = recorded.run("tiny", **folders, say=said.append)
    record = json.loads(path.read_text())
    assert set(record["requests"]) == {"class-0", "random-10pct", *(f"image-{k}" for k in range(5))}
    for request in record["requests"].values():
        rows = request["rows"]
        assert set(rows) == {"Full", "head", "Retrain"}
        assert all(value == 0 for place in ("forget", "holdout") for value in rows["Retrain"]["same"][place])
        assert all(value < 1e-4 for place in ("forget", "holdout") for value in rows["head"]["same"][place])
        assert rows["head"]["recovered"] == pytest.approx([1.0] * 3, abs=1e-3)
        assert min(rows["Full"]["same"]["forget"]) > 1e-3
        others = [sum(rows["Retrain"]["others"][place]) / 6 for place in ("forget", "holdout")]
        assert others == pytest.approx([1.0, 1.0])
    before, calls = path.read_bytes(), len(said)
    recorded.run("tiny", **folders, say=said.append)
    assert len(said) == calls + 1  # nothing was trained again
    assert json.loads(before)["requests"] == json.loads(path.read_bytes())["requests"]
    page = recorded_page(tmp_path / "out")
    assert "## own-loop\n\nNot run." in page
    table = page.split("## tiny: a head alone")[1]
    assert table.count("\n| ") == 2 + 3
    assert table.splitlines()[4].count("|") == len(COLUMNS) + 1


def test_a_kept_model_of_another_question_or_another_loop_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def asked(known: Bench, *, keep_stale: bool = False) -> bool:
        """Whether Retrain was trained, rather than read."""
        monkeypatch.setitem(LOOPS, "tiny", lambda shared: known)
        said.clear()
        recorded.Recorded("tiny", shared=tmp_path, work=tmp_path, say=said.append, keep_stale=keep_stale).retrain("image-0", 0)
        return bool(said)

    first = bench(tmp_path)
    assert asked(first)
    assert not asked(first)
    others = (
        replace(first, options=replace(first.options, lr=0.1)),
        replace(first, origin="others"),
        replace(first, holdout=first.holdout.subset(range(10))),
    )
    for other in others:
        assert asked(other, keep_stale=True)
        assert asked(first)
    with monkeypatch.context() as patch:
        patch.setattr(recorded, "source_digest", lambda text: "an edited loop")
        assert not asked(first, keep_stale=True)
        assert asked(first)


def test_a_next_request_after_an_interruption_follows_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOOPS, "tiny", bench)
    folders = {"shared": tmp_path, "work": tmp_path}
    before = recorded.Recorded("tiny", **folders, say=lambda text: None)
    before.row("head", "class-0", 0)
    sizes: list[int] = []

    def unlearn(*arguments: Any, **options: Any) -> Any:
        sizes.append(len(options["ids"]))
        return fastntk.unlearn(*arguments, **options)

    monkeypatch.setattr(recorded, "unlearn", unlearn)
    after = recorded.Recorded("tiny", **folders, say=lambda text: None)
    for request in after.requests:
        after.row("head", request, 0)
    assert sizes == [10, 3, 1, 1, 1, 1, 1], "class 0 once more, before the first one that was missing"


def test_requests_name_a_class_a_tenth_and_single_images() -> None:
    labels: Tensor = torch.arange(40) % 4
    found = recorded.requests(fastntk.Samples(torch.zeros(40, 1), labels))
    assert found["class-0"] == list(range(0, 40, 4))
    assert len(found["random-10pct"]) == 4
    assert [found[f"image-{k}"] for k in range(5)] == [[4], [12], [20], [28], [36]]
