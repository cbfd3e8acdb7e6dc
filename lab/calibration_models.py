"""The models that the verdict is calibrated on: Retrains of many seeds, Full and every method's result, each measured once.

    <work>/<model>-<training digest>/…                               trained weights (:mod:`fastntk.reproduce.experiment`)
    <out>/work/calibration/<pool>/<request>/<label>-seed<k>.safetensors     a model's vector, logits, and epochs of relearning

Limits are chosen on the pool ``development`` (class 7, draws 100, seeds from 100) and reported on ``report`` (class 0, draws 0,
seeds from 0) and ``larger`` (100 images a class). What is measured here is a model's own; comparing two is
:mod:`lab.calibration`'s. A file names what was asked and the code that answered: it is made again where either is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from fastntk.reproduce.code import UNLEARNING, changed_rooms, code_of, vouched
from fastntk.reproduce.experiment import Experiment, fit_file, has_vector, open_experiment, retrain_file, trace_folder
from fastntk.reproduce.methods import needs_rows, seed_option
from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import FAST_NTK, FULL, REPLAY, RETRAIN, RIDGE, MethodRow, Request, Setting
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from lab.comparison import BASELINES, SAMPLES_CAP, TUNING, tuning_file
from lab.module_code import module_code

PATHS = (
    MethodRow("path-replay, head", "path-replay", {"depth": "head"}),
    MethodRow("path-replay, all", "path-replay", {"depth": "all"}),
)
OURS = (RIDGE, FAST_NTK, REPLAY, *PATHS)
TUNED_ON = {"class": Request("class", 0), "random": Request("random", 0.1, draw_seed=0)}
"""Whose tuning of the baselines serves which kind of request."""
SHARE = 0.1
"""From this share on, random samples are relearnt for a few epochs only: no model gets there in 100."""
CAP = 100
"""Epochs of relearning otherwise."""
HOLDOUT = 1000
"""Held-out images that are looked at, evenly spaced: half of them, at half the time."""
MODULES = ("auditing/predictions.py", "auditing/relearning.py", "auditing/metrics.py")
"""What measures a model. The verdict's limits are not among them: draws are judged anew each time."""


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
class MeasuredModel:
    """What is measured of one model by itself; ``validity``: what the method's own check said."""

    predictions: Predictions
    relearning: Relearning
    validity: dict[str, Any] | None


@dataclass(eq=False)
class PoolModels:
    """The models of a pool: the experiment they are of, the folder of what was measured, the run at hand.

    ``kept``: train nothing, leave out what is missing; ``only_finish``: measure nothing either. What other code made counts as
    missing, unless the experiment keeps what is stale.
    """

    pool: Pool
    out: Path
    experiment: Experiment
    folder: Path
    kept: bool
    only_finish: bool = False
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
        if self.only_finish:
            return self.read(request, row, seed) is not None
        if not self.kept:
            return True
        folder, keep_stale = self.experiment.folder, self.experiment.keep_stale
        if row.method == RETRAIN.method:
            return has_vector(folder / retrain_file(request, seed), keep_stale=keep_stale)
        return has_vector(folder / fit_file(seed), keep_stale=keep_stale) and (folder / trace_folder(seed)).exists()

    def runs(self, request: Request) -> tuple[int, ...]:
        """The seeds that the methods start from: those that have a Retrain, too."""
        return tuple(seed for seed in self.pool.runs if seed in self.seeds[request.name] and self.there(request, FULL, seed))

    def place(self, request: Request, row: MethodRow, seed: int) -> Path:
        """The file of a model's figures."""
        return self.folder / self.pool.name / request.name / f"{row.slug}-seed{seed}.safetensors"

    def get(self, request: Request, row: MethodRow, seed: int) -> MeasuredModel:
        """The model's figures: read, or measured and kept."""
        model = self.read(request, row, seed)
        if model is None:
            model = self._measure(request, row, seed)
            write_measured(self.place(request, row, seed), model, key=self._key(request, row, seed), code=self._code(row))
        return model

    def read(self, request: Request, row: MethodRow, seed: int) -> MeasuredModel | None:
        """The model's figures as they were kept; None where there are none, or they are of other data, options or code."""
        path = self.place(request, row, seed)
        if not path.exists():
            return None
        return read_measured(path, self.evaluation(request), key=self._key(request, row, seed), code=self._code(row))

    def _code(self, row: MethodRow) -> dict[str, str] | None:
        """Of what makes a row's model and measures it; None where weights and figures of any code will do."""
        code = code_of(row.method, rooms=UNLEARNING) | module_code(*MODULES)
        return None if self.experiment.keep_stale else code

    def _key(self, request: Request, row: MethodRow, seed: int) -> str:
        """Of what decides a model's figures, the code aside."""
        on = {name: samples.ids_digest() for name, samples in self.evaluation(request).sets.items()}
        holdout = self.experiment.holdout.digest()
        return json_digest([self.experiment.identity, holdout, on, row.method, dict(row.options), seed, relearn_cap(request)])

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

    def _measure(self, request: Request, row: MethodRow, seed: int) -> MeasuredModel:
        vector, validity = self._vector(request, row, seed)
        model, on = self.experiment.model_with(vector), self.evaluation(request)
        forgotten: Samples = on.sets["forget"]
        learned = relearn(model, self.experiment.subset.on(model), forgotten, cap=relearn_cap(request)).to_record()
        return MeasuredModel(predict_sets(model, vector, on, title=row.label, features=False), learned, validity)

    def _vector(self, request: Request, row: MethodRow, seed: int) -> tuple[Tensor, dict[str, Any] | None]:
        if row.method == RETRAIN.method:
            return self.experiment.retrained(request, seed).vector, None
        if row.method == FULL.method:
            return self.experiment.fitted(seed).vector, None
        run = self._run(seed)
        rows = self._linearised(run) if needs_rows(row.method) else None
        options = seed_option(row, seed) | dict(row.options)
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


def relearn_cap(request: Request) -> int:
    """Epochs after which relearning is given up."""
    return SAMPLES_CAP if request.kind == "random" and request.value >= SHARE else CAP


def open_pool(
    pool: Pool, *, out: Path, work: Path, shared: Path, kept: bool, only_finish: bool = False, keep_stale: bool = False
) -> PoolModels:
    """Build the model, load the data."""
    experiment = open_experiment(pool.setting, shared=shared, work=work, keep_stale=keep_stale)
    return PoolModels(pool, out, experiment, out / "work" / "calibration", kept, only_finish)


def measure(models: PoolModels, say: Callable[[str], None]) -> None:
    """Measure every model of a pool that is missing, Retrains first, then seed by seed so that rows are made once."""
    for request in models.pool.requests:
        for seed in models.seeds[request.name]:
            models.get(request, RETRAIN, seed)
        say(f"{models.pool.name}, {request.name}: {len(models.seeds[request.name])} Retrains")
    for seed in models.pool.runs:
        for request in models.pool.requests:
            rows = (FULL, *method_rows(request, models.out)) if seed in models.runs(request) else ()
            for row in rows:
                models.get(request, row, seed)
            say(f"{models.pool.name}, {request.name}: {len(rows)} methods from run {seed}")


def write_measured(path: Path, model: MeasuredModel, *, key: str, code: Mapping[str, str] | None) -> None:
    """Keep a model's figures; ``code`` None: the file names none."""
    names = ("vector", "retain", "forget", "holdout")
    tensors = {name: getattr(model.predictions, name).contiguous() for name in names}
    learned = model.relearning
    about = {"epochs": learned.epochs, "threshold": learned.threshold, "cap": learned.cap, "curve": learned.curve}
    header = {"key": key, "relearning": json.dumps(about), "validity": json.dumps(model.validity)}
    header |= vouched(json.dumps(code), keep_stale=code is None)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save(tensors, metadata=header), overwrite=True)


def read_measured(path: Path, on: EvaluationSets, *, key: str, code: Mapping[str, str] | None) -> MeasuredModel | None:
    """Figures that were kept; None where they are of other data or options, or other code (``code`` None: any will do)."""
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        stale = code is not None and changed_rooms(json.loads(header.get("code", "null")), code)
        if header.get("key") != key or stale:
            return None
        tensors = {name: file.get_tensor(name) for name in ("vector", "retain", "forget", "holdout")}
    about = json.loads(header["relearning"])
    learned = Relearning(**about | {"curve": tuple(about["curve"])}, censored=about["epochs"] is None)
    labels = {name: samples.labels for name, samples in on.sets.items()}
    return MeasuredModel(Predictions(**tensors, features=None, labels=labels), learned, json.loads(header["validity"]))
