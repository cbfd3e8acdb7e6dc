"""One image removed at a time: does the predicted change of its loss and margin follow that of true retraining?

For each of ``REMOVALS`` images, evenly spread over the data: Retrain without it, in the run's batch order, and each method.
Kept per image: its loss and margin under Full, Retrain and the unlearned networks. The rank correlation of the changes over
all images is the result (:mod:`fastntk.experiments.pages`). One JSON record a removal; records that exist are not made
again.
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
from fastntk.experiments import costs
from fastntk.experiments.bench import Bench, open_bench
from fastntk.experiments.environment import environment
from fastntk.experiments.lists import REMOVALS
from fastntk.experiments.records import SCHEMA, check_folder, has_record, without, write_record
from fastntk.experiments.runner import LINEARISED, check_methods, describe_setting, own_seed
from fastntk.experiments.setting import Setting
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.unlearning import unlearn


def run(
    setting: Setting,
    *,
    out: Path,
    work: Path,
    shared: Path,
    removals: int = REMOVALS,
    only_plan: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> None:
    """Make the records that are missing."""
    check_methods(setting)
    folder = out / "single" / setting.name
    check_folder(folder, setting.digest)
    digest = json_digest([setting.digest, removals, [[m.label, m.method, dict(m.options)] for m in setting.methods]])
    targets = [folder / f"removal-{number:03d}.json" for number in range(removals)]
    missing = [number for number, target in enumerate(targets) if not has_record(target, digest)]
    minutes = len(missing) * costs.training_seconds(setting) * 1.3 / 60
    say(f"{setting.name}: {len(missing)} of {removals} removals to do; about {minutes:.0f} min")
    if only_plan or not missing:
        return
    bench = open_bench(setting, shared=shared, work=work)
    describe_setting(folder, bench)
    places = torch.linspace(0, len(bench.samples) - 1, removals).round().long().tolist()
    linearisation = linearise_run(bench.run(setting.seeds[0]))
    started = time.perf_counter()
    for done, number in enumerate(missing, 1):
        record = removal(bench, linearisation, places[number])
        write_record(targets[number], {"digest": digest, "number": number} | record)
        left = (time.perf_counter() - started) / done * (len(missing) - done)
        say(f"[{done}/{len(missing)}] {setting.name} · image {record['id']}; about {left / 60:.0f} min left")


def removal(bench: Bench, linearisation: Linearisation, place: int) -> dict[str, Any]:
    """The record of removing the sample at one position."""
    setting, seed = bench.setting, bench.setting.seeds[0]
    inputs, labels = bench.samples.inputs[[place]], bench.samples.labels[[place]]

    def figures(vector: Tensor) -> dict[str, float]:
        outputs = bench.outputs(vector, inputs)
        return {"loss": mean_loss(outputs, labels), "margin": float(margins(outputs, labels))}

    keep = torch.ones(len(bench.samples), dtype=torch.bool)
    keep[place] = False
    retrain = bench.train(seed, keep)
    methods: dict[str, Any] = {}
    for method in setting.methods:
        run = bench.run(seed)
        shared = linearisation if method.method in LINEARISED else None
        ids = [bench.samples.ids[place]]
        result = unlearn(run, ids=ids, method=method.method, linearisation=shared, **{**own_seed(method, seed), **method.options})
        details = without(result.details, "seconds", "peak_memory_bytes", "outside_subset", "rows")
        methods[method.label] = figures(result.subset.get()) | {"wall": result.seconds, "details": details}
    return {
        "schema": SCHEMA,
        "setting": setting.name,
        "configuration": setting.digest,
        "id": bench.samples.ids[place],
        "label": int(labels),
        "seed": seed,
        "full": figures(bench.fitted(seed).vector),
        "retrain": figures(retrain.vector) | {"wall": retrain.wall, "cpu": retrain.cpu},
        "methods": methods,
        "rows_wall": linearisation.seconds,
        "environment": environment(),
    }
