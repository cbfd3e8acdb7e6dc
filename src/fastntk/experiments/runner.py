"""The one runner: what is missing becomes a list of steps, each ends in a file, and files that exist are not made again.

Steps of a setting: fine-tunings, retrainings, then records, seed by seed, so that one linearisation serves all requests and
methods of a seed. Killed at any point, it goes on where it stopped, and gives the same records, timings aside.

A method's cost is counted as if it were alone: the seconds of the shared rows are added to each method that needs them; what
a further request would cost, without them, stands beside it.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.experiments import costs
from fastntk.experiments.bench import Bench, Trained, fit_file, open_bench, read_vector, retrain_file, vector_folder, write_vector
from fastntk.experiments.environment import environment
from fastntk.experiments.evidence import evidence
from fastntk.experiments.measure import Scene
from fastntk.experiments.records import (
    SCHEMA,
    SETTING_FILE,
    check_folder,
    has_record,
    read_record,
    setting_folder,
    without,
    write_record,
)
from fastntk.experiments.setting import Method, Request, Setting
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.unlearning import METHODS, unlearn

LINEARISED = ("fast-ntk", "tangent-replay")


@dataclass(frozen=True)
class Step:
    """One file to make, and roughly how many seconds that takes."""

    setting: Setting
    kind: Literal["fit", "retrain", "record", "probe"]
    seed: int
    target: Path
    seconds: float
    request: Request | None = None
    method: Method | None = None
    probe: str | None = None

    @property
    def title(self) -> str:
        """In words."""
        what = f"probe {self.probe}" if self.probe else self.method.label if self.method else self.kind
        parts = [self.setting.name, self.request and self.request.name, what]
        return " · ".join([part for part in parts if part] + [f"seed {self.seed}"])


def plan(settings: Sequence[Setting], *, out: Path, work: Path) -> list[Step]:
    """The steps that are missing, in order; refuses, before any work, folders and options that do not fit."""
    steps: list[Step] = []
    for setting in settings:
        check_methods(setting)
        check_folder(setting_folder(out, setting.name), setting.digest)
        missing = list(_missing(setting, setting_folder(out, setting.name)))
        folder = vector_folder(setting, work)
        seconds = costs.training_seconds(setting)
        fits = {step.seed for step in missing if step.seed in setting.seeds}
        requests = [request for request in setting.requests if any(step.request == request for step in missing)]
        steps += [
            Step(setting, "fit", seed, folder / fit_file(seed), seconds)
            for seed in setting.seeds
            if seed in fits and not (folder / fit_file(seed)).exists()
        ]
        steps += [
            Step(setting, "retrain", seed, folder / retrain_file(request, seed), seconds, request)
            for request in requests
            for seed in setting.retrain_seeds
            if not (folder / retrain_file(request, seed)).exists()
        ]
        steps += missing
    return steps


def _missing(setting: Setting, folder: Path) -> Iterator[Step]:
    """Steps for the records that are not there, seed by seed; the first that needs rows carries their cost."""
    for seed in setting.retrain_seeds:
        rows = costs.rows_seconds(setting)
        for request in setting.requests:
            for method in setting.methods:
                if seed not in setting.seeds_of(method):
                    continue
                target = folder / request.name / f"{method.slug}-seed{seed}.json"
                if has_record(target, record_digest(setting, request, method, seed)):
                    continue
                seconds = costs.record_seconds(setting, request, method)
                if method.method in LINEARISED:
                    seconds, rows = seconds + rows, 0.0
                yield Step(setting, "record", seed, target, seconds, request, method)


def check_methods(setting: Setting) -> None:
    """Refuse methods and options that ``unlearn`` does not have."""
    for method in setting.methods:
        call = METHODS.get(method.method)
        known = [] if call is None else [name for name in inspect.signature(call).parameters if name != "task"]
        unknown = [name for name in method.options if name not in known]
        if call is None or unknown:
            what = f"unknown method {method.method!r}" if call is None else f"{method.method!r} has no option {unknown}"
            choices = f"methods: {', '.join(METHODS)}" if call is None else f"it takes: {', '.join(known) or 'none'}"
            raise InputError(f"{setting.name}, row {method.label!r}: {what}; {choices}.")


def own_seed(method: Method, seed: int) -> dict[str, int]:
    """The run's seed for methods that draw at random themselves; Retrain takes it from the recipe."""
    draws = method.method != "retrain" and "seed" in inspect.signature(METHODS[method.method]).parameters
    return {"seed": seed} if draws else {}


def record_digest(setting: Setting, request: Request, method: Method, seed: int) -> str:
    """What decides one record."""
    asked = [request.kind, request.value, request.draw_seed]
    return json_digest([setting.digest, asked, method.method, dict(method.options), seed])


def probe_digest(setting: Setting, request: Request, label: str, seed: int) -> str:
    """What decides one record of a probe."""
    return json_digest([setting.digest, [request.kind, request.value, request.draw_seed], "probe", label, seed])


def run_steps(
    steps: Sequence[Step], *, shared: Path, work: Path, say: Callable[[str], None] = lambda text: print(text, file=sys.stderr)
) -> None:
    """Do the steps in order, saying after each how long it took and about how much is left."""
    desk: Desk | None = None
    started, spent = time.perf_counter(), 0.0
    total = sum(step.seconds for step in steps)
    for number, step in enumerate(steps, 1):
        say(f"[{number}/{len(steps)}] {step.title} …")
        if desk is None or desk.bench.setting != step.setting:
            desk = None  # The old setting's rows can be gigabytes: let go of them before the next is loaded.
            desk = Desk(open_bench(step.setting, shared=shared, work=work))
        begun = time.perf_counter()
        desk.do(step)
        spent += step.seconds
        now = time.perf_counter()
        left = (now - started) / max(spent, 1e-9) * (total - spent)
        say(f"[{number}/{len(steps)}] {step.title}: {now - begun:.1f} s; about {left / 60:.0f} min left")


@dataclass(eq=False)
class Desk:
    """A bench in use: the scenes of its requests, and the linearisations of the seed at hand."""

    bench: Bench
    scenes: dict[str, Scene] = field(default_factory=dict)
    seed: int | None = None
    linearisations: dict[str, tuple[Linearisation, Trained]] = field(default_factory=dict)

    def do(self, step: Step) -> None:
        """Make the step's file."""
        if step.kind == "fit":
            self.bench.fitted(step.seed)
            return
        assert step.request is not None
        if step.kind == "retrain":
            self.bench.retrained(step.request, step.seed)
            return
        if self.seed != step.seed:
            self.seed, self.linearisations = step.seed, {}
        folder = step.target.parent.parent
        describe_setting(folder, self.bench)
        if step.probe is not None:
            write_record(step.target, self.probe(step))
            return
        if step.request.name not in self.scenes:
            self.scenes[step.request.name] = Scene(self.bench, step.request)
        write_record(step.target, self.record(step, self.scenes[step.request.name]))

    def record(self, step: Step, scene: Scene) -> dict[str, Any]:
        """The JSON-able record of one method."""
        setting, request, method = step.setting, step.request, step.method
        assert request is not None
        assert method is not None
        retrain = self.bench.retrained(request, step.seed)
        fitted = self.bench.fitted(step.seed) if step.seed in setting.seeds else None
        vector, details, timings = self.apply(method, request, step.seed)
        view = scene.view(vector)
        return (
            head_of(step, record_digest(setting, request, method, step.seed), scene.split)
            | {
                "label": method.label,
                "method": method.method,
                "options": dict(method.options),
                "timings": {"fit": fitted and cost(fitted), "retrain": cost(retrain)} | timings | ratios(timings, retrain),
                "details": details,
            }
            | scene.measure(view, step.seed)
            | ({"evidence": evidence(scene, view, seed=step.seed)} if setting.evidence else {})
        )

    def probe(self, step: Step) -> dict[str, Any]:
        """The JSON-able record of one model's probe; a method's vector is computed where an earlier record did not keep it."""
        from fastntk.experiments.probing import probe_figures

        setting, request, label = step.setting, step.request, step.probe
        assert request is not None
        assert label is not None
        vector = None
        method = next((method for method in setting.methods if method.label == label), None)
        if method is not None:
            vector = self._kept_vector(method, request, step.seed)
            vector = self.apply(method, request, step.seed)[0] if vector is None else vector
        digest = probe_digest(setting, request, label, step.seed)
        found = head_of(step, digest, self.bench.split(request)) | {"kind": "probe", "label": label}
        return found | probe_figures(self.bench, request, label=label, vector=vector, seed=step.seed)

    def _kept_vector(self, method: Method, request: Request, seed: int) -> torch.Tensor | None:
        """An unlearned vector (d,) that an earlier record left, None where there is none of this very setting."""
        identity, path = self._kept(method, request, seed)
        try:
            return read_vector(path, identity=identity).vector if path.exists() else None
        except InputError:  # Settings that train alike share the folder: another one's vector is made again.
            return None

    def _kept(self, method: Method, request: Request, seed: int) -> tuple[str, Path]:
        """Identity and place of an unlearned vector."""
        bench = self.bench
        identity = json_digest([bench.identity, record_digest(bench.setting, request, method, seed)])
        return identity, bench.folder / f"{method.slug}-{request.name}-seed{seed}.safetensors"

    def apply(self, method: Method, request: Request, seed: int) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any]]:
        """The method's tuned vector, its details without times, and its times."""
        if method.method == "full":
            return self.bench.fitted(seed).vector, {}, {"method": {"wall": 0.0, "cpu": 0.0}, "rows": None}
        if method.method == "retrain" and not method.options:
            made = self.bench.retrained(request, seed)
            return made.vector, {}, {"method": cost(made), "rows": None}
        options = dict(method.options)
        options = own_seed(method, seed) | options
        shared = self.linearised(str(options.get("at", "trained")), seed) if method.method in LINEARISED else None
        if shared:  # what another method left there would come free of cost
            shared[0].memo.clear()
        run = self.bench.run(seed)
        cpu = time.process_time()
        result = unlearn(
            run, ids=request.ids(self.bench.samples), method=method.method, linearisation=shared and shared[0], **options
        )
        cpu = time.process_time() - cpu
        times = {
            "method": {"wall": result.seconds, "cpu": cpu, "stages": result.details["seconds"]},
            "rows": shared and cost(shared[1]),
            "peak_memory_bytes": result.details["peak_memory_bytes"],
        }
        vector = result.subset.get()
        if shared:
            identity, path = self._kept(method, request, seed)
            write_vector(path, Trained(vector, result.seconds, cpu, torch.get_num_threads()), identity=identity)
        return vector, without(result.details, "seconds", "peak_memory_bytes"), times

    def linearised(self, at: str, seed: int) -> tuple[Linearisation, Trained]:
        """The rows of the seed's run, made once, and what they cost."""
        if at not in self.linearisations:
            cpu = time.process_time()
            made = linearise_run(self.bench.run(seed), at=at)  # type: ignore[arg-type]  # checked there
            cpu = time.process_time() - cpu
            self.linearisations[at] = made, Trained(made.theta, made.seconds, cpu, torch.get_num_threads())
        return self.linearisations[at]


def head_of(step: Step, digest: str, split: Split) -> dict[str, Any]:
    """What every record says of itself."""
    request = step.request
    assert request is not None
    return {
        "schema": SCHEMA,
        "setting": step.setting.name,
        "configuration": step.setting.digest,
        "digest": digest,
        "request": {"kind": request.kind, "value": request.value, "draw_seed": request.draw_seed}
        | {"name": request.name, "forget": len(split.forget), "retain": len(split.retain)},
        "seed": step.seed,
        "environment": environment(),
    }


def cost(made: Trained) -> dict[str, Any]:
    """JSON-able."""
    return {"wall": made.wall, "cpu": made.cpu, "threads": made.threads}


def ratios(timings: dict[str, Any], retrain: Trained) -> dict[str, Any]:
    """The method's time over Retrain's, with the rows and without."""
    rows = timings["rows"] or {"wall": 0.0, "cpu": 0.0}
    out = {}
    for kind, reference in (("wall", retrain.wall), ("cpu", retrain.cpu)):
        own, floor = timings["method"][kind], max(reference, 1e-9)
        out[kind] = {"with_rows": (own + rows[kind]) / floor, "without_rows": own / floor}
    return {"ratio_to_retrain": out}


def describe_setting(folder: Path, bench: Bench) -> None:
    """Write the setting's file once; refuse data or pre-trained weights other than those it names."""
    path = folder / SETTING_FILE
    if path.exists():
        if read_record(path)["loaded"]["identity"] != bench.identity:
            raise InputError(f"{folder} was made from other data or pre-trained weights than those loaded now.")
        return
    setting = bench.setting
    write_record(
        path,
        {
            "schema": SCHEMA,
            "setting": setting.name,
            "configuration": setting.configuration,
            "digest": setting.digest,
            "loaded": {
                "identity": bench.identity,
                "data_digest": bench.samples.digest(),
                "holdout_digest": bench.holdout.digest(),
                "samples": len(bench.samples),
                "classes": bench.samples.num_classes,
                "holdout": len(bench.holdout),
                "tuned": bench.subset.numel,
                "tuned_share": bench.subset.ratio,
            },
        },
    )
