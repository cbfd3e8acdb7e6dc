"""``audit``: everything that is measured on an unlearned model, as one JSON-able record.

Models compared: Full (the run as it is), unlearned, Retrain with the run's own seed and, for the spread between honest
retrainings, Retrains with further seeds. Nothing that is passed in is changed. The record's shape is
``schemas/audit-1.json``, its figures are defined in :mod:`fastntk.auditing.figures` and explained in ``docs/metrics.md``.
"""

from __future__ import annotations

import copy
import datetime
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from fastntk.auditing import record as parts
from fastntk.auditing.answers import Answers, answers
from fastntk.auditing.costs import estimate
from fastntk.auditing.distances import accuracies, compare, mean_of
from fastntk.auditing.ensembles import EnsembleKind, check_ensemble, check_offered, ensemble_figures
from fastntk.auditing.figures import definitions
from fastntk.auditing.membership import LEAST, attack_features, population_attack
from fastntk.auditing.probes import linear_probe, random_model
from fastntk.auditing.references import Reference, check_holdout, check_result, references
from fastntk.auditing.relearn import relearn
from fastntk.auditing.requirements import check_possible, evaluate, parse
from fastntk.auditing.verdict import verdict
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.storage.manifest import versions
from fastntk.training.run import Run
from fastntk.unlearning.result import Unlearned


def audit(
    run: Run,
    result: Unlearned,
    *,
    holdout: Samples,
    reference: Reference = None,
    retrains: int = 1,
    relearn_threshold: float = 0.05,
    relearn_cap: int = 100,
    probes: bool = True,
    membership: bool = True,
    ensemble: int | None = None,
    ensemble_kind: EnsembleKind = "real",
    require: Sequence[str] = (),
    cache: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure an unlearned model beside Full and Retrain; return a JSON-able record.

    ``holdout``: samples of the same classes that were never trained on. ``reference``: None, and the record says that there is
    no Retrain to judge by; ``"retrain"``, made here with the run's seed and ``retrains`` further seeds; or results of
    ``unlearn(..., method="retrain")``, the first with the run's own seed. ``relearn_threshold``, ``relearn_cap``: the loss at
    which relearning ends, and the epochs after which it is given up. ``ensemble``: how many models U-LiRA and KLoM get (None:
    not computed), ``real`` trainings or ``tangent`` replays, kept in ``cache``. ``require``: conditions such as
    ``"forget_accuracy<=retrain+1"``, whose outcome is in the record. ``seed``: of the attack's folds, of relearning's batches
    and of the random model.
    """
    started = time.perf_counter()
    conditions = [parse(text) for text in ([require] if isinstance(require, str) else require)]
    check_result(run, result)
    if len(result.split.forget) == 0:
        raise InputError("There is nothing to audit: the result forgot no samples.")
    shared = check_holdout(run, holdout)
    planned = _planned(reference, retrains)
    check_possible(conditions, given=_given(planned, ensemble=ensemble, membership=membership, probes=probes))
    if ensemble is not None:
        check_ensemble(run, size=ensemble, kind=ensemble_kind)
        check_offered(result.method, ensemble_kind)
    if not relearn_threshold > 0 or relearn_cap < 0:
        raise InputError(f"relearn_threshold must be > 0 and relearn_cap ≥ 0; got {relearn_threshold} and {relearn_cap}.")
    honest = references(run, result, reference, retrains=retrains)
    sets = {"retain": result.retained, "forget": result.forgotten, "holdout": holdout}
    models, others = _ask(run, result, honest, sets, features=probes)
    classes = parts.names(run.data, classes=models["full"].forget.shape[1])
    made: dict[str, Any] = {
        "schema": parts.SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fastntk": versions()["fastntk"],
        "environment": versions() | {"threads": torch.get_num_threads()},
        "subject": parts.subject(result, holdout) | {"classes": classes},
        "request": parts.request(result),
        "details": result.details,
        "reference": _reference(honest),
        "accuracy": parts.accuracies(models, result.split.whole_classes),
        "loss": parts.losses(models),
        "relearn": _relearn(run, result, honest, threshold=relearn_threshold, cap=relearn_cap, seed=seed),
    }
    if probes:
        made["probes"] = _probes(run, models, sets, seed=seed)
    if honest:
        made["distances"] = _distances(run, models, others)
    made["membership"] = _membership(models, seed=seed) if membership else {}
    if ensemble is not None:
        expected = estimate(run, result, holdout=holdout, retrains=0, ensemble=ensemble, ensemble_kind=ensemble_kind)["ensemble"]
        found = ensemble_figures(run, result, size=ensemble, kind=ensemble_kind, cache=cache)
        found["u_lira"]["ensemble"]["estimated_seconds"] = expected
        made["membership"] |= found
    made |= {
        "flow": parts.flow(models, classes),
        "loss_histogram": parts.loss_histogram(models),
        "samples": parts.forgotten_samples(models, result, classes),
        "cost": parts.cost(result, honest[0] if honest else None) | {"audit_seconds": time.perf_counter() - started},
        "definitions": definitions(),
    }
    made = parts.plain(made)
    made["verdict"] = verdict(made)
    made["requirements"] = [evaluate(condition, made) for condition in conditions]
    made["limits"] = _limits(made, shared=shared)
    return made


def _planned(reference: Reference, retrains: int) -> int:
    """How many Retrains there will be."""
    if reference is None:
        return 0
    if isinstance(reference, str):
        return 1 + retrains
    return 1 if isinstance(reference, Unlearned) else len(reference)


def _given(retrained: int, *, ensemble: int | None, membership: bool, probes: bool) -> set[str]:
    options = {
        "reference": retrained > 0,
        "other_seeds": retrained > 1,
        "ensemble": ensemble is not None,
        "membership": membership,
        "probes": probes,
    }
    return {name for name, there in options.items() if there}


def _ask(
    run: Run, result: Unlearned, honest: Sequence[Unlearned], sets: Mapping[str, Samples], *, features: bool
) -> tuple[dict[str, Answers], list[Answers]]:
    """Answers of Full, unlearned and Retrain, and of the Retrains with other seeds."""
    models = {
        "full": answers(run.model, run.subset.get(), sets, title="full", features=features),
        "unlearned": answers(result.model, result.subset.get(), sets, title="unlearned", features=features),
    }
    if honest:
        models["retrain"] = answers(honest[0].model, honest[0].subset.get(), sets, title="retrain", features=features)
    others = [answers(item.model, item.subset.get(), sets, title="other retrain", features=False) for item in honest[1:]]
    return models, others


def _reference(honest: Sequence[Unlearned]) -> dict[str, Any]:
    seeds = [item.details.get("seed") for item in honest]
    return {"made": bool(honest), "seed": seeds[0] if seeds else None, "other_seeds": seeds[1:]}


def _relearn(
    run: Run, result: Unlearned, honest: Sequence[Unlearned], *, threshold: float, cap: int, seed: int
) -> dict[str, Any]:
    subjects = {"full": run.model, "unlearned": result.model}
    if honest:
        subjects["retrain"] = honest[0].model
    return {
        name: relearn(model, run.subset.on(model), result.forgotten, threshold=threshold, cap=cap, seed=seed).to_dict()
        for name, model in subjects.items()
    }


def _probes(run: Run, models: Mapping[str, Answers], sets: Mapping[str, Samples], *, seed: int) -> dict[str, Any]:
    """The models' own heads, and probes on their features beside those of the untuned and of a random model."""
    own = {name: accuracies(model) for name, model in models.items()}
    if any(model.features is None for model in models.values()):
        return {"own_head": own, "linear_probe": None, "note": "no linear head was found, so there are no features to probe"}
    before = copy.deepcopy(run.model)
    run.subset.on(before).set(run.anchor)
    drawn, how = random_model(run.model, seed=seed)
    extra = {
        "pretrained": answers(before, run.anchor, sets, title="pre-trained"),
        "random": answers(drawn, run.anchor, sets, title="random"),
    }
    found = {}
    for name, model in (extra | dict(models)).items():
        found[name] = None if model.features is None else linear_probe(model.features, model.labels)
    note = f"pretrained: the tuned part at its values before fine-tuning; random: {how}"
    return {"own_head": own, "linear_probe": found, "note": note}


def _distances(run: Run, models: Mapping[str, Answers], others: Sequence[Answers]) -> dict[str, Any]:
    full, unlearned, retrain = (models[name] for name in ("full", "unlearned", "retrain"))
    made = {
        "same_seed": compare(unlearned, retrain, full=full, anchor=run.anchor),
        "full": compare(full, retrain, full=full, anchor=run.anchor),
    }
    if others:
        every = [retrain, *others]
        made["other_seeds"] = mean_of([compare(unlearned, other, full=full, anchor=run.anchor) for other in others])
        made["retrain_spread"] = mean_of([compare(two, one, full=full, anchor=run.anchor) for one, two in combinations(every, 2)])
    return made


def _membership(models: Mapping[str, Answers], *, seed: int) -> dict[str, Any]:
    """The population attack on each model, or why there is none."""
    labels = models["full"].labels
    same = torch.isin(labels["holdout"], labels["forget"].unique())
    sizes = {"forgotten": len(labels["forget"]), "holdout": int(same.sum())}
    if min(sizes.values()) < LEAST:
        note = f"no attack: it needs {LEAST} forgotten samples and {LEAST} hold-out samples of their classes"
        return {"population": None, "sizes": sizes, "note": note}
    found: dict[str, Any] = {}
    for name, model in models.items():
        members = attack_features(model.forget, labels["forget"])
        unseen = attack_features(model.holdout[same], labels["holdout"][same])
        found[name] = population_attack(members, unseen, seed=seed) if model.finite else None
    return {"population": found, "sizes": sizes, "note": None}


def _limits(made: Mapping[str, Any], *, shared: int) -> list[str]:
    """What the record does not show, in plain sentences."""
    sentences = [
        "This is evidence from measurements, not a certificate and not a proof that nothing is left.",
        "Only the tuned parameters were changed. " + str(made["details"].get("outside_subset", {}).get("message", "")),
        "Only the attacks named here were tried; a stronger one may see more.",
        "Copies of the data, of the old model and of files made from it are not looked at.",
    ]
    if not made["reference"]["made"]:
        sentences.append("There is no retrained model to compare with, so no figure here says whether it is good.")
    elif not made["reference"]["other_seeds"]:
        sentences.append("Only one retraining was made, so how far two of them lie apart is not known.")
    if made["membership"].get("population", "") is None:
        sentences.append(str(made["membership"]["note"]).capitalize() + ".")
    sizes = made["membership"].get("sizes", {})
    if sizes.get("holdout", 100) < 100:
        sentences.append(
            f"The attack has {sizes['holdout']} unseen samples of the classes concerned: its rate at 1 % false positives is the "
            "rate at none."
        )
    sentences += _ensemble_limits(made)
    if shared:
        sentences.append(f"{shared} of the hold-out samples are exact copies of training samples.")
    return sentences


def _ensemble_limits(made: Mapping[str, Any]) -> list[str]:
    lira = made["membership"].get("u_lira")
    if lira is None:
        return ["No attack per sample (U-LiRA) was made: it needs an ensemble of models."]
    sentences = ["The models of the ensemble saw the forgotten samples and stay in the cache until somebody deletes them."]
    if lira["ensemble"]["kind"] == "tangent":
        sentences.append("The ensemble was made by replay in a linear model of the network, not by training.")
    return sentences
