"""KLoM against divergences that are known, where it says nothing, and what stands beside it then."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastntk.auditing.ensemble_figures import klom_of
from fastntk.auditing.klom import (
    BINS,
    CLIP,
    ENOUGH,
    EPSILON,
    ceiling,
    disjoint,
    gaussian_floor,
    gaussian_kl,
    klom,
    klom_by_halves,
    klom_figures,
)
from fastntk.base.errors import InputError


def normal(shift: float, *, size: int, samples: int = 400, scale: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return shift + scale * rng.normal(size=(size, samples)), rng.normal(size=(size, samples))


def histogram_kl(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """The same by numpy's histogram, for one sample."""
    both = np.clip(np.concatenate([unlearned, retrained]), -CLIP, CLIP)
    edges = np.linspace(both.min(), both.max(), BINS + 1)
    p, q = (np.histogram(part, edges)[0] / len(part) for part in np.split(both, 2))
    q = np.maximum(q, EPSILON)
    return sum(a * math.log(a / b) for a, b in zip(p, q / q.sum()) if a > 0)


def test_it_is_the_divergence_of_numpys_histograms() -> None:
    unlearned, retrained = normal(1.0, size=30, samples=5)
    each = klom(unlearned, retrained)
    assert each.tolist() == pytest.approx([histogram_kl(unlearned[:, i], retrained[:, i]) for i in range(5)])


def test_two_bins_by_hand() -> None:
    unlearned, retrained = np.array([[0.0], [0.0], [0.0], [1.0]]), np.array([[0.0], [1.0], [1.0], [1.0]])
    assert klom(unlearned, retrained, bins=2)[0] == pytest.approx(0.75 * math.log(3) - 0.25 * math.log(3))


def test_identical_ensembles_get_nought_and_margins_beyond_the_clip_are_alike() -> None:
    unlearned, _ = normal(0.0, size=20)
    assert np.abs(klom(unlearned, unlearned)).max() < 1e-2  # EPSILON in empty bins
    assert np.abs(gaussian_kl(unlearned, unlearned)).max() == 0
    assert klom(np.full((4, 1), 150.0), np.full((4, 1), 190.0))[0] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("shift", "scale"), [(0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (0.0, 2.0)])
def test_with_many_models_it_is_the_divergence_of_the_normal_distributions(shift: float, scale: float) -> None:
    unlearned, retrained = normal(shift, size=20_000, samples=6, scale=scale)
    true = -math.log(scale) + (scale**2 + shift**2) / 2 - 0.5
    assert gaussian_kl(unlearned, retrained).mean() == pytest.approx(true, rel=0.05)
    assert klom(unlearned, retrained).mean() == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize("size", [8, 16, 20])
def test_the_floor_of_the_gaussian_divergence_is_the_one_that_is_known(size: int) -> None:
    pair = normal(0.0, size=size, samples=6000)
    assert gaussian_kl(*pair).mean() == pytest.approx(gaussian_floor(size), rel=0.1)


def test_far_apart_ensembles_give_the_same_value_however_far_and_say_so() -> None:
    near, far = (klom_figures(*normal(shift, size=16)) for shift in (8.0, 80.0))
    assert near.disjoint == far.disjoint == 1.0
    assert ceiling() > far.mean > near.mean > 0.8 * ceiling()
    assert far.mean < 1.2 * near.mean
    assert far.gaussian.median > 50 * near.gaussian.median
    # All in one bin and no Retrain there: the most that can come out.
    assert klom(np.ones((8, 1)), np.zeros((8, 1)))[0] == pytest.approx(ceiling())
    assert not disjoint(*normal(0.0, size=50)).any()


def test_few_models_cannot_tell_what_many_can() -> None:
    def distance_from_the_floor(size: int) -> float:
        floor, shifted = (klom_figures(*normal(shift, size=size)).mean for shift in (0.0, 1.0))
        return shifted / floor

    assert distance_from_the_floor(10) < 1.25
    assert distance_from_the_floor(100) > 2.5


def test_the_floor_is_that_of_two_equal_ensembles() -> None:
    same = [klom_by_halves(*normal(0.0, size=16, seed=seed)).mean for seed in range(8)]
    floor = [klom_by_halves(*(normal(0.0, size=16, seed=seed)[1],) * 2).mean for seed in range(8)]
    assert np.mean(same) == pytest.approx(np.mean(floor), rel=0.1)


def test_the_record_has_all_sets_the_ceiling_the_floor_and_what_so_many_models_can_tell() -> None:
    def sets(size: int) -> dict[str, dict[str, np.ndarray]]:
        forget = dict(zip(("full", "retrain"), normal(9.0, size=size))) | {"unlearned": normal(0.1, size=size, seed=1)[0]}
        return {"forget": forget, "retain": dict.fromkeys(forget, forget["retrain"])}

    few, many = klom_of(sets(16)), klom_of(sets(2 * ENOUGH))
    assert (few.models, few.bins, few.ceiling) == (8, BINS, ceiling())
    assert few.full.disjoint > 0.5 > few.unlearned.disjoint
    assert few.gaussian_floor == gaussian_floor(8)
    assert few.retained.full == few.retained.retrain
    assert not few.held_out
    assert f"Retrain against Retrain gets {few.retrain.mean:.1f} of at most" in few.note
    assert "too few" not in many.note


def test_refusals() -> None:
    with pytest.raises(InputError, match="same size"):
        klom(np.zeros((5, 2)), np.zeros((6, 2)))
