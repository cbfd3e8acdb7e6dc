"""Running sums of JᵀJ and Jᵀt against the sums written out."""

from __future__ import annotations

import pytest
import torch
from linalg_cases import dense_oracle, dense_rows, head_rows, random_targets

from fastntk.base.errors import InputError
from fastntk.linalg import GramAccumulator


@pytest.mark.parametrize("make", [head_rows, lambda: dense_rows(7, 3, 11)], ids=["head", "dense"])
@pytest.mark.parametrize("more", [(), (2,)])
@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_sums_are_those_of_all_rows(make, more, chunk):
    rows = make()
    n, classes, d = rows.shape
    targets = random_targets(n, classes, *more)
    total = GramAccumulator(d, torch.float64)
    for part, piece in rows.iter_rows(chunk):
        total.add(piece, targets[part])
    J = torch.from_numpy(dense_oracle(rows))
    torch.testing.assert_close(total.matrix(), J.T @ J)
    torch.testing.assert_close(total.rhs, J.T @ targets.reshape(n * classes, *more))
    torch.testing.assert_close(total.diagonal(), J.square().sum(0))
    assert total.trace == pytest.approx(float(J.square().sum()))
    assert total.samples == n


def test_taking_samples_out_restores_the_rest():
    rows = head_rows(n=9)
    targets = random_targets(9, 3)
    forget = torch.tensor([1, 4, 8])
    retain = torch.tensor([0, 2, 3, 5, 6, 7])
    total, rest = (GramAccumulator(rows.shape[2], torch.float64) for _ in range(2))
    total.add(rows, targets)
    total.matrix()  # reading in between must not disturb the sum
    total.add(rows.subset(forget), targets[forget], weight=-1)
    rest.add(rows.subset(retain), targets[retain])
    torch.testing.assert_close(total.matrix(), rest.matrix(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total.rhs, rest.rhs, rtol=1e-12, atol=1e-12)
    assert total.samples == rest.samples == 6


def test_float32_sums_and_float64_copies():
    rows = head_rows(n=20, dtype=torch.float32)
    total = GramAccumulator(rows.shape[2])
    total.add(rows)
    exact = rows.gram(torch.float64)
    assert total.matrix(torch.float32).dtype == torch.float32
    assert total.matrix().dtype == torch.float64
    torch.testing.assert_close(total.matrix(), exact, rtol=1e-5, atol=1e-5)
    assert float((total.matrix() - exact).abs().max()) > 0  # it is float32 that was summed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_taking_the_matrix_gives_the_same_and_ends_the_sum(dtype):
    rows = head_rows()
    total = GramAccumulator(rows.shape[2], torch.float64)
    total.add(rows, random_targets(7, 3))
    expected, rhs = total.matrix(dtype), total.rhs
    torch.testing.assert_close(total.take_matrix(dtype), expected, rtol=0, atol=0)
    assert torch.equal(total.rhs, rhs)
    with pytest.raises(InputError, match="taken out"):
        total.add(rows)


def test_nothing_added_is_zero():
    empty = GramAccumulator(4)
    assert torch.equal(empty.matrix(), torch.zeros(4, 4, dtype=torch.float64))
    assert empty.trace == 0.0
    with pytest.raises(InputError, match="no targets"):
        _ = empty.rhs


def test_mistakes_are_explained_and_leave_the_sum_alone():
    rows = head_rows()
    total = GramAccumulator(rows.shape[2], torch.float64)
    total.add(rows, random_targets(7, 3))
    before = total.matrix()
    with pytest.raises(InputError, match="d = 20 columns, these rows have 6"):
        total.add(dense_rows(2, 3, 6))
    with pytest.raises(InputError, match="order their columns differently"):
        total.add(head_rows(seed=5))
    with pytest.raises(InputError, match="earlier ones"):
        total.add(rows, random_targets(7, 3, 2))
    with pytest.raises(InputError, match="targets must be"):
        total.add(rows, random_targets(3, 7))
    with pytest.raises(InputError, match="weight must be"):
        total.add(rows, weight=2)
    with pytest.raises(InputError, match=r"float32 or torch\.float64"):
        GramAccumulator(3, torch.float16)
    assert torch.equal(total.matrix(), before)
    assert total.samples == 7
