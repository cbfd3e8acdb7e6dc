"""A gradient of nothing but rounding is no mistake, a small wrong row is one, and what is done with 16-bit models."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from tangent_models import GroupNormCNN, hf_vit, oracle, shaken
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.tangent import RowEngine, checked_engine, guards
from fastntk.tangent.guards import ROWS_TOLERANCE, _disagreeing, check_rows

PRECISE, COARSE = (torch.float32, torch.float64), (torch.bfloat16, torch.float16)
every_dtype = pytest.mark.parametrize("dtype", [*PRECISE, *COARSE], ids=str)


class Attention(nn.Module):
    """Softmax does not see what is added to all keys: the true gradients of ``key.bias`` and ``shift`` are zero.

    ``softmax``: the dtype that softmax is taken in. ``shift`` enters by an operation that the sites do not know.
    """

    def __init__(self, softmax: torch.dtype | None = None, width: int = 8) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.shift = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, 3)
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ (self.key(x) - self.shift).transpose(1, 2)
        weights = torch.softmax(scores, -1, dtype=self.softmax).to(x.dtype)
        return self.out((weights @ self.value(x)).tanh().mean(1))


class Transposed(nn.Module):
    """Swaps samples and positions before a norm; ``size`` scales its gradients, not those of the second norm."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.small, self.norm, self.out = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        moved = torch.tanh(self.small(x.transpose(0, 1))).mean(0)
        return self.out(torch.tanh(self.norm(x)).mean(1) + self.size * moved)


def disagreement(engine: RowEngine, inputs: Tensor, name: str) -> float:
    """Of the rows and autograd, relative, for the sum of a sample's logits."""
    parameter = engine.subset.parameters[name]
    made = engine.rows(inputs).dense()[0, :, engine.slices[name]].sum(0)
    expected = torch.autograd.grad(engine.model(inputs)[0].sum(), parameter)[0].reshape(-1)
    return float((made - expected).abs().max() / expected.abs().max())


@every_dtype
@pytest.mark.parametrize("softmax", [None, torch.float32], ids=["own", "float32"])
def test_a_gradient_that_is_zero_but_for_rounding_is_no_disagreement(dtype: torch.dtype, softmax: torch.dtype | None) -> None:
    model = shaken(Attention(softmax))
    with torch.no_grad():
        model.out.weight.mul_(1e3)  # the rounding is far above any absolute threshold
    model.to(dtype)
    subset = fastntk.tune(model, "all")
    inputs = torch.randn(2, 9, 8).to(dtype)
    engine = checked_engine(model, subset, inputs)
    assert engine.generic == ("shift",)
    assert "key.bias" in engine.direct
    worst = max(disagreement(engine, inputs[[i, 1 - i]], name) for name in ("key.bias", "shift") for i in range(2))
    assert worst > ROWS_TOLERANCE[dtype]  # relative to itself it is one
    # A gradient that is not zero, for comparison; 1e-6: a float32 softmax inside a float64 model rounds as float32 does.
    assert disagreement(engine, inputs, "query.bias") < max(ROWS_TOLERANCE[dtype], 1e-6)


SIZES = {torch.float32: 1e-9, torch.float64: 1e-15, torch.bfloat16: 1e-6, torch.float16: 1e-2}


@pytest.mark.parametrize(("dtype", "size"), SIZES.items(), ids=str)
def test_wrong_rows_with_small_gradients_are_found(dtype: torch.dtype, size: float) -> None:
    model = shaken(Transposed(size)).to(dtype)
    subset = fastntk.tune(model, "norm.*+small.*+head")
    inputs = torch.randn(2, 2, 8).to(dtype)  # as many positions as samples: the shapes tell nothing
    plain = RowEngine(model, subset, inputs)
    assert set(plain.direct) == {"small.weight", "small.bias", "norm.weight", "norm.bias"}
    assert disagreement(plain, inputs, "small.weight") > 0.1
    engine = checked_engine(model, subset, inputs)
    assert set(engine.generic) == {"small.weight", "small.bias"}
    made, expected = engine.rows(inputs).dense(), oracle(model, subset, inputs)
    small = torch.cat([torch.arange(d.start, d.stop) for name, d in subset.slices.items() if name.startswith("small")])
    error = (made - expected)[:, :, small].norm() / expected[:, :, small].norm()
    assert error < {torch.float32: 1e-5, torch.float64: 1e-10}.get(dtype, 0.1)


@pytest.mark.parametrize("dtype", PRECISE, ids=str)
@pytest.mark.parametrize("name", ["key.weight", "query.bias", "key.bias"])
def test_a_wrong_row_beside_a_gradient_of_zero_is_found(dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one parameter are those of the other sample, or not zero where they should be; no route mends that."""
    model = shaken(Attention()).to(dtype)
    with torch.no_grad():
        model.query.weight.mul_(1e-3)  # all gradients of the keys are small
    subset = fastntk.tune(model, "all")
    inputs = torch.randn(2, 9, 8, dtype=dtype)
    engine = checked_engine(model, subset, inputs)
    right = engine.rows(inputs).dense()
    wrong = right.clone()
    columns = subset.slices[name]
    wrong[:, :, columns] = 1e-4 * right.abs().max() if name == "key.bias" else right[:, :, columns].flip(0)
    monkeypatch.setattr(engine, "rows", lambda inputs: type("Rows", (), {"dense": lambda self: wrong})())
    with pytest.raises(InputError, match=rf"{name} disagree with autograd: please report"):
        check_rows(engine, inputs)


@pytest.mark.parametrize("dtype", COARSE, ids=str)
def test_rows_of_16_bit_models_are_those_of_the_same_weights_up_to_rounding(dtype: torch.dtype) -> None:
    for model, shape in ((GroupNormCNN(), (3, 9, 9)), hf_vit()):
        subset = fastntk.tune(model, "all")
        shaken(model).to(dtype)
        inputs = torch.randn(3, *shape).to(dtype)
        made = fastntk.jacobian(model, subset, inputs)
        precise = copy.deepcopy(model).float()
        expected = fastntk.jacobian(precise, subset.on(precise), inputs.float())
        assert made.dtype == dtype
        assert (made.float() - expected).norm() < (0.05 if dtype == torch.bfloat16 else 0.01) * expected.norm()


class Random(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5))


class Coupled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0, keepdim=True))


class Mixed(nn.Module):
    """A body in 16 bits, a head in 32."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(6, 4).bfloat16(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x.bfloat16()).float())


class Steep(nn.Linear):
    """Small logits, gradients beyond what float16 holds."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 300) * 300


@pytest.mark.parametrize(
    ("model", "dtype", "message"),
    [
        (Random(6, 3), torch.bfloat16, "random is active"),
        (Coupled(6, 3), torch.bfloat16, "samples are coupled"),
        (Coupled(6, 3), torch.float16, "samples are coupled"),
        (Mixed(), torch.float32, r"several kinds \(torch.bfloat16, torch.float32\).*model.float\(\)"),
        (Steep(6, 3), torch.float16, r"not finite in torch.float16: use .float\(\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_what_coarse_rows_cannot_be_is_refused(model: nn.Module, dtype: torch.dtype, message: str) -> None:
    model = model.eval() if isinstance(model, Mixed) else model.eval().to(dtype)
    if isinstance(model, Steep):
        nn.init.zeros_(model.weight)
    with pytest.raises(InputError, match=message):
        fastntk.jacobian(model, fastntk.tune(model, "head"), torch.randn(4, 6).to(dtype))


def coarse(samples: fastntk.Samples, dtype: torch.dtype) -> fastntk.Samples:
    return fastntk.Samples(samples.inputs.to(dtype), samples.labels)


@pytest.mark.parametrize("dtype", COARSE, ids=str)
def test_training_unlearning_and_audits_of_16_bit_models_are_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    subset = fastntk.tune(model, "all")
    samples = fastntk.Samples(torch.randn(12, 6), torch.arange(12) % 3)
    holdout = fastntk.Samples(torch.randn(12, 6), torch.arange(12) % 3)
    recipe = fastntk.Recipe(epochs=2, batch_size=4)
    message = rf"4 parameters are {dtype}.*model.float\(\), inputs.float\(\), anchor.float\(\)"
    for trace in (None, True):
        with pytest.raises(InputError, match=message):
            fastntk.fit(model.to(dtype), subset, coarse(samples, dtype), recipe, trace=trace)
    run = fastntk.fit(model.float(), subset, samples, recipe, trace=True)
    result = fastntk.unlearn(run, ids=[0])
    clone = copy.deepcopy(model).to(dtype)
    by_hand = fastntk.Run(clone, subset.on(clone), run.anchor.to(dtype), coarse(samples, dtype), recipe)
    for method in ("fast-ntk", "tangent-replay", "retrain", "max-loss", "ssd"):
        with pytest.raises(InputError, match=message):
            fastntk.unlearn(by_hand, ids=[0], method=method)
    with pytest.raises(InputError, match=message):
        fastntk.audit(by_hand, dataclasses.replace(result, run=by_hand), holdout=coarse(holdout, dtype))
    run.model.to(dtype)
    with pytest.raises(InputError, match=message):
        fastntk.unlearn(run, ids=[0], method="path-replay", depth="head")


class Kink(nn.Module):
    """A unit that is on one side of 0 or the other by the route that is taken; beside 0 both routes agree."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.out = nn.Linear(2, 3)
        nn.init.constant_(self.inner.bias, 0.0)
        with torch.no_grad():
            self.inner.weight.copy_(torch.tensor([[1.0, 1.0], [2.0, 1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.inner(x)
        by_autograd = self.inner.bias.requires_grad  # rows are made with all parameters frozen
        return self.out(z * (z > (1e-5 if by_autograd else -1e-5)))


class OnlyPixels(nn.Module):
    """Reorders the samples on the way, and gives no number below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(torch.sqrt(x).flip(0)).flip(0))


@pytest.mark.parametrize("outside", [False, True])
def test_models_that_cannot_be_asked_beside_their_inputs_go_the_slow_way(outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if outside:
        monkeypatch.setattr(guards, "_moved", lambda inputs, share, seed: -1 - inputs)
    model = OnlyPixels().eval()
    subset = fastntk.tune(model, "inner.*+head")
    pixels = torch.rand(6, 4).round(decimals=1)
    pixels[:, 0] = 0.0
    torch.testing.assert_close(fastntk.jacobian(model, subset, pixels), oracle(model, subset, pixels))


class Steps(nn.Module):
    """Takes floats as numbers of a table, and rows of the wrong sample: what it does jumps with the inputs' last digit."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(50, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(self.table(x.long()).mean(1).flip(0)).flip(0))


def test_a_model_with_jumps_hides_no_wrong_rows() -> None:
    torch.manual_seed(0)
    model = Steps().eval()
    subset = fastntk.tune(model, "inner.*+head")
    numbers = torch.randint(1, 49, (6, 3)).float()
    torch.testing.assert_close(fastntk.jacobian(model, subset, numbers), oracle(model, subset, numbers))


def test_a_unit_at_its_kink_is_no_wrong_row() -> None:
    model = Kink().eval()
    subset = fastntk.tune(model, "inner.*+head")
    at_zero = torch.tensor([[1.0, -1.0], [0.5, 1.0], [-1.0, 1.0], [0.3, 0.2]])
    engine = checked_engine(model, subset, at_zero)
    seen = _disagreeing(engine, at_zero)
    assert seen == {"inner.weight", "inner.bias"}, "without a look beside it, the kink is taken for a wrong route"
    assert not engine.generic
