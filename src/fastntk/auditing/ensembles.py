"""The many models that U-LiRA and KLoM compare: Full, unlearned and retrained, each with K other seeds.

``real``      K fine-tunings on all samples, each followed by the same unlearning method with the same options, and K retrainings
              on the retained samples. No approximation, at the price of 2K trainings.

``tangent``   one linearisation, replays of the recipe in it (:mod:`fastntk.unlearning.tangent_replay.replay`), no training:

                  full_k      = θ + replay(D, seed k)   − replay(D, own seed)
                  retrained_k = θ + replay(D_r, seed k) − replay(D, own seed)
                  unlearned_k = full_k + (θ_unlearned − θ)

              The *network itself* is then evaluated at these weights. It presumes what tangent-replay presumes, and gives each
              unlearned model the step of the run's own seed: use ``real`` to judge tangent-replay.

Vectors are kept by content (:mod:`fastntk.auditing.cache`), one file a seed, so an interrupted ensemble goes on where it was and
several methods on one request share Full and Retrain.

Where a training function of the user is given (:mod:`fastntk.unlearning.baselines.own_training`), it makes the ``real`` models:
all of their state counts, and nothing is kept, for a function has no digest that would tell when it changed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from msgspec import UNSET
from torch import Tensor, nn

from fastntk.auditing.cache import cache_folder, cached
from fastntk.auditing.ensemble_figures import Margins, klom_of, u_lira_of
from fastntk.auditing.record_figures import EnsembleKind, EnsembleSummary, Klom, ULira
from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import LEAST, logit_confidence
from fastntk.base.digest import json_digest, tensor_digest
from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import Samples
from fastntk.models.card import fingerprint_of
from fastntk.tangent.linearisation import linearise_run
from fastntk.training.fitting import fit
from fastntk.training.network import predict, working_copy
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.unlearning import unlearn
from fastntk.unlearning.baselines.own_training import OwnTraining, Retrainer, function_name, own_seed, train_own
from fastntk.unlearning.baselines.retrain import retrain_in_place
from fastntk.unlearning.method import recipe_of
from fastntk.unlearning.registry import find_method
from fastntk.unlearning.result import Unlearned
from fastntk.unlearning.tangent_replay.replay import replay
from fastntk.unlearning.tangent_replay.selection import choose_path

FEWEST = 2 * LEAST
"""Halves of the Retrains are compared with each other, so twice what a test needs."""
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Tuned vectors (K, d) of Full, unlearned and Retrain by name; seeds; seconds spent; how many files were there already."""

    kind: EnsembleKind
    seeds: tuple[int, ...]
    vectors: dict[str, Tensor]
    seconds: float
    reused: int


@dataclass(frozen=True, eq=False)
class OwnEnsemble:
    """The same by a training function of the user: logit-scaled confidences (K, n) on each set of samples, by set and name."""

    seeds: tuple[int, ...]
    margins: Mapping[str, Margins]
    seconds: float
    reused: int = 0


def ensemble_figures(
    run: Run,
    result: Unlearned,
    *,
    size: int,
    holdout: Samples | None = None,
    kind: EnsembleKind = "real",
    cache: str | Path | None = None,
    estimated_seconds: float = 0.0,
    retrain: Retrainer | None = None,
) -> tuple[ULira, Klom]:
    """U-LiRA and KLoM of Full, unlearned and Retrain; ``estimated_seconds``: what was announced, noted beside what it took."""
    sets = {"forget": result.forgotten, "retain": result.retained} | ({} if holdout is None else {"holdout": holdout})
    models: Ensemble | OwnEnsemble
    if retrain is not None and kind == "real":
        models = own_ensemble(run, result, retrain, size=size, sets=sets)
        margins = models.margins
    else:
        models = ensemble(run, result, size=size, kind=kind, cache=cache)
        by_name = {name: confidences(run, sets, vectors, title=name) for name, vectors in models.vectors.items()}
        margins = {where: {name: values[where] for name, values in by_name.items()} for where in sets}
    about = EnsembleSummary(
        kind=kind,
        size=size,
        seeds=models.seeds,
        seconds=models.seconds,
        reused=models.reused,
        estimated_seconds=estimated_seconds,
        made_by=function_name(retrain) if retrain is not None and kind == "real" else UNSET,
        variation="seed-only",
    )
    return u_lira_of(margins["forget"], about), klom_of(margins)


def ensemble(run: Run, result: Unlearned, *, size: int, kind: EnsembleKind = "real", cache: str | Path | None = None) -> Ensemble:
    """Make the models, or find them in the cache."""
    check_ensemble(run, size=size, kind=kind)
    recipe = recipe_of(run)
    started = time.perf_counter()
    seeds = tuple(recipe.seed + 1 + step for step in range(size))
    folder = cache_folder(cache) / "ensembles" / json_digest(_origin(run, result, kind))
    maker = (_Real if kind == "real" else _Tangent)(run, result, recipe)
    key = json_digest(_method_key(result))[:16]
    rows: dict[str, list[Tensor]] = {"full": [], "unlearned": [], "retrain": []}
    reuse_count = 0
    for seed in track(seeds, f"ensemble ({kind})"):
        base, base_reused = cached(folder / f"base-{seed}.safetensors", lambda s=seed: maker.base(s), names=("full", "retrain"))  # type: ignore[misc]
        make: Callable[[], dict[str, Tensor]] = lambda s=seed, b=base: {"unlearned": maker.unlearned(s, b["full"])}  # type: ignore[misc]
        last, unlearned_reused = cached(folder / f"unlearned-{key}-{seed}.safetensors", make, names=("unlearned",))
        reuse_count += base_reused + unlearned_reused
        for name, vector in (base | last).items():
            rows[name].append(vector)
    vectors = {name: torch.stack(parts).to(run.anchor) for name, parts in rows.items()}
    return Ensemble(kind, seeds, vectors, time.perf_counter() - started, reuse_count)


def own_ensemble(
    run: Run, result: Unlearned, retrain: Retrainer, *, size: int, sets: Mapping[str, Samples] | None = None
) -> OwnEnsemble:
    """Train the models by the user's function and look at each: Full is its training on all samples."""
    started = time.perf_counter()
    looked_at = {"forget": result.forgotten} if sets is None else sets
    everything = list(run.data.ids)
    retain_ids = [everything[i] for i in result.split.retain.tolist()]
    seeds = tuple(own_seed(run) + 1 + step for step in range(size))

    margins: dict[str, dict[str, list[Array]]] = {where: {"full": [], "unlearned": [], "retrain": []} for where in looked_at}

    def look(name: str, model: nn.Module) -> None:
        for where, samples in looked_at.items():
            margins[where][name].append(_margin(model, samples))

    for seed in track(seeds, "ensemble (your own training)"):
        full = train_own(run, retrain, everything, seed=seed)
        look("full", full.model)
        look("unlearned", _unlearned_own(run, result, retrain, full, retain_ids, seed=seed))
        look("retrain", train_own(run, retrain, retain_ids, seed=seed).model)
    margin_arrays = {where: {name: np.stack(rows) for name, rows in parts.items()} for where, parts in margins.items()}
    return OwnEnsemble(seeds, margin_arrays, time.perf_counter() - started)


def _unlearned_own(
    run: Run, result: Unlearned, retrain: Retrainer, full: OwnTraining, kept: list[str], *, seed: int
) -> nn.Module:
    """The same method with the same options on another seed's Full."""
    if result.method == "retrain":
        return train_own(run, retrain, kept, seed=seed + 100_000).model  # the same seed would give the reference itself
    recipe = None if run.recipe is None else dataclasses.replace(run.recipe, seed=seed)
    other = full.run
    if other is None:
        other = Run(full.model, run.subset.on(full.model), run.anchor, run.data, recipe=recipe, pretrained=run.pretrained)
    elif other.samples is None:
        order = run.data if other.trace is None else run.data.subset(run.data.index_of(other.listed.ids))
        other = dataclasses.replace(other, samples=order)
    if "trace" in find_method(result.method).needs and other.trace is None:
        raise InputError(
            f"{result.method} works on the trace of every model of the ensemble, and {function_name(retrain)} returned none: let "
            "it record (fastntk.record) and return the Run, or leave the ensemble out."
        )
    return unlearn(other, ids=result.forgotten.ids, method=result.method, **_options(result)).model


def check_offered(method: str, kind: str) -> None:
    """Refuse the cheap kind where it was measured to flatter (docs/metrics.md): it presumes what tangent-replay presumes."""
    if kind == "tangent" and method == "tangent-replay":
        raise InputError(
            "A tangent ensemble cannot judge tangent-replay: both presume that a replay in the linear model is right, and "
            "measured against real trainings (docs/metrics.md) it flattered plain replays. Use ensemble_kind 'real', or none."
        )


def check_ensemble(run: Run, *, size: int, kind: str, retrain: Retrainer | None = None) -> None:
    """Refuse, before any work, an ensemble that cannot be made."""
    if kind not in get_args(EnsembleKind):
        raise InputError(f"ensemble_kind must be one of {', '.join(get_args(EnsembleKind))}; got {kind!r}.")
    if isinstance(size, bool) or not isinstance(size, int) or size < FEWEST:
        raise InputError(f"An ensemble needs at least {FEWEST} models (its halves are compared with each other); got {size!r}.")
    if retrain is not None and kind == "real":
        return
    if run.recipe is None:
        raise InputError(
            "An ensemble repeats the run's recipe with other seeds, and the run has none: give it with "
            "Run(..., recipe=Recipe(...)), or for real ones a training function of your own (retrain=, --retrain-with)."
        )
    if run.recipe.bn_stats != "frozen":
        raise InputError(
            "Ensembles are made of tuned weights alone, but this recipe also updates BatchNorm statistics: audit without "
            "ensemble."
        )


def confidences(run: Run, sets: Mapping[str, Samples], vectors: Tensor, *, title: str) -> dict[str, Array]:
    """Logit-scaled confidence of the network at each vector (K, d) on each sample of each set: (K, n) by set."""
    work = working_copy(run)
    subset = run.subset.on(work)
    rows: dict[str, list[Array]] = {where: [] for where in sets}
    for vector in track(vectors, f"predictions of the ensemble ({title})"):
        subset.set(vector)
        for where, samples in sets.items():
            rows[where].append(_margin(work, samples))
    return {where: np.stack(parts) for where, parts in rows.items()}


def _margin(model: nn.Module, samples: Samples) -> Array:
    return np.asarray(logit_confidence(predict(model, samples.inputs), samples.labels).cpu().numpy())


def _origin(run: Run, result: Unlearned, kind: str) -> dict[str, Any]:
    """Everything that decides Full and Retrain of an ensemble, besides the seed."""
    assert run.recipe is not None
    tuned = set(run.subset.names)
    rest = {name: digest for name, digest in fingerprint_of(run.model).items() if name not in tuned}
    return {
        "version": _VERSION,
        "kind": kind,
        "data": run.data.digest(),
        "tuned": tensor_digest(run.subset.get()) if kind == "tangent" else None,
        "names": run.subset.names,
        "anchor": tensor_digest(run.anchor),
        "frozen": rest,
        "recipe": run.recipe.to_dict() | ({} if kind == "tangent" else {"seed": None}),
        "request": result.forgotten.ids_digest(),
    }


def _method_key(result: Unlearned) -> dict[str, Any]:
    """What decides the unlearned models besides Full and the seed."""
    return {"method": result.method, "options": _options(result), "delta": tensor_digest(_delta(result))}


def _options(result: Unlearned) -> dict[str, Any]:
    """The method's options; rows on disk belong to one set of weights and are not shared."""
    return {name: value for name, value in result.details.get("options", {}).items() if name not in ("folder", "rows")}


def _delta(result: Unlearned) -> Tensor:
    """From the run to the result, over all chained requests, (d,)."""
    return result.subset.get() - result.run.subset.get()


class _Real:
    """Trainings and unlearnings of the network itself."""

    def __init__(self, run: Run, result: Unlearned, recipe: Recipe) -> None:
        self.run, self.result, self.recipe = run, result, recipe
        self._traced = "trace" in find_method(result.method).needs
        self._last: tuple[int, Run] | None = None

    def base(self, seed: int) -> dict[str, Tensor]:
        return {"full": self._fitted(seed).subset.get(), "retrain": self._retrained(seed)}

    def unlearned(self, seed: int, full: Tensor) -> Tensor:
        if self.result.method == "retrain":
            # The same seed would give the reference itself.
            return self._retrained(seed + 100_000)
        if self._traced:
            other = self._fitted(seed)
        else:
            work = working_copy(self.run)
            subset = self.run.subset.on(work)
            subset.set(full.to(self.run.anchor))
            recipe = dataclasses.replace(self.recipe, seed=seed)
            other = Run(work, subset, self.run.anchor, self.run.data, recipe=recipe, pretrained=self.run.pretrained)
        ids = self.result.forgotten.ids
        return unlearn(other, ids=ids, method=self.result.method, **_options(self.result)).subset.get()

    def _fitted(self, seed: int) -> Run:
        """Full of this seed, recorded where the method needs that; the last one is kept until the next."""
        if self._last is None or self._last[0] != seed:
            work = working_copy(self.run)
            subset = self.run.subset.on(work)
            subset.set(self.run.anchor)
            fitted = fit(work, subset, self.run.data, dataclasses.replace(self.recipe, seed=seed), trace=self._traced)
            self._last = (seed, fitted)
        return self._last[1]

    def _retrained(self, seed: int) -> Tensor:
        work = working_copy(self.run)
        subset = self.run.subset.on(work)
        keep = self.result.split.keep
        retrain_in_place(work, subset, self.run.anchor, self.run.data, keep, self.recipe, seed=seed)
        return subset.get()


class _Tangent:
    """Replays in one linearisation, which is made when the first is needed."""

    def __init__(self, run: Run, result: Unlearned, recipe: Recipe) -> None:
        self.run, self.result, self.recipe = run, result, recipe
        self._own: tuple[Any, Tensor, Tensor] | None = None

    def base(self, seed: int) -> dict[str, Tensor]:
        path, anchor, own = self._prepared()
        recipe = dataclasses.replace(self.recipe, seed=seed)
        theta, labels = self.run.subset.get().cpu(), self.run.data.labels
        keep, walked = self.result.split.keep, self.run.walked
        full, _ = replay(path, anchor, labels, recipe, description="replay of all", walked=walked)
        retained, _ = replay(path, anchor, labels, recipe, keep=keep, description="replay without", walked=walked)
        return {"full": theta + full - own, "retrain": theta + retained - own}

    def unlearned(self, seed: int, full: Tensor) -> Tensor:
        return full.to(self.run.anchor) + _delta(self.result)

    def _prepared(self) -> tuple[Any, Tensor, Tensor]:
        """The model of the path, the anchor, and where the replay of everything ends with the run's own seed."""
        if self._own is None:
            of_result = self.result.linearisation
            usable = of_result is not None and of_result.at == "trained" and of_result.place != "stream"
            lin = of_result if usable and of_result is not None else linearise_run(self.run)
            choice = choose_path(lin, self.run.data.labels, self.recipe, walked=self.run.walked)
            self._own = (choice.model, lin.anchor, choice.end)
        return self._own
