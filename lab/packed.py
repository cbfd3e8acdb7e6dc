"""Is the yardstick made for the replay? Retrains with the recorded batches, beside Retrains that pack batches of their own.

The Retrain of this project keeps the batches of the fine-tuning and drops the forgotten samples from them; replays follow the
same batches. Who retrains without thinking of unlearning trains on the retained samples alone: shuffled among themselves, in full
batches, so in fewer steps. Here both kinds are trained with the same seeds, and replays are compared with both.

    <out>/packed/<setting>.json      per request: figures of every model, and the distances between them
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fastntk.base.digest import json_digest
from fastntk.reproduce import costs
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, Trained, has_vector, open_experiment, read_vector, write_vector
from fastntk.reproduce.records import reason_to_run, write_record
from fastntk.reproduce.setting import MethodRow, Request, Setting
from fastntk.training.fitting import fit
from fastntk.unlearning import unlearn
from lab.path_models import Outputs, compared, outputs_file, outputs_of, own_figures, variation

SCHEMA = "fastntk-packed/1"
FOLDER = "packed"
RETRAIN, OWN_BATCHES, FULL = "retrain", "packed", "full"
Models = Mapping[int, Outputs]


def run(
    setting: Setting,
    *,
    out: Path,
    work: Path,
    shared: Path,
    only_plan: bool = False,
    keep_stale: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Make the setting's record, if it is missing or stale; trainings are kept, so an interrupted run goes on."""
    path = record_file(setting, out)
    reason = reason_to_run(path, lambda _: _digest(setting), _code(), schema=SCHEMA, keep_stale=keep_stale)
    minutes = len(setting.seeds) * (1 + 3 * len(setting.requests)) * costs.training_seconds(setting) / 60
    say(f"{setting.name}: {'nothing to do' if reason is None else f'{reason}; about {minutes:.0f} min (rough)'}")
    if reason is None or only_plan:
        return
    experiment = open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
    models: dict[str, dict[str, dict[int, Outputs]]] = {request.name: {} for request in setting.requests}
    for seed, request in itertools.product(setting.seeds, setting.requests):
        for name, vector in _vectors(experiment, request, seed).items():
            file = outputs_file(experiment.folder, request, f"packed-{name}", seed)
            models[request.name].setdefault(name, {})[seed] = outputs_of(experiment, request, vector, file)
        say(f"{setting.name} · seed {seed} · {request.title}: done")
    facts = {"schema": SCHEMA, "setting": setting.name, "digest": _digest(setting)}
    facts |= vouched(_code(), keep_stale=keep_stale)
    requests = {name: _figures(found, anchor=experiment.anchor) for name, found in models.items()}
    write_record(path, facts | {"requests": requests, "environment": environment()})


def record_file(setting: Setting, out: Path) -> Path:
    """Where a setting's record lies."""
    return out / FOLDER / f"{setting.name}.json"


def packed_vector(experiment: Experiment, request: Request, seed: int) -> Tensor:
    """The tuned vector (d,) after an ordinary training on the retained samples alone: read, or trained and kept."""
    kept = experiment.samples.subset(experiment.split(request).retain)
    path = experiment.folder / f"packed-{request.name}-seed{seed}.safetensors"
    identity = json_digest([FOLDER, experiment.identity, kept.ids_digest()])
    if not has_vector(path, keep_stale=experiment.keep_stale):
        experiment.subset.set(experiment.anchor)
        run = fit(experiment.model, experiment.subset, kept, experiment.setting.recipe_for(seed))
        write_vector(path, Trained(run.subset.get(), 0.0, 0.0, 1), identity=identity)
    return read_vector(path, identity=identity).vector


def _vectors(experiment: Experiment, request: Request, seed: int) -> dict[str, Tensor]:
    """The models of a seed, by name."""
    vectors = {
        FULL: experiment.fitted(seed).vector,
        RETRAIN: experiment.retrained(request, seed).vector,
        OWN_BATCHES: packed_vector(experiment, request, seed),
    }
    ids = request.ids(experiment.samples)
    for row in experiment.setting.methods:
        result = unlearn(experiment.run(seed, traced=True), ids=ids, method=row.method, **row.options)
        vectors[row.label] = result.subset.get()
    return vectors


def _figures(models: Mapping[str, Models], *, anchor: Tensor) -> dict[str, Any]:
    """JSON-able: figures of each model by name and seed, and its distances to both kinds of Retrain of other seeds."""
    own = {
        name: {
            str(seed): own_figures(each) | compared(each, retrain=models[RETRAIN][seed], full=models[FULL][seed], anchor=anchor)
            for seed, each in found.items()
        }
        for name, found in models.items()
    }
    distances = {
        name: {kind: _to_others(found, models[kind]) for kind in (RETRAIN, OWN_BATCHES)} for name, found in models.items()
    }
    return {"models": own, "distances": distances}


def _to_others(found: Models, references: Models) -> dict[str, dict[str, Any]]:
    """By seed and the reference's seed, which is another one."""
    return {
        str(seed): {str(other): variation(each, reference) for other, reference in references.items() if other != seed}
        for seed, each in found.items()
    }


def _digest(setting: Setting) -> str:
    rows: Sequence[MethodRow] = setting.methods
    requests = [request.name for request in setting.requests]
    return json_digest([setting.training_digest, setting.holdout, requests, setting.seeds, [[*row] for row in rows]])


def _code() -> dict[str, str]:
    return code_of("path-replay")
