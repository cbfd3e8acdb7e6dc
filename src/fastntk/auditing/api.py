"""``audit``: everything that is measured on an unlearned model, as one JSON-able record.

Models compared: Full (the run as it is), unlearned, Retrain with the run's own seed and, for the spread between retrained
models, Retrains with further seeds. Nothing that is passed in is changed. The record's types are in
:mod:`fastntk.auditing.record`, its figures are defined in :mod:`fastntk.auditing.figures` and explained in ``docs/metrics.md``.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET

from fastntk.auditing import comparisons, sections
from fastntk.auditing.ensembles import check_ensemble, check_offered
from fastntk.auditing.figures import definitions
from fastntk.auditing.limits import limits
from fastntk.auditing.predictions import EvaluationSets, PredictionCache, Predictions, evaluation_sets, predict_sets
from fastntk.auditing.record import SCHEMA, AuditRecord, Measurements, ReferenceSummary, sealed, to_dict
from fastntk.auditing.record_figures import EnsembleKind, Membership
from fastntk.auditing.references import Reference, check_holdout, check_result, references
from fastntk.auditing.requirements import Condition, check_possible, evaluate, parse
from fastntk.auditing.verdict import verdict
from fastntk.base.errors import InputError
from fastntk.base.gradients import with_gradients
from fastntk.data import Samples
from fastntk.storage.manifest import versions
from fastntk.training.network import check_finite
from fastntk.training.run import Run
from fastntk.unlearning.baselines.own_training import Retrainer, check_function
from fastntk.unlearning.residue import check_reason
from fastntk.unlearning.result import Unlearned


@with_gradients
def audit(
    run: Run,
    result: Unlearned,
    *,
    holdout: Samples,
    reference: Reference = None,
    retrain: Retrainer | None = None,
    retrains: int = 1,
    relearn_threshold: float = 0.05,
    relearn_cap: int = 100,
    probes: bool = True,
    membership: bool = True,
    ensemble: int | None = None,
    ensemble_kind: EnsembleKind = "real",
    require: Sequence[str] = (),
    cache: str | Path | None = None,
    predictions: PredictionCache | None = None,
    seed: int = 0,
    accept_outside: str | None = None,
) -> dict[str, Any]:
    """Measure an unlearned model beside Full and Retrain; return a JSON-able record.

    ``holdout``: samples of the same classes that were never trained on. ``reference``: None, and the record says that there is
    no Retrain to judge by; ``"retrain"``, trained here with the run's seed and ``retrains`` further seeds; or results of
    ``unlearn(..., method="retrain")``, the first with the run's own seed. ``retrain(keep_ids, seed)``: a training function of
    your own, which makes these Retrains and the ensemble in place of the run's recipe, and without ``reference`` asks for them;
    it returns a model, a state_dict, the tuned vector or a Run (docs/howto.md).

    ``relearn_threshold``, ``relearn_cap``: the loss at which relearning ends, and the epochs after which it is given up.
    ``ensemble``: how many models U-LiRA and KLoM get (None: not computed), ``real`` trainings or ``tangent`` replays, stored in
    ``cache``. ``predictions``: a cache that several audits of one run and request share, so that Full and Retrains are evaluated
    once. ``require``: conditions such as ``"forget_accuracy<=retrain+1"``, whose outcome is in the record. ``seed``: of the
    attack's folds, of relearning's batches and of the random model.

    Where weights outside the tuned subset were trained on this data, or are unknown, the verdict is at best "cannot be told",
    unless ``retrain`` trains them too; ``accept_outside``: why you go on all the same, for the record.
    """
    started = time.perf_counter()
    conditions = [parse(text) for text in ([require] if isinstance(require, str) else require)]
    check_reason(accept_outside)
    overlap = _check_subject(run, result, holdout)
    if retrain is not None:
        check_function(retrain)
        if not isinstance(reference, str | None) and (ensemble is None or ensemble_kind != "real"):
            raise InputError(
                "Retrains are given (reference=results, --reference RESULT), and so is a function to train them (retrain=f, "
                "--retrain-with), which nothing would use. Give one: the results, or the function with reference='retrain'"
                " or none. Both go together only where the function trains a real ensemble (ensemble=K)."
            )
        reference = "retrain" if reference is None else reference
    retrain_count = _planned(reference, retrains)
    with_attacks = membership and not comparisons.only_whole_classes(result)
    check_possible(conditions, available=_available(retrain_count, ensemble=ensemble, membership=with_attacks, probes=probes))
    if ensemble is not None:
        check_ensemble(run, size=ensemble, kind=ensemble_kind, retrain=retrain)
        check_offered(result.method, ensemble_kind)
    if not 0 < relearn_threshold < math.inf or relearn_cap < 0:
        raise InputError(f"relearn_threshold must be finite and > 0, relearn_cap ≥ 0; got {relearn_threshold} and {relearn_cap}.")
    retrained = references(run, result, reference, retrains=retrains, retrain=retrain)
    first = retrained[0] if retrained else None
    forgotten = result.forgotten
    on = evaluation_sets(result.retained, forgotten, holdout, cache=predictions)
    models, others = _predictions(run, result, retrained, on, features=probes)
    about = _reference(retrained)
    classes = sections.class_names(run.data, classes=models["full"].forget.shape[1])
    data_digest = run.data.digest()
    attacks = comparisons.population(models, whole=result.split.whole_classes, seed=seed) if membership else Membership()
    if ensemble is not None:
        lira, klom = comparisons.ensembles(
            run, result, holdout, size=ensemble, kind=ensemble_kind, cache=cache, retrain=retrain, reference=first
        )
        attacks = replace(attacks, u_lira=lira, klom=klom)
    measured = Measurements(
        schema=SCHEMA,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fastntk=versions()["fastntk"],
        environment=versions() | {"threads": torch.get_num_threads()},
        subject=sections.subject(result, holdout=len(holdout), classes=classes, data_digest=data_digest),
        request=sections.request(result),
        details=sections.plain(result.details),
        reference=about,
        accuracy=sections.accuracies(models, result.split.whole_classes),
        loss=sections.losses(models),
        relearn=comparisons.relearning(run, result, first, on, threshold=relearn_threshold, cap=relearn_cap, seed=seed),
        probes=comparisons.probes(run, models, on, seed=seed) if probes else UNSET,
        distances=UNSET if about.seed is None else comparisons.distances(run.anchor, models, others, seed=about.seed),
        membership=attacks,
        flow=sections.flow(models, classes),
        loss_histogram=sections.loss_histogram(models),
        cost=sections.cost(result, first, audit_seconds=time.perf_counter() - started),
        definitions=definitions(),
        outside=sections.outside(run, accepted=accept_outside),
    )
    trained = torch.cat([result.retained.labels, forgotten.labels]).unique().tolist()
    unseen_classes = [classes[label] for label in trained if not bool((holdout.labels == label).any())]
    return sealed(to_dict(_judged(measured, conditions, shared=overlap, unseen=unseen_classes)))


def _check_subject(run: Run, result: Unlearned, holdout: Samples) -> int:
    """Refuse what cannot be audited; return how many hold-out samples are training samples too."""
    check_result(run, result)
    check_finite(run.model, what="The run's model")
    check_finite(result.model, what="The unlearned model")
    if len(result.split.forget) == 0:
        raise InputError("There is nothing to audit: the result forgot no samples.")
    return check_holdout(run, holdout)


def _judged(measured: Measurements, conditions: Sequence[Condition], *, shared: int, unseen: Sequence[str]) -> AuditRecord:
    """The record: what was measured, with the verdict, the outcome of the conditions, and what it does not show."""
    return AuditRecord(
        **{item.name: getattr(measured, item.name) for item in fields(measured)},
        verdict=verdict(measured),
        requirements=tuple(evaluate(condition, measured) for condition in conditions),
        limits=limits(measured, shared=shared, unseen=unseen),
    )


def _planned(reference: Reference, retrains: int) -> int:
    """How many Retrains there will be."""
    if reference is None:
        return 0
    if isinstance(reference, str):
        return 1 + retrains
    return 1 if isinstance(reference, Unlearned) else len(reference)


def _available(retrained: int, *, ensemble: int | None, membership: bool, probes: bool) -> set[str]:
    options = {
        "reference": retrained > 0,
        "other_seeds": retrained > 1,
        "ensemble": ensemble is not None,
        "membership": membership,
        "probes": probes,
    }
    return {name for name, available in options.items() if available}


def _predictions(
    run: Run, result: Unlearned, retrained: Sequence[Unlearned], on: EvaluationSets, *, features: bool
) -> tuple[dict[str, Predictions], dict[int, Predictions]]:
    """Predictions of Full, unlearned and Retrain, and of the Retrains with other seeds."""
    models = {
        "full": predict_sets(run.model, run.subset.get(), on, title="full", features=features),
        "unlearned": predict_sets(result.model, result.subset.get(), on, title="unlearned", features=features),
    }
    if retrained:
        first = retrained[0]
        models["retrain"] = predict_sets(first.model, first.subset.get(), on, title="retrain", features=features)
    others = {
        int(other.details["seed"]): predict_sets(other.model, other.subset.get(), on, title="other retrain", features=False)
        for other in retrained[1:]
    }
    return models, others


def _reference(retrained: Sequence[Unlearned]) -> ReferenceSummary:
    seeds = [int(item.details["seed"]) for item in retrained]
    own = retrained[0].details if retrained else {}
    change_counts = [item.details["changed_outside"] for item in retrained if "changed_outside" in item.details]
    return ReferenceSummary(
        made=bool(retrained),
        seed=seeds[0] if seeds else None,
        other_seeds=tuple(seeds[1:]),
        made_by=own.get("retrained_by", UNSET),
        changed_outside=min(change_counts) if change_counts else UNSET,
    )
