"""Stored rows against a dense matrix written out entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_cases import dense_oracle, dense_rows, head_rows, random_targets

from fastntk.base.errors import InputError
from fastntk.linalg import DenseRows, HeadRows, gram_product, operators
from fastntk.linalg import head_rows as head_module

CASES = {
    "body+weights+bias": head_rows(),
    "no bias": head_rows(bias=False),
    "bias alone": head_rows(features=None),
    "no head": head_rows(features=None, bias=False),
    "head alone": head_rows(body=0),
    "one class": head_rows(classes=1),
    "one sample": head_rows(n=1),
    "dense": dense_rows(7, 3, 11),
}


@pytest.fixture(params=CASES, ids=list(CASES))
def rows(request: pytest.FixtureRequest) -> HeadRows | DenseRows:
    return CASES[request.param]


def close(actual: torch.Tensor, expected: np.ndarray, *, rtol: float = 1e-12) -> None:
    assert tuple(actual.shape) == expected.shape
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=0, atol=rtol * scale)


def test_dense_is_the_oracle(rows):
    n, classes, d = rows.shape
    close(rows.dense(), dense_oracle(rows).reshape(n, classes, d), rtol=0)


@pytest.mark.parametrize("more", [(), (3,)])
def test_products(rows, more):
    n, classes, d = rows.shape
    J = dense_oracle(rows)
    v = torch.randn(d, *more, dtype=torch.float64)
    u = random_targets(n, classes, *more)
    close(rows.matvec(v), (J @ v.numpy()).reshape(n, classes, *more))
    close(rows.rmatvec(u), J.T @ u.numpy().reshape(n * classes, *more))
    close(rows.gram_matvec(v), J.T @ (J @ v.numpy()))


@pytest.mark.parametrize("name", [name for name, rows in CASES.items() if isinstance(rows, HeadRows)])
def test_a_weighted_gram_product_is_one_with_weights_between(name):
    rows = CASES[name]
    n, classes, d = rows.shape
    J = dense_oracle(rows)
    v, weights = torch.randn(d, 2, dtype=torch.float64), torch.rand(n, classes, 1, dtype=torch.float64)
    product = rows.gram_matvec(v, lambda part, u: weights[part] * u)
    close(product, J.T @ (weights.reshape(n * classes, 1).numpy() * (J @ v.numpy())))


def test_gram_kernel_and_norms(rows):
    J = dense_oracle(rows)
    close(rows.gram(torch.float64), J.T @ J)
    close(rows.kernel(torch.float64), J @ J.T)
    close(rows.column_norms2(), (J**2).sum(0))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 6),
    classes=st.integers(1, 5),
    body=st.integers(0, 6),
    features=st.none() | st.integers(1, 4),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_adjoint(n, classes, body, features, bias, seed):
    if body == 0 and features is None and not bias:
        body = 1
    rows = head_rows(n, classes, body, features, bias=bias, seed=seed)
    v = torch.randn(rows.shape[2], dtype=torch.float64)
    u = torch.randn(n, classes, dtype=torch.float64)
    left, right = float((rows.matvec(v) * u).sum()), float(v @ rows.rmatvec(u))
    assert left == pytest.approx(right, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("budget", [1, 40, 100])
def test_chunks_do_not_matter(rows, budget, monkeypatch):
    v = torch.randn(rows.shape[2], 2, dtype=torch.float64)
    u = random_targets(*rows.shape[:2], 2)

    def everything():
        return [
            rows.matvec(v),
            rows.rmatvec(u),
            rows.gram_matvec(v),
            rows.gram(torch.float64),
            rows.kernel(torch.float64),
            rows.column_norms2(),
        ]

    whole = everything()
    for module in (operators, head_module):
        monkeypatch.setattr(module, "VECTOR_CHUNK", budget)
        monkeypatch.setattr(module, "MATRIX_CHUNK", budget)
    assert len(list(rows.chunks(torch.float64, budget=budget))) == rows.shape[0] or budget > 1
    for first, second in zip(whole, everything(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [1, 4, 64])
def test_strips_do_not_matter(rows, width, monkeypatch):
    from fastntk.linalg import symmetric

    J = dense_oracle(rows)
    monkeypatch.setattr(symmetric.strips, "__defaults__", (width,))
    close(rows.gram(torch.float64), J.T @ J)
    close(rows.kernel(torch.float64), J @ J.T)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_iter_rows_and_subset(rows, chunk):
    n, classes, d = rows.shape
    J = dense_oracle(rows).reshape(n, classes, d)
    positions = []
    for part, piece in rows.iter_rows(chunk):
        close(piece.dense(), J[part], rtol=0)
        positions += list(range(n))[part]
    assert positions == list(range(n))
    indices = torch.arange(n).flip(0)[: (n + 1) // 2]
    close(rows.subset(indices).dense(), J[indices.numpy()], rtol=0)


def test_memory_mapped_float32_rows_with_float64_products(tmp_path):
    n, classes, body = 9, 4, 6
    data = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(n, classes, body))
    source = head_rows(n, classes, body, dtype=torch.float32)
    data[:] = source.body.numpy()
    mapped = HeadRows(
        torch.from_numpy(data),
        source.features,
        bias=True,
        body_columns=source.layout.body_columns,
        weight_columns=source.layout.head_columns[:, :-1],
        bias_columns=source.layout.head_columns[:, -1],
    )
    J = dense_oracle(source)
    v = torch.randn(mapped.shape[2], dtype=torch.float64)
    close(mapped.matvec(v), (J @ v.numpy()).reshape(n, classes))
    close(mapped.kernel(torch.float64), J @ J.T)
    close(mapped.gram(torch.float64), J.T @ J)
    assert mapped.gram(torch.float32).dtype == torch.float32


def test_product_dtype_is_used_inside_and_the_vectors_dtype_comes_back():
    rows = dense_rows(6, 2, 30)
    single = DenseRows(rows.tensor, product_dtype=torch.float32)
    v = torch.randn(30, dtype=torch.float64)
    exact, rounded = rows.matvec(v), single.matvec(v)
    assert rounded.dtype == torch.float64
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=1e-4, atol=1e-4)


def test_gram_product_without_a_fused_method():
    rows = dense_rows(4, 2, 6)

    class Plain:
        shape = rows.shape
        matvec = staticmethod(rows.matvec)
        rmatvec = staticmethod(rows.rmatvec)

    v = torch.randn(6, 2, dtype=torch.float64)
    torch.testing.assert_close(gram_product(Plain(), v), rows.gram_matvec(v))


def test_wrong_shapes_are_named():
    rows = head_rows()
    with pytest.raises(InputError, match=r"v must be \(20,\) or .* not \(19,\)"):
        rows.matvec(torch.zeros(19))
    with pytest.raises(InputError, match=r"u must be \(7, 3\).* not \(3, 7\)"):
        rows.rmatvec(torch.zeros(3, 7))
    with pytest.raises(InputError, match=r"\(n, C, d\), not \(2, 3\)"):
        DenseRows(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body_columns": torch.tensor([0, 0])}, "name each of 0..d-1 once"),
        ({"body_columns": torch.tensor([0])}, "body has 2 columns, body_columns names 1"),
        ({"weight_columns": None}, "come together"),
        ({"bias": False}, "bias=False none"),
        ({"features": torch.zeros(4, 3)}, r"n = 5 as in body, not \(4, 3\)"),
        ({"features": torch.zeros(5, 2)}, "H = 2 columns"),
        ({"bias_columns": torch.tensor([8])}, r"bias_columns must be \(2,\), not \(1,\)"),
        ({"weight_columns": torch.arange(2, 5)[None]}, r"with C = 2, not \(1, 3\)"),
        ({"body": torch.zeros(5, 2)}, r"\(n, C, b\), not \(5, 2\)"),
    ],
)
def test_inconsistent_head_rows_are_refused(change, message):
    arguments = {
        "body": torch.zeros(5, 2, 2),
        "features": torch.zeros(5, 3),
        "bias": True,
        "body_columns": torch.arange(2),
        "weight_columns": torch.arange(2, 8).view(2, 3),
        "bias_columns": torch.arange(8, 10),
    }
    assert HeadRows(**arguments).shape == (5, 2, 10)
    with pytest.raises(InputError, match=message):
        HeadRows(**(arguments | change))
