"""One step done: a training that is kept, or a record, which is ``unlearn`` and then ``audit`` beside the kept Retrains.

A method's cost is counted as if it were alone: the seconds of the shared rows are added to each method that needs them; what
a further request would cost, without them, stands beside it. A method that walks along a trace gets a run of its own, with
nothing in it that another one computed. No figure is measured here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastntk.auditing import audit, margins
from fastntk.auditing.predictions import PredictionCache
from fastntk.auditing.ulira import logit_confidence
from fastntk.base.errors import InputError
from fastntk.base.version import __version__
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, Trained
from fastntk.reproduce.methods import needs_rows, needs_trace, seed_option
from fastntk.reproduce.records import DROPPED, SCHEMA, SETTING_FILE, read_record, write_record
from fastntk.reproduce.retrain_clock import RetrainClock
from fastntk.reproduce.runner import Step, record_digest
from fastntk.reproduce.setting import MethodRow, Request
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from fastntk.unlearning.result import Unlearned


@dataclass(eq=False)
class StepRunner:
    """An experiment at work: the run and the linearisations of the seed at hand, and predictions that audits share."""

    experiment: Experiment
    predictions: PredictionCache = field(default_factory=PredictionCache)
    run: Run | None = None
    linearisations: dict[str, tuple[Linearisation, dict[str, Any]]] = field(default_factory=dict)
    clock: RetrainClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = RetrainClock(self.experiment)

    def do(self, step: Step) -> None:
        """Make the step's file."""
        if step.kind == "fit":
            self.experiment.fitted(step.seed)
            return
        assert step.request is not None
        if step.kind == "retrain":
            self.experiment.retrained(step.request, step.seed)
            return
        assert step.row is not None
        describe_setting(step.target.parent.parent / SETTING_FILE, self.experiment)
        write_record(step.target, self.record(step.request, step.row, step.seed))

    def record(self, request: Request, row: MethodRow, seed: int) -> dict[str, Any]:
        """The JSON-able record of one method on one request."""
        experiment, setting = self.experiment, self.experiment.setting
        run = experiment.run(seed) if needs_trace(row.method) else self.run_of(seed)
        seeds = (seed, *(other for other in setting.retrain_seeds if other != seed))
        retrains = [experiment.retrain_result(run, request, other) for other in seeds]
        result, timings = self.unlearned(run, request, row, retrains[0])
        audited = audit(
            run,
            result,
            holdout=experiment.holdout,
            reference=retrains,
            relearn_cap=setting.relearn_cap,
            probes=setting.probes,
            predictions=self.predictions,
            seed=seed,
        )
        request_facts = {"kind": request.kind, "value": request.value, "draw_seed": request.draw_seed, "name": request.name}
        return {
            "schema": SCHEMA,
            "fastntk": __version__,
            "setting": setting.name,
            "configuration": setting.digest,
            "digest": record_digest(setting, request, row, seed),
            **vouched(code_of(row.method), keep_stale=experiment.keep_stale),
            "request": request_facts | {"forget": len(result.split.forget), "retain": len(result.split.retain)},
            "label": row.label,
            "method": row.method,
            "options": dict(row.options),
            "seed": seed,
            "environment": environment(),
            "timings": self.reference_times(request, seed, timings),
            "audit": {name: part for name, part in audited.items() if name not in DROPPED},
        } | (sample_evidence(result) if setting.evidence else {})

    def reference_times(self, request: Request, seed: int, timings: dict[str, Any]) -> dict[str, Any]:
        """A method's times beside those of the fine-tuning and of Retrain, and their ratios."""
        fitted, retrained = self.experiment.fitted(seed), self.experiment.retrained(request, seed)
        if not self.experiment.setting.timed:
            return {"fit": cost(fitted), "retrain": cost(retrained)} | timings | ratios(timings, cost(retrained))
        here = self.clock.seconds(request, seed)
        return {"fit": cost(fitted), "retrain": cost(retrained), "retrain_here": here} | timings | ratios(timings, here)

    def unlearned(self, run: Run, request: Request, row: MethodRow, retrain: Unlearned) -> tuple[Unlearned, dict[str, Any]]:
        """The method's result and its times; Retrain itself is the one that is kept."""
        assert run.recipe is not None
        seed = run.recipe.seed
        if row.method == "retrain" and not row.options:
            return retrain, {"method": cost(self.experiment.retrained(request, seed)), "rows": None}
        options = seed_option(row, seed) | dict(row.options)
        shared_rows = self.linearised(run, str(options.get("at", "trained"))) if needs_rows(row.method) else None
        if shared_rows:  # what another method left there would come free of cost
            shared_rows[0].memo.clear()
        ids = request.ids(self.experiment.samples)
        cpu = time.process_time()
        result = unlearn(run, ids=ids, method=row.method, linearisation=shared_rows and shared_rows[0], **options)
        cpu = time.process_time() - cpu
        return result, {
            "method": {"wall": result.seconds, "cpu": cpu, "stages": result.details["seconds"]},
            "rows": shared_rows and shared_rows[1],
            "peak_memory_bytes": result.details["peak_memory_bytes"],
        }

    def run_of(self, seed: int) -> Run:
        """The run of a seed; that of the seed before, and its rows, are let go of."""
        if self.run is None or self.run.recipe is None or self.run.recipe.seed != seed:
            self.linearisations = {}
            self.run = self.experiment.run(seed)
        return self.run

    def linearised(self, run: Run, at: str) -> tuple[Linearisation, dict[str, Any]]:
        """The rows of the run, made once, and what they cost."""
        if at not in self.linearisations:
            cpu = time.process_time()
            rows = linearise_run(run, at=at)  # type: ignore[arg-type]  # checked there
            cpu = time.process_time() - cpu
            self.linearisations[at] = rows, {"wall": rows.seconds, "cpu": cpu, "threads": torch.get_num_threads()}
        return self.linearisations[at]


def sample_evidence(result: Unlearned) -> dict[str, list[float] | None]:
    """log p_y/(1 − p_y) and z_y − max z of every forgotten sample, in the request's order; None where outputs are not finite.

    U-LiRA and KLoM compare ensembles, which are formed from the records of all seeds.
    """
    samples = result.forgotten
    logits = predict(result.model, samples.inputs)
    finite = bool(torch.isfinite(logits).all())
    figures = {"confidences": logit_confidence(logits, samples.labels), "margins": margins(logits, samples.labels)}
    return {name: _digits(values) if finite else None for name, values in figures.items()}


def _digits(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def cost(trained: Trained) -> dict[str, Any]:
    """JSON-able."""
    return {"wall": trained.wall, "cpu": trained.cpu, "threads": trained.threads}


def ratios(timings: dict[str, Any], retrain: dict[str, Any]) -> dict[str, Any]:
    """The method's time over Retrain's, with the rows and without."""
    rows = timings["rows"] or {"wall": 0.0, "cpu": 0.0}
    out = {}
    for kind in ("wall", "cpu"):
        own, floor = timings["method"][kind], max(retrain[kind], 1e-9)
        out[kind] = {"with_rows": (own + rows[kind]) / floor, "without_rows": own / floor}
    return {"ratio_to_retrain": out}


def describe_setting(path: Path, experiment: Experiment) -> None:
    """Write the setting's file once; refuse data or pre-trained weights other than those it names."""
    if path.exists():
        if read_record(path)["loaded"]["identity"] != experiment.identity:
            raise InputError(f"{path.parent} was made from other data or pre-trained weights than those loaded now.")
        return
    setting = experiment.setting
    inputs = {
        "identity": experiment.identity,
        "data_digest": experiment.samples.digest(),
        "holdout_digest": experiment.holdout.digest(),
        "samples": len(experiment.samples),
        "classes": experiment.samples.num_classes,
        "holdout": len(experiment.holdout),
        "tuned": experiment.subset.numel,
        "tuned_share": experiment.subset.ratio,
    }
    description = {"setting": setting.name, "configuration": setting.configuration, "digest": setting.digest, "loaded": inputs}
    write_record(path, {"schema": SCHEMA} | description)
