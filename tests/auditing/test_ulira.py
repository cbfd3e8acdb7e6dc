"""U-LiRA and the median shift on ensembles whose figures are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fastntk.auditing.ulira import halves, logit_confidence, median_shift, median_shift_null, u_lira, u_lira_null
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


@pytest.mark.parametrize("samples", [1, 2, 5, 30])
def test_models_of_one_seed_that_differ_by_next_to_nothing_are_not_told_apart(samples: int) -> None:
    """The k-th models of both sides share a seed; a millionth more, always, is no sign of memory."""
    rng = np.random.default_rng(7)
    attacks = [u_lira(side + 1e-6, side) for side in (rng.normal(size=(12, samples)) for _ in range(60))]
    areas = [attack.auc for attack in attacks]
    assert np.mean(areas) == pytest.approx(0.5, abs=3.5 * np.std(areas) / np.sqrt(60))
    assert np.mean(areas) < 0.6


def test_the_standard_error_is_the_scatter_over_ensembles() -> None:
    """Also where all confidences of one model go up and down together, as those of real models do."""
    rng = np.random.default_rng(3)

    def side() -> np.ndarray:
        return rng.normal(size=(12, 40)) + rng.normal(size=(12, 1))

    attacks = [u_lira(side(), side()) for _ in range(40)]
    scatter = np.std([item.auc for item in attacks])
    assert 0.7 * scatter < np.mean([item.auc_standard_error for item in attacks]) < 1.8 * scatter


def test_four_models_a_side_are_enough() -> None:
    attacks = [u_lira(*ensembles(shift, size=4)) for shift in (0.0, 3.0)]
    assert all(math.isfinite(attack.auc_standard_error) for attack in attacks)
    assert attacks[0].auc == pytest.approx(0.5, abs=0.1)
    assert attacks[1].auc > 0.75


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


@pytest.mark.parametrize("shift", [-2.0, 0.5])
def test_the_median_shift_is_the_shift_in_retrains_standard_deviations(shift: float) -> None:
    unlearned, retrained = ensembles(shift)
    found = median_shift(3 * unlearned, 3 * retrained)
    assert found.median == pytest.approx(shift, abs=4 * found.standard_error)
    assert found.standard_error < 0.1
    assert median_shift(retrained, retrained).median == 0


def test_the_shift_s_standard_error_is_its_scatter_over_ensembles() -> None:
    """Also where all confidences of a model go up and down together, which many samples do not average out."""
    rng = np.random.default_rng(5)

    def side() -> np.ndarray:
        return rng.normal(size=(12, 40)) + rng.normal(size=(12, 1))

    shifts = [median_shift(side(), side()) for _ in range(60)]
    scatter = np.std([item.median for item in shifts])
    assert 0.8 * scatter < np.mean([item.standard_error for item in shifts]) < 1.3 * scatter
    nulls = [median_shift_null(np.concatenate([side(), side()])) for _ in range(20)]
    assert all(abs(item.median) < 0.5 * item.standard_error for item in nulls)
    assert np.mean([item.standard_error for item in nulls]) == pytest.approx(scatter, rel=0.3)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"at least 4 models.*got \(3, 2\)"):
        u_lira(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match="same size"):
        median_shift(np.zeros((5, 2)), np.zeros((6, 2)))
    with pytest.raises(InputError, match="not numbers"):
        u_lira(np.full((5, 2), np.nan), np.zeros((5, 2)))
