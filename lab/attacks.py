"""U-LiRA, the median shift and KLoM with enough models to tell, in a small setting (ResNet-20, 30 images a class).

Seed-only: K = ``MODELS`` fine-tunings of the seeds 0 … K − 1, each followed by a row's method, against the K Retrains of the
seeds K … 2K − 1, so that no model of one side shares batches with one of the other. The null has the Retrains 0 … K − 1 in
place of the unlearned models: the same size against the same Retrains.

Surrogates: the same with ``path-replay`` ensembles in place of the Retrains (``SURROGATE``, from other fine-tunings), beside real
Retrains of the same seeds: do cheap references give the same answer?

Resampled: forget sets that differ from model to model. The same target samples are in all of them, the rest is drawn anew for
each model, and only the targets are looked at.

    <out>/attacks/<request>.json, <out>/attacks/resampled.json, <out>/attacks/klom.json      figures by row

A record is made again where its digest (setting, rows, sizes) or the code that made it is another one. Models are kept:
:mod:`lab.attack_models`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastntk.auditing.klom import klom_figures
from fastntk.auditing.record import to_dict
from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import median_shift, u_lira
from fastntk.base.digest import json_digest
from fastntk.reproduce import costs
from fastntk.reproduce.cells import RESNET
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, fit_file, has_vector, open_experiment, retrain_file, vector_folder
from fastntk.reproduce.methods import check_methods
from fastntk.reproduce.records import MISSING, read_record, reason_to_run, write_record
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RIDGE, MethodRow, Request, Setting
from lab.attack_models import SETS, TargetRequest, make_unlearned, retrained_margins, row_digest, unlearned_margins
from lab.comparison import TUNING, tuning_file
from lab.klom_table import write_klom_table

SCHEMA = "fastntk-attacks/1"
FOLDER = "attacks"
MODELS = 16
"""Models a side."""
SURROGATE_MODELS = 10
REQUESTS = (Request("class", 0), Request("random", 0.1, draw_seed=0))
SURROGATE = MethodRow("path-replay, best", "path-replay", {"depth": "all", "checkpoints": 2, "correction": 2, "exact": 2})
OURS = (
    FULL,
    RIDGE,
    FAST_NTK,
    REPLAY,
    MethodRow("path-replay, head", "path-replay", {"depth": "head"}),
    MethodRow("path-replay, auto", "path-replay", {"depth": "auto"}),
    MethodRow("path-replay, all", "path-replay", {"depth": "all"}),
    SURROGATE,
)
TUNED = ("fine-tune", "neggrad+", "scrub")
"""Not ``deltagrad``: its options were chosen for 320 steps, with 50 to 100 of them computed first; of the 100 steps here they
would compute three quarters or all, which is Retrain."""
RESAMPLED = (FULL, FAST_NTK, REPLAY, SURROGATE)
RESAMPLED_NAME = "resampled"
TARGETS = 10
"""Samples that are in every resampled forget set."""
BOTH_HALVES = (SURROGATE,)
"""Rows of which more models are made, since one half stands in for Retrains."""
SETTING = replace(
    RESNET, name="attacks-resnet20-30", images_per_class=30, requests=REQUESTS, seeds=tuple(range(20)), methods=OURS
)

Say = Callable[[str], None]


def run(
    *,
    out: Path,
    work: Path,
    shared: Path,
    setting: Setting = SETTING,
    models: int = MODELS,
    only_plan: bool = False,
    keep_stale: bool = False,
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Make the records that are missing or stale (``keep_stale``: records and models that other code made stay)."""
    for request in setting.requests:
        check_methods(replace(setting, methods=rows_for(request, out)))
    reasons = {name: _reason(setting, name, models=models, out=out, keep_stale=keep_stale) for name in record_names(setting)}
    missing = [name for name, reason in reasons.items() if reason is not None]
    trainings = _trainings(setting, models=models, work=work, keep_stale=keep_stale) if missing else 0
    minutes = trainings * costs.training_seconds(setting) / 60
    say(
        f"attacks: {len(missing)} of {len(reasons)} records to do; {trainings} trainings, about {minutes:.0f} min, and unlearning"
    )
    for name in missing:
        if reasons[name] != MISSING:
            say(f"attacks: {name} is stale: {reasons[name]}")
    if only_plan:
        return
    write_klom_table(out / FOLDER / "klom.json", keep_stale=keep_stale)
    if not missing:
        return
    experiment = open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
    for seed in range(max(models, 2 * min(SURROGATE_MODELS, models))):
        count = make_unlearned(experiment, _jobs(setting, missing, seed, models=models, out=out), seed)
        say(f"attacks: seed {seed}, {count} unlearned models made")
    for name in missing:
        say(f"attacks: {name}")
        asked = next((each for each in setting.requests if each.name == name), None)
        entries = (
            resampled(experiment, models=models, say=say)
            if asked is None
            else seed_only(experiment, asked, rows_for(asked, out), models=models, say=say)
        )
        digest = record_digest(setting, name, models=models, out=out)
        head = {"schema": SCHEMA, "digest": digest, "setting": setting.name, "training": setting.training_digest}
        code = vouched(_code(setting, name, out), keep_stale=keep_stale)
        write_record(out / FOLDER / f"{name}.json", head | code | {"models": models, "environment": environment()} | entries)


def _reason(setting: Setting, name: str, *, models: int, out: Path, keep_stale: bool) -> str | None:
    """Why a record has to be made; None where it is fresh."""
    digest = record_digest(setting, name, models=models, out=out)
    path, code = out / FOLDER / f"{name}.json", _code(setting, name, out)
    return reason_to_run(path, lambda _: digest, code, schema=SCHEMA, keep_stale=keep_stale)


def _code(setting: Setting, name: str, out: Path) -> dict[str, str]:
    """Of what makes a record's models and figures."""
    return code_of("retrain", *(row.method for row in _record_rows(setting, name, out)))


def _record_rows(setting: Setting, name: str, out: Path) -> tuple[MethodRow, ...]:
    request = next((each for each in setting.requests if each.name == name), None)
    return RESAMPLED if request is None else rows_for(request, out)


def _jobs(setting: Setting, names: Sequence[str], seed: int, *, models: int, out: Path) -> list[tuple[MethodRow, Request]]:
    """Rows and requests that records need of a seed's fine-tuning."""
    jobs: list[tuple[MethodRow, Request]] = []
    for request in setting.requests:
        if request.name in names:
            jobs += [(row, request) for row in rows_for(request, out) if seed < models or row in BOTH_HALVES]
    if RESAMPLED_NAME in names and seed < models:
        jobs += [(row, target_request(seed)) for row in RESAMPLED]
    return jobs


def target_request(draw: int) -> TargetRequest:
    """The forget set of one model of the resampled variant."""
    return TargetRequest("random", 0.1, draw_seed=draw, targets=TARGETS)


def record_names(setting: Setting) -> list[str]:
    """One a request, and the resampled variant."""
    return [*(request.name for request in setting.requests), RESAMPLED_NAME]


def rows_for(request: Request, out: Path) -> tuple[MethodRow, ...]:
    """Our rows, and the baselines with the options they were tuned to for this request, where they were."""
    files = {name: tuning_file(request, name, out) for name in TUNED}
    tuned = [MethodRow(name, name, read_record(path, schema=TUNING)["options"]) for name, path in files.items() if path.exists()]
    return (*OURS, *tuned)


def record_digest(setting: Setting, name: str, *, models: int, out: Path) -> str:
    """Of what is asked: all that decides a record's figures besides the code."""
    rows = [[row.label, row_digest(row)] for row in _record_rows(setting, name, out)]
    targets = [TARGETS] if name == RESAMPLED_NAME else []
    return json_digest([SCHEMA, setting.digest, name, models, SURROGATE_MODELS, SURROGATE.label, rows, *targets])


def seed_only(experiment: Experiment, request: Request, rows: Sequence[MethodRow], *, models: int, say: Say) -> dict[str, Any]:
    """Figures by row against Retrains of other seeds, and against the surrogate ensembles."""
    retrains = [retrained_margins(experiment, request, seed) for seed in range(2 * models)]
    null, reference = (_stacked(part) for part in (retrains[:models], retrains[models:]))
    entries: dict[str, Any] = {"Retrain": figures(null, reference)}
    half = min(SURROGATE_MODELS, models)
    ensembles = {}
    for row in rows:
        count = max(models, 2 * half) if row in BOTH_HALVES else models
        parts = [unlearned_margins(experiment, row, request, seed) for seed in range(count)]
        say(f"{request.name}: {row.label}, {sum(part is not None for part in parts)} models")
        if all(part is not None for part in parts):
            ensembles[row.label] = _stacked([part for part in parts if part is not None])
            first = {where: values[:models] for where, values in ensembles[row.label].items()}
            entries[row.label] = figures(first, reference) | {"options": dict(row.options)}
        else:
            entries[row.label] = {"diverged": sum(part is None for part in parts), "options": dict(row.options)}
    real = _stacked(retrains[half : 2 * half])["forget"]
    surrogate = ensembles[SURROGATE.label]["forget"][half : 2 * half] if SURROGATE.label in ensembles else None
    pairs = {label: values["forget"][:half] for label, values in ensembles.items()}
    pairs["Retrain"] = _stacked(retrains[:half])["forget"]
    compared = {
        label: {"real": _area(values, real), "surrogate": _area(values, surrogate)}
        for label, values in pairs.items()
        if surrogate is not None
    }
    return {"variation": "seed-only", "rows": entries, "surrogates": {"models": half, "rows": compared}}


def resampled(experiment: Experiment, *, models: int, say: Say) -> dict[str, Any]:
    """Figures by row on the target samples, where every model has a forget set of its own."""
    requests = [target_request(draw) for draw in range(2 * models)]
    targets = set(requests[0].target_ids(experiment.samples))
    retrains = []
    for draw, request in enumerate(requests):
        retrains.append(_on_targets(experiment, request, retrained_margins(experiment, request, draw), targets))
        say(f"resampled: Retrain {draw + 1} of {2 * models}")
    null, reference = np.stack(retrains[:models]), np.stack(retrains[models:])
    entries: dict[str, Any] = {"Retrain": figures({"forget": null}, {"forget": reference})}
    for row in RESAMPLED:
        values = []
        for seed in range(models):
            margins = unlearned_margins(experiment, row, requests[seed], seed)
            if margins is not None:
                values.append(_on_targets(experiment, requests[seed], margins, targets))
        say(f"resampled: {row.label}, {len(values)} models")
        whole = len(values) == models
        found = figures({"forget": np.stack(values)}, {"forget": reference}) if whole else {"diverged": models - len(values)}
        entries[row.label] = found | {"options": dict(row.options)}
    about = {"targets": len(targets), "forget": len(requests[0].ids(experiment.samples))}
    return {"variation": "resampled", "rows": entries} | about


def figures(models: Mapping[str, Array], retrained: Mapping[str, Array]) -> dict[str, Any]:
    """JSON-able: U-LiRA and the median shift on the forgotten samples, KLoM on every set that both have."""
    sets = [where for where in SETS if where in models and where in retrained]
    return {
        "u_lira": _area(models["forget"], retrained["forget"]),
        "shift": asdict(median_shift(models["forget"], retrained["forget"])),
        "klom": {where: to_dict(klom_figures(models[where], retrained[where])) for where in sets},
    }


def _area(models: Array, retrained: Array) -> dict[str, float]:
    attack = u_lira(models, retrained)
    return {"auc": attack.auc, "standard_error": attack.auc_standard_error, "tpr_at_1pct_fpr": attack.tpr_at_1pct_fpr}


def _stacked(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Margins of many models, (K, n) by set."""
    return {where: np.stack([part[where] for part in parts]) for where in SETS}


def _on_targets(experiment: Experiment, request: Request, margins: Mapping[str, Array], targets: set[str]) -> Array:
    """Margins of the target samples, in the order of the data."""
    names = [experiment.samples.ids[place] for place in experiment.split(request).forget.tolist()]
    return np.asarray(margins["forget"][[place for place, name in enumerate(names) if name in targets]])


def _trainings(setting: Setting, *, models: int, work: Path, keep_stale: bool) -> int:
    """How many trainings the work folder misses, or has of other code."""
    folder = vector_folder(setting, work)
    names = [fit_file(seed) for seed in range(max(models, 2 * min(SURROGATE_MODELS, models)))]
    names += [retrain_file(request, seed) for request in setting.requests for seed in range(2 * models)]
    names += [retrain_file(target_request(draw), draw) for draw in range(2 * models)]
    return sum(not has_vector(folder / name, keep_stale=keep_stale) for name in names)
