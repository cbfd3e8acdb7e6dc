"""Both kinds of Retrain on a few digits: where they are the same, that an interrupted run goes on, and the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab.packed import OWN_BATCHES, RETRAIN, packed_vector, record_file
from lab.packed_table import multiple, packed_section, wider
from tiny_cells import SHORT
from tiny_cells import TINY as BASE

from fastntk.reproduce import MethodRow, Request
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.records import read_record, without
from lab import packed

TINY = replace(
    BASE,
    requests=(Request("class", 0),),
    seeds=(0, 1, 2),
    methods=(MethodRow("head", "path-replay", {"depth": "head"}),),
    probes=False,
)


@pytest.mark.parametrize(("batch_size", "same"), [(12, True), (4, False)])
def test_with_one_batch_an_epoch_both_kinds_are_the_same_training(tmp_path: Path, batch_size: int, same: bool) -> None:
    setting = replace(TINY, recipe=replace(SHORT, batch_size=batch_size))
    experiment = open_experiment(setting, shared=Path("x"), work=tmp_path)
    (request,) = setting.requests
    moved = [vector - experiment.anchor for vector in _both(experiment, request)]
    apart = float((moved[0] - moved[1]).norm() / moved[0].norm())
    assert (apart < 1e-3) == same


def _both(experiment: packed.Experiment, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
    return experiment.retrained(request, 0).vector, packed_vector(experiment, request, 0)


def test_a_record_is_the_same_after_an_interruption_and_has_a_table(tmp_path: Path) -> None:
    said: list[str] = []
    folders = {"work": tmp_path / "work", "shared": Path("x")}
    assert "Not run yet" in packed_section(out=tmp_path, settings=[TINY])
    packed.run(TINY, out=tmp_path, **folders, say=said.append)
    packed.run(TINY, out=tmp_path, **folders, say=said.append)
    assert said[-1] == "tiny: nothing to do"
    first = read_record(record_file(TINY, tmp_path), schema=packed.SCHEMA)
    record_file(TINY, tmp_path).unlink()
    packed.run(TINY, out=tmp_path, **folders, say=said.append)
    again = read_record(record_file(TINY, tmp_path), schema=packed.SCHEMA)
    assert without(first, "environment", "record_sha256") == without(again, "environment", "record_sha256")
    request = first["requests"]["class-0"]
    for kind in (RETRAIN, OWN_BATCHES):
        assert multiple(request, kind, kind, "forget").mean == pytest.approx(1.0)
    recorded, own = (
        multiple(request, RETRAIN, OWN_BATCHES, "forget").mean,
        multiple(request, OWN_BATCHES, RETRAIN, "forget").mean,
    )
    assert recorded
    assert own == pytest.approx(recorded * wider(request, "forget")), "one distance, in two units"
    rows = [line for line in packed_section(out=tmp_path, settings=[TINY]).splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| full", "| path-replay, head", "| retrain, recorded batches", "| retrain, batches of its own",
    ]  # fmt: skip
