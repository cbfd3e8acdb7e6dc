"""The runner: what is missing or stale becomes a list of steps, each ends in a file, and files that exist are not made again.

Steps of a setting: fine-tunings, retrainings, then records, seed by seed, so that one linearisation serves all requests and
methods of a seed. A record is ``unlearn`` and ``audit`` (:mod:`fastntk.reproduce.step_runner`). Killed at any point, it goes on
where it stopped, and gives the same records, timings aside.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from fastntk.base.digest import json_digest
from fastntk.base.version import __version__
from fastntk.reproduce import costs
from fastntk.reproduce.code import code_of
from fastntk.reproduce.experiment import fit_file, has_vector, open_experiment, retrain_file, vector_folder
from fastntk.reproduce.methods import check_methods, needs_rows
from fastntk.reproduce.records import MISSING, SCHEMA, check_folder, reason_to_run, setting_folder
from fastntk.reproduce.setting import MethodRow, Request, Setting

RETRAINED = "made by other training code"


@dataclass(frozen=True)
class Step:
    """One file to make, and roughly how many seconds that takes."""

    setting: Setting
    kind: Literal["fit", "retrain", "record"]
    seed: int
    target: Path
    seconds: float
    request: Request | None = None
    row: MethodRow | None = None
    reason: str = MISSING

    @property
    def title(self) -> str:
        """In words."""
        parts = [self.setting.name, self.request and self.request.name, self.row.label if self.row else self.kind]
        return " · ".join([part for part in parts if part] + [f"seed {self.seed}"])


def plan(settings: Sequence[Setting], *, out: Path, work: Path, keep_stale: bool = False) -> list[Step]:
    """The steps that are missing or stale, in order; refuses, before any work, folders and options that do not fit.

    ``keep_stale``: records made by other code stay as they are.
    """
    steps: list[Step] = []
    for setting in settings:
        check_methods(setting)
        check_folder(setting_folder(out, setting.name), setting.digest)
        missing = list(_missing_records(setting, setting_folder(out, setting.name), keep_stale=keep_stale))
        folder, seconds = vector_folder(setting, work), costs.training_seconds(setting)
        seeds = {step.seed for step in missing}
        requests = [request for request in setting.requests if any(step.request == request for step in missing)]
        trainings = [
            *(Step(setting, "fit", seed, folder / fit_file(seed), seconds) for seed in setting.retrain_seeds if seed in seeds),
            *(
                Step(setting, "retrain", seed, folder / retrain_file(request, seed), seconds, request)
                for request in requests
                for seed in setting.retrain_seeds
            ),
        ]
        trainings = [step for step in trainings if not has_vector(step.target, keep_stale=keep_stale)]
        steps += [replace(step, reason=RETRAINED) if step.target.exists() else step for step in trainings]
        steps += missing
    return steps


def stale_text(steps: Sequence[Step]) -> str:
    """How many trained weights and records are made again, and why; empty where none is."""
    stale = [step for step in steps if step.reason != MISSING]
    reasons = Counter(("records" if step.kind == "record" else "trained weights", step.reason) for step in stale)
    return "; ".join(f"{count} {what} are stale and made again: {reason}" for (what, reason), count in reasons.items())


def _missing_records(setting: Setting, folder: Path, *, keep_stale: bool) -> Iterator[Step]:
    """Steps for the records that are not there or stale, seed by seed; the first that needs rows carries their cost."""
    for seed in setting.retrain_seeds:
        rows = costs.rows_seconds(setting)
        for request in setting.requests:
            for row in setting.methods:
                target = folder / request.name / f"{row.slug}-seed{seed}.json"
                if seed not in setting.seeds_of(row):
                    continue
                digest = partial(record_digest, setting, request, row, seed)
                reason = reason_to_run(target, digest, code_of(row.method), keep_stale=keep_stale)
                if reason is None:
                    continue
                seconds = costs.record_seconds(setting, request, row)
                if needs_rows(row.method):
                    seconds, rows = seconds + rows, 0.0
                yield Step(setting, "record", seed, target, seconds, request, row, reason)


def record_digest(setting: Setting, request: Request, row: MethodRow, seed: int, version: str = __version__) -> str:
    """What is asked of one record: the configuration, the request, the method with its options, the seed; and the version."""
    request_key = [request.kind, request.value, request.draw_seed]
    return json_digest([SCHEMA, version, setting.digest, request_key, row.method, dict(row.options), seed])


def run_steps(
    steps: Sequence[Step],
    *,
    shared: Path,
    work: Path,
    keep_stale: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> None:
    """Do the steps in order, saying after each how long it took and about how much is left.

    ``keep_stale``: trained weights that other code made are taken as they are.
    """
    from fastntk.reproduce.step_runner import StepRunner

    runner: StepRunner | None = None
    started, progress = time.perf_counter(), 0.0
    total = sum(step.seconds for step in steps)
    for number, step in enumerate(steps, 1):
        say(f"[{number}/{len(steps)}] {step.title} …")
        if runner is None or runner.experiment.setting != step.setting:
            runner = None  # The old setting's rows can be gigabytes: let go of them before the next is loaded.
            runner = StepRunner(open_experiment(step.setting, shared=shared, work=work, keep_stale=keep_stale))
        step_started = time.perf_counter()
        runner.do(step)
        progress += step.seconds
        now = time.perf_counter()
        remaining = (now - started) / max(progress, 1e-9) * (total - progress)
        say(f"[{number}/{len(steps)}] {step.title}: {now - step_started:.1f} s; about {remaining / 60:.0f} min left")
