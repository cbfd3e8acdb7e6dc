"""The synthetic trace of the benchmark, at a size of milliseconds."""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.trace import Built, first_steps, replayed_head, slowdown, synthetic_trace

import fastntk
from fastntk.data import load_source
from fastntk.models import input_spec
from fastntk.training.optimizers import Span
from fastntk.training.trace_folder import read_trace
from fastntk.unlearning.path_replay.replay import replay

SIZE = {"samples": 60, "epochs": 2, "features": 8, "classes": 5, "batch": 16}


def test_a_synthetic_trace_is_whole_and_is_replayed(tmp_path: Path) -> None:
    synthetic_trace(tmp_path, **SIZE)
    trace = read_trace(tmp_path, verify=True)
    assert (trace.visits, trace.steps, trace.epochs) == (120, 8, 2)
    assert trace.features.dtype == torch.float16
    measured = replayed_head(tmp_path, 10)
    assert measured["visits"] == 120
    assert measured["peak_bytes"] > 0


def test_the_first_steps_of_a_trace_end_where_the_whole_passes(tmp_path: Path) -> None:
    synthetic_trace(tmp_path, **SIZE)
    trace = read_trace(tmp_path)
    keep = torch.arange(60).remainder(7).ne(0).unsqueeze(0)
    anchor = {"head": torch.zeros(5, 8), "bias": torch.zeros(5)}
    spans = [Span("head.weight", 0, 40, (5, 8)), Span("head.bias", 40, 45, (5,))]
    whole = replay(trace, anchor, keep, spans=spans, points=(5,))
    part = replay(first_steps(trace, 5), anchor, keep, spans=spans)
    assert torch.equal(part.lanes.values, whole.points[5].values)
    assert not torch.equal(part.lanes.values, whole.lanes.values)


def test_recorded_fits_are_as_large_as_the_formula_says() -> None:
    def build() -> Built:
        model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100", image_size=16)
        samples = load_source("digits@train", spec=input_spec(model), images_per_class=20, only_classes=3)
        return fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=1, batch_size=16)

    measured = slowdown("digits", build, repeats=1)
    assert set(measured["ratio"]) == {"memory", "folder"}
    assert abs(measured["recorded_bytes"] / measured["expected_bytes"] - 1) < 0.01
