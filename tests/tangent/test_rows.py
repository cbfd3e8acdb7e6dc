"""Rows against ``vmap(jacrev)``, the slow and obvious way, on networks of every kind we claim."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tangent_models import FlippedLayout, GroupNormCNN, OddCNN, hf_vit, mobilenet, oracle, resnet, shaken, timm_vit
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.tangent import RowEngine, TangentOperator, checked_engine
from fastntk.tangent.in_memory import rows_in_memory
from fastntk.tangent.on_disk import rows_on_disk

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
    subset, inputs = fastntk.tune(model, "head"), torch.randn(4, 6)
    for wrong in (0, -1, 2.5, "a", True):
        with pytest.raises(InputError, match=f"chunk must be ≥ 1, got {wrong!r}"):
            fastntk.jacobian(model, subset, inputs, chunk=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"chunk must be ≥ 1, got {wrong!r}"):
            fastntk.linearise_run(fastntk.Run(model, subset, subset.get(), fastntk.Samples(inputs, [0, 1, 2, 0])), chunk=wrong)  # type: ignore[arg-type]


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


class Routed(nn.Module):
    """Each sample goes through one of two layers, by its first number's sign; ``masked``: through both, and one is dropped."""

    def __init__(self, classes: int = 3, *, masked: bool = False) -> None:
        super().__init__()
        self.right, self.left, self.out = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, classes)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        goes_right = x[:, 0] > 0
        if self.masked:
            return self.out(torch.tanh(torch.where(goes_right[:, None], self.right(x), self.left(x))))
        hidden = x.new_zeros(len(x), 4)
        for layer, members in ((self.right, goes_right), (self.left, ~goes_right)):
            if members.any():
                hidden[members] = layer(x[members])
        return self.out(torch.tanh(hidden))


def sample_by_sample(model: nn.Module, subset: fastntk.Subset, inputs: Tensor) -> Tensor:
    """Rows (n, C, d) by a backward pass for every sample and class: works where torch cannot map over samples."""
    parameters, rows = list(subset.parameters.values()), []
    for x in inputs:
        for logit in model(x[None])[0]:
            gradients = [torch.zeros_like(p) for p in parameters]
            if logit.requires_grad:
                gradients = list(torch.autograd.grad(logit, parameters, retain_graph=True, materialize_grads=True))
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows).view(len(inputs), -1, subset.numel)


def routed_inputs(signs: str) -> Tensor:
    inputs = torch.randn(len(signs), 2, dtype=torch.float64).abs()
    inputs[:, 0] *= torch.tensor([1.0 if sign == "+" else -1.0 for sign in signs], dtype=torch.float64)
    return inputs


@pytest.mark.filterwarnings("ignore:torch cannot map")
@pytest.mark.parametrize("spec", ["all", "right.*", "left.*", "left.*+head"])
@pytest.mark.parametrize("signs", ["++++----", "++++++++", "----++-+", "+-+-+-+-", "+++++++-"])
@pytest.mark.parametrize(("classes", "masked"), [(3, False), (3, True), (6, False)])
def test_rows_of_samples_that_go_different_ways(spec: str, signs: str, classes: int, masked: bool) -> None:
    torch.manual_seed(0)
    model = Routed(classes, masked=masked).double().eval()
    subset, inputs = fastntk.tune(model, spec), routed_inputs(signs)
    expected = sample_by_sample(model, subset, inputs)
    probes = torch.randn(8, classes, 2, dtype=torch.float64)
    for chunk in (1, 3, 4, 8):
        torch.testing.assert_close(fastntk.jacobian(model, subset, inputs, chunk=chunk), expected)
        operator = TangentOperator(model, subset, inputs, chunk=chunk)
        torch.testing.assert_close(operator.rmatvec(probes), torch.einsum("ncm,ncd->dm", probes, expected))
    engine = checked_engine(model, subset, inputs)
    torch.testing.assert_close(engine.probed_rows(inputs, probes), torch.einsum("ncd,ncm->nmd", expected, probes))


@pytest.mark.filterwarnings("ignore:torch cannot map")
def test_a_route_that_a_later_chunk_changes_moves_no_column(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Routed().double().eval()
    subset, inputs = fastntk.tune(model, "all"), routed_inputs("++++++----+-")
    engine = checked_engine(model, subset, inputs)
    columns, expected = engine.body_columns.clone(), sample_by_sample(model, subset, inputs)
    assert set(engine.unused) == {"left.weight", "left.bias"}
    for rows in (
        rows_in_memory(engine, inputs, chunk=3),
        rows_on_disk(engine, inputs, tmp_path / "rows", chunk=5, samples_digest="digest"),
    ):
        torch.testing.assert_close(rows.dense(), expected)
    assert torch.equal(engine.body_columns, columns)
    assert not engine.unused
    assert engine.routes["vmap(jacrev)"] == {
        "left.bias": "not met by the first samples",
        "left.weight": "not met by the first samples",
        "right.bias": "met with 1 rows for 3 samples",
        "right.weight": "met with 1 rows for 3 samples",
    }


@pytest.mark.filterwarnings("ignore:torch cannot map")
@pytest.mark.parametrize("options", [{"method": "fast-ntk"}, {"method": "tangent-replay"}, {"depth": "all"}], ids=str)
def test_what_only_later_samples_pass_through_is_unlearned_too(options: dict[str, str]) -> None:
    torch.manual_seed(0)
    model = Routed().double()
    subset = fastntk.tune(model, "all")
    samples = fastntk.Samples(routed_inputs("++++----------++++++++++"), torch.arange(24) % 3)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=3, lr=0.05, batch_size=8), trace=True)
    result = fastntk.unlearn(run, ids=[5, 6, 7], **options)
    assert float(subset.split(result.delta)["left.weight"].norm()) > 0


class TwoHeads(nn.Module):
    """A batch of images that all have a large first number gets its logits elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other, self.out = nn.LayerNorm(6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        return self.other(hidden) if (x[:, 0] > 0).all() else self.out(hidden)


def test_a_head_that_does_not_make_all_logits_is_refused() -> None:
    model = TwoHeads().eval()
    inputs = torch.randn(8, 6)
    inputs[:, 0] = torch.tensor([-1.0] * 4 + [1.0] * 4)
    with pytest.raises(InputError, match=r"Expected the head 'out' to make the logits of all samples.*method='retrain'"):
        fastntk.jacobian(model, fastntk.tune(model, "norm+head"), inputs, chunk=4)
