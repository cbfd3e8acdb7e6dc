"""Replay along the recorded path against Retrain: cost of a first and of a next request, and where they end.

One setting and seed is one process's work, on as many threads as it was given: fine-tune with a trace, Retrain for every request,
then each row. A row gets a run with nothing computed in it. Its first request pays for everything; the other requests follow on
the same run, from what the first one left there. Which request is first changes from seed to seed. Retrain's first epochs are
timed in the same process, again from time to time, so that a cost is always a ratio within one run.

    <out>/path/<setting>/seed<k>.json      fine-tuning, Retrain and Full of the seed, and one entry a row, written as they come
    <out>/path/<setting>/between.json      what needs several seeds: :mod:`lab.path_between`

An entry that exists is not made again, as long as its digest (setting, row, requests, seed) is the same, and the code that made
it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fastntk.auditing import relearn
from fastntk.base.digest import json_digest
from fastntk.base.errors import DivergedError, InputError
from fastntk.reproduce import costs
from fastntk.reproduce.code import changed_rooms, code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, Trained, fit_file, has_vector, open_experiment, retrain_file, vector_folder
from fastntk.reproduce.methods import check_methods, needs_rows, seed_option
from fastntk.reproduce.records import read_record, without, write_record
from fastntk.reproduce.retrain_clock import RetrainClock
from fastntk.reproduce.setting import MethodRow, Request, Setting
from fastntk.reproduce.step_runner import cost
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from lab.path_between import write_between
from lab.path_models import (
    SCHEMA,
    Outputs,
    compared,
    outputs_file,
    outputs_of,
    own_figures,
)
from lab.settings import RELEARNED

DROPPED = ("seconds", "peak_memory_bytes", "outside_subset", "request", "summary", "moved", "trace", "rows")
"""Of a result's details: recorded elsewhere, or the same in all."""

Say = Callable[[str], None]


def run(
    setting: Setting,
    *,
    out: Path,
    work: Path,
    shared: Path,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    only_plan: bool = False,
    only_finish: bool = False,
    keep_stale: bool = False,
    opening: Callable[..., Experiment] = open_experiment,
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Make the entries that are missing, of these seeds and rows (default: all), then what needs several seeds.

    ``opening``: what makes the experiment, by default one that trains by the setting's recipe.
    """
    chosen = _chosen(setting, seeds, rows)
    folder = seed_folder(out, setting)
    if not only_finish:
        check_methods(replace(setting, methods=chosen[1]))
        todo = {seed: missing_rows(setting, seed, chosen[1], folder=folder, keep_stale=keep_stale) for seed in chosen[0]}
        stale = sum(len(rows) for rows in todo.values()) - sum(
            len(missing_rows(setting, seed, chosen[1], folder=folder, keep_stale=True)) for seed in chosen[0]
        )
        seconds_of = {seed: _estimate(setting, seed, rows, work=work) for seed, rows in todo.items()}
        todo = {seed: rows for seed, rows in todo.items() if seconds_of[seed]}
        seconds = sum(seconds_of.values())
        count = sum(len(rows) for rows in todo.values())
        total = len(chosen[0]) * len(chosen[1])
        say(f"{setting.name}: {count} of {total} rows to do ({stale} stale); about {seconds / 60:.0f} min (rough)")
        if only_plan:
            return
        if todo:
            experiment = opening(setting, shared=shared, work=work, keep_stale=keep_stale)
            for seed, missing in todo.items():
                PathSeed(experiment, seed, folder / f"seed{seed}.json", say=say).do(missing)
    path = write_between(setting, out=out, models=vector_folder(setting, work))
    say(f"{setting.name}: wrote {path}")


def _chosen(
    setting: Setting, seeds: Sequence[int] | None, rows: Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[MethodRow, ...]]:
    labels = [row.label for row in setting.methods]
    for what, given, known in (("seeds", seeds, setting.seeds), ("rows", rows, labels)):
        unknown = [each for each in given or () if each not in known]
        if unknown:
            raise InputError(f"{setting.name} has no {what} {unknown}: choose from {list(known)}.")
    return (
        setting.seeds if seeds is None else tuple(seeds),
        tuple(row for row in setting.methods if rows is None or row.label in rows),
    )


def seed_folder(out: Path, setting: Setting) -> Path:
    """Where the records of a setting lie."""
    return out / "path" / setting.name


def row_digest(setting: Setting, row: MethodRow, seed: int) -> str:
    """Of what decides a row's entry, the version of the code aside."""
    requests = [request.name for request in _order(setting, seed)]
    facts = [setting.training_digest, setting.holdout, setting.relearn_cap, requests, seed]
    return json_digest([*facts, row.label, row.method, dict(row.options), row.label in RELEARNED])


def missing_rows(
    setting: Setting, seed: int, rows: Sequence[MethodRow], *, folder: Path, keep_stale: bool = False
) -> list[MethodRow]:
    """The rows without an entry, or with one of other code (unless ``keep_stale``)."""
    path = folder / f"seed{seed}.json"
    known = read_record(path, schema=SCHEMA)["rows"] if path.exists() else {}

    def fresh(row: MethodRow) -> bool:
        entry = known.get(row.label, {})
        changed = () if keep_stale else changed_rooms(entry.get("code"), code_of(row.method))
        return entry.get("digest") == row_digest(setting, row, seed) and not changed

    return [row for row in rows if not fresh(row)]


def _order(setting: Setting, seed: int) -> tuple[Request, ...]:
    """The requests, another one first from seed to seed."""
    shift = setting.seeds.index(seed) % len(setting.requests)
    return setting.requests[shift:] + setting.requests[:shift]


def _extra_seeds(setting: Setting, seed: int) -> list[int]:
    """The extra Retrains that are made along with a seed: they are dealt out, so that processes share them."""
    place, extra = setting.seeds.index(seed), setting.extra_retrain_seeds
    return [other for k, other in enumerate(extra) if k % len(setting.seeds) == place]


def _estimate(setting: Setting, seed: int, rows: Sequence[MethodRow], *, work: Path) -> float:
    """Rough seconds of what is missing of a seed."""
    training, folder = costs.training_seconds(setting), vector_folder(setting, work)
    seeds = [seed, *_extra_seeds(setting, seed)]
    retrains = sum(not (folder / retrain_file(request, each)).exists() for request in setting.requests for each in seeds)
    fits = not (folder / fit_file(seed)).exists()
    return (retrains + fits) * training + sum(_row_seconds(setting, row) for row in rows)


def _row_seconds(setting: Setting, row: MethodRow) -> float:
    """Rows of all parameters take C + 1 passes an image and checkpoint, a third of them up to a block, none the head."""
    depth = row.options.get("depth", "all")
    passes = 0.05 if depth == "head" else 0.3 if isinstance(depth, int) else float(row.options.get("checkpoints") or 1)
    relearning = 0.1 if row.label in RELEARNED else 0.0
    requests = (0.05 + relearning) * len(setting.requests) * costs.training_seconds(setting)
    return passes * costs.rows_seconds(setting) + requests


@dataclass(eq=False)
class PathSeed:
    """One seed of a setting at work."""

    experiment: Experiment
    seed: int
    target: Path
    say: Say
    clock: RetrainClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = RetrainClock(self.experiment)

    @property
    def setting(self) -> Setting:
        """Of the experiment."""
        return self.experiment.setting

    def do(self, missing: Sequence[MethodRow]) -> None:
        """Fine-tune and Retrain where that is missing, then the rows, then the Retrains of extra seeds."""
        trained = self._prepare()
        started, total = time.perf_counter(), sum(_row_seconds(self.setting, row) for row in missing)
        done = 0.0
        for count, row in enumerate(missing, 1):
            entry = self.row_entry(row, trained)
            record = read_record(self.target, schema=SCHEMA)
            record["rows"][row.label] = entry
            write_record(self.target, record)
            done += _row_seconds(self.setting, row)
            left = (time.perf_counter() - started) * (total / max(done, 1e-9) - 1)
            self._tell(f"[{count}/{len(missing)}] {row.label}: {_cost_text(entry)}; about {left / 60:.0f} min left")
        for request in self.setting.requests:
            for other in _extra_seeds(self.setting, self.seed):
                self.retrain_outputs(request, other)

    def _prepare(self) -> Trained:
        """The recorded fine-tuning, and the seed's record with Retrain's and Full's figures."""
        trained = self.experiment.fitted(self.seed)
        trace = self.experiment.trace(self.seed)
        self._tell(f"fine-tuning with a trace took {trained.wall:.1f} s")
        known = read_record(self.target, schema=SCHEMA) if self.target.exists() else {"rows": {}, "references": {}}
        record = known | {
            "schema": SCHEMA,
            "setting": self.setting.name,
            "training": self.setting.training_digest,
            "identity": self.experiment.identity,
            "seed": self.seed,
            "fit": cost(trained) | {"trace": trace.summary()},
        }
        if known.get("identity", self.experiment.identity) != self.experiment.identity:
            raise InputError(f"{self.target} was made from other data or pre-trained weights. Move it away, or choose --out.")
        for request in self.setting.requests:
            reference = self._reference(request, trained, record["references"].get(request.name))
            record["references"][request.name] = reference
            write_record(self.target, record)
        return trained

    def _reference(self, request: Request, trained: Trained, known: dict[str, Any] | None) -> dict[str, Any]:
        """Full and the seed's Retrain: made once. ``timed``: Retrain's seconds, where all of it was run in this process."""
        keep_stale = self.experiment.keep_stale
        fresh = not has_vector(self.experiment.folder / retrain_file(request, self.seed), keep_stale=keep_stale)
        retrain = self.retrain_outputs(request, self.seed)
        if known is not None and not fresh and (keep_stale or not changed_rooms(known.get("code"), code_of("retrain"))):
            return known
        retrained = self.experiment.retrained(request, self.seed)
        full = self.outputs(request, "full", trained.vector)
        self._tell(f"Retrain without {request.title}: {retrained.wall:.1f} s" + ("" if fresh else " (kept)"))
        split = self.experiment.split(request)
        return {
            "forget": len(split.forget),
            "retain": len(split.retain),
            "retrain_cost": cost(retrained) | {"in_this_process": fresh},
            "full": own_figures(full)
            | compared(full, retrain=retrain, full=full, anchor=self.experiment.anchor)
            | self._relearned(request, full.vector),
            "retrain": own_figures(retrain) | self._relearned(request, retrain.vector),
            **vouched(code_of("retrain"), keep_stale=keep_stale),
            "environment": environment(),
        }

    def row_entry(self, row: MethodRow, trained: Trained) -> dict[str, Any]:
        """A row: its first request on a fresh run, the others from what that left, and the figures of each result."""
        run = self.experiment.run(self.seed, traced=True)
        head = {"digest": row_digest(self.setting, row, self.seed), "method": row.method, "options": dict(row.options)}
        head |= vouched(code_of(row.method), keep_stale=self.experiment.keep_stale)
        try:
            requests = self._requests(row, run, trained)
        except DivergedError as error:
            return head | {"failed": str(error), "requests": {}, "environment": environment()}
        return head | {"requests": requests, "environment": environment()}

    def _requests(self, row: MethodRow, run: Run, trained: Trained) -> dict[str, Any]:
        entries, vectors = {}, {}
        linearisation = None
        order = _order(self.setting, self.seed)
        references = {request.name: self.clock.seconds(request, self.seed) for request in order}
        for place, request in enumerate(order):
            options = seed_option(row, self.seed) | dict(row.options)
            ids = request.ids(self.experiment.samples)
            wall, cpu = time.perf_counter(), time.process_time()
            result = unlearn(run, ids=ids, method=row.method, linearisation=linearisation, **options)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if needs_rows(row.method):
                linearisation = result.linearisation
            timed = references[request.name]
            vectors[request] = result.subset.get()
            entries[request.name] = {
                "place": "first" if place == 0 else "next",
                "cost": {"wall": wall, "cpu": cpu, "stages": result.details["seconds"]},
                "retrain": timed,
                "ratio": {"wall": wall / max(timed["wall"], 1e-9), "cpu": cpu / max(timed["cpu"], 1e-9)},
                "peak_memory_bytes": result.details["peak_memory_bytes"],
                "details": without(result.details, *DROPPED),
            }
        del run, linearisation, result
        for request, vector in vectors.items():
            outputs = self.outputs(request, f"{row.slug}-{row_digest(self.setting, row, self.seed)[:8]}", vector)
            full = self.outputs(request, "full", trained.vector)
            retrain = self.retrain_outputs(request, self.seed)
            entries[request.name] |= own_figures(outputs)
            entries[request.name] |= compared(outputs, retrain=retrain, full=full, anchor=self.experiment.anchor)
            entries[request.name] |= self._relearned(request, vector) if row.label in RELEARNED else {}
        return entries

    def retrain_outputs(self, request: Request, seed: int) -> Outputs:
        """Retrain of any seed."""
        vector = self.experiment.retrained(request, seed).vector
        return outputs_of(self.experiment, request, vector, outputs_file(self.experiment.folder, request, "retrain", seed))

    def outputs(self, request: Request, model: str, vector: Tensor) -> Outputs:
        """Of a model of this seed."""
        return outputs_of(self.experiment, request, vector, outputs_file(self.experiment.folder, request, model, self.seed))

    def _relearned(self, request: Request, vector: Tensor) -> dict[str, Any]:
        """Epochs to relearn a class; a random share is not relearnt within the cap by any model."""
        if request.kind != "class":
            return {}
        model, cap = self.experiment.model_with(vector), self.setting.relearn_cap
        forgotten = self.experiment.samples.subset(self.experiment.split(request).forget)
        result = relearn(model, self.experiment.subset.on(model), forgotten, cap=cap, seed=self.seed)
        return {"relearn": {"epochs": result.epochs, "censored": result.censored, "cap": cap}}

    def _tell(self, text: str) -> None:
        self.say(f"{self.setting.name} · seed {self.seed} · {text}")


def _cost_text(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return f"failed ({entry['failed']})"
    each = [
        f"{part['place']} {part['cost']['wall']:.1f} s = {part['ratio']['wall']:.3f} of Retrain"
        for part in entry["requests"].values()
    ]
    return ", ".join(each)
