"""Runs of an experiment with their traces: recorded while the vector is trained, or afterwards, and always of that vector."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_cells import TINY

from fastntk import unlearn
from fastntk.base.errors import InputError
from fastntk.reproduce import MethodRow
from fastntk.reproduce.experiment import Experiment, fit_file, open_experiment, trace_folder, write_vector
from fastntk.reproduce.setting import FULL, RETRAIN, Setting

PLAIN = replace(TINY, methods=(FULL, RETRAIN))
TRACED = replace(TINY, methods=(*PLAIN.methods, MethodRow("amnesiac", "amnesiac", {"epochs": 0})))


def opened(setting: Setting, work: Path) -> Experiment:
    return open_experiment(setting, shared=Path("nowhere"), work=work)


def test_a_trace_is_recorded_where_a_method_needs_it_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, traced = opened(PLAIN, tmp_path / "plain"), opened(TRACED, tmp_path / "traced")
    without, run = plain.run(0), traced.run(0)
    assert without.trace is None
    assert not (plain.folder / trace_folder(0)).exists()
    assert run.trace is not None
    assert torch.equal(run.subset.get(), without.subset.get())
    ids = TRACED.requests[0].ids(traced.samples)
    first = unlearn(run, ids=ids, method="amnesiac", epochs=0)
    monkeypatch.setattr(Experiment, "train", None)  # nothing is trained any more
    again = opened(TRACED, tmp_path / "traced").run(0)
    assert torch.equal(unlearn(again, ids=ids, method="amnesiac", epochs=0).subset.get(), first.subset.get())


def test_a_vector_without_its_trace_is_trained_once_more_and_has_to_be_met(tmp_path: Path) -> None:
    experiment = opened(PLAIN, tmp_path)
    vector = experiment.run(0).subset.get()
    run = experiment.run(0, traced=True)
    assert run.trace is not None
    assert torch.equal(run.subset.get(), vector)
    shutil.rmtree(experiment.folder / trace_folder(0))
    kept = experiment.fitted(0)
    write_vector(experiment.folder / fit_file(0), replace(kept, vector=kept.vector + 1e-3), identity=experiment.identity)
    with pytest.raises(InputError, match=r"led to other weights than .*fit-seed0"):
        experiment.run(0, traced=True)
    assert not (experiment.folder / trace_folder(0)).exists()


def test_a_trace_whose_vector_was_never_written_is_recorded_again(tmp_path: Path) -> None:
    experiment = opened(TRACED, tmp_path)
    before = experiment.run(0).subset.get()
    (experiment.folder / fit_file(0)).unlink()
    run = experiment.run(0)
    assert run.trace is not None
    assert torch.equal(run.subset.get(), before)
