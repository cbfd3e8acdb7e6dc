"""One image removed at a time: does the predicted change of its loss and margin follow that of true retraining?

For each of ``REMOVALS`` images, evenly spread over the data: Retrain without it, in the run's batch order, and each method.
Kept per image: its loss and margin under Full, Retrain and the unlearned networks. The rank correlation of the changes over
all images is the result (:mod:`lab.unlearning_page`). One JSON record a removal; records that exist are not made
again. Rows of methods that need a trace share one recorded run: what the first removal computed there, the next ones find; many
removals in one call are :mod:`lab.at_once`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.auditing import margins, mean_loss
from fastntk.base.digest import json_digest
from fastntk.reproduce import costs
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, open_experiment
from fastntk.reproduce.methods import check_methods, needs_rows, needs_trace, seed_option
from fastntk.reproduce.records import MISSING, SETTING_FILE, check_folder, reason_to_run, without, write_record
from fastntk.reproduce.setting import Setting
from fastntk.reproduce.step_runner import describe_setting
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from lab import at_once
from lab.settings import REMOVALS

REMOVAL = 1
"""The schema of a removal's file: losses and margins of one image, which no audit is made of."""


def run(
    setting: Setting,
    *,
    out: Path,
    work: Path,
    shared: Path,
    removals: int = REMOVALS,
    only_plan: bool = False,
    keep_stale: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> None:
    """Make the records that are missing or stale (made by other code; ``keep_stale``: these stay)."""
    check_methods(setting)
    folder = out / "single" / setting.name
    check_folder(folder, setting.digest)
    digest = json_digest([setting.digest, removals, [[m.label, m.method, dict(m.options)] for m in setting.methods]])
    targets = [folder / f"removal-{number:03d}.json" for number in range(removals)]
    code = code_of(*(row.method for row in setting.methods))
    reasons = [reason_to_run(path, lambda _: digest, code, schema=REMOVAL, keep_stale=keep_stale) for path in targets]
    missing = [number for number, reason in enumerate(reasons) if reason is not None]
    stale = sum(reason not in (None, MISSING) for reason in reasons)
    minutes = len(missing) * costs.training_seconds(setting) * 1.3 / 60
    traced = any(needs_trace(row.method) for row in setting.methods)
    together = traced and at_once.is_missing(setting, folder, keep_stale=keep_stale)
    say(f"{setting.name}: {len(missing)} of {removals} removals to do ({stale} stale); about {minutes:.0f} min")
    if only_plan or not (missing or together):
        return
    experiment = open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
    describe_setting(folder / SETTING_FILE, experiment)
    places = torch.linspace(0, len(experiment.samples) - 1, removals).round().long().tolist()
    origin = experiment.run(setting.seeds[0])
    linearisation = linearise_run(origin) if any(needs_rows(row.method) for row in setting.methods) else None
    started = time.perf_counter()
    for count, number in enumerate(missing, 1):
        record = removal(experiment, origin, linearisation, places[number])
        write_record(targets[number], {"digest": digest, "number": number} | vouched(code, keep_stale=keep_stale) | record)
        left = (time.perf_counter() - started) / count * (len(missing) - count)
        say(f"[{count}/{len(missing)}] {setting.name} · image {record['id']}; about {left / 60:.0f} min left")
    if together:
        say(f"{setting.name} · all of them in one call …")
        at_once.write(experiment, places, folder)


def removal(experiment: Experiment, origin: Run, linearisation: Linearisation | None, place: int) -> dict[str, Any]:
    """The record of removing the sample at one position."""
    setting, seed = experiment.setting, experiment.setting.seeds[0]
    inputs, labels = experiment.samples.inputs[[place]], experiment.samples.labels[[place]]

    def figures(vector: Tensor) -> dict[str, float]:
        logits = predict(experiment.model_with(vector), inputs)
        return {"loss": mean_loss(logits, labels), "margin": float(margins(logits, labels))}

    keep = torch.ones(len(experiment.samples), dtype=torch.bool)
    keep[place] = False
    retrain = experiment.train(seed, keep)
    methods: dict[str, Any] = {}
    for method in setting.methods:
        shared = linearisation if needs_rows(method.method) else None
        ids = [experiment.samples.ids[place]]
        options = seed_option(method, seed) | dict(method.options)
        result = unlearn(origin, ids=ids, method=method.method, linearisation=shared, **options)
        details = without(result.details, "seconds", "peak_memory_bytes", "outside_subset", "request", "rows")
        methods[method.label] = figures(result.subset.get()) | {"wall": result.seconds, "details": details}
    return {
        "schema": REMOVAL,
        "setting": setting.name,
        "configuration": setting.digest,
        "id": experiment.samples.ids[place],
        "label": int(labels),
        "seed": seed,
        "full": figures(origin.subset.get()),
        "retrain": figures(retrain.vector) | {"wall": retrain.wall, "cpu": retrain.cpu},
        "methods": methods,
        "rows_wall": None if linearisation is None else linearisation.seconds,
        "environment": environment(),
    }
