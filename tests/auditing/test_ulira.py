"""U-LiRA and KLoM on ensembles whose figures are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fastntk.auditing.klom import bins_for, klom, klom_by_halves
from fastntk.auditing.ulira import halves, logit_confidence, u_lira, u_lira_null
from fastntk.base.errors import InputError


def ensembles(shift: float, *, size: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal confidences around each sample's own level, one side shifted by ``shift`` standard deviations."""
    rng = np.random.default_rng(seed)
    level = 5 * rng.normal(size=80)
    return level + shift + rng.normal(size=(size, 80)), level + rng.normal(size=(size, 80))


def test_logit_confidence_is_the_log_odds_and_does_not_overflow() -> None:
    logits, labels = torch.randn(8, 5).double(), torch.arange(8) % 5
    p = logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(logit_confidence(logits, labels), torch.log(p / (1 - p)))
    torch.testing.assert_close(logit_confidence(torch.tensor([[500.0, 0.0]]), torch.tensor([0])), torch.tensor([500.0]).double())


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_shifted_normals_are_told_apart_as_well_as_can_be(shift: float) -> None:
    attack = u_lira(*ensembles(shift))
    best = norm.cdf(shift / math.sqrt(2))
    assert attack.auc == pytest.approx(best, abs=0.02)
    assert attack.auc < best + 3 * attack.auc_standard_error
    assert np.mean(attack.roc.tpr) == pytest.approx(attack.auc, abs=0.02)


@pytest.mark.parametrize("size", [8, 32])
def test_equal_ensembles_give_one_half_whatever_their_size(size: int) -> None:
    areas = [u_lira(*ensembles(0.0, size=size, seed=seed)).auc for seed in range(20)]
    assert np.mean(areas) == pytest.approx(0.5, abs=0.012)


def test_the_standard_error_is_the_scatter_over_ensembles() -> None:
    """Also where all confidences of one model go up and down together, as those of real models do."""
    rng = np.random.default_rng(3)

    def side() -> np.ndarray:
        return rng.normal(size=(12, 40)) + rng.normal(size=(12, 1))

    attacks = [u_lira(side(), side()) for _ in range(40)]
    scatter = np.std([item.auc for item in attacks])
    assert 0.7 * scatter < np.mean([item.auc_standard_error for item in attacks]) < 1.8 * scatter


def test_retrain_against_itself_is_one_half_and_steadier_than_one_split() -> None:
    rng = np.random.default_rng(4)
    pools = [rng.normal(size=(16, 30)) + rng.normal(size=(16, 1)) for _ in range(12)]
    averaged = [u_lira_null(pool).auc for pool in pools]
    single = [u_lira(*halves(pool)).auc for pool in pools]
    assert np.mean(averaged) == pytest.approx(0.5, abs=0.04)
    assert np.std(averaged) < 0.8 * np.std(single)
    assert u_lira_null(pools[0]) == u_lira_null(pools[0])


def test_halves_are_disjoint_and_equal() -> None:
    first, second = halves(np.arange(9.0)[:, None])
    assert first.ravel().tolist() == [0, 2, 4, 6]
    assert second.ravel().tolist() == [1, 3, 5, 7]


def test_klom_is_zero_for_the_same_and_grows_with_the_shift() -> None:
    unlearned, retrained = ensembles(0.0)
    assert klom(unlearned, unlearned).max() == 0
    far = ensembles(3.0)
    assert (klom(unlearned, retrained) >= 0).all()
    floor, divergence = klom_by_halves(retrained, retrained), klom_by_halves(*far)
    assert 0 < floor.mean < klom_by_halves(*ensembles(1.0)).mean < divergence.mean
    assert floor.mean < floor.p95


def test_klom_by_hand() -> None:
    # Two bins, 4 models: (3, 1) against (1, 3), half a count more in each.
    unlearned, retrained = np.array([[0.0], [0.0], [0.0], [1.0]]), np.array([[0.0], [1.0], [1.0], [1.0]])
    assert klom(unlearned, retrained, bins=2)[0] == pytest.approx(0.7 * math.log(0.7 / 0.3) + 0.3 * math.log(0.3 / 0.7))
    assert (bins_for(4), bins_for(100), bins_for(10_000)) == (4, 10, 20)
    # Beyond the clip all margins are alike.
    assert klom(np.full((4, 1), 50.0), np.full((4, 1), 90.0))[0] == 0


def test_the_floor_is_that_of_two_equal_ensembles() -> None:
    same = [klom_by_halves(*ensembles(0.0, size=16, seed=seed)).mean for seed in range(8)]
    floor = [klom_by_halves(*(ensembles(0.0, size=16, seed=seed)[1],) * 2).mean for seed in range(8)]
    assert np.mean(same) == pytest.approx(np.mean(floor), rel=0.1)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"at least 4 models.*got \(3, 2\)"):
        u_lira(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match="same size"):
        klom(np.zeros((5, 2)), np.zeros((6, 2)))
    with pytest.raises(InputError, match="not numbers"):
        u_lira(np.full((5, 2), np.nan), np.zeros((5, 2)))
