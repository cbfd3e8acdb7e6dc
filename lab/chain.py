"""Requests in a row against one for all of them: how far apart do they end, and does the result say so?

The samples of the setting's random request are forgotten in ``REQUESTS`` parts of equal size, drawn once. After each part:

    chained      the part asked of the last result's own run (``result.as_run()``), with its rewritten trace
    one shot     all parts so far, asked of the run that the chain began with

Both start from runs with nothing computed in them. In the end all samples of the random request are gone, so its Retrain and
Retrain's spread, which :mod:`lab.path` has, are what the ends are held against.

    <out>/path/chain/seed<k>.json      one entry a depth, written as they come

An entry that exists is not made again, as long as its digest (setting, request, parts, options, seed) is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fastntk.auditing import total_variation, weight_distance
from fastntk.base.digest import json_digest
from fastntk.base.errors import DivergedError, InputError
from fastntk.reproduce import costs
from fastntk.reproduce.code import changed_rooms, code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, Trained, fit_file, open_experiment, retrain_file, vector_folder
from fastntk.reproduce.records import read_record, write_record
from fastntk.reproduce.setting import Request, Setting
from fastntk.reproduce.step_runner import cost
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.unlearning import Unlearned, unlearn
from lab.path_models import SETS, compared, outputs_file, outputs_of, own_figures

SCHEMA = "fastntk-path-chain/1"
FOLDER = "chain"
REQUESTS = 10
"""Parts that the random request is asked in."""
DRAW = 0
"""The seed that deals the samples out to the parts."""
DEPTHS: dict[str, dict[str, Any]] = {
    "head": {"depth": "head", "checkpoints": 1, "exact": 0},
    "all": {"depth": "all", "checkpoints": 1, "exact": 0},
}
"""Options of ``path-replay``, by label: from rows alone, so that nothing but the replay's own errors can add up."""

Say = Callable[[str], None]


def run(
    setting: Setting,
    *,
    out: Path,
    work: Path,
    shared: Path,
    seeds: Sequence[int] | None = None,
    requests: int = REQUESTS,
    only_plan: bool = False,
    keep_stale: bool = False,
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Make the entries that are missing or stale, of these seeds (default: the setting's first two).

    ``keep_stale``: entries that other code made stay as they are.
    """
    chosen = setting.seeds[:2] if seeds is None else tuple(seeds)
    unknown = [seed for seed in chosen if seed not in setting.seeds]
    if unknown:
        raise InputError(f"{setting.name} has no seeds {unknown}: choose from {list(setting.seeds)}.")
    files = {seed: record_file(out, seed) for seed in chosen}
    todo = {seed: missing_depths(setting, seed, requests, path=path, keep_stale=keep_stale) for seed, path in files.items()}
    count = sum(len(depths) for depths in todo.values())
    stale = count - sum(len(missing_depths(setting, seed, requests, path=path, keep_stale=True)) for seed, path in files.items())
    seconds = sum(_estimate(setting, seed, depths, requests, work=work) for seed, depths in todo.items())
    total = len(chosen) * len(DEPTHS)
    say(f"chain on {setting.name}: {count} of {total} depths to do ({stale} stale); about {seconds / 60:.0f} min (rough)")
    if only_plan or not count:
        return
    experiment = open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
    for seed, depths in todo.items():
        if depths:
            ChainSeed.open(experiment, seed, requests, say=say).do(depths, record_file(out, seed))


def record_file(out: Path, seed: int) -> Path:
    """Where a seed's record lies."""
    return out / "path" / FOLDER / f"seed{seed}.json"


def random_request(setting: Setting) -> Request:
    """The request that is asked in parts."""
    return next(request for request in setting.requests if request.kind == "random")


def depth_digest(setting: Setting, seed: int, requests: int, label: str) -> str:
    """Of what decides an entry, the version of the code aside."""
    facts = [setting.training_digest, setting.holdout, random_request(setting).name, requests, DRAW, seed]
    return json_digest([*facts, label, DEPTHS[label]])


def missing_depths(setting: Setting, seed: int, requests: int, *, path: Path, keep_stale: bool = False) -> list[str]:
    """The depths without an entry, or with one of other code (unless ``keep_stale``)."""
    known = read_record(path, schema=SCHEMA)["depths"] if path.exists() else {}

    def fresh(label: str) -> bool:
        entry = known.get(label, {})
        changed = () if keep_stale else changed_rooms(entry.get("code"), code_of("path-replay"))
        return entry.get("digest") == depth_digest(setting, seed, requests, label) and not changed

    return [label for label in DEPTHS if not fresh(label)]


def _estimate(setting: Setting, seed: int, depths: Sequence[str], requests: int, *, work: Path) -> float:
    """Rough seconds: a chained request makes rows of its own, all one-shot requests share theirs."""
    if not depths:
        return 0.0
    folder, training = vector_folder(setting, work), costs.training_seconds(setting)
    files = (fit_file(seed), retrain_file(random_request(setting), seed))
    rows = (requests + 1) * costs.rows_seconds(setting) if "all" in depths else 0.0
    return rows + training * (sum(not (folder / file).exists() for file in files) + 0.1 * requests * len(depths))


def parts_of(ids: Sequence[str], requests: int) -> list[list[str]]:
    """The ids, dealt out at random to as many disjoint parts of equal size."""
    if requests < 1 or len(ids) % requests:
        raise InputError(f"{len(ids)} samples cannot be asked for in {requests} requests of equal size.")
    order = np.random.default_rng(DRAW).permutation(len(ids)).reshape(requests, -1)
    return [[ids[place] for place in part] for part in order.tolist()]


@dataclass(frozen=True, eq=False)
class Logits:
    """Of a tuned vector (d,): on the samples of all parts, in the order they are asked for, and on the hold-out set."""

    vector: Tensor
    forget: Tensor
    holdout: Tensor


@dataclass(frozen=True, eq=False)
class ChainSeed:
    """One seed at work."""

    experiment: Experiment
    seed: int
    parts: list[list[str]]
    trained: Trained
    say: Say

    @classmethod
    def open(cls, experiment: Experiment, seed: int, requests: int, *, say: Say) -> ChainSeed:
        """With the recorded fine-tuning, made where it is missing."""
        parts = parts_of(random_request(experiment.setting).ids(experiment.samples), requests)
        return cls(experiment, seed, parts, experiment.fitted(seed), say)

    def do(self, depths: Sequence[str], target: Path) -> None:
        """Make these entries, and write each into the record."""
        setting, request = self.experiment.setting, random_request(self.experiment.setting)
        known = read_record(target, schema=SCHEMA) if target.exists() else {"depths": {}}
        if known.get("identity", self.experiment.identity) != self.experiment.identity:
            raise InputError(f"{target} was made from other data or pre-trained weights. Move it away, or choose --out.")
        facts = {
            "schema": SCHEMA,
            "setting": setting.name,
            "training": setting.training_digest,
            "identity": self.experiment.identity,
            "seed": self.seed,
            "request": request.name,
        }
        for label in depths:
            known["depths"][label] = self.entry(label)
            write_record(target, known | facts)

    def entry(self, label: str) -> dict[str, Any]:
        """A depth: every step, and the two ends beside Retrain."""
        head = {
            "digest": depth_digest(self.experiment.setting, self.seed, len(self.parts), label),
            "options": DEPTHS[label],
            **vouched(code_of("path-replay"), keep_stale=self.experiment.keep_stale),
            "environment": environment(),
        }
        steps: list[dict[str, Any]] = []
        full = self._logits(self.trained.vector)
        last: tuple[Tensor, Tensor] | None = None
        try:
            for number, (chained, one_shot) in enumerate(self._results(DEPTHS[label]), 1):
                last = chained.subset.get(), one_shot.subset.get()
                steps.append(self._step(number, chained, one_shot, full))
                apart = steps[-1]["apart"]
                self.say(
                    f"{FOLDER} · seed {self.seed} · {label} [{number}/{len(self.parts)}]: TV {apart['forget']:.4f} on forgotten, "
                    f"{apart['holdout']:.4f} on hold-out; {chained.details['validity']['verdict']}"
                )
        except DivergedError as error:
            return head | {"steps": steps, "failed": str(error), "end": None}
        assert last is not None
        return head | {"steps": steps, "end": self._end(*last, label=label)}

    def _results(self, options: dict[str, Any]) -> Iterator[tuple[Unlearned, Unlearned]]:
        """The results of both ways, request after request."""
        origin = self.experiment.run(self.seed, traced=True)
        current: Run = self.experiment.run(self.seed, traced=True)
        gone: list[str] = []
        for part in self.parts:
            gone += part
            chained = unlearn(current, ids=part, method="path-replay", **options)
            yield chained, unlearn(origin, ids=gone, method="path-replay", **options)
            current = chained.as_run()

    def _step(self, number: int, chained: Unlearned, one_shot: Unlearned, full: Logits) -> dict[str, Any]:
        """JSON-able: how far the two are apart, how far the one-shot result is from Full, and what the chained one says."""
        first, second = (self._logits(result.subset.get()) for result in (chained, one_shot))
        gone = sum(len(part) for part in self.parts[:number])
        return {
            "requests": number,
            "gone": gone,
            "apart": _variation(first, second, gone),
            "moved": _variation(second, full, gone),
            "weights": weight_distance(first.vector, second.vector, self.experiment.anchor),
            "chain": chained.details["chain"],
            "validity": {name: result.details["validity"] for name, result in (("chained", chained), ("one_shot", one_shot))},
            "seconds": {"chained": chained.seconds, "one_shot": one_shot.seconds},
        }

    def _end(self, chained: Tensor, one_shot: Tensor, *, label: str) -> dict[str, Any]:
        """JSON-able: both ends against the Retrain of the same seed, and what that took."""
        experiment, request = self.experiment, random_request(self.experiment.setting)
        retrained = experiment.retrained(request, self.seed)
        vectors = {"full": self.trained.vector, "retrain": retrained.vector, "chained": chained, "one_shot": one_shot}
        files = {name: name if name in ("full", "retrain") else f"chain-{label}-{name}" for name in vectors}
        outputs = {
            name: outputs_of(experiment, request, vector, outputs_file(experiment.folder, request, files[name], self.seed))
            for name, vector in vectors.items()
        }
        retrain, full = outputs["retrain"], outputs["full"]
        figures = {
            name: compared(outputs[name], retrain=retrain, full=full, anchor=experiment.anchor)
            | {"accuracy": own_figures(outputs[name])["accuracy"]}
            for name in ("full", "chained", "one_shot")
        }
        return figures | {"retrain": {"accuracy": own_figures(retrain)["accuracy"], "cost": cost(retrained)}}

    def _logits(self, vector: Tensor) -> Logits:
        model, samples = self.experiment.model_with(vector), self.experiment.samples
        place = {name: position for position, name in enumerate(samples.ids)}
        asked = [place[name] for part in self.parts for name in part]
        return Logits(vector, predict(model, samples.inputs[asked]), predict(model, self.experiment.holdout.inputs))


def _variation(first: Logits, second: Logits, gone: int) -> dict[str, float]:
    """Total variation on the first ``gone`` of the forgotten samples, and on the hold-out set."""
    pairs = [(first.forget[:gone], second.forget[:gone]), (first.holdout, second.holdout)]
    return {name: total_variation(*(each.double().softmax(1) for each in pair)) for name, pair in zip(SETS, pairs)}
