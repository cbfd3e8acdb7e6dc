"""Many images, each removed by itself, in one call of ``fastntk.removals``: how its figures follow Retrain, and what one costs.

The images whose Retrains :mod:`lab.single` kept, and all images of the training set, at two depths. Each call has a run of its
own, and pays for all it computes; a Retrain is timed in the same process. One JSON record, beside those of the removals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fastntk.base.digest import json_digest
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment
from fastntk.reproduce.records import reason_to_run, write_record
from fastntk.reproduce.setting import Setting
from fastntk.unlearning.removals import removals

FILE = "at-once.json"
SCHEMA = "fastntk-removals-at-once/1"
CALLS: dict[str, dict[str, Any]] = {"head": {"depth": "head"}, "all, 1 checkpoint": {"depth": "all", "checkpoints": 1}}


def is_missing(setting: Setting, folder: Path, *, keep_stale: bool) -> bool:
    """Whether the record has to be made."""
    return reason_to_run(folder / FILE, lambda _: _digest(setting), _code(), schema=SCHEMA, keep_stale=keep_stale) is not None


def write(experiment: Experiment, places: Sequence[int], folder: Path) -> None:
    """Make the record; ``places``: positions of the images that were removed one by one."""
    seed, samples = experiment.setting.seeds[0], experiment.samples
    keep = torch.ones(len(samples), dtype=torch.bool)
    keep[places[0]] = False
    calls = []
    for label, options in CALLS.items():
        for chosen in (list(places), list(range(len(samples)))):
            run = experiment.run(seed, traced=True)
            cpu = time.process_time()
            changes = removals(run, [samples.ids[place] for place in chosen], **options)
            cpu = time.process_time() - cpu
            figures = {
                samples.ids[place]: {"loss": change["loss_change"], "margin": change["margin_change"]}
                for place, change in zip(chosen, changes)
                if place in places
            }
            cost = {"wall": changes.seconds, "cpu": cpu}
            calls.append({"label": label, "options": options, "groups": len(chosen), "cost": cost, "changes": figures})
    retrain = experiment.train(seed, keep)
    facts = {"schema": SCHEMA, "setting": experiment.setting.name, "digest": _digest(experiment.setting)}
    facts |= vouched(_code(), keep_stale=experiment.keep_stale)
    times = {"wall": retrain.wall, "cpu": retrain.cpu}
    write_record(folder / FILE, facts | {"retrain": times, "calls": calls, "environment": environment()})


def _digest(setting: Setting) -> str:
    return json_digest([setting.digest, CALLS])


def _code() -> dict[str, str]:
    return code_of("path-replay")
