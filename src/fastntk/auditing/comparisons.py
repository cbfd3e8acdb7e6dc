"""Parts of an audit record that compare models with Retrain or attack them: relearning, probes, distances, membership.

Each takes the models' predictions and returns the record's dataclass. What needs no comparison is in
:mod:`fastntk.auditing.sections`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from fastntk.auditing.costs import estimate
from fastntk.auditing.distances import accuracies, compare, figures, mean_of
from fastntk.auditing.ensembles import ensemble_figures
from fastntk.auditing.membership import LEAST, attack_features, population_attack
from fastntk.auditing.predictions import EvaluationSets, Predictions, predict_sets
from fastntk.auditing.probes import linear_probe, random_model
from fastntk.auditing.record_figures import (
    AttackSizes,
    Distance,
    Distances,
    EnsembleKind,
    Klom,
    LinearProbes,
    Membership,
    OwnHeads,
    PopulationAttack,
    PopulationAttacks,
    Probes,
    RelearningByModel,
    ULira,
)
from fastntk.auditing.relearning import relearn
from fastntk.data import Samples
from fastntk.training.run import Run
from fastntk.unlearning.baselines.own_training import Retrainer
from fastntk.unlearning.result import Unlearned


def relearning(
    run: Run,
    result: Unlearned,
    retrain: Unlearned | None,
    forgotten: Samples,
    *,
    threshold: float,
    cap: int,
    seed: int,
) -> RelearningByModel:
    """How fast each model learns the forgotten samples again."""
    models = {"full": run.model, "unlearned": result.model} | ({} if retrain is None else {"retrain": retrain.model})
    counted = {
        name: relearn(model, run.subset.on(model), forgotten, threshold=threshold, cap=cap, seed=seed).to_record()
        for name, model in models.items()
    }
    return RelearningByModel(**counted)


def probes(run: Run, models: Mapping[str, Predictions], on: EvaluationSets, *, seed: int) -> Probes:
    """The models' own heads, and probes on their features beside those of the untuned and of a random model."""
    own = OwnHeads(**{name: accuracies(model) for name, model in models.items()})
    if any(model.features is None for model in models.values()):
        return Probes(own_head=own, linear_probe=None, note="no linear head was found, so there are no features to probe")
    before = copy.deepcopy(run.model)
    run.subset.on(before).set(run.anchor)
    untrained, origin = random_model(run.model, seed=seed)
    extra = {
        "pretrained": predict_sets(before, run.anchor, on, title="pre-trained"),
        "random": predict_sets(untrained, run.anchor, on, title="random"),
    }
    figures = {
        name: None if model.features is None else linear_probe(model.features, model.labels)
        for name, model in (extra | dict(models)).items()
    }
    note = f"pretrained: the tuned part at its values before fine-tuning; random: {origin}"
    return Probes(own_head=own, linear_probe=LinearProbes(**figures), note=note)


def distances(
    anchor: Tensor,
    models: Mapping[str, Predictions],
    others: Mapping[int, Predictions],
    *,
    seed: int,
    comparing: Callable[..., Distance] = compare,
) -> Distances:
    """Distances of Full and the unlearned model to the Retrain of ``seed`` and to ``others`` by seed, and among Retrains.

    ``comparing``: in the place of :func:`fastntk.auditing.distances.compare`, one that remembers.
    """
    full, unlearned, retrain = (models[name] for name in ("full", "unlearned", "retrain"))
    same = comparing(unlearned, retrain, full=full, anchor=anchor)
    of_full = comparing(full, retrain, full=full, anchor=anchor)
    if not others:
        return Distances(same_seed=same, full=of_full)
    by_seed = {str(key): comparing(unlearned, other, full=full, anchor=anchor) for key, other in others.items()}
    every = {seed: retrain} | dict(others)
    pairs = {
        f"{first}-{second}": comparing(every[second], every[first], full=full, anchor=anchor)
        for first, second in combinations(every, 2)
    }
    return Distances(
        same_seed=same,
        full=of_full,
        other_seeds=mean_of(list(by_seed.values())),
        retrain_spread=mean_of(list(pairs.values())),
        by_seed={str(seed): same} | by_seed,
        retrain_pairs=pairs,
        retrains={str(key): figures(model) for key, model in every.items()},
    )


def population(models: Mapping[str, Predictions], *, seed: int) -> Membership:
    """The population attack on each model, or why there is none."""
    labels = models["full"].labels
    same = torch.isin(labels["holdout"], labels["forget"].unique())
    sizes = AttackSizes(forgotten=len(labels["forget"]), holdout=int(same.sum()))
    if min(sizes.forgotten, sizes.holdout) < LEAST:
        note = f"no attack: it needs {LEAST} forgotten samples and {LEAST} hold-out samples of their classes"
        return Membership(population=None, sizes=sizes, note=note)
    attacks: dict[str, PopulationAttack | None] = {}
    for name, model in models.items():
        members = attack_features(model.forget, labels["forget"])
        unseen = attack_features(model.holdout[same], labels["holdout"][same])
        attacks[name] = population_attack(members, unseen, seed=seed) if model.finite else None
    return Membership(population=PopulationAttacks(**attacks), sizes=sizes, note=None)


def ensembles(
    run: Run,
    result: Unlearned,
    holdout: Samples,
    *,
    size: int,
    kind: EnsembleKind,
    cache: str | Path | None,
    retrain: Retrainer | None = None,
    reference: Unlearned | None = None,
) -> tuple[ULira, Klom]:
    """U-LiRA and KLoM, with what they were estimated to take: by ``retrain``, what its ``reference`` took for each model."""
    if retrain is not None and reference is not None and kind == "real":
        seconds = size * (2 * reference.seconds + result.seconds)
    else:
        seconds = estimate(run, result, holdout=holdout, retrains=0, ensemble=size, ensemble_kind=kind)["ensemble"]
    return ensemble_figures(run, result, size=size, kind=kind, cache=cache, estimated_seconds=seconds, retrain=retrain)
