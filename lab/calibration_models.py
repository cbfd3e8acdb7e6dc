"""The models that the verdict is calibrated on: Retrains of many seeds, Full and every method's result, each measured once.

    <work>/<model>-<training digest>/…                               trained weights (:mod:`fastntk.reproduce.experiment`)
    <pieces>/<pool>/<request>/<label>-seed<k>.safetensors            a model's vector, logits, and epochs of relearning

Limits are chosen on the pool ``development`` (class 7, draws 100, seeds from 100) and reported on ``report`` (class 0, draws 0,
seeds from 0) and ``larger`` (100 images a class). A piece is a model's own; comparing two is :mod:`lab.calibration`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from fastntk.auditing.predictions import EvaluationSets, Predictions, evaluation_sets, predict_sets
from fastntk.auditing.record_figures import Relearning
from fastntk.auditing.relearning import relearn
from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest
from fastntk.data import Samples, Split
from fastntk.reproduce.cells import RESNET
from fastntk.reproduce.experiment import Experiment, fit_file, open_experiment, retrain_file, trace_folder
from fastntk.reproduce.methods import needs_rows, own_seed
from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RETRAIN, RIDGE, MethodRow, Request, Setting
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from lab.comparison import BASELINES, SAMPLES_CAP, TUNING, tuning_file

PATHS = (
    MethodRow("path-replay, head", "path-replay", {"depth": "head"}),
    MethodRow("path-replay, all", "path-replay", {"depth": "all"}),
)
OURS = (RIDGE, FAST_NTK, REPLAY, *PATHS)
TUNED_ON = {"class": Request("class", 0), "random": Request("random", 0.1, draw_seed=0)}
"""Whose tuning of the baselines serves which kind of request."""
SHARE = 0.1
"""From this share on, random samples are relearnt for a few epochs only: no model gets there in 100."""
HOLDOUT = 1000
"""Held-out images that are looked at, evenly spaced: half of them, at half the time."""


@dataclass(frozen=True)
class Pool:
    """A setting, its requests, the seeds that Retrain is trained with, and those whose run the methods start from."""

    name: str
    setting: Setting
    requests: tuple[Request, ...]
    seeds: tuple[int, ...]
    runs: tuple[int, ...]


def _requests(label: int, draw: int) -> tuple[Request, ...]:
    shares = ((0.1, draw), (5 / 300, draw), (1 / 300, draw), (1 / 300, draw + 1))
    return (Request("class", label), *(Request("random", share, draw_seed=seed) for share, seed in shares))


SMALL = replace(RESNET, name="resnet20-30", images_per_class=30, methods=PATHS)
POOLS = {
    pool.name: pool
    for pool in (
        Pool("development", SMALL, _requests(7, 100), tuple(range(100, 120)), tuple(range(100, 103))),
        Pool("report", SMALL, _requests(0, 0), tuple(range(20)), tuple(range(3))),
        Pool(
            "larger",
            replace(RESNET, methods=PATHS),
            (Request("class", 0), Request("random", 0.1, draw_seed=0)),
            tuple(range(10)),
            (0, 1),
        ),
    )
}


def method_rows(request: Request, out: Path) -> tuple[MethodRow, ...]:
    """Every method that is judged: ours, and the baselines with their tuned options, else their own defaults."""
    files = {method: tuning_file(TUNED_ON[request.kind], method, out) for method in BASELINES}
    options = {method: read_record(file, schema=TUNING)["options"] if file.exists() else {} for method, file in files.items()}
    return (*OURS, *(MethodRow(method, method, chosen) for method, chosen in options.items()))


@dataclass(frozen=True, eq=False)
class Piece:
    """What is measured of one model by itself; ``validity``: what the method's own check said."""

    predictions: Predictions
    relearning: Relearning
    validity: dict[str, Any] | None


@dataclass(eq=False)
class Workshop:
    """A pool at work: the experiment, where pieces lie, the run at hand. ``kept``: train nothing, leave out what is missing.

    ``measured``: measure nothing either.
    """

    pool: Pool
    out: Path
    experiment: Experiment
    pieces: Path
    kept: bool
    measured: bool = False
    run: Run | None = None
    rows: Linearisation | None = None
    sets: dict[str, EvaluationSets] = field(default_factory=dict)

    @cached_property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds of Retrain by request, those that are trained where nothing may be."""
        return {
            request.name: tuple(seed for seed in self.pool.seeds if self.there(request, RETRAIN, seed))
            for request in self.pool.requests
        }

    def there(self, request: Request, row: MethodRow, seed: int) -> bool:
        """Whether a model may be asked for: all of them, those whose training is kept, or those that were measured."""
        if self.measured:
            return self.place(request, row, seed).exists()
        names = [retrain_file(request, seed)] if row.method == RETRAIN.method else [fit_file(seed), trace_folder(seed)]
        return not self.kept or all((self.experiment.folder / name).exists() for name in names)

    def runs(self, request: Request) -> tuple[int, ...]:
        """The seeds that the methods start from: those that have a Retrain, too."""
        return tuple(seed for seed in self.pool.runs if seed in self.seeds[request.name] and self.there(request, FULL, seed))

    def place(self, request: Request, row: MethodRow, seed: int) -> Path:
        """The file of a model's figures."""
        return self.pieces / self.pool.name / request.name / f"{row.slug}-seed{seed}.safetensors"

    def piece(self, request: Request, row: MethodRow, seed: int) -> Piece:
        """The model's figures: read, or measured and kept."""
        on = self.evaluation(request)
        key = json_digest([self.experiment.identity, request.ids(self.experiment.samples), row.method, dict(row.options), seed])
        path = self.place(request, row, seed)
        found = read_piece(path, key, on) if path.exists() else None
        if found is None:
            found = self._measured(request, row, seed, on)
            write_piece(path, key, found)
        return found

    def evaluation(self, request: Request) -> EvaluationSets:
        """Retained, forgotten and held-out samples of a request."""
        if request.name not in self.sets:
            split, data = self.split(request), self.experiment.samples
            retained, forgotten = data.subset(split.retain), data.subset(split.forget)
            unseen = self.experiment.holdout
            unseen = unseen.subset(torch.arange(0, len(unseen), max(1, len(unseen) // HOLDOUT)))
            self.sets[request.name] = evaluation_sets(retained, forgotten, unseen)
        return self.sets[request.name]

    def split(self, request: Request) -> Split:
        """The request on the pool's data."""
        return self.experiment.split(request)

    def _measured(self, request: Request, row: MethodRow, seed: int, on: EvaluationSets) -> Piece:
        vector, validity = self._vector(request, row, seed)
        model = self.experiment.model_with(vector)
        cap = SAMPLES_CAP if request.kind == "random" and request.value >= SHARE else 100
        forgotten: Samples = on.sets["forget"]
        learned = relearn(model, self.experiment.subset.on(model), forgotten, cap=cap).to_record()
        return Piece(predict_sets(model, vector, on, title=row.label, features=False), learned, validity)

    def _vector(self, request: Request, row: MethodRow, seed: int) -> tuple[Tensor, dict[str, Any] | None]:
        if row.method == RETRAIN.method:
            return self.experiment.retrained(request, seed).vector, None
        if row.method == FULL.method:
            return self.experiment.fitted(seed).vector, None
        run = self._run(seed)
        rows = self._linearised(run) if needs_rows(row.method) else None
        options = own_seed(row, seed) | dict(row.options)
        result = unlearn(run, ids=request.ids(self.experiment.samples), method=row.method, linearisation=rows, **options)
        return result.subset.get().cpu(), result.details.get("validity")

    def _run(self, seed: int) -> Run:
        if self.run is None or self.run.recipe is None or self.run.recipe.seed != seed:
            self.rows, self.run = None, self.experiment.run(seed, traced=True)
        return self.run

    def _linearised(self, run: Run) -> Linearisation:
        if self.rows is None:
            self.rows = linearise_run(run)
        return self.rows


def open_pool(pool: Pool, *, out: Path, work: Path, shared: Path, kept: bool, measured: bool = False) -> Workshop:
    """Build the model, load the data."""
    experiment = open_experiment(pool.setting, shared=shared, work=work)
    return Workshop(pool, out, experiment, out / "work" / "calibration", kept, measured)


def measure(shop: Workshop, say: Callable[[str], None]) -> None:
    """Measure every model of a pool that is missing, Retrains first, then seed by seed so that rows are made once."""
    for request in shop.pool.requests:
        for seed in shop.seeds[request.name]:
            shop.piece(request, RETRAIN, seed)
        say(f"{shop.pool.name}, {request.name}: {len(shop.seeds[request.name])} Retrains")
    for seed in shop.pool.runs:
        for request in shop.pool.requests:
            rows = (FULL, *method_rows(request, shop.out)) if seed in shop.runs(request) else ()
            for row in rows:
                shop.piece(request, row, seed)
            say(f"{shop.pool.name}, {request.name}: {len(rows)} methods from run {seed}")


def write_piece(path: Path, key: str, piece: Piece) -> None:
    """Keep a model's figures."""
    names = ("vector", "retain", "forget", "holdout")
    tensors = {name: getattr(piece.predictions, name).contiguous() for name in names}
    learned = piece.relearning
    about = {"epochs": learned.epochs, "threshold": learned.threshold, "cap": learned.cap, "curve": learned.curve}
    header = {"key": key, "relearning": json.dumps(about), "validity": json.dumps(piece.validity)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save(tensors, metadata=header), overwrite=True)


def read_piece(path: Path, key: str, on: EvaluationSets) -> Piece | None:
    """Figures that were kept; None where they are of other data or options."""
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if header.get("key") != key:
            return None
        tensors = {name: file.get_tensor(name) for name in ("vector", "retain", "forget", "holdout")}
    about = json.loads(header["relearning"])
    learned = Relearning(**about | {"curve": tuple(about["curve"])}, censored=about["epochs"] is None)
    labels = {name: samples.labels for name, samples in on.sets.items()}
    return Piece(Predictions(**tensors, features=None, labels=labels), learned, json.loads(header["validity"]))
