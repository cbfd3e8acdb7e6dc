"""A setting made real: the model, the data, and trained weights that are computed once and kept as files.

    <work>/<model>-<training digest>/fit-seed<k>.safetensors
    <work>/<model>-<training digest>/retrain-<request>-seed<k>.safetensors
    <work>/<model>-<training digest>/trace-seed<k>/

Each file holds the tuned vector, and in its header what it was made from, by which code, and what it cost. A file made from other
data or other pre-trained weights is refused, one made by other training code is made again (``keep_stale``: it stays). A trace is
recorded while the vector is trained, where a method of the setting needs one; a vector that is there without its trace is trained
once more for it. Runs and Retrains that are handed out have models of their own, which share with one another only what no
training of an experiment changes. Several processes may work in one folder: what one of them trains, the others wait for.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest, tensor_digest
from fastntk.base.errors import InputError
from fastntk.base.locks import one_at_a_time
from fastntk.data import ForgetRequest, Samples, Split, load_source
from fastntk.data.catalog import select
from fastntk.data.sources import open_source
from fastntk.models import build_model, card_of, input_spec
from fastntk.reproduce.code import TRAINING, changed_rooms, code_of
from fastntk.reproduce.loading import chosen_classes, load_rest
from fastntk.reproduce.methods import needs_trace
from fastntk.reproduce.setting import REST, Request, Setting, locate, slug
from fastntk.training.fitting import fit
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.training.trace_folder import read_trace
from fastntk.tuning import Subset, tune
from fastntk.unlearning.baselines.retrain import retrain_in_place
from fastntk.unlearning.result import Unlearned


@dataclass(frozen=True, eq=False)
class Trained:
    """A tuned vector (d,), the wall and CPU seconds it took, and the threads it had."""

    vector: Tensor
    wall: float
    cpu: float
    threads: int


@dataclass(frozen=True, eq=False)
class Experiment:
    """A setting's model, tuned subset, anchor, data and hold-out set, and the folder of trained weights."""

    setting: Setting
    model: nn.Module
    subset: Subset
    anchor: Tensor
    samples: Samples
    holdout: Samples
    folder: Path
    keep_stale: bool = False

    @cached_property
    def identity(self) -> str:
        """A digest of the bytes that were loaded: training data, anchor, pre-trained weights."""
        card = card_of(self.model)
        fingerprint = dict(card.fingerprint) if card else {}
        return json_digest([self.samples.digest(), tensor_digest(self.anchor), fingerprint])

    def split(self, request: Request) -> Split:
        """The request on this data."""
        return ForgetRequest(ids=request.ids(self.samples)).resolve(self.samples)

    @cached_property
    def traced(self) -> bool:
        """Whether a method of the setting needs the trace of the fine-tuning."""
        return any(needs_trace(row.method) for row in self.setting.methods)

    def run(self, seed: int, *, traced: bool | None = None) -> Run:
        """The fine-tuned run of a seed. ``traced``: with its trace; None: where a method of the setting needs it."""
        vector = self.fitted(seed).vector
        trace = self.trace(seed) if traced or (traced is None and self.traced) else None
        model = self.model_with(vector)
        recipe = self.recipe_of(seed)
        return Run(model, self.subset.on(model), self.anchor, self.samples, recipe=recipe, trace=trace)

    def recipe_of(self, seed: int) -> Recipe | None:
        """What a seed's run says of its training; None where no recipe describes it."""
        return self.setting.recipe_for(seed)

    def trace(self, seed: int) -> Trace:
        """The recorded path of a seed's fine-tuning: read, or recorded by training once more, and kept."""
        folder, vector = self.folder / trace_folder(seed), self.fitted(seed).vector
        with one_at_a_time(_lock_file(self.folder / fit_file(seed))):
            if not folder.exists() and not torch.equal(self.train(seed, None, trace=folder).vector, vector):
                shutil.rmtree(folder)
                raise InputError(
                    f"Training once more to record a trace led to other weights than {self.folder / fit_file(seed)}: it was made "
                    "on another machine or with other threads. Delete it (and the records made from it), and it is trained again."
                )
        return read_trace(folder)

    def retrain_result(self, run: Run, request: Request, seed: int) -> Unlearned:
        """The Retrain of a seed as a result of ``unlearn(run, method="retrain")``, from the vector that is kept."""
        trained, split = self.retrained(request, seed), self.split(request)
        return Unlearned(
            run=run,
            model=self.model_with(trained.vector),
            delta=trained.vector - run.subset.get(),
            method="retrain",
            split=split,
            seconds=trained.wall,
            details={"method": "retrain", "options": {}, "seed": seed, "seconds": {"total": trained.wall}},
        )

    def model_with(self, vector: Tensor) -> nn.Module:
        """A copy of the model with these tuned parameters (d,); all others are shared, since nothing here changes them."""
        tuned = {id(parameter) for parameter in self.subset.parameters.values()}
        rest = [*self.model.parameters(), *self.model.buffers()]
        model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in rest if id(tensor) not in tuned})
        self.subset.on(model).set(vector)
        return model

    def fitted(self, seed: int) -> Trained:
        """Fine-tuned on everything: read, or trained and kept."""
        return self._read_or_train(fit_file(seed), identity=self.identity, keep=None, seed=seed)

    def retrained(self, request: Request, seed: int) -> Trained:
        """Retrained without the forget set: read, or trained and kept."""
        split = self.split(request)
        identity = json_digest([self.identity, self.samples.subset(split.forget).ids_digest()])
        return self._read_or_train(retrain_file(request, seed), identity=identity, keep=split.keep, seed=seed)

    def train(self, seed: int, keep: Tensor | None, *, trace: Path | None = None, epochs: int | None = None) -> Trained:
        """Train from the anchor, on the kept samples; on all of them the path may be recorded into ``trace``, a new folder.

        ``epochs``: instead of the setting's own number.
        """
        recipe = self.setting.recipe_for(seed)
        if epochs is not None:
            recipe = dataclasses.replace(recipe, epochs=epochs)
        wall, cpu = time.perf_counter(), time.process_time()
        if keep is None:
            self.subset.set(self.anchor)
            fit(self.model, self.subset, self.samples, recipe, trace=trace)
        else:
            retrain_in_place(self.model, self.subset, self.anchor, self.samples, keep, recipe, seed=None)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Trained(self.subset.get(), wall, cpu, torch.get_num_threads())

    def _read_or_train(self, name: str, *, identity: str, keep: Tensor | None, seed: int) -> Trained:
        path = self.folder / name
        if has_vector(path, keep_stale=self.keep_stale):
            return read_vector(path, identity=identity)
        with one_at_a_time(_lock_file(path)):
            if has_vector(path, keep_stale=self.keep_stale):  # made by another process in the meantime
                return read_vector(path, identity=identity)
            trace = self.folder / trace_folder(seed)
            if keep is None and trace.exists():  # of a training that ended before its vector was written, or of other code
                shutil.rmtree(trace)
            trained = self.train(seed, keep, trace=trace if self.traced and keep is None else None)
            write_vector(path, trained, identity=identity)
            return trained


def open_experiment(setting: Setting, *, shared: Path, work: Path, keep_stale: bool = False) -> Experiment:
    """Build the model and load the data. ``keep_stale``: trained weights that other code made are taken as they are."""
    source = locate(setting.data, shared)
    catalog = open_source(source)
    names = chosen_classes(setting, catalog.names)
    classes = select(catalog, images_per_class=setting.images_per_class, only_classes=names).classes
    weights = None if setting.weights is None else locate(setting.weights, shared)
    model = build_model(setting.model, num_classes=len(classes), weights=weights, image_size=setting.image_size)
    subset = tune(
        model,
        setting.tune,
        prompt_length=setting.prompt_length,
        prompt_blocks=setting.prompt_blocks,
        seed=setting.prompt_seed,
    )
    spec = input_spec(model)
    samples = load_source(source, spec=spec, images_per_class=setting.images_per_class, only_classes=names)
    if setting.holdout == REST:
        holdout = load_rest(catalog, samples, spec=spec, most=setting.holdout_per_class)
    else:
        holdout = load_source(locate(setting.holdout, shared), spec=spec, classes=samples.classes)
    return Experiment(setting, model, subset, subset.get(), samples, holdout, vector_folder(setting, work), keep_stale)


def vector_folder(setting: Setting, work: Path) -> Path:
    """Where a setting's trained weights lie."""
    return work / f"{slug(setting.model)}-{setting.training_digest[:12]}"


def fit_file(seed: int) -> str:
    """The name of a fine-tuning's file."""
    return f"fit-seed{seed}.safetensors"


def _lock_file(path: Path) -> Path:
    """Held by the process that trains these weights."""
    return path.with_name(f".{path.stem}.lock")


def trace_folder(seed: int) -> str:
    """The name of a fine-tuning's trace."""
    return f"trace-seed{seed}"


def retrain_file(request: Request, seed: int) -> str:
    """The name of a retraining's file."""
    return f"retrain-{request.name}-seed{seed}.safetensors"


def write_vector(path: Path, trained: Trained, *, identity: str) -> None:
    """Keep a tuned vector and what it was made from."""
    header = {"identity": identity, "wall": repr(trained.wall), "cpu": repr(trained.cpu), "threads": str(trained.threads)}
    header["code"] = json.dumps(code_of(rooms=TRAINING))
    write_file(path, save({"vector": trained.vector}, metadata=header), overwrite=True)


def has_vector(path: Path, *, keep_stale: bool = False) -> bool:
    """Whether trained weights are there, made by the training code of now (or, with ``keep_stale``, by any)."""
    if not path.exists() or keep_stale:
        return path.exists()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            code = json.loads((file.metadata() or {}).get("code", "null"))
    except (safetensors.SafetensorError, OSError, ValueError):
        return True  # reading it says what is wrong
    return not changed_rooms(code, code_of(rooms=TRAINING))


def read_vector(path: Path, *, identity: str) -> Trained:
    """Read trained weights, refusing what was made from other bytes."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header, vector = file.metadata() or {}, file.get_tensor("vector")
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{path} is not readable ({error}): delete it, and it is trained again.") from error
    if header.get("identity") != identity:
        raise InputError(
            f"{path} was trained from other data or other pre-trained weights than those loaded now. "
            "Delete it, or use another --work folder."
        )
    return Trained(vector, float(header["wall"]), float(header["cpu"]), int(header["threads"]))
