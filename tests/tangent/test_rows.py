"""Rows against ``vmap(jacrev)``, the slow and obvious way, on networks of every kind we claim."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from tangent_models import FlippedLayout, GroupNormCNN, OddCNN, hf_vit, mobilenet, oracle, resnet, shaken, timm_vit
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.tangent import RowEngine, TangentOperator, checked_engine

CASES: list[tuple[Callable[[], tuple[nn.Module, tuple[int, ...]]], str]] = [
    (resnet, "norm+head"),
    (mobilenet, "norm+head"),
    (timm_vit, "prompts+head"),
    (timm_vit, "norm+head"),
    (hf_vit, "prompts+head"),
    (hf_vit, "norm+head"),
    (lambda: (GroupNormCNN(), (3, 9, 9)), "norm+head"),
    (lambda: (GroupNormCNN(), (3, 9, 9)), "norm+hidden.*+out.weight"),
    (lambda: (GroupNormCNN(), (3, 9, 9)), "all"),
    (lambda: (OddCNN(), (3, 6, 6)), "all"),
    (lambda: (FlippedLayout(), (5, 8)), "norm+head"),
]


@pytest.mark.parametrize(("build", "spec"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_rows_equal_vmap_jacrev(build: Callable[[], tuple[nn.Module, tuple[int, ...]]], spec: str, dtype: torch.dtype) -> None:
    model, shape = build()
    subset = fastntk.tune(model, spec)
    shaken(model).to(dtype)
    inputs = torch.randn(5, *shape, dtype=dtype)
    expected = oracle(model, subset, inputs)
    made = fastntk.jacobian(model, subset, inputs, chunk=3)
    assert made.shape == (5, expected.shape[1], subset.numel)
    assert made.dtype == dtype
    error = (made - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-10)


def test_chunk_size_does_not_matter_and_the_model_is_untouched() -> None:
    model, shape = resnet()
    subset = fastntk.tune(model, "norm+head")
    shaken(model).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = {n: p.requires_grad for n, p in model.named_parameters()}
    inputs = torch.randn(6, *shape, dtype=torch.float64)
    one, all_ = (fastntk.jacobian(model, subset, inputs, chunk=c) for c in (1, 6))
    torch.testing.assert_close(one, all_)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert flags == {n: p.requires_grad for n, p in model.named_parameters()}
    assert not model.training


def test_more_classes_than_features_goes_through_the_features() -> None:
    model = shaken(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(),
                                 nn.Linear(4, 11)))  # fmt: skip
    subset = fastntk.tune(model, "norm+head")
    inputs = torch.randn(3, 3, 6, 6)
    engine = checked_engine(model, subset, inputs)
    assert engine.via_features
    assert engine.backwards == 4
    torch.testing.assert_close(engine.rows(inputs).dense(), oracle(model, subset, inputs), rtol=1e-4, atol=1e-5)


def test_routes_say_what_went_where() -> None:
    model = shaken(OddCNN())
    subset = fastntk.tune(model, "all")
    engine = checked_engine(model, subset, torch.randn(2, 3, 6, 6))
    assert set(engine.generic) == {"conv.weight", "conv.bias"}
    assert {"scale", "token"} <= set(engine.direct)
    assert engine.head_names == ("out.weight", "out.bias")
    flipped = shaken(FlippedLayout())
    engine = checked_engine(flipped, fastntk.tune(flipped, "norm+head"), torch.randn(5, 5, 8))
    assert set(engine.generic) == {"norm.weight", "norm.bias"}


def test_the_head_is_kept_as_features() -> None:
    model, shape = resnet()
    subset = fastntk.tune(model, "norm+head")
    shaken(model)
    rows = RowEngine(model, subset, torch.randn(2, *shape)).rows(torch.randn(4, *shape))
    assert rows.features is not None
    assert rows.features.shape == (4, 64)
    assert rows.body.shape[2] == subset.numel - 5 * 65


def test_operator_is_the_same_map_as_the_rows() -> None:
    for build, spec in ((resnet, "norm+head"), (timm_vit, "prompts+head")):
        model, shape = build()
        subset = fastntk.tune(model, spec)
        shaken(model).double()
        inputs = torch.randn(3, *shape, dtype=torch.float64)
        rows = fastntk.jacobian(model, subset, inputs)
        operator = TangentOperator(model, subset, inputs, chunk=2)
        v, u = torch.randn(subset.numel, 2).double(), torch.randn(3, rows.shape[1]).double()
        torch.testing.assert_close(operator.matvec(v), rows @ v)
        torch.testing.assert_close(operator.rmatvec(u), torch.einsum("nc,ncd->d", u, rows))
        torch.testing.assert_close(operator.column_norms2(), rows.square().sum((0, 1)))
    torch.testing.assert_close(operator.kernel(), rows.flatten(0, 1) @ rows.flatten(0, 1).T)


def test_probed_rows_are_combinations_of_rows() -> None:
    model, shape = resnet()
    subset = fastntk.tune(model, "norm+head")
    shaken(model).double()
    inputs = torch.randn(3, *shape, dtype=torch.float64)
    probes = torch.randn(3, 5, 2, dtype=torch.float64)
    made = checked_engine(model, subset, inputs).probed_rows(inputs, probes)
    expected = torch.einsum("ncd,ncm->nmd", fastntk.jacobian(model, subset, inputs), probes)
    torch.testing.assert_close(made, expected)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(x, 0.5))


class Coupled(Dropping):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0, keepdim=True))


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (lambda: nn.Linear(6, 3).train(), torch.randn(4, 6), "model.eval()"),
        (lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval(), torch.randn(4, 6),
         "running statistics"),
        (lambda: Dropping().eval(), torch.randn(4, 6), "random is active"),
        (lambda: Coupled().eval(), torch.randn(4, 6), "samples are coupled"),
        (lambda: nn.Linear(6, 3).eval(), torch.randn(4, 6).double(), "float64"),
        (lambda: nn.Linear(6, 3).eval(), torch.randn(4, 7), "cannot take inputs of shape"),
        (lambda: nn.Linear(6, 3).eval(), torch.empty(0, 6), "at least one input"),
        (lambda: nn.Linear(6, 3).eval(), torch.full((4, 6), torch.nan), "not finite"),
        (lambda: nn.Linear(6, 3).eval(), torch.empty(4, 6, device="meta"), "on meta"),
        (lambda: nn.Linear(6, 3).eval(), torch.randn(4, 6).numpy(), "not ndarray: torch.as_tensor"),
    ],
)  # fmt: skip
def test_guards_explain_themselves(build: Callable[[], nn.Module], inputs: Tensor, message: str) -> None:
    model = build()
    subset = fastntk.tune(model, "head")
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        fastntk.jacobian(model, subset, inputs)


def test_chunks_of_no_sample_are_refused() -> None:
    model = nn.Linear(6, 3).eval()
    with pytest.raises(InputError, match="chunk must be ≥ 1, got 0"):
        fastntk.jacobian(model, fastntk.tune(model, "head"), torch.randn(4, 6), chunk=0)


def test_a_chunk_leaves_no_activations_behind() -> None:
    """A cycle through autograd's nodes is never collected: each chunk's activations would stay for ever."""
    model, shape = resnet()
    subset = fastntk.tune(model, "norm+head")
    engine = checked_engine(shaken(model), subset, torch.randn(2, *shape))
    kept: list[weakref.ref[Tensor]] = []
    model.layer3.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    engine.rows(torch.randn(2, *shape))
    gc.collect()
    assert kept
    assert all(ref() is None for ref in kept)


class FromWholeNumbers(nn.Module):
    """Takes bytes, as images come from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.body(x.to(self.body.weight) / 255))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_of_whole_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = FromWholeNumbers().to(dtype).eval()
    subset = fastntk.tune(model, "norm+head")
    whole = torch.randint(0, 256, (7, 6), dtype=torch.uint8)
    rows = fastntk.jacobian(model, subset, whole, chunk=3)
    assert rows.dtype == dtype
    torch.testing.assert_close(rows, fastntk.jacobian(model, subset, whole.to(dtype)))
    samples = fastntk.Samples(whole, torch.arange(7) % 3)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=2, batch_size=3), trace=True)
    for options in ({"method": "fast-ntk"}, {"method": "tangent-replay"}, {"depth": "all"}):
        assert torch.isfinite(fastntk.unlearn(run, ids=[1], **options).delta).all()


class TakesMappings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.out(self.norm(batch["x"]))


def test_models_that_take_no_tensor_are_told_so_and_replayed_at_the_head() -> None:
    torch.manual_seed(0)
    inputs, labels, model = torch.randn(20, 6), torch.arange(20) % 3, TakesMappings()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.Adam(subset.parameters.values(), 1e-2)
    recorder = fastntk.record(model, subset, optimizer, loss=nn.functional.cross_entropy)
    for batch in torch.arange(20).split(6):
        with recorder.batch(batch, labels[batch]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model({"x": inputs[batch]}), labels[batch]).backward()
            optimizer.step()
    run = recorder.finish(fastntk.Samples(inputs, labels))
    made = fastntk.unlearn(run, ids=[1])
    assert made.details["depth"] == "head"
    assert "cannot take inputs of shape (6,)" in made.details["climb"]["stopped"]
    for wrong in (
        lambda: fastntk.jacobian(model.eval(), subset, inputs),
        lambda: fastntk.fit(model, subset, run.data, fastntk.Recipe()),
    ):
        with pytest.raises(InputError, match=r"cannot take inputs of shape \(6,\)"):
            wrong()
