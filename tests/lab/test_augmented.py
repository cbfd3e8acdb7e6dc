"""The loop of one's own and its experiment, on a few images: crops and flips, Retrain against the replay, records, the page."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.augmented import AUGMENTED, open_own, own_setting
from lab.own_loop import Draws, LoopOptions, own_fit
from lab.path_page import COLUMNS, path_page
from lab.settings import EXPERIMENTS, PATH
from tiny_cells import TINY as BASE
from torch import Tensor, nn

import fastntk
from fastntk.reproduce import MethodRow, Request
from fastntk.training.trace_folder import read_trace
from lab import path

LOOP = LoopOptions(epochs=3, batch_size=4, clip=None, pad=2, lr=0.05)
TINY = own_setting(
    BASE,
    replace(LOOP, epochs=2, lr=2e-3, clip=1.0),
    name="augmented",
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100, 101),
    methods=(MethodRow("head", "path-replay", {"depth": "head"}),),
    probes=False,
)


def test_crops_and_flips_are_those_of_plain_loops() -> None:
    images = torch.randn(5, 3, 6, 7)
    samples = torch.tensor([4, 0, 3])
    draws = Draws.of(LOOP, 5, seed=3, epoch=1)
    assert draws.shifts.min() >= 0
    assert draws.shifts.max() <= 4
    made = draws.apply(images[samples], samples)
    for image, sample in zip(made, samples.tolist()):
        top, left = draws.shifts[sample].tolist()
        expected = torch.zeros(3, 10, 11)
        expected[:, 2:8, 2:9] = images[sample]
        expected = expected[:, top : top + 6, left : left + 7]
        assert torch.equal(image, expected.flip(2) if draws.flips[sample] else expected)


def test_draws_change_with_seed_and_epoch_and_cover_what_they_may() -> None:
    draws = {(seed, epoch): Draws.of(LOOP, 200, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)}
    assert len({tuple(each.shifts.flatten().tolist()) for each in draws.values()}) == 4
    first = draws[0, 0]
    assert first.shifts.unique().tolist() == [0, 1, 2, 3, 4]
    assert 60 < int(first.flips.sum()) < 140
    still = Draws.of(replace(LOOP, pad=0, flip=False), 4, seed=0, epoch=0)
    images = torch.randn(4, 1, 3, 3)
    assert torch.equal(still.apply(images, torch.arange(4)), images)


def test_the_rate_rises_then_falls_to_zero() -> None:
    rates = [LoopOptions(lr=1.0).rate(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert rates[10] == 1
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[100] == pytest.approx(0)


def small(spec: str) -> tuple[nn.Module, fastntk.Subset, fastntk.Samples]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()
    samples = fastntk.Samples(torch.randn(14, 2, 6, 6, generator=generator).double(), torch.arange(14) % 3)
    return model, fastntk.tune(model, spec), samples


def recorded(spec: str, options: LoopOptions) -> tuple[fastntk.Run, Tensor]:
    """The loop's run with its trace in memory, and the anchor."""
    model, subset, samples = small(spec)
    anchor = subset.get()
    run = own_fit(model, subset, samples, options, seed=1, trace=True)
    assert run is not None
    return run, anchor


def retrained(spec: str, options: LoopOptions, keep: Tensor) -> Tensor:
    model, subset, samples = small(spec)
    own_fit(model, subset, samples, options, seed=1, keep=keep)
    return subset.get()


def request(ids: list[int]) -> tuple[list[str], Tensor]:
    keep = torch.ones(14, dtype=torch.bool)
    keep[ids] = False
    return [str(each) for each in ids], keep


# The second request empties batches: of fourteen samples, in batches of four, three stay.
@pytest.mark.parametrize("ids", [[3], list(range(11)), [0, 3, 6, 9, 12]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_where_only_the_head_is_tuned_the_replay_is_the_loops_own_retrain(ids: list[int], smoothing: float) -> None:
    options = replace(LOOP, smoothing=smoothing)
    run, _ = recorded("3.*", options)
    names, keep = request(ids)
    expected = retrained("3.*", options, keep)
    result = fastntk.unlearn(run, ids=names, method="path-replay", depth="head", validate=False)
    assert (expected - run.subset.get()).abs().max() > 1e-3
    torch.testing.assert_close(result.subset.get(), expected, rtol=0, atol=1e-10)


def test_clipping_and_dropout_are_replayed_as_retrain_has_them() -> None:
    options = replace(LOOP, clip=0.5, dropout=0.3)
    run, _ = recorded("3.*", options)
    assert run.trace is not None
    assert float(run.trace.clips.min()) < 0.9
    names, keep = request([0, 3, 6, 9, 12])
    expected = retrained("3.*", options, keep)
    result = fastntk.unlearn(run, ids=names, method="path-replay", depth="head", validate=False)
    assert (expected - run.subset.get()).abs().max() > 1e-3
    torch.testing.assert_close(result.subset.get(), expected, rtol=0, atol=1e-9)
    assert result.details["replay_miss"] < 1e-9


def test_a_trace_of_smoothed_labels_leads_to_the_trained_weights_with_a_moving_body() -> None:
    from fastntk.training.trace_path import recorded_path

    run, anchor = recorded("all", replace(LOOP, clip=0.5))
    assert run.trace is not None
    *_, last = recorded_path(run.trace, run.subset, anchor)
    torch.testing.assert_close(last.after, run.subset.get(), rtol=0, atol=1e-10)


def test_recording_leaves_the_weights_as_they_are() -> None:
    run, _ = recorded("all", LOOP)
    assert torch.equal(run.subset.get(), retrained("all", LOOP, torch.ones(14, dtype=torch.bool)))


def execute(out: Path, work: Path, **options: Any) -> list[str]:
    said: list[str] = []
    path.run(TINY, out=out, work=work, shared=Path("nowhere"), opening=open_own, **options, say=said.append)
    return said


def test_records_are_made_once_and_fill_the_page(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    empty = path_page([], augmented=[TINY], out=out)
    assert "## Augmented training" in empty
    assert "| head |" + " not run |" * (len(COLUMNS) - 1) in empty
    assert "| augmented | class 0 | head | TV same, × spread | ≤ 1 | not run | – |" in empty
    execute(out, work)
    record = json.loads((out / "path/augmented/seed100.json").read_text())
    entry = record["rows"]["head"]["requests"]["class-0"]
    assert 0 < entry["same"]["forget"] < record["references"]["class-0"]["full"]["same"]["forget"]
    assert entry["ratio"]["cpu"] > 0
    assert execute(out, work)[0].startswith("augmented: 0 of 2 rows to do")
    text = path_page([], augmented=[TINY], out=out)
    assert text == path_page([], augmented=[TINY], out=out)
    rows = [line for line in text.split("## Augmented training")[1].splitlines() if line.startswith(("| head |", "| Full |"))]
    assert len(rows) == 4
    assert not any("not run" in row for row in rows)
    assert "label smoothing 0.1" in text


def test_the_trace_on_disk_says_what_the_loop_did(tmp_path: Path) -> None:
    experiment = open_own(TINY, shared=Path("nowhere"), work=tmp_path)
    trained = experiment.train(100, None, trace=tmp_path / "trace")
    facts = read_trace(tmp_path / "trace").facts
    assert (facts.optimizer, facts.smoothing, facts.penalty) == ("AdamW", 0.1, 0.0)
    assert facts.groups[0].options["weight_decay"] == 1e-2
    assert facts.groups[0].options["betas"] == [0.9, 0.999]
    again = experiment.train(100, None)
    assert torch.equal(again.vector, trained.vector)
    part = experiment.train(100, None, epochs=1)
    assert not torch.equal(part.vector, trained.vector)


def test_trained_weights_are_kept_apart_by_the_loops_options() -> None:
    other = own_setting(AUGMENTED, replace(AUGMENTED.loop, smoothing=0.0))
    assert len({each.training_digest for each in (AUGMENTED, other, PATH[0])}) == 3
    assert AUGMENTED.recipe.epochs == AUGMENTED.loop.epochs == 20
    assert EXPERIMENTS["augmented"] == (AUGMENTED,)
