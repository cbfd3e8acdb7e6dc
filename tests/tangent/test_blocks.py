"""Blocks by names and by the order of a forward pass; truncated engines make the full engine's columns and go no deeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tangent_models import FlippedLayout, GroupNormCNN, OddCNN, hf_vit, mobilenet, resnet, shaken, timm_vit
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fastntk
from fastntk.base.errors import InputError
from fastntk.tangent import Block, RowEngine, blocks, checked_engine, seconds_of_rows, truncated

Build = Callable[[], tuple[nn.Module, tuple[int, ...]]]


def plain() -> tuple[nn.Module, tuple[int, ...]]:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)), (3, 8, 8)


def nested() -> tuple[nn.Module, tuple[int, ...]]:
    def part(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3), nn.BatchNorm2d(outside), nn.ReLU())

    return nn.Sequential(part(3, 4), part(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)), (3, 8, 8)


def group_norm() -> tuple[nn.Module, tuple[int, ...]]:
    return GroupNormCNN(), (3, 9, 9)


def odd() -> tuple[nn.Module, tuple[int, ...]]:
    return OddCNN(), (3, 6, 6)


def flipped() -> tuple[nn.Module, tuple[int, ...]]:
    return FlippedLayout(), (5, 8)


class ScaledBlock(nn.Module):
    """Three layers and a parameter of its own, used by an operation that the sites do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(5, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x)))) / self.scale


class Residual(nn.Module):
    """Registered against the order of the forward pass, with a tuned parameter that the pass never meets."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm = nn.Linear(6, 3), nn.LayerNorm(6)
        self.chain = nn.ModuleList(ScaledBlock() for _ in range(3))
        self.stem = nn.Linear(4, 6)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in reversed(self.chain):
            x = block(x)
        return self.head(self.norm(x))


def residual() -> tuple[nn.Module, tuple[int, ...]]:
    return Residual(), (4,)


def staged() -> tuple[nn.Module, tuple[int, ...]]:
    stages = [nn.Sequential(ScaledBlock(), ScaledBlock()), nn.Sequential(nn.LayerNorm(6), ScaledBlock())]
    return nn.Sequential(*stages, nn.Linear(6, 3)), (6,)


def engine_of(build: Build, spec: str, *, dtype: torch.dtype = torch.float64, count: int = 3) -> tuple[RowEngine, Tensor]:
    model, shape = build()
    subset = fastntk.tune(model, spec)
    shaken(model).to(dtype)
    inputs = torch.randn(count, *shape, dtype=dtype)
    return checked_engine(model, subset, inputs), inputs


def numbered(prefix: str, *, last: int, first: int = 0) -> list[str]:
    return [f"{prefix}.{i}" for i in range(last, first - 1, -1)]


NAMES: list[tuple[Build, str, list[str]]] = [
    (resnet, "norm+head", [f"layer{i}.{j}" for i in (3, 2, 1) for j in (2, 1, 0)] + ["bn1"]),
    (mobilenet, "norm+head", numbered("features", last=18)),
    (timm_vit, "prompts+head", numbered("blocks", last=4)),
    (timm_vit, "norm+head", ["norm", *numbered("blocks", last=11)]),
    (plain, "norm+head", ["4", "1"]),
    (plain, "all", ["4", "3", "1", "0"]),
    (nested, "norm+head", ["1", "0"]),
    (group_norm, "all", ["hidden", "norm2", "conv2", "norm1", "conv1"]),
    (odd, "all", ["norm", "token", "scale", "conv"]),
    (staged, "all", ["1.1", "1", "0.1", "0.0"]),
    (residual, "all", ["norm", "chain.0", "chain.1", "chain.2", "stem", "unused"]),
]


@pytest.mark.parametrize(("build", "spec", "names"), NAMES)
def test_blocks_by_name_from_the_head_down(build: Build, spec: str, names: list[str]) -> None:
    model, shape = build()
    subset = fastntk.tune(model, spec)
    engine = RowEngine(model.eval(), subset, torch.randn(2, *shape))
    found = blocks(engine)
    assert [block.name for block in found] == names
    together = [name for block in found for name in block.parameters]
    assert len(together) == len(set(together))
    assert set(together) == set(subset.names) - set(engine.head_names)


def test_hugging_face_blocks() -> None:
    """The number of a layer is in the name, whatever this version of the library calls the chain."""
    for spec, final, last in (("norm+head", 1, 5), ("prompts+head", 0, 4)):
        model, shape = hf_vit()
        found = blocks(RowEngine(model.eval(), fastntk.tune(model, spec), torch.randn(2, *shape)))
        assert [block.name.rpartition(".")[2] for block in found[final:]] == [str(i) for i in range(last, -1, -1)]
        assert all(name.startswith(f"{block.name}.") for block in found for name in block.parameters)


def test_a_block_holds_its_bare_parameters_too() -> None:
    engine, _ = engine_of(residual, "all")
    chain = next(block for block in blocks(engine) if block.name == "chain.1")
    assert chain.parameters[0] == "chain.1.scale"
    assert len(chain.parameters) == 7
    assert blocks(engine)[-1] == Block("unused", ("idle",))


class Tied(nn.Module):
    """The last block's norm is also that of the first layer: rows of it have to reach down there."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.ModuleList(ScaledBlock() for _ in range(2))
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        self.first_norm = self.chain[1].norm

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.chain[1](self.chain[0](self.first_norm(self.first(x)))))


def test_a_shared_parameter_is_where_it_is_first_met() -> None:
    engine, inputs = engine_of(lambda: (Tied(), (4,)), "all")
    found = blocks(engine)
    assert [block.name for block in found] == ["chain.1", "chain.0", "chain.1 (shared)", "first"]
    assert found[2].parameters == ("chain.1.norm.weight", "chain.1.norm.bias")
    assert_columns(engine, inputs, 1)
    assert_columns(engine, inputs, 3)


def assert_columns(engine: RowEngine, inputs: Tensor, k: int) -> None:
    """The truncated rows are columns of the full ones."""
    full, part = engine.rows(inputs).dense(), truncated(engine, k)
    rows = part.rows(inputs)
    tolerance = 1e-10 if inputs.dtype == torch.float64 else 1e-5
    columns = engine.subset.columns(part.subset.names)
    for made, expected in ((rows.dense(), full[..., columns]), (rows.body, full[..., columns[part.body_columns]])):
        assert made.shape == expected.shape
        assert not made.requires_grad
        assert float((made - expected).norm()) <= tolerance * float(full.norm())


ROUTES: list[tuple[Build, str]] = [
    (resnet, "norm+head"),
    (mobilenet, "norm+head"),
    (timm_vit, "prompts+head"),
    (timm_vit, "norm+head"),
    (hf_vit, "prompts+head"),
    (hf_vit, "norm+head"),
    (plain, "all"),
    (group_norm, "all"),
    (group_norm, "norm+hidden.*+out.weight"),
    (odd, "all"),
    (flipped, "norm+head"),
    (residual, "all"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("build", "spec"), ROUTES)
def test_truncated_rows_are_columns_of_the_full_ones(build: Build, spec: str, dtype: torch.dtype) -> None:
    engine, inputs = engine_of(build, spec, dtype=dtype, count=2)
    count = len(blocks(engine))
    for k in {0, 1, count // 2, count}:
        assert_columns(engine, inputs, k)
    every = truncated(engine, count)
    assert every.subset.names == engine.subset.names
    assert torch.equal(every.body_columns, engine.body_columns)


def carrying_a_graph(engine: RowEngine, inputs: Tensor) -> tuple[list[str], list[str]]:
    """(leaf modules in the order called, those of them whose outputs a backward pass would go through)."""
    called: dict[str, None] = {}
    recorded: dict[str, None] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, output: Tensor) -> None:
            called[name] = None
            if output.requires_grad:
                recorded[name] = None

        return note

    leaves = [(name, module) for name, module in engine.model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(hook(name)) for name, module in leaves]
    try:
        engine.rows(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return list(called), list(recorded)


@pytest.mark.parametrize(("build", "spec"), ROUTES)
def test_no_graph_exists_before_the_depth(build: Build, spec: str) -> None:
    engine, inputs = engine_of(build, spec, count=2)
    found = blocks(engine)
    for k in {0, 1, len(found) // 2, len(found)}:
        part = truncated(engine, k)
        called, recorded = carrying_a_graph(part, inputs)
        if not part.order:
            assert recorded == []
            continue
        # The module of the first parameter, or (a bare parameter's, a prompt's) the first that is called inside its parent.
        place = part.order[0].rpartition(".")[0].removesuffix("prefix_prompt").rstrip(".")
        before = called[: next(i for i, name in enumerate(called) if f"{name}.".startswith(f"{place}." if place else ""))]
        assert recorded
        assert not set(before) & set(recorded)
        deeper = [name for block in found[k:] if block.name != "unused" for name in block.parameters]
        modules = {name.rpartition(".")[0] for name in deeper} - {name.rpartition(".")[0] for name in part.subset.names}
        assert not modules & set(recorded)


class Backwards(TorchDispatchMode):
    """Counts the backward kernels that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name.endswith("_backward"):
            self.count["attention" if "attention" in name else name] += 1
        return func(*args, **(kwargs or {}))


def kernels(engine: RowEngine, inputs: Tensor) -> Counter[str]:
    with Backwards() as backwards:
        engine.rows(inputs)
    return backwards.count


def test_convolutions_go_back_only_inside_the_depth() -> None:
    """ResNet-20, norms: two convolutions a block, less the one in front of the depth's first norm."""
    engine, inputs = engine_of(resnet, "norm+head")
    for k in range(11):
        convolutions = 0 if k == 0 else 18 if k == 10 else 2 * k - 1
        assert kernels(truncated(engine, k), inputs)["convolution_backward"] == 5 * convolutions


def test_attention_goes_back_only_inside_the_depth() -> None:
    """12 blocks; prompts sit in the first five, norms everywhere, with a last one before the head."""
    for spec, attentions in (("prompts+head", (0, 8, 9, 10, 11, 12)), ("norm+head", (0, 0, 1, 2, 3))):
        engine, inputs = engine_of(timm_vit, spec, dtype=torch.float32, count=2)
        for k, count in enumerate(attentions):
            assert kernels(truncated(engine, k), inputs)["attention"] == engine.classes * count


class LateScale(nn.Module):
    """Two parameters that only ``vmap(jacrev)`` can take: one before a convolution, one after."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Parameter(torch.ones(3, 1, 1)), nn.Parameter(torch.ones(5, 1, 1))
        self.conv, self.out = nn.Conv2d(3, 5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.conv(x / self.early) / self.late).mean((2, 3)))


def test_the_generic_route_goes_back_only_inside_the_depth() -> None:
    engine, inputs = engine_of(lambda: (LateScale(), (3, 6, 6)), "early+late+head")
    assert engine.generic == ("early", "late")
    assert [block.name for block in blocks(engine)] == ["late", "early"]
    assert kernels(truncated(engine, 1), inputs)["convolution_backward"] == 0
    assert kernels(truncated(engine, 2), inputs)["convolution_backward"] > 0
    assert_columns(engine, inputs, 1)


def test_generic_rows_hold_no_graph_of_the_other_parameters() -> None:
    engine, inputs = engine_of(odd, "all")
    assert all(parameter.requires_grad for parameter in engine.model.parameters())
    assert engine.generic
    assert not engine.rows(inputs).body.requires_grad
    assert all(parameter.requires_grad for parameter in engine.model.parameters())


def test_routes_and_demotions_carry_over_and_no_pass_is_run() -> None:
    engine, _ = engine_of(flipped, "norm+head")
    assert set(engine.generic) == {"norm.weight", "norm.bias"}
    calls: list[None] = []
    engine.model.register_forward_hook(lambda *_: calls.append(None))
    part = truncated(engine, 1)
    assert part.generic == engine.generic
    assert part.direct == ()
    assert calls == []
    assert part.model is engine.model
    assert part.subset.model is engine.model
    assert part.lock is engine.lock


def test_a_truncated_engine_leaves_the_full_one_as_it_was() -> None:
    engine, inputs = engine_of(plain, "all")
    before = engine.rows(inputs).dense()
    part = truncated(engine, 2)
    part.demote({"4.weight"})
    assert "4.weight" in engine.direct
    assert "4.weight" not in part.direct
    assert torch.equal(engine.rows(inputs).dense(), before)
    names = part.subset.names
    torch.testing.assert_close(part.rows(inputs).dense(), before[..., engine.subset.columns(names)])


def test_the_head_alone_needs_no_backward_pass() -> None:
    engine, inputs = engine_of(resnet, "norm+head")
    part = truncated(engine, 0)
    assert part.backwards == 0
    assert not kernels(part, inputs)
    rows = part.rows(inputs)
    assert rows.body.shape == (3, 5, 0)
    assert rows.features is not None
    torch.testing.assert_close(rows.features, engine.rows(inputs).features)


def test_wrong_depths_and_names_are_refused() -> None:
    engine, _ = engine_of(plain, "norm+head")
    with pytest.raises(InputError, match="between 0 and 2, got 3"):
        truncated(engine, 3)
    with pytest.raises(InputError, match="between 0 and 2, got -1"):
        truncated(engine, -1)
    with pytest.raises(InputError, match=r"0\.weight"):
        engine.truncated(["0.weight", "1.weight"])
    with pytest.raises(InputError, match=r"0\.weight"):
        engine.subset.columns(["0.weight"])
    with pytest.raises(InputError, match="nothing to differentiate"):
        engine.truncated([])
    headless, _ = engine_of(plain, "norm")
    with pytest.raises(InputError, match=r"between 1 and 2 \(no tuned parameter belongs to a head"):
        truncated(headless, 0)


def test_seconds_of_rows_are_those_of_an_image() -> None:
    engine, inputs = engine_of(plain, "norm+head")
    assert 0 < seconds_of_rows(truncated(engine, 1), inputs) < 10
