"""The models that :mod:`lab.attacks` compares, as margins kept in files beside the trained weights:

    <work>/<model>-<training digest>/attacks/<request>/<row>-<digest>-seed<k>.npz

φ = log p_y/(1 − p_y) of one model on the samples it was to forget, on retained and on held-out ones. A file names the data and
the code it was made from: it is made again where these are others (other code: unless the experiment keeps what is stale).
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import logit_confidence
from fastntk.base.atomic import write_file
from fastntk.base.digest import json_digest
from fastntk.base.errors import DivergedError, InputError
from fastntk.data import Samples
from fastntk.reproduce.code import UNLEARNING, changed_rooms, code_of, vouched
from fastntk.reproduce.experiment import Experiment
from fastntk.reproduce.methods import needs_rows, needs_trace, seed_option
from fastntk.reproduce.setting import MethodRow, Request
from fastntk.tangent.linearisation import Linearisation, linearise_run
from fastntk.training.network import predict
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from lab.module_code import module_code

SETS = ("forget", "retain", "holdout")
MODULES = ("auditing/ulira.py",)
"""Where φ is defined."""
IDENTITY, CODE = "identity", "code"


@dataclass(frozen=True)
class TargetRequest(Request):
    """A random share that always has the same ``targets`` samples in it; the rest is drawn with ``draw_seed``."""

    targets: int = 10
    target_seed: int = 0

    @property
    def name(self) -> str:
        """A file's name for it."""
        return f"targets-{self.targets}-of-{100 * self.value:g}pct-set{self.target_seed}-draw{self.draw_seed}"

    def target_ids(self, samples: Samples) -> tuple[str, ...]:
        """The samples that are always forgotten, and looked at."""
        positions = np.random.default_rng([7, self.target_seed]).choice(len(samples), self.targets, replace=False)
        return tuple(samples.ids[i] for i in sorted(positions.tolist()))

    def ids(self, samples: Samples) -> tuple[str, ...]:
        """The targets and the others of this draw, in the order of the data."""
        targets = set(self.target_ids(samples))
        others = [name for name in samples.ids if name not in targets]
        count = max(1, round(self.value * len(samples))) - len(targets)
        if count < 0:
            raise InputError(f"{len(targets)} target samples do not fit in {100 * self.value:g} % of {len(samples)} samples.")
        drawn = set(np.random.default_rng([11, self.draw_seed]).choice(len(others), count, replace=False).tolist())
        chosen = targets | {name for place, name in enumerate(others) if place in drawn}
        return tuple(name for name in samples.ids if name in chosen)


def row_digest(row: MethodRow) -> str:
    """What is asked of a row's models besides the run; which code answered is in the file."""
    return json_digest([row.method, dict(row.options)])[:8]


def margins_file(experiment: Experiment, request: Request, model: str, seed: int) -> Path:
    """Where a model's margins lie."""
    return experiment.folder / "attacks" / request.name / f"{model}-seed{seed}.npz"


def make_unlearned(experiment: Experiment, jobs: Sequence[tuple[MethodRow, Request]], seed: int) -> int:
    """Make the margins that are missing of these rows and requests, from one fine-tuning; return how many that were.

    Rows of the linearisation are shared by all methods that work on them, a recorded run by the requests of one row.
    """
    missing = [
        (row, request)
        for row, request in jobs
        if not has_margins(experiment, request, unlearned_file(experiment, row, request, seed), row.method)
    ]
    linearisation: Linearisation | None = None
    last: tuple[str, Run] | None = None
    for row, request in sorted(missing, key=lambda job: job[0].label):
        if last is None or last[0] != row.label:
            last = row.label, experiment.run(seed, traced=needs_trace(row.method))
        options: dict[str, Any] = seed_option(row, seed) | dict(row.options)
        if needs_rows(row.method):
            linearisation = linearisation or linearise_run(last[1])
            options["linearisation"] = linearisation
        try:
            vector = unlearn(last[1], ids=request.ids(experiment.samples), method=row.method, **options).subset.get()
            margins = margins_of(experiment, request, vector)
        except DivergedError:
            margins = {}
        _write(unlearned_file(experiment, row, request, seed), margins, _header(experiment, request, row.method))
    return len(missing)


def unlearned_file(experiment: Experiment, row: MethodRow, request: Request, seed: int) -> Path:
    """Where the margins of a row's model lie."""
    return margins_file(experiment, request, f"{row.slug}-{row_digest(row)}", seed)


def unlearned_margins(experiment: Experiment, row: MethodRow, request: Request, seed: int) -> dict[str, Array] | None:
    """Margins of a row's model; None where the method diverged."""
    make_unlearned(experiment, [(row, request)], seed)
    return _read(unlearned_file(experiment, row, request, seed))


def retrained_margins(experiment: Experiment, request: Request, seed: int) -> dict[str, Array]:
    """Margins of a Retrain, trained where it is not there."""
    path = margins_file(experiment, request, "retrain", seed)
    if not has_margins(experiment, request, path, "retrain"):
        margins = margins_of(experiment, request, experiment.retrained(request, seed).vector)
        _write(path, margins, _header(experiment, request, "retrain"))
    values = _read(path)
    assert values is not None
    return values


def margins_of(experiment: Experiment, request: Request, vector: Tensor) -> dict[str, Array]:
    """φ of the network at a tuned vector on each set."""
    model, split = experiment.model_with(vector), experiment.split(request)
    samples = experiment.samples
    sets = {"forget": samples.subset(split.forget), "retain": samples.subset(split.retain), "holdout": experiment.holdout}
    return {where: np.asarray(logit_confidence(predict(model, part.inputs), part.labels).numpy()) for where, part in sets.items()}


def has_margins(experiment: Experiment, request: Request, path: Path, method: str) -> bool:
    """Whether margins are there, of this data and made by the code of now (or by any, where the experiment keeps stale ones)."""
    if not path.exists():
        return False
    header = _header(experiment, request, method)
    with np.load(path) as file:
        known = {name: str(file[name]) for name in (IDENTITY, CODE) if name in file.files}
    if known.get(IDENTITY) != header[IDENTITY]:
        return False
    return experiment.keep_stale or not changed_rooms(json.loads(known.get(CODE, "null")), json.loads(header[CODE]))


def _header(experiment: Experiment, request: Request, method: str) -> dict[str, str]:
    """Data, forgotten and held-out samples of margins, and the code that makes them, unless weights of other code are kept."""
    forgotten = experiment.samples.subset(experiment.split(request).forget).ids_digest()
    code = code_of(method, rooms=UNLEARNING) | module_code(*MODULES)
    identity = json_digest([experiment.identity, experiment.holdout.digest(), forgotten])
    return {IDENTITY: identity} | vouched(json.dumps(code), keep_stale=experiment.keep_stale)


def _write(path: Path, values: dict[str, Array], header: dict[str, str]) -> None:
    stream = io.BytesIO()
    margins = {name: value.astype(np.float32) for name, value in values.items()}
    np.savez(stream, **margins, **{name: np.array(text) for name, text in header.items()})  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, stream.getvalue(), overwrite=True)


def _read(path: Path) -> dict[str, Array] | None:
    """Kept margins; None where the model diverged, or its outputs are not numbers."""
    with np.load(path) as file:
        values = {name: np.asarray(file[name], dtype=np.float64) for name in file.files if name in SETS}
    return values if values and all(np.isfinite(value).all() for value in values.values()) else None
