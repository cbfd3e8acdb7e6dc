"""Parts of an audit record that compare models with Retrain or attack them: relearning, probes, distances, membership.

Each takes the models' predictions and returns the record's dataclass. What needs no comparison is in
:mod:`fastntk.auditing.sections`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn

from fastntk.auditing.costs import estimate
from fastntk.auditing.distances import accuracies, compare, figures, mean_of
from fastntk.auditing.ensembles import ensemble_figures
from fastntk.auditing.membership import LEAST, attack_features, population_attacks
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
    Relearning,
    RelearningByModel,
    ULira,
)
from fastntk.auditing.relearning import relearn
from fastntk.base.digest import json_digest
from fastntk.data import Samples
from fastntk.models.card import fingerprint_of
from fastntk.training.run import Run
from fastntk.unlearning.baselines.own_training import Retrainer
from fastntk.unlearning.result import Unlearned

NO_CLASS_ATTACK = (
    "no population attack: whole classes were forgotten, and of such samples it would see how a model treats a class that it "
    "should not know, not who was in it"
)


def relearning(
    run: Run,
    result: Unlearned,
    retrain: Unlearned | None,
    on: EvaluationSets,
    *,
    threshold: float,
    cap: int,
    seed: int,
) -> RelearningByModel:
    """How fast each model learns the forgotten samples again."""
    models = {"full": run.model, "unlearned": result.model} | ({} if retrain is None else {"retrain": retrain.model})

    def counted(model: nn.Module) -> Relearning:
        subset = run.subset.on(model)
        return relearn(model, subset, on.sets["forget"], threshold=threshold, cap=cap, seed=seed).to_record()

    def cached(model: nn.Module) -> Relearning:
        if on.cache is None:
            return counted(model)
        key = json_digest([fingerprint_of(model), on.key, list(run.subset.names), threshold, cap, seed])
        return on.cache.relearned(key, lambda: counted(model))

    return RelearningByModel(**{name: cached(model) for name, model in models.items()})


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


def only_whole_classes(result: Unlearned) -> bool:
    """Whether every forgotten sample is of a class that was forgotten wholly."""
    return set(result.forgotten.labels.tolist()) <= set(result.split.whole_classes)


def population(models: Mapping[str, Predictions], *, whole: Collection[int], seed: int) -> Membership:
    """The population attack on each model, or why there is none; ``whole``: classes that were forgotten wholly.

    Members are the forgotten samples of classes that stay. Of a whole class the attack would only see how a model treats a class
    that it should not know: it finds nothing even where nothing was done (an area of 0.50 on Full).
    """
    labels = models["full"].labels
    whole_labels = torch.tensor(sorted(whole), dtype=labels["forget"].dtype, device=labels["forget"].device)
    members = ~torch.isin(labels["forget"], whole_labels)
    if not bool(members.any()):
        return Membership(population=None, note=NO_CLASS_ATTACK)
    same = torch.isin(labels["holdout"], labels["forget"][members].unique())
    sizes = AttackSizes(forgotten=int(members.sum()), holdout=int(same.sum()))
    if min(sizes.forgotten, sizes.holdout) < LEAST:
        note = f"no attack: it needs {LEAST} forgotten samples and {LEAST} hold-out samples of their classes"
        return Membership(population=None, sizes=sizes, note=note)
    features = {
        name: (
            attack_features(model.forget[members], labels["forget"][members]),
            attack_features(model.holdout[same], labels["holdout"][same]),
        )
        for name, model in models.items()
        if model.finite
    }
    attacks: dict[str, PopulationAttack | None] = dict.fromkeys(models)
    attacks |= population_attacks(features, reference="retrain" if "retrain" in features else None, seed=seed)
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
    return ensemble_figures(
        run, result, size=size, holdout=holdout, kind=kind, cache=cache, estimated_seconds=seconds, retrain=retrain
    )
