"""The figures of an audit record as frozen dataclasses: accuracies, losses, relearning, probes, distances, attacks, predictions.

What surrounds them (subject, request, verdict, …) and what the types are for: :mod:`fastntk.auditing.record`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, UnsetType

from fastntk.base.schema import Count, Fraction

MODELS = ("full", "unlearned", "retrain")
"""Before unlearning, after it, and retrained without the forgotten samples."""
SETS = ("retain", "forget", "holdout")

Curve = Annotated[tuple[Fraction, ...], Meta(max_length=101)]
EnsembleKind = Literal["real", "tangent"]
Variation = Literal["seed-only", "resampled"]

T = TypeVar("T")


def known(value: T | UnsetType | None) -> T | None:
    """A value, or None where it was left out."""
    return None if value is UNSET else value


@dataclass(frozen=True, kw_only=True)
class OfModels(Generic[T]):
    """A figure of the model before unlearning and after it; those below add Retrain's."""

    full: T
    unlearned: T

    def items(self) -> Iterator[tuple[str, T]]:
        """Models and values, those that are there and not null: before, after, Retrain."""
        for model in MODELS:
            value = known(getattr(self, model))
            if value is not None:
                yield model, value


@dataclass(frozen=True, kw_only=True)
class ByModel(OfModels[T], Generic[T]):
    """A figure of each model; ``retrain`` is left out where there is no Retrain."""

    retrain: T | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Fractions(ByModel[Fraction]):
    """A fraction of each model."""


@dataclass(frozen=True, kw_only=True)
class Numbers(ByModel[float | None]):
    """A number of each model; null where its outputs are not numbers."""


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """Share of samples classified correctly, by set; hold-out also by class where whole classes were forgotten."""

    retain: Fractions
    forget: Fractions
    holdout: Fractions
    holdout_forgotten_classes: Fractions | UnsetType = UNSET
    holdout_kept_classes: Fractions | UnsetType = UNSET

    def items(self) -> Iterator[tuple[str, Fractions]]:
        """Sets and figures, those that are there."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not UNSET:
                yield item.name, value


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Mean cross-entropy by set."""

    retain: Numbers
    forget: Numbers
    holdout: Numbers


@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Epochs on the forgotten samples until their loss is below ``threshold``; null and ``censored``: more than ``cap``.

    ``curve``: the loss before the first epoch and after each.
    """

    epochs: Count | None
    censored: bool
    threshold: float
    cap: Count
    curve: Annotated[tuple[float | None, ...], Meta(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class RelearningByModel(ByModel[Relearning]):
    """Relearning of each model."""


@dataclass(frozen=True, kw_only=True)
class SetAccuracies:
    """Accuracy on each set."""

    retain: Fraction
    forget: Fraction
    holdout: Fraction


@dataclass(frozen=True, kw_only=True)
class OwnHeads(ByModel[SetAccuracies]):
    """Accuracies of each model with its own head."""


@dataclass(frozen=True, kw_only=True)
class LinearProbes(ByModel[SetAccuracies | None]):
    """Accuracies of linear probes on each model's features, and on those before fine-tuning and of random weights."""

    pretrained: SetAccuracies | None
    random: SetAccuracies | None

    def items(self) -> Iterator[tuple[str, SetAccuracies | None]]:
        """Models and figures, those that are there: before, after, Retrain, then the two that know nothing of the data."""
        yield from super().items()
        yield from ((name, value) for name in ("pretrained", "random") if (value := getattr(self, name)) is not None)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The models' own heads beside linear probes; ``linear_probe`` is null where there is no linear head; how it was done."""

    own_head: OwnHeads
    linear_probe: LinearProbes | None
    note: str


@dataclass(frozen=True, kw_only=True)
class Places:
    """A distance on forgotten and on held-out samples; null where outputs are not numbers."""

    forget: float | None
    holdout: float | None


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far one model is from another, usually a Retrain; defined in :mod:`fastntk.auditing.distances`. Older releases did not
    write ``log_probability``."""

    total_variation: Places
    jensen_shannon: Places
    agreement: Places
    weights: float | None
    recovered: float | None
    tug_of_war: Fraction
    log_probability: Places | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class SetLosses:
    """Mean cross-entropy on each set; null where outputs are not numbers."""

    retain: float | None
    forget: float | None
    holdout: float | None


@dataclass(frozen=True, kw_only=True)
class RetrainFigures:
    """What one Retrain gets: its accuracies and losses."""

    accuracy: SetAccuracies
    loss: SetLosses


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Distances to Retrain and between Retrains.

    ``same_seed``, ``full``: of the unlearned model and of Full to the Retrain of the run's own seed. ``other_seeds``: mean over
    the Retrains of other seeds. ``retrain_spread``: mean over pairs of Retrains. ``by_seed``: of the unlearned model to each
    Retrain, by its seed. ``retrain_pairs``: of each pair of Retrains, as "seed-seed". ``retrains``: what each Retrain gets, by
    its seed (not in older records).
    """

    same_seed: Distance
    full: Distance
    other_seeds: Distance | UnsetType = UNSET
    retrain_spread: Distance | UnsetType = UNSET
    by_seed: dict[str, Distance] | UnsetType = UNSET
    retrain_pairs: dict[str, Distance] | UnsetType = UNSET
    retrains: dict[str, RetrainFigures] | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Roc:
    """True-positive rates at false-positive rates, as many of one as of the other."""

    fpr: Curve
    tpr: Curve

    def __post_init__(self) -> None:
        if len(self.fpr) != len(self.tpr):
            raise ValueError(f"fpr and tpr differ in length: {len(self.fpr)} and {len(self.tpr)}")


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Area under the curve with its standard error, true-positive rate at 1 % false positives, and the curve."""

    auc: Fraction
    auc_standard_error: float
    tpr_at_1pct_fpr: Fraction
    roc: Roc


@dataclass(frozen=True, kw_only=True)
class ByFeature:
    """Area under the curve of each feature of a prediction by itself."""

    loss: Fraction
    confidence: Fraction
    entropy: Fraction
    margin: Fraction


@dataclass(frozen=True, kw_only=True)
class PopulationAttack(Attack):
    """The attack with all features, and the area of each alone.

    ``difference_standard_error``: of the difference between this area and Retrain's, which is asked about the same samples; left
    out for Retrain itself, without one, and by older releases.
    """

    by_feature: ByFeature
    difference_standard_error: float | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class PopulationAttacks(ByModel[PopulationAttack | None]):
    """The population attack on each model; null where its outputs are not numbers."""


@dataclass(frozen=True, kw_only=True)
class AttackSizes:
    """How many forgotten samples, and unseen samples of their classes, the population attack had."""

    forgotten: Count
    holdout: Count


@dataclass(frozen=True, kw_only=True)
class EnsembleSummary:
    """How an ensemble was made: ``size`` models of each kind with these seeds; ``reused`` files were there already; ``made_by``:
    the training function of the user, where one made them. ``variation``: what differs between the models, the seed only, or the
    forget set too; older releases, which did not write it, had the seed only."""

    kind: EnsembleKind
    size: Count
    seeds: tuple[Count, ...]
    seconds: float
    reused: Count
    estimated_seconds: float
    made_by: str | UnsetType = UNSET
    variation: Variation | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Median over the forgotten samples of the shift of their confidence from Retrain's, in Retrain's standard deviations.

    Above 0 the samples are known too well, below 0 they were pushed too far. In Retrain's place: one half of the Retrains against
    the other, with how far such a half strays.
    """

    median: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class Shifts(OfModels[Shift | None]):
    """The median shift of each ensemble from the Retrains."""

    retrain: Shift | None


@dataclass(frozen=True, kw_only=True)
class ULira(OfModels[Attack | None]):
    """U-LiRA of each ensemble against the Retrains, how the ensembles were made, and how far they are shifted."""

    ensemble: EnsembleSummary
    retrain: Attack | None
    shift: Shifts | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class GaussianKl:
    """KL divergence of the normal distributions with the ensembles' means and variances, over the samples."""

    mean: float
    median: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class KlomFigures:
    """Over samples: mean, 95th and 99th percentile; the share of samples for which no bin holds models of both ensembles.

    Where that share is large, the figure says that the ensembles are apart, not how far. Older releases wrote mean and 95th
    percentile alone, of a histogram that was smoothed more.
    """

    mean: float
    p95: float
    p99: float | UnsetType = UNSET
    disjoint: Fraction | UnsetType = UNSET
    gaussian: GaussianKl | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class KlomByModel(OfModels[KlomFigures | None]):
    """KLoM of each ensemble against the Retrains on one set of samples."""

    retrain: KlomFigures | None


@dataclass(frozen=True, kw_only=True)
class Klom(OfModels[KlomFigures | None]):
    """KLoM of each ensemble against the Retrains: on the forgotten samples, and on the ``retained`` and ``held_out`` ones.

    ``models``: a side of each comparison; ``bins``; ``ceiling``: the most that can come out; ``gaussian_floor``: what the
    Gaussian divergence of two equal ensembles of that size is in the mean. ``note``: what so many models can tell."""

    retrain: KlomFigures | None
    retained: KlomByModel | UnsetType = UNSET
    held_out: KlomByModel | UnsetType = UNSET
    models: Count | UnsetType = UNSET
    bins: Count | UnsetType = UNSET
    ceiling: float | UnsetType = UNSET
    gaussian_floor: float | UnsetType = UNSET
    note: str | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What attackers can tell; any part may be left out. ``population`` is null with too few samples, which ``note`` says."""

    population: PopulationAttacks | UnsetType | None = UNSET
    sizes: AttackSizes | UnsetType = UNSET
    note: str | UnsetType | None = UNSET
    u_lira: ULira | UnsetType = UNSET
    klom: Klom | UnsetType = UNSET


Counts = tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class Flow(ByModel[tuple[Counts, ...]]):
    """Of the forgotten samples: how many of each label (row) get which prediction (column)."""

    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        size = len(self.classes)
        for model, table in self.items():
            if len(table) != size or any(len(row) != size for row in table):
                raise ValueError(f"{model}: expected {size} × {size} counts, one row and column a class")


@dataclass(frozen=True, kw_only=True)
class SetCounts:
    """Counts of each set's samples by bin."""

    retain: Counts
    forget: Counts
    holdout: Counts


@dataclass(frozen=True, kw_only=True)
class LossHistogram(ByModel[SetCounts]):
    """How many samples have a loss between two neighbouring ``edges``; the last bin has all above."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        bins = len(self.edges) - 1
        for model, sets in self.items():
            for name in SETS:
                if len(getattr(sets, name)) != bins:
                    raise ValueError(f"{model}.{name}: expected {bins} counts for {bins + 1} edges")
