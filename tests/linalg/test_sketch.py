"""Approximations of A: exact where theory says so, right on average, and true in the error they state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from linalg_cases import dense_oracle, dense_rows, head_rows, random_targets

from fastntk.base.errors import InputError
from fastntk.linalg import DenseRows, compress, compress_targets, gram_error, nystrom, output_probes


@pytest.mark.parametrize("rank", [6, 10, 20, 50])
def test_nystrom_is_exact_from_the_rank_of_a(rank):
    rows = dense_rows(15, 2, 20, rank=6)
    J = dense_oracle(rows)
    sketch = nystrom(rows, rank, seed=3)
    approximation = (sketch.vectors * sketch.values) @ sketch.vectors.T
    np.testing.assert_allclose(approximation.numpy(), J.T @ J, atol=1e-9 * np.linalg.norm(J.T @ J))
    assert sketch.error_estimate(rows) < 1e-9
    rhs = torch.randn(20, 2, dtype=torch.float64)
    expected = np.linalg.solve(J.T @ J + 0.5 * np.eye(20), rhs.numpy())
    np.testing.assert_allclose(sketch.solve(rhs, 0.5).numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(sketch.solve(rhs[:, 0], 0.5).numpy(), expected[:, 0], atol=1e-7)


def test_nystrom_below_the_rank_is_below_a_and_its_error_is_measured():
    rows = dense_rows(30, 2, 25)
    matrix = rows.gram(torch.float64)
    errors = []
    for rank in (3, 10, 20):
        sketch = nystrom(rows, rank, seed=0)
        difference = matrix - (sketch.vectors * sketch.values) @ sketch.vectors.T
        assert float(torch.linalg.eigvalsh(difference).min()) > -1e-8 * float(matrix.trace())
        true = float(difference.norm() / matrix.norm())
        assert sketch.error_estimate(rows, probes=200) == pytest.approx(true, rel=0.2)
        assert bool((sketch.values.diff() <= 0).all())
        errors.append(true)
    assert errors[0] > errors[1] > errors[2] > 1e-3


def test_nystrom_preconditioner_is_the_inverse_of_its_model():
    rows = dense_rows(15, 2, 12)
    sketch = nystrom(rows, 5, seed=0)
    U, s = sketch.vectors, sketch.values
    model = U @ torch.diag((s + 0.1) / (s[-1] + 0.1)) @ U.T + torch.eye(12) - U @ U.T
    v = torch.randn(12, 3, dtype=torch.float64)
    torch.testing.assert_close(model @ sketch.precondition(0.1)(v), v)


def test_nystrom_from_float32_products_and_of_nothing():
    rows = dense_rows(15, 2, 20, rank=6)
    single = DenseRows(rows.tensor.float(), product_dtype=torch.float32)
    assert nystrom(single, 12, seed=0).error_estimate(rows) < 1e-3
    nothing = nystrom(DenseRows(torch.zeros(3, 2, 5).double()), 2, seed=0)
    assert float(nothing.values.sum()) == 0.0
    assert nothing.error_estimate(DenseRows(torch.zeros(3, 2, 5).double())) == 0.0


def test_sketch_mistakes_are_explained():
    rows = dense_rows(5, 2, 6)
    with pytest.raises(InputError, match="rank must be at least 1"):
        nystrom(rows, 0)
    with pytest.raises(InputError, match="damping > 0"):
        nystrom(rows, 2).solve(torch.zeros(6).double(), 0.0)
    with pytest.raises(InputError, match="damping > 0"):
        nystrom(dense_rows(5, 2, 6, rank=1), 4).precondition(0.0)
    with pytest.raises(InputError, match="probes must be at least 1"):
        gram_error(rows, lambda v: v, probes=0)
    rows.tensor[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="NaN or infinite"):
        nystrom(rows, 2)


@pytest.mark.parametrize("make", [lambda: head_rows(n=6, classes=4), lambda: dense_rows(6, 4, 9)])
def test_as_many_probes_as_classes_lose_nothing(make):
    rows = make()
    R = compress(rows, 4, seed=1)
    torch.testing.assert_close(R.gram(torch.float64), rows.gram(torch.float64))
    targets = random_targets(6, 4, 2)
    torch.testing.assert_close(R.rmatvec(compress_targets(targets, 4, seed=1)), rows.rmatvec(targets))
    assert not torch.allclose(R.dense(), rows.dense())


@pytest.mark.parametrize("make", [lambda: head_rows(n=6, classes=4), lambda: dense_rows(6, 4, 9)])
def test_compress_is_the_probes_times_the_rows(make):
    rows = make()
    R = compress(rows, 2, seed=5)
    assert R.shape == (6, 2, rows.shape[2])
    q = output_probes(6, 4, 2, 5)
    torch.testing.assert_close(R.dense(), torch.einsum("ncm,ncd->nmd", q, rows.dense()))


@pytest.mark.parametrize("m", [1, 2, 4])
def test_probes_are_right_on_average(m):
    rows = dense_rows(4, 5, 6)
    matrix = rows.gram(torch.float64)
    targets = random_targets(4, 5)
    draws = 600
    mean_gram, mean_rhs = torch.zeros_like(matrix), torch.zeros(6).double()
    spread = 0.0
    for seed in range(draws):
        R = compress(rows, m, seed=seed)
        gram = R.gram(torch.float64)
        mean_gram += gram / draws
        mean_rhs += R.rmatvec(compress_targets(targets, m, seed=seed)) / draws
        spread += float((gram - matrix).square().sum()) / draws
    # The mean of `draws` errors is √draws times smaller than one of them; 3 of those is ample, 0 would be a bug.
    assert float((mean_gram - matrix).norm()) < 3 * (spread / draws) ** 0.5
    assert spread > 0
    torch.testing.assert_close(mean_rhs, rows.rmatvec(targets), rtol=0, atol=0.2 * float(targets.norm()))


def test_more_probes_less_error():
    rows = dense_rows(40, 8, 10)
    errors = [gram_error(rows, compress(rows, m, seed=0).gram_matvec, probes=50) for m in (1, 4, 8)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12
    assert errors[0] < 1


def test_probes_depend_on_the_seed_and_the_sample_only():
    whole = output_probes(6, 5, 3, 7)
    assert torch.equal(torch.cat([output_probes(2, 5, 3, 7), output_probes(4, 5, 3, 7, start=2)]), whole)
    assert torch.equal(output_probes(6, 5, 3, 7), whole)
    assert not torch.equal(output_probes(6, 5, 3, 8), whole)
    identity = torch.eye(3).double().expand(6, 3, 3) * 5 / 3
    torch.testing.assert_close(whole.transpose(1, 2) @ whole, identity)


@pytest.mark.parametrize("m", [0, 6])
def test_impossible_numbers_of_probes(m):
    with pytest.raises(InputError, match=f"between 1 and C = 5, not {m}"):
        output_probes(3, 5, m, 0)
