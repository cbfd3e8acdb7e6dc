"""All methods on one network: baselines tuned alike, audited alike, for a class and for a random share of the samples.

    tuning     ``tune_baseline`` with the same budget for each baseline, once per request, on a spare seed, by a validation part
               of the training data                                              -> <out>/tuned/<request>/<method>.json
    records    the runner's, with evidence, on the seeds that are reported        -> <out>/records/compare-<request>/…

The tangent methods and Retrain have no option tuned. A baseline whose tuning is missing is left out, and the page says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastntk.reproduce.cells import RESNET
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.methods import needs_trace
from fastntk.reproduce.records import read_record, write_record
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RETRAIN, MethodRow, Request, Setting, slug
from fastntk.unlearning.baseline_tuning import tune_baseline
from fastntk.unlearning.registry import METHODS
from fastntk.unlearning.rehearsal import Rehearsal, rehearse

BASELINES = tuple(name for name, method in METHODS.items() if method.search_space)
REQUESTS = (Request("class", 0), Request("random", 0.1, draw_seed=0))
SPARE_SEED = 100
BUDGET = 6
FOLDER = "tuned"
TUNING = 1
"""The schema of a tuning's file."""
SAMPLES_CAP = 10
"""Epochs of relearning for a random share: no model, Full included, gets there in 100, so it costs time and tells nothing."""


def comparison(out: Path) -> tuple[Setting, ...]:
    """A setting per request, with the baselines' options as tuned so far."""
    return tuple(
        replace(
            RESNET,
            name=f"compare-{request.name}",
            requests=(request,),
            methods=(FULL, *_tuned(request, out), FAST_NTK, REPLAY, RETRAIN),
            relearn_cap=100 if request.kind == "class" else SAMPLES_CAP,
            evidence=True,
        )
        for request in REQUESTS
    )


def _tuned(request: Request, out: Path) -> list[MethodRow]:
    files = ((method, tuning_file(request, method, out)) for method in BASELINES)
    return [MethodRow(method, method, read_record(path, schema=TUNING)["options"]) for method, path in files if path.exists()]


def tuning_file(request: Request, method: str, out: Path) -> Path:
    """Where a baseline's tuning lies."""
    return out / FOLDER / request.name / f"{slug(method)}.json"


def tune(*, out: Path, work: Path, shared: Path) -> None:
    """Tune every baseline on every request, on the spare seed; what is there is not made again."""
    setting = replace(RESNET, seeds=(SPARE_SEED,), name="compare-tuning")
    experiment = open_experiment(setting, shared=shared, work=work)
    for request in REQUESTS:
        missing = [method for method in BASELINES if not tuning_file(request, method, out).exists()]
        traced = any(needs_trace(method) for method in missing)
        run = experiment.run(SPARE_SEED, traced=traced) if missing else None
        rehearsal: Rehearsal | None = None
        for method in missing:
            assert run is not None
            ids = request.ids(experiment.samples)
            rehearsal = rehearsal or rehearse(run, ids=ids, seed=SPARE_SEED)
            print(f"{request.name}: {method}, {BUDGET} trials …", flush=True)
            tuned = tune_baseline(run, method, ids=ids, budget=BUDGET, seed=SPARE_SEED, rehearsal=rehearsal)
            head = {"schema": TUNING, "request": request.name, "run_seed": SPARE_SEED}
            write_record(tuning_file(request, method, out), head | tuned.to_dict())
