"""The one table of figures: what each is called, means, should be, and where it stands in the record.

Definitions in records, names in ``--require`` and the rows that the command line prints are all made from it. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastntk.auditing.record import Better, Definition
from fastntk.auditing.record_figures import MODELS, known

LIKE: Final = "like retrain"
LOWER: Final = "lower"
HIGHER: Final = "higher"


@dataclass(frozen=True)
class Figure:
    """One figure. ``key`` names its definition, ``name`` is what requirements call it (None: not for requirements).

    ``paths``: where the record has it for ``unlearned``, ``retrain``, ``full``, and as ``spread`` between two Retrains.
    ``needs``: options of the audit without which it does not exist.
    """

    key: str
    title: str
    definition: str
    better: Better
    unit: str
    name: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def points(self) -> bool:
        """Whether requirements give it in points (per cent)."""
        return self.key.startswith("accuracy.")


def _by_model(
    key: str,
    name: str,
    title: str,
    definition: str,
    better: Better,
    unit: str,
    *,
    path: str | None = None,
    needs: tuple[str, ...] = (),
) -> Figure:
    """A figure that each model has by itself; ``path``: its place in the record, {} being the model (default: after ``key``)."""
    paths = {model: (path or f"{key}.{{}}").format(model) for model in MODELS}
    return Figure(key, title, definition, better, unit, name, paths, needs)


def _distance(figure: str, name: str, title: str, definition: str, better: Better, unit: str) -> Figure:
    """A figure of a pair of models, one of them Retrain."""
    paths = {"unlearned": f"distances.same_seed.{figure}", "full": f"distances.full.{figure}"}
    paths["spread"] = f"distances.retrain_spread.{figure}"
    return Figure(f"distances.{figure}", title, definition, better, unit, name, paths, needs=("reference",))


_WHERE = {"retain": "retained", "forget": "forgotten", "holdout": "held-out"}


def _accuracies() -> Iterator[Figure]:
    """On held-out samples by classes first: over all classes the figure falls with the forgotten ones."""
    for where, what, definition in (
        ("retain", "retained samples", "Share of the retained samples that the model classifies correctly."),
        ("forget", "forgotten samples", "Share of the forgotten samples that the model classifies correctly."),
        (
            "holdout_kept_classes",
            "held-out of the classes that stay",
            "Accuracy on the held-out samples of the classes that stay.",
        ),
        (
            "holdout_forgotten_classes",
            "held-out of the classes wholly forgotten",
            "Accuracy on the held-out samples of the classes wholly forgotten.",
        ),
        ("holdout", "held-out samples", "Share of the held-out samples that the model classifies correctly."),
    ):
        yield _by_model(f"accuracy.{where}", f"{where}_accuracy", f"Accuracy, {what}", definition, LIKE, "fraction")


def _losses() -> Iterator[Figure]:
    for where, word in _WHERE.items():
        text = f"Mean cross-entropy of the {word} samples."
        yield _by_model(f"loss.{where}", f"{where}_loss", f"Loss, {word} samples", text, LIKE, "nats")


def _memory() -> Iterator[Figure]:
    """What is left in the weights and the features: relearning and probes."""
    yield _by_model(
        "relearn.epochs",
        "relearn_epochs",
        "Relearning",
        "Epochs of Adam on the forgotten samples, tuned subset only, until their mean loss is below the threshold; "
        "null with censored = true where the cap was not enough. Fewer than Retrain needs means that memory was left.",
        LIKE,
        "epochs",
        path="relearn.{}.epochs",
    )
    for where, word in _WHERE.items():
        yield _by_model(
            f"probes.linear_probe.{where}",
            f"probe_{where}_accuracy",
            f"Linear probe, {word} samples",
            "Accuracy of a logistic regression on the frozen features before the head, fitted on all training samples "
            f"(retained and forgotten) with their labels, on the {word} samples.",
            LIKE,
            "fraction",
            path=f"probes.linear_probe.{{}}.{where}",
            needs=("probes",),
        )
    yield Figure("probes.own_head", "Own head", "Accuracy of the model with its own head, beside the probe's.", LIKE, "fraction")


def _distances() -> Iterator[Figure]:
    for where in ("forget", "holdout"):
        word = _WHERE[where]
        yield _distance(
            f"total_variation.{where}",
            f"total_variation_{where}",
            f"Total variation, {word} samples",
            f"Mean over the {word} samples of half the summed absolute differences between the class probabilities of "
            "this model and of Retrain.",
            LOWER,
            "fraction",
        )
        yield _distance(
            f"jensen_shannon.{where}",
            f"jensen_shannon_{where}",
            f"Jensen–Shannon, {word} samples",
            f"Mean Jensen–Shannon divergence between the class probabilities of this model and of Retrain on the {word} samples.",
            LOWER,
            "nats",
        )
        yield _distance(
            f"agreement.{where}",
            f"agreement_{where}",
            f"Agreement, {word} samples",
            f"Share of the {word} samples for which this model and Retrain predict the same class.",
            HIGHER,
            "fraction",
        )
    yield _distance(
        "weights",
        "weights",
        "Weights",
        "Distance of the tuned weights to Retrain's, relative to the length of Retrain's own way from the anchor.",
        LOWER,
        "ratio",
    )
    yield _distance(
        "recovered",
        "recovered",
        "Recovered",
        "Share of the way from Full's mean loss on the forgotten samples to Retrain's: 1 is as Retrain, less is memory "
        "left, more is pushed further than never having seen them.",
        LIKE,
        "ratio",
    )
    yield _distance(
        "tug_of_war",
        "tug_of_war",
        "Tug-of-war",
        "Product over forgotten, retained and held-out samples of 1 less the difference in accuracy to Retrain.",
        HIGHER,
        "fraction",
    )


def _population_attack() -> Iterator[Figure]:
    against = "a logistic regression that tells forgotten from unseen samples by loss, confidence, entropy and margin"
    yield _by_model(
        "membership.population.auc",
        "attack_auc",
        "Population attack, AUC",
        f"Area under the curve of {against}, on samples it was not fitted on; 0.5 is no better than guessing.",
        LIKE,
        "fraction",
        path="membership.population.{}.auc",
        needs=("membership",),
    )
    yield _by_model(
        "membership.population.tpr_at_1pct_fpr",
        "attack_tpr",
        "Population attack, TPR at 1 % FPR",
        f"Share of the forgotten samples found by {against}, where it is wrong on at most 1 % of the unseen ones.",
        LIKE,
        "fraction",
        path="membership.population.{}.tpr_at_1pct_fpr",
        needs=("membership",),
    )


def _u_lira() -> Iterator[Figure]:
    yield _by_model(
        "membership.u_lira.auc",
        "u_lira_auc",
        "U-LiRA, AUC",
        "Area under the curve of a per-sample likelihood-ratio test between many unlearned and many retrained models; "
        "0.5 means that this test does not tell them apart. The models differ by their seeds only.",
        LOWER,
        "fraction",
        path="membership.u_lira.{}.auc",
        needs=("ensemble",),
    )
    yield _by_model(
        "membership.u_lira.tpr_at_1pct_fpr",
        "u_lira_tpr",
        "U-LiRA, TPR at 1 % FPR",
        "Share of predictions of unlearned models that the same test finds where it is wrong on at most 1 % of retrained ones.",
        LOWER,
        "fraction",
        path="membership.u_lira.{}.tpr_at_1pct_fpr",
        needs=("ensemble",),
    )
    yield _by_model(
        "membership.u_lira.shift",
        "u_lira_shift",
        "Median shift",
        "Median over the forgotten samples of the shift of the mean confidence log p/(1 − p) from Retrain's, in standard "
        "deviations of Retrain's: above 0 they are known too well, below 0 pushed too far.",
        LIKE,
        "standard deviations",
        path="membership.u_lira.shift.{}.median",
        needs=("ensemble",),
    )


def _klom() -> Iterator[Figure]:
    yield _by_model(
        "membership.klom.mean",
        "klom",
        "KLoM, mean",
        "Mean over the forgotten samples of the KL divergence between histograms of the margin under unlearned and under "
        "retrained models; compare with the value of Retrain against Retrain, which is not 0. Where most samples share no "
        "bin it says that the models are apart, not how far.",
        LOWER,
        "nats",
        path="membership.klom.{}.mean",
        needs=("ensemble",),
    )
    yield _by_model(
        "membership.klom.p95",
        "klom_p95",
        "KLoM, 95th percentile",
        "The same divergence for the sample at the 95th percentile.",
        LOWER,
        "nats",
        path="membership.klom.{}.p95",
        needs=("ensemble",),
    )
    yield _by_model(
        "membership.klom.gaussian",
        "klom_gaussian",
        "Gaussian KL of margins, median",
        "Median over the forgotten samples of the KL divergence between normal distributions with the means and variances of "
        "the margin under unlearned and under retrained models.",
        LOWER,
        "nats",
        path="membership.klom.{}.gaussian.median",
        needs=("ensemble",),
    )


def _costs() -> Iterator[Figure]:
    yield Figure(
        "cost.seconds",
        "Time",
        "Wall seconds that unlearning took.",
        LOWER,
        "seconds",
        "seconds",
        {"unlearned": "cost.seconds", "retrain": "cost.retrain_seconds"},
    )
    yield Figure(
        "cost.ratio_to_retrain",
        "Time relative to Retrain",
        "Seconds of unlearning over seconds of Retrain on this machine.",
        LOWER,
        "ratio",
        "cost_ratio",
        {"unlearned": "cost.ratio_to_retrain"},
        needs=("reference",),
    )
    memory = "Most memory that the process which unlearned had held until then."
    yield Figure("cost.peak_memory_bytes", "Peak memory", memory, LOWER, "bytes")


def _counts() -> Iterator[Figure]:
    yield Figure("flow", "Prediction flow", "How many forgotten samples of each true class get which prediction.", LIKE, "count")
    losses = "How many forgotten, retained and held-out samples have a loss between two edges; the last bin has all above."
    yield Figure("loss_histogram", "Losses", losses, LIKE, "count")


FIGURES: tuple[Figure, ...] = (
    *_accuracies(),
    *_losses(),
    *_memory(),
    *_distances(),
    *_population_attack(),
    *_u_lira(),
    *_klom(),
    *_costs(),
    *_counts(),
)
BY_NAME: dict[str, Figure] = {figure.name: figure for figure in FIGURES if figure.name is not None}


def definitions() -> dict[str, Definition]:
    """Title, definition, direction and unit of every figure, by key."""
    return {
        figure.key: Definition(title=figure.title, definition=figure.definition, better=figure.better, unit=figure.unit)
        for figure in FIGURES
    }


def lookup(record: object, path: str) -> Any:
    """The value at a dotted path of a record, None where any part of it was left out."""
    value: Any = record
    for part in path.split("."):
        value = known(getattr(value, part, None))
    return value


def value_of(record: object, figure: Figure, model: str) -> float | None:
    """A figure's value for ``unlearned``, ``retrain``, ``full`` or as ``spread``, in the record's unit.

    Relearning that the cap did not suffice for counts as infinitely long.
    """
    path = figure.paths.get(model)
    if path is None:
        return None
    if figure.key == "relearn.epochs" and lookup(record, path.removesuffix("epochs") + "censored"):
        return math.inf
    value = lookup(record, path)
    return None if value is None else float(value)


def censored_at(record: object, figure: Figure, model: str) -> float | None:
    """The cap of a relearning that was not done by then, of which no more is known than that; None for other figures."""
    path = figure.paths.get(model)
    if path is None or figure.key != "relearn.epochs" or not lookup(record, path.removesuffix("epochs") + "censored"):
        return None
    return float(lookup(record, path.removesuffix("epochs") + "cap"))
