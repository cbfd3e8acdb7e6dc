"""The verdict's limits, and where they come from: data and formulas, no torch, no record.

A model that never saw D_f, retrained with a seed of its own, differs from R + 1 other Retrains by chance. Limits are set so that
chance alone passes each of up to ``TESTS`` of them about once in 400 audits, in either direction; then all of them together would
pass such a model in 95 % of the audits or more, however they depend on one another (Bonferroni), if chance were normal.

    total variation   T = mean over Retrains of TV(u, r) / mean over their pairs     log T ~ normal(0, DISTANCE_SD)
    loss on D_f       L_u − mean L_r                                                 sd = D · m · √(ρ + (1−ρ)/n) · (1 + 1/2n)
    accuracy          a_u − mean a_r                                                 sd = √(q / n) · m
    with              m = √((1 + 1/(R+1))/2), a model less the mean of R + 1 others in units of the difference of two

D is the root mean square difference of two Retrains' log probabilities of the labels, q the share of samples that they classify
differently, n the number of samples. Of few samples the spread itself is a matter of luck: on D_f it counts as no smaller than on
held-out samples. The figures below were chosen on the pool ``development`` of :mod:`lab.calibration`; what was seen there and
on other pools: docs/calibration.md, made by ``python -m lab run calibration``.
"""

from __future__ import annotations

import math

RULES = 2
"""The rules' number, in every record that they judged. 1: fixed thresholds, the own check first (records without a number)."""
LEVEL = 2.8
"""A test's limit in standard deviations of chance: one in 400 on either side, if chance were normal."""
TESTS = 9
"""Distances and accuracies on D_f and held-out samples, accuracy on D_r, loss, relearning, population attack, U-LiRA."""

DISTANCE_SD: tuple[tuple[int, dict[int, float]], ...] = (
    (1, {1: 0.36, 3: 0.27, 7: 0.25}),
    (9, {1: 0.31, 3: 0.23, 7: 0.20}),
    (99, {1: 0.15, 3: 0.11, 7: 0.09}),
)
"""Up to so many samples: the standard deviation of log T by R. More samples: ``DISTANCE_SD_MANY``."""
DISTANCE_SD_MANY = {1: 0.13, 3: 0.08, 7: 0.07}
PAIR_SD = ((1, 0.45), (9, 0.30), (99, 0.13))
"""Up to so many samples: the standard deviation of log TV between one pair of Retrains and another pair."""
PAIR_SD_MANY = 0.10
LOSS_CORRELATION = 0.05
"""ρ: how much of a loss's scatter from seed to seed the forgotten samples share; those of a class that Retrain never saw share
all of it."""

LEAST_DISTANCE = 0.005
LEAST_LOSS = 0.01
LEAST_POINTS = 0.005
"""Total variation, nats and accuracy that are no reason, however near Retrains lie together."""
MUCH = 0.1
"""Total variation on D_f between Full and Retrain from which there was something to forget: if Full passes all the same, the
Retrains lie too far apart to tell."""
FEW = 2
"""Samples by which an accuracy may differ whatever the rest."""

RELEARN_SHARE = 0.75
"""Relearning in under this share of Retrain's epochs is memory left (two Retrains of the pools: 0.9 and more) …"""
RELEARN_EPOCHS = 3
"""… if it is also this many epochs quicker."""
LIRA_GAP = 0.05
"""U-LiRA's AUC counts as above one half if it is by more than this and by ``LEVEL`` of its own standard errors."""
POPULATION_GAP = 0.02
"""The population attack's AUC counts as above Retrain's if it is by more than this and by ``LEVEL`` standard errors of the
difference: these vanish for a model that is nearly Retrain, and then any trifle would be above."""

RECOVERED_LEAST, RECOVERED_MOST = 0.8, 1.25
LOSS_GAP = 0.05
POINTS = 0.02
"""With one Retrain only, where chance cannot be known, and for what a distance beyond its limit means: conventions. Share of the
way from Full's loss to Retrain's, judged where
that is ``LOSS_GAP`` nats or more; an accuracy's distance from Retrain's."""


def distance_limit(samples: int, others: int) -> float:
    """T above this is more than chance, with ``others`` Retrains beside that of the run's own seed."""
    table = next((table for most, table in DISTANCE_SD if samples <= most), DISTANCE_SD_MANY)
    return math.exp(LEVEL * _between(table, others))


def pair_factor(samples: int, others: int) -> float:
    """The spread may be off by this factor either way (95 %): R + 1 Retrains have (R + 1)/2 pairs that share no model."""
    deviation = next((value for most, value in PAIR_SD if samples <= most), PAIR_SD_MANY)
    return math.exp(1.96 * deviation / math.sqrt((others + 1) / 2))


def loss_limit(samples: int, others: int, *, scatter: float, whole_class: bool) -> float:
    """Nats that the mean loss of these samples may lie from the Retrains' own; ``scatter``: D of two Retrains."""
    variance = 1.0 if whole_class else LOSS_CORRELATION + (1 - LOSS_CORRELATION) / samples
    few = 1 + 1 / (2 * samples)  # D of one sample that is harder than most is a matter of luck
    return LEVEL * scatter * _of_mean(others) * math.sqrt(variance) * few


def accuracy_limit(samples: int, others: int, *, disagreement: float) -> float:
    """How far an accuracy may lie from the Retrains' own; ``disagreement``: share that two of them classify differently."""
    chance = LEVEL * math.sqrt(disagreement / samples) * _of_mean(others)
    return max(chance, FEW / samples, LEAST_POINTS)


def _of_mean(others: int) -> float:
    """A model less the mean of R + 1 others, in units of the difference of two."""
    return math.sqrt((1 + 1 / (others + 1)) / 2)


def _between(table: dict[int, float], others: int) -> float:
    """The table's figure for R, between two of its entries by a straight line; beyond the last entry that one."""
    low = max(key for key in table if key <= max(others, 1))
    high = min((key for key in table if key > low), default=low)
    share = 0.0 if high == low else (max(others, 1) - low) / (high - low)
    return (1 - share) * table[low] + share * table[high]
