"""How often the verdict passes a genuine Retrain, and how often it catches what is none.

A draw is an audit as ``fastntk audit --retrains R`` would make it: a candidate, the Retrain of the run's seed, R Retrains of
other seeds, all different, the record's figures by the audit's own functions, and ``verdict``. Candidates are Retrains of
further seeds (which have to pass), the mean of three Retrains' probabilities, Full, and the result of every method. Draws share
models: beside their number stands that of the candidate models behind them.

    <out>/calibration/<pool>.json      shares of levels by request, candidate and R
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastntk.auditing import comparisons, sections
from fastntk.auditing.distances import compare
from fastntk.auditing.evidence import findings
from fastntk.auditing.predictions import Predictions
from fastntk.auditing.record import (
    SCHEMA,
    Cost,
    Measurements,
    ReferenceSummary,
    RequestSummary,
    ResultDigests,
    RunDigests,
    Subject,
)
from fastntk.auditing.record_figures import (
    Distance,
    Flow,
    LossHistogram,
    Membership,
    RelearningByModel,
    SetCounts,
)
from fastntk.auditing.verdict import verdict
from fastntk.reproduce.code import code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.records import write_record
from fastntk.reproduce.setting import FULL, RETRAIN, MethodRow, Request
from lab.calibration_models import POOLS, MeasuredModel, PoolModels, measure, method_rows, open_pool
from lab.calibration_page import CALIBRATION, FOLDER, PASSED

OTHERS = (1, 3, 7)
"""R: Retrains beside that of the run's own seed."""
DRAWS = 200
METHOD_DRAWS = 40
"""Draws of a genuine Retrain, and of each model of a method, for every request and R."""
MEAN = "mean of three Retrains"
NOTHING = "0" * 64


def run(
    *,
    out: Path,
    work: Path,
    shared: Path,
    pools: Sequence[str] | None = None,
    kept: bool = False,
    only_finish: bool = False,
    keep_stale: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Train and measure what is missing, then judge every draw anew.

    ``kept``: train nothing, use what is there; ``only_finish``: measure nothing either; ``keep_stale``: trained and measured
    models of other code are used, too, and the record names no code.
    """
    # One thread: what several compute differs in the last bits, and with it the models from machine to machine.
    torch.set_num_threads(1)
    for name in pools or POOLS:
        folders = {"out": out, "work": work, "shared": shared}
        models = open_pool(POOLS[name], **folders, kept=kept, only_finish=only_finish, keep_stale=keep_stale)
        if not only_finish:
            measure(models, say)
        requests = models.pool.requests
        rows = [row for request in requests for row in judged(models, request)]
        methods = {row.method for request in requests for row in (RETRAIN, FULL, *method_rows(request, out))}
        about = {
            "pool": name,
            "configuration": models.pool.setting.training,
            **vouched(code_of(*sorted(methods)), keep_stale=keep_stale),
            "environment": environment(),
            "complete": not (kept or only_finish),
        }
        write_record(out / FOLDER / f"{name}.json", {"schema": CALIBRATION, **about, "rows": rows})
        say(f"{name}: {sum(row['draws'] for row in rows)} draws judged")


def judged(models: PoolModels, request: Request) -> list[dict[str, Any]]:
    """A row for each candidate and R: how many draws got which level, and which tests were beyond their limits.

    ``candidates``: the candidates' seeds; ``failed``: of those that did not pass in every draw.
    """
    audits = RequestAudits(models, request)
    seeds = models.seeds[request.name]
    rows = []
    for others in OTHERS:
        for label, draws in _draws(models, request, others).items():
            levels: Counter[str] = Counter()
            tests: Counter[str] = Counter()
            candidates, failed = set[tuple[int, ...]](), set[tuple[int, ...]]()
            for candidate, references in draws:
                record = audits.record(candidate, references)
                level = verdict(record).level
                levels[level] += 1
                tests.update({item.test for item in findings(record)})
                candidates.add(candidate[1])
                if level != PASSED:
                    failed.add(candidate[1])
            if candidates:
                named = {"candidates": candidates, "failed": failed}
                counts = {"draws": levels.total(), "models": len(candidates), "retrains": len(seeds)}
                about = {"request": request.name, "title": request.title, "forget": len(models.split(request).forget)}
                rows.append(about | {"candidate": label, "others": others} | counts | {"levels": levels, "tests": tests})
                if label != MEAN:
                    rows[-1] |= {name: sorted(seed for (seed,) in those) for name, those in named.items()}
    return rows


Candidate = tuple[MethodRow, tuple[int, ...]]
"""A method and the seed of its run; for a mean of Retrains, their seeds."""


def _draws(models: PoolModels, request: Request, others: int) -> dict[str, Iterator[tuple[Candidate, list[int]]]]:
    """Candidates by label, each with the seeds of its references, the run's own first."""
    seeds = models.seeds[request.name]

    def genuine(size: int) -> Iterator[tuple[Candidate, list[int]]]:
        generator = np.random.default_rng([others, size])
        for _ in range(DRAWS if len(seeds) >= others + 1 + size else 0):
            order = [seeds[place] for place in generator.permutation(len(seeds))[: others + 1 + size]]
            yield (RETRAIN, tuple(sorted(order[:size]))), order[size:]

    def of_method(row: MethodRow) -> Iterator[tuple[Candidate, list[int]]]:
        for seed in (seed for seed in models.runs(request) if models.there(request, row, seed)):
            generator = np.random.default_rng([others, seed])
            rest = [other for other in seeds if other != seed]
            for _ in range(METHOD_DRAWS if len(rest) >= others else 0):
                yield (row, (seed,)), [seed, *generator.permutation(rest)[:others].tolist()]

    methods = (FULL, *method_rows(request, models.out))
    return {RETRAIN.label: genuine(1), MEAN: genuine(3)} | {row.label: of_method(row) for row in methods}


@dataclass(eq=False)
class RequestAudits:
    """Audits of one request, with the models and comparisons that they share."""

    pool: PoolModels
    request: Request
    models: dict[tuple[str, tuple[int, ...]], MeasuredModel] = field(default_factory=dict)
    pairs: dict[tuple[int, int, int], Distance] = field(default_factory=dict)
    attacks: dict[tuple[int, int, int], Membership] = field(default_factory=dict)

    def record(self, candidate: Candidate, references: Sequence[int]) -> Measurements:
        """What an audit of the candidate would measure."""
        retrains = {seed: self.model((RETRAIN, (seed,))) for seed in references}
        own, now = references[0], self.model(candidate)
        # Full is the origin that shares of the way are counted from; only runs that methods start from have one here.
        runs = self.pool.runs(self.request)
        full = self.model((FULL, (own if own in runs else runs[0],)))
        measured = {"full": full, "unlearned": now, "retrain": retrains[own]}
        models = {name: model.predictions for name, model in measured.items()}
        others = {seed: model.predictions for seed, model in retrains.items() if seed != own}
        anchor = self.pool.experiment.anchor
        split = self.pool.split(self.request)
        return replace(
            self._template(now),
            reference=ReferenceSummary(made=True, seed=own, other_seeds=tuple(others)),
            accuracy=sections.accuracies(models, split.whole_classes),
            loss=sections.losses(models),
            relearn=RelearningByModel(**{name: model.relearning for name, model in measured.items()}),
            membership=self._membership(models),
            distances=comparisons.distances(anchor, models, others, seed=own, comparing=self._compare),
        )

    def model(self, candidate: Candidate) -> MeasuredModel:
        """A model's figures, read once."""
        row, seeds = candidate
        key = (row.label, seeds)
        if key not in self.models:
            parts = [self.pool.get(self.request, row, seed) for seed in seeds]
            self.models[key] = parts[0] if len(parts) == 1 else _mean(parts)
        return self.models[key]

    def _compare(self, first: Predictions, second: Predictions, *, full: Predictions, anchor: torch.Tensor) -> Distance:
        key = (id(first), id(second), id(full))
        if key not in self.pairs:
            self.pairs[key] = compare(first, second, full=full, anchor=anchor)
        return self.pairs[key]

    def _membership(self, models: dict[str, Predictions]) -> Membership:
        """The population attack on the three together, whose differences to Retrain the verdict judges; once for these models."""
        full, unlearned, retrain = (id(models[name]) for name in ("full", "unlearned", "retrain"))
        key = (full, unlearned, retrain)
        if key not in self.attacks:
            self.attacks[key] = comparisons.population(models, whole=self.pool.split(self.request).whole_classes, seed=0)
        return self.attacks[key]

    def _template(self, now: MeasuredModel) -> Measurements:
        """All that the verdict does not look at, left empty."""
        split, data = self.pool.split(self.request), self.pool.experiment.samples
        names = sections.class_names(data, classes=0)
        run = RunDigests(data=NOTHING, tuned=NOTHING, anchor=NOTHING)
        counts = SetCounts(retain=(0,), forget=(0,), holdout=(0,))
        whole = tuple(names[label] for label in split.whole_classes)
        models = {"full": now.predictions, "unlearned": now.predictions}
        return Measurements(
            schema=SCHEMA,
            created="2000-01-01T00:00:00+00:00",
            fastntk="",
            environment={},
            subject=Subject(
                model=self.pool.experiment.setting.model, weights=None, tuned=0, tuned_share=0.0, parameters=0, classes=names,
                samples=len(data), holdout=len(now.predictions.holdout), run=run, result=ResultDigests(tuned=NOTHING),
                recipe={}, method="", options={},
            ),
            request=RequestSummary(
                forget=len(split.forget), retain=len(split.retain), whole_classes=whole, ids_digest=NOTHING
            ),
            details={},
            reference=ReferenceSummary(made=False, seed=None, other_seeds=()),
            accuracy=sections.accuracies(models, ()),
            loss=sections.losses(models),
            relearn=RelearningByModel(full=now.relearning, unlearned=now.relearning),
            membership=Membership(),
            flow=Flow(classes=(), full=(), unlearned=()),
            loss_histogram=LossHistogram(edges=(0.0, 1.0), full=counts, unlearned=counts),
            cost=Cost(
                seconds=0.0, retrain_seconds=None, ratio_to_retrain=None, peak_memory_bytes=None, stages={}, audit_seconds=0.0
            ),
            definitions={},
        )  # fmt: skip


def _mean(parts: Sequence[MeasuredModel]) -> MeasuredModel:
    """A model that predicts the mean of the others' probabilities; it relearns like the first."""

    def logits(where: str) -> torch.Tensor:
        stack = torch.stack([getattr(part.predictions, where).double().softmax(1) for part in parts])
        return stack.mean(0).clamp_min(1e-300).log()

    first = parts[0].predictions
    vector = torch.stack([part.predictions.vector for part in parts]).mean(0)
    mean = replace(first, vector=vector, retain=logits("retain"), forget=logits("forget"), holdout=logits("holdout"))
    return replace(parts[0], predictions=mean)
