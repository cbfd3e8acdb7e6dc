"""The population attack: blind on what was never seen, sharp on what was memorised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec import UNSET

from fastntk.auditing.membership import (
    FEATURES,
    attack_features,
    difference_scatter,
    null_scatter,
    out_of_fold,
    population_attacks,
)
from fastntk.auditing.record_figures import PopulationAttack
from fastntk.auditing.regressions import fit_regressions, standardised
from fastntk.auditing.roc import auc
from fastntk.base.errors import InputError
from fastntk.training.network import predict


def test_features_by_hand() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    features = torch.from_numpy(attack_features(logits, labels))
    p = logits.double().softmax(1)
    assert FEATURES == ("loss", "confidence", "entropy", "margin")
    torch.testing.assert_close(features[:, 0], F.cross_entropy(logits.double(), labels, reduction="none"))
    torch.testing.assert_close(features[:, 1], p.max(1).values)
    torch.testing.assert_close(features[:, 2], torch.distributions.Categorical(p).entropy())
    assert ((features[:, 3] > 0) == (logits.argmax(1) == labels)).all()
    # Certain predictions leave no NaN behind.
    assert np.isfinite(attack_features(torch.tensor([[1e4, -1e4]]), torch.tensor([0]))).all()


def models(rng: np.random.Generator, *, members: int, others: int, shared: float, signal: float = 0.0) -> dict[str, Any]:
    """Features of two models of the same kind: what a sample has by itself, correlated as losses and margins are, and noise."""

    def pair(count: int, shift: float) -> list[np.ndarray]:
        own = 0.8 * rng.normal(size=(count, 1)) + 0.6 * np.sqrt(shared) * rng.normal(size=(count, 4)) + shift
        values = [own + 0.6 * np.sqrt(1 - shared) * rng.normal(size=(count, 4)) for _ in range(2)]
        for features in values:
            features[:, 0] = np.exp(-features[:, 0])  # skewed, as losses are
        return values

    return dict(zip(("unlearned", "retrain"), zip(pair(members, signal), pair(others, 0.0))))


def test_the_regressions_are_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(2)
    inputs, truth = standardised(rng.normal(size=(60, 4)) ** 3), (rng.random((3, 60)) < 0.4).astype(float)
    truth[2] = inputs[:, 1] > 0  # can be told apart without error
    weights = rng.integers(0, 3, (3, 60)).astype(float)
    for beta, labels, weight in zip(fit_regressions(inputs, truth, weights), truth, weights):
        slow = LogisticRegression(max_iter=10_000, tol=1e-10).fit(inputs, labels, sample_weight=weight)
        assert beta.tolist() == pytest.approx([*slow.coef_[0], *slow.intercept_], abs=1e-4)


def test_no_sample_is_scored_by_a_regression_that_saw_it() -> None:
    """With as many inputs as samples a regression that saw them tells any labels apart; out of fold it is blind."""
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(40, 60))
    scores = out_of_fold(inputs[:20], inputs[20:], seed=0)
    assert abs(auc(scores[:20], scores[20:]) - 0.5) < 0.3
    truth = np.repeat([1.0, 0.0], 20)
    seen = fit_regressions(inputs, truth[None], np.ones((1, 40)))[0]
    assert auc(*np.split(inputs @ seen[:-1], 2)) == 1.0


def test_the_standard_error_is_the_scatter_of_the_area_and_hanleys_is_too_small() -> None:
    rng = np.random.default_rng(0)
    cases = [models(rng, members=40, others=80, shared=0.5)["retrain"] for _ in range(200)]
    areas = [auc(*np.split(out_of_fold(*case, seed=seed), [40])) for seed, case in enumerate(cases)]
    scatter = np.std(areas)
    assert np.mean([null_scatter(*case, seed=0) for case in cases[:8]]) == pytest.approx(scatter, rel=0.15)
    hanley = np.sqrt((1 / 4 + (39 + 79) * (1 / 3 - 1 / 4)) / (40 * 80))  # of an area of one half, by Hanley and McNeil
    assert hanley < 0.8 * scatter
    assert np.mean(areas) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("shared", "signal"), [(0.3, 0.0), (0.9, 0.0), (0.6, 0.5)])
def test_the_paired_error_is_the_scatter_of_the_difference(shared: float, signal: float) -> None:
    """Two models of one kind, on the same samples: however much they share, and where both give members away."""
    rng = np.random.default_rng(1)
    gaps, errors = [], []
    for seed in range(200):
        pair = models(rng, members=40, others=80, shared=shared, signal=signal)
        areas = [auc(*np.split(out_of_fold(*part, seed=seed), [40])) for part in pair.values()]
        gaps.append(areas[0] - areas[1])
        if seed % 20 == 0:
            errors.append(difference_scatter(pair["unlearned"], pair["retrain"], seed=seed))
    error = float(np.sqrt(np.mean(np.square(errors))))
    assert error == pytest.approx(np.std(gaps), rel=0.15)
    # Two standard errors: 2.3 % on either side.
    assert 0.005 <= np.mean(np.abs(gaps) > 2 * error) / 2 <= 0.045
    assert np.mean(np.abs(gaps) > error) == pytest.approx(0.32, abs=0.1)


def test_a_model_that_gives_its_members_away_is_found_and_the_reference_has_no_difference() -> None:
    rng = np.random.default_rng(3)
    pair = models(rng, members=60, others=120, shared=0.8)
    pair["full"] = (pair["retrain"][0] - [1.0, -1.0, -1.0, -1.0], pair["retrain"][1])
    attacks = population_attacks(pair, reference="retrain")
    gap = attacks["full"].auc - attacks["retrain"].auc
    assert gap > 3 * attacks["full"].difference_standard_error
    assert attacks["retrain"].difference_standard_error is UNSET
    assert population_attacks(pair)["full"].difference_standard_error is UNSET
    same = population_attacks({"unlearned": pair["retrain"], "retrain": pair["retrain"]}, reference="retrain")
    assert same["unlearned"].auc == same["retrain"].auc
    assert same["unlearned"].difference_standard_error == 0


def attack_on(members: np.ndarray, others: np.ndarray) -> PopulationAttack:
    return population_attacks({"model": (members, others)})["model"]


def test_a_shift_in_one_feature_is_found() -> None:
    rng = np.random.default_rng(1)
    members, others = rng.normal(size=(100, 4)), rng.normal(size=(100, 4))
    members[:, 0] -= 2.0
    attack = attack_on(members, others)
    assert attack.auc > 0.85
    assert attack.by_feature.loss == pytest.approx(attack.auc, abs=0.05)
    assert attack.by_feature.entropy == pytest.approx(0.5, abs=0.12)
    assert attack_on(members, others) == attack


def test_full_gives_its_members_away_and_a_retrain_does_not(toy) -> None:
    import fastntk

    run, unseen = toy.run, toy.holdout
    retrain = fastntk.unlearn(run, ids=toy.ids(30), method="retrain")
    forgotten = retrain.forgotten

    def attack(model: torch.nn.Module) -> dict:
        parts = [attack_features(predict(model, part.inputs), part.labels) for part in (forgotten, unseen)]
        return attack_on(*parts)

    full, retrain = attack(run.model), attack(retrain.model)
    assert full.auc > 0.7
    assert full.auc - 0.5 > 3 * full.auc_standard_error
    assert abs(retrain.auc - 0.5) < 3 * retrain.auc_standard_error


def test_refusals() -> None:
    few, enough = np.zeros((9, 4)), np.zeros((20, 4))
    with pytest.raises(InputError, match="at least 10 samples on both sides; got 9 and 20"):
        attack_on(few, enough)
    with pytest.raises(InputError, match="not all numbers"):
        attack_on(np.full((20, 4), np.nan), enough)
