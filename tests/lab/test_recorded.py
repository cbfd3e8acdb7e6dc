"""The experiment with recorded loops, on a tiny one: records are made once, and what must be exact is."""

from __future__ import annotations

import json
from pathlib import Path

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
    return Bench("a head alone", known, samples(20), {"head": WHOLE["head"]}, train)


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


def test_requests_name_a_class_a_tenth_and_single_images() -> None:
    labels: Tensor = torch.arange(40) % 4
    found = recorded.requests(fastntk.Samples(torch.zeros(40, 1), labels))
    assert found["class-0"] == list(range(0, 40, 4))
    assert len(found["random-10pct"]) == 4
    assert [found[f"image-{k}"] for k in range(5)] == [[4], [12], [20], [28], [36]]
