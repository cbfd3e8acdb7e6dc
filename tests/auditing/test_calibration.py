"""The verdict's limits, by simulated audits whose answer is known, and by what they have to do as Retrains become more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from simulated import World, audited, world

from fastntk.auditing import AuditRecord, calibration
from fastntk.auditing.evidence import findings
from fastntk.auditing.verdict import verdict

Make = Callable[..., AuditRecord]
AUDITS = 40


@pytest.fixture(scope="module")
def base(record_with: Make) -> AuditRecord:
    """A record whose figures are replaced by simulated ones; relearning like Retrain's, weights outside untouched."""
    same = {"epochs": 20, "censored": False, "cap": 100}
    return record_with(
        {
            "details": {"validity": {"verdict": "ok", "reasons": []}},
            "relearn": {"unlearned": same, "retrain": same},
            "membership": {"u_lira": ..., "klom": ...},
            "accuracy": {"holdout_kept_classes": ..., "holdout_forgotten_classes": ...},
            "outside": ...,
        }
    )


def hard(sets: World) -> World:
    """The same with labels that every Retrain holds for unlikely, as of mislabelled or odd images."""
    return replace(sets, labels=sets.labels | {"forget": sets.logits["forget"].argsort(1)[:, 1]})


@pytest.mark.parametrize(("forget", "others"), [(1, 1), (5, 1), (5, 3)])
def test_hard_samples_scatter_more_and_a_genuine_retrain_passes_all_the_same(base: AuditRecord, forget: int, others: int) -> None:
    generator = torch.Generator().manual_seed(3)
    alarms = 0
    for _ in range(AUDITS):
        sets = hard(world(forget, generator))
        candidate, full, *retrains = (sets.model(generator, shift=shift) for shift in (0.0, 2.0, *[0.0] * (others + 1)))
        alarms += any(item.test == "loss" for item in findings(audited(base, candidate, full, retrains)))
    assert alarms <= 0.05 * AUDITS


def levels(base: AuditRecord, *, forget: int, others: int, shift: float = 0.0) -> Counter[str]:
    """Levels of simulated audits of a Retrain of another seed, shifted or not; Full has the shift of one that saw the data."""
    counts: Counter[str] = Counter()
    for number in range(AUDITS):
        generator = torch.Generator().manual_seed(1000 * forget + 10 * number + others)
        sets = world(forget, generator)
        retrains = [sets.model(generator) for _ in range(others + 1)]
        full, candidate = sets.model(generator, shift=2.0), sets.model(generator, shift=shift)
        counts[verdict(audited(base, candidate, full, retrains)).level] += 1
    return counts


@pytest.mark.parametrize(("forget", "others"), [(1, 1), (5, 1), (30, 1), (5, 3)])
def test_a_genuine_retrain_of_another_seed_passes_by_all_tests_together(base: AuditRecord, forget: int, others: int) -> None:
    assert levels(base, forget=forget, others=others)["like retrain"] >= 0.95 * AUDITS


@pytest.mark.parametrize(("forget", "shift", "share"), [(1, 2.0, 0.4), (5, 1.0, 0.9), (30, 0.5, 0.9)])
def test_memory_is_caught_with_one_pair_of_retrains(base: AuditRecord, forget: int, shift: float, share: float) -> None:
    """Of single samples under half: one that every Retrain classifies surely has nothing to be remembered by."""
    assert levels(base, forget=forget, others=1, shift=shift)["memory left"] >= share * AUDITS


def test_a_loss_pushed_beyond_retrains_is_no_memory(base: AuditRecord) -> None:
    counts = levels(base, forget=30, others=1, shift=-1.0)
    assert counts["differs from retrain"] >= 0.9 * AUDITS
    assert counts["memory left"] == 0


def test_a_wider_scatter_counts_as_such(base: AuditRecord) -> None:
    """Twice as far from the Retrains as they are from each other, with no memory: caught by the distances alone."""
    generator = torch.Generator().manual_seed(0)
    sets = world(30, generator)
    retrains = [sets.model(generator) for _ in range(4)]
    full = sets.model(generator, shift=2.0)
    wide = world(30, torch.Generator().manual_seed(0), spread=0.5).model(generator)
    record = audited(base, wide, full, retrains)
    assert {item.test for item in findings(record)} >= {"distance, forget", "distance, holdout"}
    assert verdict(record).level in ("differs from retrain", "memory left")


@pytest.mark.parametrize("others", [1, 3])
def test_identical_models_are_like_retrain(base: AuditRecord, others: int) -> None:
    generator = torch.Generator().manual_seed(1)
    sets = world(5, generator)
    retrains = [sets.model(generator) for _ in range(others + 1)]
    record = audited(base, retrains[0], sets.model(generator, shift=2.0), retrains)
    assert (verdict(record).level, verdict(record).reasons) == ("like retrain", ())


def test_limits_narrow_with_retrains_and_with_samples() -> None:
    for count in (1, 5, 30, 1000):
        limits = [calibration.distance_limit(count, others) for others in (1, 3, 7)]
        assert limits == sorted(limits, reverse=True)
        assert limits[-1] > 1
    for others in (1, 3, 7):
        limits = [calibration.distance_limit(count, others) for count in (1, 5, 30, 1000)]
        assert limits == sorted(limits, reverse=True)
        assert calibration.pair_factor(1, others) > calibration.pair_factor(30, others) > 1
    assert calibration.distance_limit(5, 3) < calibration.distance_limit(5, 2) < calibration.distance_limit(5, 1)
    assert calibration.distance_limit(5, 20) == calibration.distance_limit(5, 7)  # not measured beyond


def test_limits_of_known_figures() -> None:
    # Two Retrains whose log probabilities differ by 0.2. One sample, one pair: 2.8 · 0.2 · √(3/4), and half as much again.
    assert calibration.loss_limit(1, 1, scatter=0.2, whole_class=False) == pytest.approx(1.5 * 2.8 * 0.2 * 0.75**0.5)
    # A class goes up and down together, other samples hardly: √(0.05 + 0.95/100).
    both = [calibration.loss_limit(100, 1, scatter=0.2, whole_class=whole) for whole in (True, False)]
    assert both[1] / both[0] == pytest.approx(0.0595**0.5)
    # 4 % of 1000 samples classified differently by two Retrains: 40 samples, so ± √40 of 1000 for a difference of two.
    assert calibration.accuracy_limit(1000, 1, disagreement=0.04) == pytest.approx(2.8 * 40**0.5 / 1000 * 0.75**0.5)
    assert calibration.accuracy_limit(1, 1, disagreement=0.04) == calibration.FEW  # of one sample any answer will do


def test_all_tests_together_fail_chance_in_under_five_of_a_hundred() -> None:
    """Bonferroni: as many tests, each beyond so many standard deviations of a normal chance, on both sides."""
    beyond = 2 * (1 - torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(calibration.LEVEL)))
    assert calibration.TESTS * float(beyond) < 0.05
