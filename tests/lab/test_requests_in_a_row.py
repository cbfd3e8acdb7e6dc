"""Requests in a row on a few digits: the parts, both ways at each step, resuming, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.chain_page import chain_text
from lab.settings import CHAIN, PATH
from tiny_cells import TINY as BASE

from fastntk import unlearn
from fastntk.auditing import total_variation
from fastntk.base.errors import InputError
from fastntk.reproduce import Request
from fastntk.reproduce.experiment import open_experiment
from fastntk.training.network import predict
from lab import chain

TINY = replace(
    BASE,
    images_per_class=10,
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100, 101),
    methods=(),
    probes=False,
)
PARTS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records of one seed, and the models they were made from."""
    out, work = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("work")
    run(out, work, seeds=[100])
    return out, work


def run(out: Path, work: Path, **options: Any) -> list[str]:
    said: list[str] = []
    chain.run(TINY, out=out, work=work, shared=Path("nowhere"), requests=PARTS, **options, say=said.append)
    return said


def read(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "path/chain/seed100.json").read_text())
    return record


def test_parts_are_disjoint_equal_and_always_the_same() -> None:
    ids = [f"image-{number}" for number in range(12)]
    parts = chain.parts_of(ids, 4)
    assert sorted(each for part in parts for each in part) == sorted(ids)
    assert [len(part) for part in parts] == [3, 3, 3, 3]
    assert parts == chain.parts_of(ids, 4)
    assert parts[0] != ids[:3]
    with pytest.raises(InputError, match="12 samples cannot be asked for in 5 requests"):
        chain.parts_of(ids, 5)


@pytest.mark.parametrize("label", ["head", "all"])
def test_each_step_holds_both_ways_against_each_other(made: tuple[Path, Path], label: str) -> None:
    out, work = made
    entry = read(out)["depths"][label]
    steps = entry["steps"]
    assert [(step["requests"], step["gone"]) for step in steps] == [(1, 2), (2, 4), (3, 6)]
    assert [step["chain"]["requests"] for step in steps] == [1, 2, 3]
    assert steps[0]["apart"] == pytest.approx({"forget": 0.0, "holdout": 0.0}, abs=1e-6)
    assert all(step["moved"]["forget"] > 1e-4 for step in steps)
    experiment = open_experiment(TINY, shared=Path("nowhere"), work=work)
    parts = chain.parts_of(TINY.requests[1].ids(experiment.samples), PARTS)
    options = {"method": "path-replay", **chain.DEPTHS[label]}
    first = unlearn(experiment.run(100, traced=True), ids=parts[0], **options)
    second = unlearn(first.as_run(), ids=parts[1], **options)
    once = unlearn(experiment.run(100, traced=True), ids=[*parts[0], *parts[1]], **options)
    chances = [predict(each.model, experiment.holdout.inputs).softmax(1) for each in (second, once)]
    assert steps[1]["apart"]["holdout"] == pytest.approx(total_variation(*chances), abs=1e-6)
    place = {name: position for position, name in enumerate(experiment.samples.ids)}
    gone = experiment.samples.inputs[[place[name] for name in parts[0] + parts[1]]]
    chances = [predict(each.model, gone).softmax(1) for each in (second, once)]
    assert steps[1]["apart"]["forget"] == pytest.approx(total_variation(*chances), abs=1e-6)


def test_the_end_is_held_against_the_retrain_without_all_parts(made: tuple[Path, Path]) -> None:
    out, work = made
    experiment = open_experiment(TINY, shared=Path("nowhere"), work=work)
    retrain = experiment.model_with(experiment.retrained(TINY.requests[1], 100).vector)
    full = experiment.model_with(experiment.fitted(100).vector)
    chances = [predict(model, experiment.holdout.inputs).softmax(1) for model in (full, retrain)]
    end = read(out)["depths"]["all"]["end"]
    assert end["full"]["same"]["holdout"] == pytest.approx(total_variation(*chances), abs=1e-6)
    assert not torch.equal(*chances)
    assert end["chained"]["same"] != end["one_shot"]["same"]
    assert end["one_shot"]["same"]["forget"] < end["full"]["same"]["forget"]


def test_depths_resume_one_by_one(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, work = made
    with monkeypatch.context() as patch:
        patch.setattr(chain, "DEPTHS", {"head": chain.DEPTHS["head"]})
        run(tmp_path, work, seeds=[100])
    before = read(tmp_path)["depths"]
    assert list(before) == ["head"]
    assert run(tmp_path, work, seeds=[100], only_plan=True)[0].startswith("chain on tiny: 1 of 2 depths to do")
    run(tmp_path, work, seeds=[100])
    assert read(tmp_path)["depths"]["head"] == before["head"]
    assert run(tmp_path, work, seeds=[100]) == ["chain on tiny: 0 of 2 depths to do (0 stale); about 0 min (rough)"]
    with pytest.raises(InputError, match=r"no seeds \[7\]: choose from \[100, 101\]"):
        run(tmp_path, work, seeds=[7])


def test_the_page_says_where_errors_add_up_and_what_was_not_run(made: tuple[Path, Path], tmp_path: Path) -> None:
    nothing = chain_text(TINY, out=tmp_path)
    assert nothing.count("Not run (`python -m lab run chain`).") == 2
    assert nothing.count("| not run | not run | not run | not run |") == 6
    text = chain_text(TINY, out=made[0])
    assert text == chain_text(TINY, out=made[0])
    assert "not run |" not in text
    record = read(made[0])
    del record["record_sha256"]
    step = record["depths"]["all"]["steps"][1]
    step["validity"]["chained"]["verdict"] = "retrain instead"
    target = tmp_path / "path/chain/seed100.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(record))
    changed = chain_text(TINY, out=tmp_path)
    assert 'The result says "retrain instead": from request 2 on seed 100.' in changed
    line = next(line for line in changed.split("### Depth `all`")[1].splitlines() if line.startswith("| 2 | 4 | 1 |"))
    assert f"| {step['apart']['forget']:.4f} / {step['apart']['holdout']:.4f} |" in line
    assert "| 1 of 1 |" in line


def test_the_chain_runs_on_a_setting_of_the_path_experiment() -> None:
    assert CHAIN[0] in PATH
    assert chain.random_request(CHAIN[0]).value == 0.1
