"""The population attack: blind on what was never seen, sharp on what was memorised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fastntk.auditing.membership import FEATURES, attack_features, population_attack
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


def test_samples_of_one_population_cannot_be_told_apart() -> None:
    rng = np.random.default_rng(0)
    attacks = [population_attack(rng.normal(size=(80, 4)), rng.normal(size=(160, 4))) for _ in range(12)]
    mean = np.mean([item.auc for item in attacks])
    noise = attacks[0].auc_standard_error
    assert 0.02 < noise < 0.06
    assert abs(mean - 0.5) < 3 * 1.5 * noise / np.sqrt(12)  # fitting adds to the noise of the samples


def test_a_shift_in_one_feature_is_found() -> None:
    rng = np.random.default_rng(1)
    members, others = rng.normal(size=(100, 4)), rng.normal(size=(100, 4))
    members[:, 0] -= 2.0
    attack = population_attack(members, others)
    assert attack.auc > 0.85
    assert attack.by_feature.loss == pytest.approx(attack.auc, abs=0.05)
    assert attack.by_feature.entropy == pytest.approx(0.5, abs=0.12)
    assert population_attack(members, others) == attack


def test_full_gives_its_members_away_and_a_retrain_does_not(toy) -> None:
    import fastntk

    run, unseen = toy.run, toy.holdout
    retrain = fastntk.unlearn(run, ids=toy.ids(30), method="retrain")
    forgotten = retrain.forgotten

    def attack(model: torch.nn.Module) -> dict:
        parts = [attack_features(predict(model, part.inputs), part.labels) for part in (forgotten, unseen)]
        return population_attack(*parts)

    full, retrain = attack(run.model), attack(retrain.model)
    assert full.auc > 0.7
    assert full.auc - 0.5 > 3 * full.auc_standard_error
    assert abs(retrain.auc - 0.5) < 3 * retrain.auc_standard_error


def test_refusals() -> None:
    few, enough = np.zeros((9, 4)), np.zeros((20, 4))
    with pytest.raises(InputError, match="at least 10 samples on both sides; got 9 and 20"):
        population_attack(few, enough)
    with pytest.raises(InputError, match="not all numbers"):
        population_attack(np.full((20, 4), np.nan), enough)
