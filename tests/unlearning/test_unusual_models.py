"""Models of users that are unusual, and requests given as one value: right results, or a clear refusal before any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError

NAMES = ("cat", "dog", "eel", "fox")


def points(*, dtype: torch.dtype = torch.float64, classes: tuple[str, ...] | None = NAMES) -> fastntk.Samples:
    draw = torch.Generator().manual_seed(5)
    labels = torch.arange(40) % 4
    inputs = torch.randn(4, 6, generator=draw)[labels] + 0.8 * torch.randn(40, 6, generator=draw)
    return fastntk.Samples(inputs.to(dtype), labels, classes=classes)


def images() -> fastntk.Samples:
    draw = torch.Generator().manual_seed(1)
    return fastntk.Samples(torch.randn(32, 2, 4, 4, generator=draw, dtype=torch.float64), torch.arange(32) % 4)


def fitted(
    model: nn.Module, spec: str, samples: fastntk.Samples | None = None, *, trace: bool | Path | None = True, **recipe: Any
) -> fastntk.Run:
    data = samples or points()
    options = {"epochs": 3, "lr": 0.02, "batch_size": 8} | recipe
    return fastntk.fit(model, fastntk.tune(model, spec), data, fastntk.Recipe(**options), trace=trace)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def error(result: fastntk.Unlearned, reference: fastntk.Unlearned) -> float:
    """Distance of two results, as a share of the second's step."""
    return float((result.subset.get() - reference.subset.get()).norm() / reference.delta.norm())


def by_autograd(model: nn.Module, subset: fastntk.Subset, inputs: Tensor) -> Tensor:
    """Rows (n, C, d), one backward pass each."""
    outputs, parameters = model(inputs), list(subset.parameters.values())
    rows = [
        torch.cat(
            [part.reshape(-1) for part in torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)]
        )
        for value in outputs.flatten()
    ]
    return torch.stack(rows).view(*outputs.shape, -1)


# -- requests as one value, tensors, arrays --------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"ids": "12"}, {"ids": ["12"]}),
        ({"ids": 3}, {"ids": [3]}),
        ({"ids": torch.tensor([0, 1])}, {"ids": [0, 1]}),
        ({"ids": np.array([0, 1])}, {"ids": [0, 1]}),
        ({"classes": 0}, {"classes": [0]}),
        ({"classes": "cat"}, {"classes": [0]}),
        ({"classes": torch.tensor([0])}, {"classes": [0]}),
    ],
)
def test_one_value_is_one_value(asked: dict[str, Any], meant: dict[str, Any]) -> None:
    run = fitted(seeded(plain), "head")
    result, expected = fastntk.unlearn(run, **asked), fastntk.unlearn(run, **meant)
    assert result.split.forget.tolist() == expected.split.forget.tolist()
    assert torch.equal(result.subset.get(), expected.subset.get())
    assert fastntk.plan(run, **asked).chosen


def test_removals_take_any_sequence_and_refuse_results() -> None:
    run = fitted(seeded(plain), "head")
    expected = fastntk.removals(run, [[0], [1]]).loss_change.tolist()
    for groups in ((i for i in range(2)), torch.arange(2), np.arange(2)):
        assert fastntk.removals(run, groups).loss_change.tolist() == expected  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"takes a run, got Unlearned; the run of a result is result.as_run\(\)"):
        fastntk.removals(fastntk.unlearn(run, ids=[0]), [[1]])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a sequence of groups of ids, at least one; got None"):
        fastntk.removals(run, None)  # type: ignore[arg-type]


def test_options_of_a_record_are_jsonable() -> None:
    run = fitted(seeded(lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))), "norm+head")
    result = fastntk.unlearn(run, ids=[0], method="path-replay", depth="all", checkpoints=range(1, 3))
    assert json.loads(json.dumps(result.details["options"]))["checkpoints"] == [1, 2]


# -- attention as torch has it ---------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1, 2))
        y = self.norm(x)
        return self.head((x + self.attention(y, y, y, need_weights=False)[0]).mean(1))


class Encoder(nn.Module):
    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=norm_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x.flatten(1, 2))).mean(1))


ATTENTION = {
    "attention": Attention,
    "post-norm": lambda: Encoder(norm_first=False),
    "pre-norm": lambda: Encoder(norm_first=True),
}


@pytest.mark.parametrize("spec", ["norm+head", "all"])
@pytest.mark.parametrize("name", ATTENTION)
def test_rows_of_attention_layers_are_those_of_autograd(name: str, spec: str) -> None:
    model, inputs = seeded(ATTENTION[name]).eval(), images().inputs[:3]
    subset = fastntk.tune(model, spec)
    torch.testing.assert_close(fastntk.jacobian(model, subset, inputs), by_autograd(model, subset, inputs))


@pytest.mark.parametrize("spec", ["norm+head", "all"])
def test_every_method_with_rows_unlearns_attention_layers(spec: str) -> None:
    fast = torch.backends.mha.get_fastpath_enabled()
    run = fitted(seeded(ATTENTION["post-norm"]), spec, images())
    reference = fastntk.unlearn(run, ids=[0, 5], method="retrain")
    for method in ("fast-ntk", "tangent-replay", "path-replay"):
        assert error(fastntk.unlearn(run, ids=[0, 5], method=method), reference) < 1.5
    assert torch.backends.mha.get_fastpath_enabled() == fast


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.flatten(1, 2))[0].mean(1))


def prelu() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


@pytest.mark.parametrize("make", [Recurrent, prelu])
def test_what_torch_cannot_map_over_samples_is_made_one_by_one(make: Callable[[], nn.Module]) -> None:
    model, inputs = seeded(make).eval(), images().inputs[:3]
    subset = fastntk.tune(model, "all")
    with pytest.warns(UserWarning, match="their rows are made one by one, which is slow"):
        rows = fastntk.jacobian(model, subset, inputs)
    torch.testing.assert_close(rows, by_autograd(model, subset, inputs))


class Scaled(nn.Module):
    """A scalar parameter, as a temperature; what follows the head is the identity where ``after`` makes it so."""

    def __init__(self, after: Callable[[Tensor], Tensor] = lambda out: out, *, zero: bool = False) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(2), nn.Linear(2, 4)
        self.scale, self.after = nn.Parameter(torch.tensor(1.0)), after
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.norm(x).mean((2, 3)) * self.scale))


@pytest.mark.parametrize(
    "make",
    [
        Scaled,
        lambda: Scaled(lambda out: 3 * out, zero=True),
        lambda: Scaled(lambda out: out.mul_(3), zero=True),
        lambda: Scaled(lambda out: out.clamp(-2, 2)),
        lambda: Scaled(lambda out: out.view_as(out)),
    ],
)
def test_what_follows_the_head_is_in_its_rows(make: Callable[[], nn.Module]) -> None:
    """A head of zeros hides a factor, and samples within its limits a clamp: only the last one goes beyond them."""
    model, inputs = seeded(make).eval(), images().inputs[:5].clone()
    inputs[4] *= 50
    for spec in ("head", "all"):
        subset = fastntk.tune(model, spec)
        torch.testing.assert_close(fastntk.jacobian(model, subset, inputs), by_autograd(model, subset, inputs))


class Swish(torch.autograd.Function):
    """In the style of old code: no forward-mode derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(x)
        return grad * (slope * (1 + x * (1 - slope)))


class Viewed(nn.Module):
    """Flattens by ``view``, which the memory layout that CPUs prefer does not allow."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 4)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.norm(self.conv(x))).view(x.size(0), -1))


@pytest.mark.parametrize("activation", [torch.relu, Swish.apply])
def test_models_that_view_and_old_functions_are_unlearned_by_every_way(activation: Callable[[Tensor], Tensor]) -> None:
    run = fitted(seeded(lambda: Viewed(activation)), "norm+head", images())
    torch.testing.assert_close(fastntk.predict(run.model, images().inputs), run.model.eval()(images().inputs).detach())
    rows = fastntk.jacobian(run.model, run.subset, images().inputs[:3])
    torch.testing.assert_close(rows, by_autograd(run.model, run.subset, images().inputs[:3]))
    reference = fastntk.unlearn(run, ids=[0, 5], method="retrain")
    for method in ("fast-ntk", "tangent-replay", "path-replay", "max-loss"):
        result = fastntk.unlearn(run, ids=[0, 5], method=method)
        assert method == "max-loss" or error(result, reference) < 1.5


# -- what is tuned ---------------------------------------------------------------------------------


def test_norms_of_all_kinds_and_parametrized_weights_are_tuned() -> None:
    kinds = (nn.GroupNorm(1, 6), nn.InstanceNorm1d(6, affine=True), nn.RMSNorm(6), nn.LayerNorm(6), nn.BatchNorm1d(6))
    model = nn.Sequential(*kinds, nn.Linear(6, 4))
    assert len(fastntk.tune(model, "norm").names) == 9  # RMSNorm has no bias
    for bias in (True, False):
        head = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4, bias=bias))
        names = fastntk.tune(nn.Sequential(nn.Tanh(), head), "head").names
        assert {"1.parametrizations.weight.original0", "1.parametrizations.weight.original1"} <= set(names)


# -- parameters that modules share, and those that nothing uses ------------------------------------


class Tied(nn.Module):
    """One norm under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.first = nn.Linear(6, 6), nn.LayerNorm(6)
        self.again, self.head = self.first, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(torch.tanh(self.a(self.first(x)))))


def own_loop(model: nn.Module, spec: str, samples: fastntk.Samples) -> fastntk.Run:
    subset = fastntk.tune(model, spec)
    optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss=F.cross_entropy)
    for epoch in range(3):
        for batch in torch.randperm(len(samples), generator=torch.Generator().manual_seed(epoch)).split(8):
            with recorder.batch(batch, samples.labels[batch]):
                optimizer.zero_grad()
                F.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
                optimizer.step()
    return recorder.finish(samples)


@pytest.mark.parametrize(("spec", "status"), [("norm+head", "pre-trained"), ("all", "none")])
def test_a_shared_parameter_is_tuned_under_all_its_names(spec: str, status: str) -> None:
    for run in (fitted(seeded(Tied), spec), own_loop(seeded(Tied), spec, points())):
        assert run.subset.aliases["again.weight"] == "first.weight"
        assert fastntk.unlearn(run, ids=[0], depth="head").details["outside_subset"]["status"] == status


def test_a_returned_vector_reaches_a_shared_parameter() -> None:
    run = fitted(seeded(Tied), "norm+head")
    wanted = run.subset.get() + 1.0
    result = fastntk.unlearn(run, ids=[0], method="retrain", retrain=lambda ids, seed: wanted)
    assert torch.equal(result.subset.get(), wanted)


class TwoHeads(nn.Module):
    """The second head is for training loops of others: no forward pass here meets it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.other, self.head = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.a(x)))


def test_a_tuned_parameter_that_nothing_uses_stays_where_it_is() -> None:
    run = fitted(seeded(TwoHeads), "all")
    start = run.subset.split(run.anchor)
    for method in ("retrain", "path-replay", "deltagrad", "fast-ntk", "ssd"):
        parts = run.subset.split(fastntk.unlearn(run, ids=[0, 5], method=method).subset.get())
        torch.testing.assert_close(parts["other.weight"], start["other.weight"])
    assert not torch.equal(run.subset.split(run.subset.get())["a.weight"], start["a.weight"])


# -- what a trace is read with, and what it cannot describe ----------------------------------------


def test_more_class_names_than_outputs_are_read_again(tmp_path: Path) -> None:
    samples = points(classes=(*NAMES, "gnu", "hen"))
    run = fitted(seeded(plain), "head", samples, trace=tmp_path / "trace")
    run.save(tmp_path / "run")
    again = fastntk.load_run(tmp_path / "run", model=seeded(plain), samples=samples)
    assert again.trace is not None
    assert torch.equal(fastntk.unlearn(again, ids=[0]).delta, fastntk.unlearn(run, ids=[0]).delta)


def test_a_trace_of_no_epochs_is_read_again(tmp_path: Path) -> None:
    run = fitted(seeded(plain), "head", trace=tmp_path / "trace", epochs=0)
    run.save(tmp_path / "run")
    again = fastntk.load_run(tmp_path / "run", model=seeded(plain), samples=points())
    assert float(fastntk.unlearn(again, ids=[0]).delta.abs().max()) == 0


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(6, 5), nn.Linear(5, 4)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        features = self.a(x)
        return (self.head(torch.tanh(features)) + self.head(torch.relu(features))) / 2


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * F.linear(F.normalize(x), self.weight, self.bias)


def cosine() -> nn.Module:
    head = Cosine(5, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), head)


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.a = nn.Linear(6, 6), nn.Linear(6, 6)
        self.a.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.a(x)))


class ConvolutionalHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x).mean((2, 3))


@pytest.mark.parametrize(
    ("make", "spec", "samples", "message"),
    [
        (CalledTwice, "head", points, "head is called 2 times"),
        (cosine, "head", points, "no plain linear layer"),
        (TiedHead, "head", points, r"another module uses head\.weight as well"),
        (ConvolutionalHead, "classifier.*", images, "none was found in ConvolutionalHead. Train without a trace"),
    ],
)
def test_heads_that_a_trace_cannot_describe_are_refused(
    make: Callable[[], nn.Module], spec: str, samples: Callable[[], fastntk.Samples], message: str
) -> None:
    model = seeded(make)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        fitted(model, spec, samples())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert fitted(model, spec, samples(), trace=None).trace is None


# -- BatchNorm, several precisions -----------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, *, track: bool = True) -> None:
        super().__init__()
        self.c, self.n = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5, track_running_stats=track)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.n(self.c(x))).mean((2, 3)))


def test_auto_stays_at_the_head_where_a_model_has_no_rows_and_says_why() -> None:
    run = fitted(seeded(lambda: Normed(track=False)), "norm+head", images())
    result = fastntk.unlearn(run, ids=[0])
    assert result.details["depth"] == "head"
    assert "track_running_stats" in result.details["climb"]["stopped"]
    assert "track_running_stats" in result.details["note"]
    with pytest.raises(InputError, match=r"depth='all' is not possible: rows of this model cannot be made.*Take depth='head'\."):
        fastntk.unlearn(run, ids=[0], depth="all")


@pytest.mark.parametrize("depth", ["head", "all", "auto"])
def test_an_empty_request_leaves_statistics_as_they_are(depth: str) -> None:
    run = fitted(seeded(Normed), "norm+head", images(), bn_stats="update")
    result = fastntk.unlearn(run, ids=[], method="path-replay", depth=depth)
    assert result.details["batch_norm_statistics"] == "as they were: nothing is forgotten"
    state = run.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in result.model.state_dict().items() if "running" in name)
    assert "estimated anew" in fastntk.unlearn(run, ids=[0], method="path-replay").details["batch_norm_statistics"]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.a(x))).to(self.head.weight.dtype))


def test_a_head_more_precise_than_the_body_is_replayed_at_every_depth() -> None:
    torch.manual_seed(0)
    model = Mixed()
    model.head.double()
    run = fitted(model, "norm+head", points(dtype=torch.float32))
    reference = fastntk.unlearn(run, ids=[0, 5], method="retrain")
    errors = [error(fastntk.unlearn(run, ids=[0, 5], method="path-replay", depth=depth), reference) for depth in ("head", "all")]
    assert errors[1] < errors[0] < 1
