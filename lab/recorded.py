"""Loops of other people, recorded by ``fastntk.record``: how near a replay comes to a Retrain in the same loop.

Every model is trained from the pre-trained weights in a loop of :mod:`lab.recorded_loops`; Retrain is the same loop without the
samples, the others in the same batches, cropped, flipped and dropped out the same way. A request is a class, a random tenth of
the samples, or a single image (five of them, one at a time).

    <work>/recorded/<loop>/<model>-seed<k>.safetensors     logits on D_f and the hold-out set, and seconds
    <out>/recorded/<loop>.json                             all figures, written when the last of them is there

A model's file names what was asked (data, weights, options of loop and row) and the code that answered, the loops' own modules
included: it is made again where either is another one. The first request of a row pays for what the others find.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fastntk.auditing import accuracy, mean_loss, recovered, total_variation
from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest
from fastntk.data import Samples
from fastntk.reproduce.code import DIGITS, changed_rooms, code_of, source_digest, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.records import write_record
from fastntk.reproduce.setting import slug
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.unlearning import Unlearned, unlearn
from lab.recorded_loops import LOOPS, Bench

SCHEMA = "fastntk-recorded/1"
SEEDS = (0, 1, 2)
SINGLES = 5
SETS = ("forget", "holdout")
MODULES = ("own_loop.py", "recorded_loops.py", "recorded_trainer.py")
"""Of this folder: what trains."""
Say = Callable[[str], None]


def requests(samples: Samples) -> dict[str, list[int]]:
    """Positions of the forgotten samples, by the request's name."""
    count = len(samples)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // 10]
    singles = {f"image-{k}": [(2 * k + 1) * count // (2 * SINGLES)] for k in range(SINGLES)}
    return {"class-0": (samples.labels == 0).nonzero().flatten().tolist(), "random-10pct": drawn.sort().values.tolist()} | singles


@dataclass(frozen=True, eq=False)
class Answers:
    """Logits of one model on D_f and the hold-out set, and the CPU seconds that it took."""

    forget: Tensor
    holdout: Tensor
    seconds: float

    def apart(self, other: Answers) -> dict[str, float]:
        """Total variation, by set."""
        pairs = {name: [getattr(each, name).double().softmax(1) for each in (self, other)] for name in SETS}
        return {name: total_variation(*pair) for name, pair in pairs.items()}


class Recorded:
    """One loop at work."""

    def __init__(self, name: str, *, shared: Path, work: Path, say: Say, keep_stale: bool = False) -> None:
        self.name, self.bench, self.say = name, LOOPS[name](shared), say
        self.folder = work / "recorded" / name
        self.keep_stale = keep_stale
        self.requests = requests(self.bench.samples)
        self._runs: dict[int, tuple[Run, float]] = {}
        self._met: set[str] = set()

    def run(self, seed: int) -> tuple[Run, float]:
        """The recorded training of a seed, and its CPU seconds."""
        if seed not in self._runs:
            self._runs.clear()
            self._met.clear()
            started = time.process_time()
            made = self.bench.train(seed, None, record=True)
            assert isinstance(made, Run)
            self._runs[seed] = made, time.process_time() - started
            self.say(f"{self.name} · seed {seed} · recorded: {self._runs[seed][1]:.0f} s")
        return self._runs[seed]

    def answers(self, label: str, request: str, seed: int, make: Callable[[], tuple[nn.Module, float]]) -> Answers:
        """Those of a model, from the file where it is there, of this question, and made by this code."""
        path = self.folder / f"{request}-{slug(label)}-seed{seed}.safetensors"
        code, key = _code(), self._key(label, request, seed)
        if path.exists():
            with safetensors.safe_open(path, framework="pt") as file:
                header = file.metadata()
                fresh = self.keep_stale or not changed_rooms(json.loads(header.get("code", "null")), code)
                if fresh and header.get("key") == key:
                    return Answers(file.get_tensor("forget"), file.get_tensor("holdout"), json.loads(header["seconds"]))
        model, seconds = make()
        model.eval()
        gone = self.bench.samples.subset(self.requests[request])
        made = Answers(predict(model, gone.inputs), predict(model, self.bench.holdout.inputs), seconds)
        tensors = {name: getattr(made, name).contiguous() for name in SETS}
        header = {"seconds": json.dumps(seconds), "code": json.dumps(code), "key": key}
        write_file(path, save(tensors, metadata=header), overwrite=True)
        self.say(f"{self.name} · seed {seed} · {request} · {label}: {seconds:.1f} s")
        return made

    def _key(self, label: str, request: str, seed: int) -> str:
        """Of all that decides a model's logits, the code aside."""
        bench = self.bench
        data = [bench.origin, bench.holdout.digest(), bench.samples.subset(self.requests[request]).ids_digest()]
        return json_digest([self.name, *data, bench.options.to_dict(), label, bench.rows.get(label), seed])

    def retrain(self, request: str, seed: int) -> Answers:
        """The same loop without the samples of a request."""

        def make() -> tuple[nn.Module, float]:
            keep = torch.ones(len(self.bench.samples), dtype=torch.bool)
            keep[self.requests[request]] = False
            started = time.process_time()
            model = self.bench.train(seed, keep, record=False)
            assert isinstance(model, nn.Module)
            return model, time.process_time() - started

        return self.answers("Retrain", request, seed, make)

    def full(self, request: str, seed: int) -> Answers:
        """The trained model as it is."""
        return self.answers("Full", request, seed, lambda: (self.run(seed)[0].model, self.run(seed)[1]))

    def row(self, label: str, request: str, seed: int) -> Answers:
        """A request met by ``path-replay``."""

        def make() -> tuple[nn.Module, float]:
            run, _ = self.run(seed)
            first = next(iter(self.requests))
            if request != first and label not in self._met:
                # The first one was met on a run that is gone: what it left there is made again, so that this one is a next one.
                self._unlearn(run, label, first)
            started = time.process_time()
            result = self._unlearn(run, label, request)
            return result.model, time.process_time() - started

        return self.answers(label, request, seed, make)

    def _unlearn(self, run: Run, label: str, request: str) -> Unlearned:
        self._met.add(label)
        ids = [run.listed.ids[position] for position in self.requests[request]]
        return unlearn(run, ids=ids, method="path-replay", **self.bench.rows[label])

    def figures(self) -> dict[str, Any]:
        """All of the loop, JSON-able, by request."""
        found: dict[str, Any] = {}
        for request in self.requests:
            # Seed by seed, so that a training is recorded once.
            models = {
                seed: {label: self.row(label, request, seed) for label in self.bench.rows}
                | {"Full": self.full(request, seed), "Retrain": self.retrain(request, seed)}
                for seed in SEEDS
            }
            found[request] = self._compared(request, models)
        return found

    def make_all(self) -> None:
        """Every model of every seed, in the order that trains least."""
        for seed in SEEDS:
            for request in self.requests:
                self.full(request, seed)
                self.retrain(request, seed)
                for label in self.bench.rows:
                    self.row(label, request, seed)

    def _compared(self, request: str, models: dict[int, dict[str, Answers]]) -> dict[str, Any]:
        labels = self.bench.samples.subset(self.requests[request]).labels
        pairs = [(i, j) for i in SEEDS for j in SEEDS if i < j]
        spread = [models[i]["Retrain"].apart(models[j]["Retrain"]) for i, j in pairs]
        unit = {name: sum(pair[name] for pair in spread) / len(spread) for name in SETS}
        rows: dict[str, Any] = {}
        for label in ("Full", *self.bench.rows, "Retrain"):
            same = [models[seed][label].apart(models[seed]["Retrain"]) for seed in SEEDS]
            others = [models[i][label].apart(models[j]["Retrain"]) for i in SEEDS for j in SEEDS if i != j]
            losses = [[mean_loss(models[seed][each].forget, labels) for each in (label, "Full", "Retrain")] for seed in SEEDS]
            rows[label] = {
                "same": {name: [each[name] / unit[name] for each in same] for name in SETS},
                "others": {name: [each[name] / unit[name] for each in others] for name in SETS},
                "forget_accuracy": [accuracy(models[seed][label].forget, labels) for seed in SEEDS],
                "holdout_accuracy": [accuracy(models[seed][label].holdout, self.bench.holdout.labels) for seed in SEEDS],
                "loss": [each[0] for each in losses],
                "recovered": [recovered(*each) for each in losses],
                "cost": [models[seed][label].seconds / models[seed]["Retrain"].seconds for seed in SEEDS],
            }
        return {"spread": {name: [each[name] for each in spread] for name in SETS}, "forgotten": len(labels), "rows": rows}


def _code() -> dict[str, str]:
    """Of what trains and unlearns."""
    folder = Path(__file__).parent
    loops = {f"lab/{name}": source_digest((folder / name).read_text("utf-8"))[:DIGITS] for name in MODULES}
    return code_of("path-replay") | loops


def run(
    name: str,
    *,
    out: Path,
    work: Path,
    shared: Path,
    keep_stale: bool = False,
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
) -> Path:
    """Make what is missing or stale of a loop (``keep_stale``: what other code made stays), and write its record."""
    recorded = Recorded(name, shared=shared, work=work, say=say, keep_stale=keep_stale)
    recorded.make_all()
    bench: Bench = recorded.bench
    target = out / "recorded" / f"{name}.json"
    record = {
        "schema": SCHEMA,
        "loop": name,
        "title": bench.title,
        "samples": len(bench.samples),
        "holdout": len(bench.holdout),
        "seeds": list(SEEDS),
        **vouched(_code(), keep_stale=keep_stale),
        "environment": environment(),
        "requests": recorded.figures(),
    }
    write_record(target, record)
    say(f"{name}: wrote {target}")
    return target
