"""Prompts on stock ViTs against attention written out by hand; how they travel; what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.models import logits
from fastntk.models.torchvision_ops import ensure_operators

WIDTH, HEADS, DEPTH = 24, 3, 6


def timm_vit(**options: Any) -> nn.Module:
    ensure_operators()
    timm = pytest.importorskip("timm")
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=WIDTH, num_heads=HEADS, depth=DEPTH, num_classes=4, **options
    )
    return model.eval()


def hf_vit(attention: str = "sdpa") -> nn.Module:
    ensure_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=DEPTH, intermediate_size=32, image_size=32,
        patch_size=16, num_labels=4, attn_implementation=attention,
    )  # fmt: skip
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model.eval()


def hf_swin(**options: Any) -> nn.Module:
    ensure_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(
        **{"image_size": 32, "patch_size": 2, "embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2], "num_labels": 4} | options
    )
    model: nn.Module = transformers.SwinForImageClassification(config)
    return model.eval()


def hf_segformer(depth: int = 1) -> nn.Module:
    ensure_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        depths=[depth] * 2, num_encoder_blocks=2, hidden_sizes=[4, 8], num_attention_heads=[1, 2], sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[1, 1], decoder_hidden_size=8, num_labels=4,
    )  # fmt: skip
    model: nn.Module = transformers.SegformerForImageClassification(config)
    return model.eval()


BUILDERS = [timm_vit, hf_vit]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    chains = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) == DEPTH]
    return list(chains[0])


def attend(q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor] | None) -> Tensor:
    """softmax(q [p_K; k]ᵀ / √h) [p_V; v], head by head; q, k, v (n, tokens, E)."""
    out = []
    for h in range(HEADS):
        part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
        keys, values = k[..., part], v[..., part]
        if prompt is not None:
            keys = torch.cat([prompt[0][:, part].expand(len(k), -1, -1), keys], 1)
            values = torch.cat([prompt[1][:, part].expand(len(v), -1, -1), values], 1)
        scores = q[..., part] @ keys.transpose(1, 2) / (WIDTH / HEADS) ** 0.5
        out.append(torch.softmax(scores, -1) @ values)
    return torch.cat(out, -1)


def by_hand(plain: nn.Module, prompts: list[tuple[Tensor, Tensor]]) -> nn.Module:
    """The model without prompts, its attention replaced by the loop above."""
    for i, block in enumerate(blocks_of(plain)):
        attention = block.attn if hasattr(block, "attn") else block.attention
        linears = [m for m in attention.modules() if isinstance(m, nn.Linear)]
        prompt = prompts[i] if i < len(prompts) else None

        def forward(x: Tensor, *_: Any, linears: Any = linears, prompt: Any = prompt, **__: Any) -> Any:
            q, k, v = linears[0](x).chunk(3, -1) if len(linears) == 2 else (layer(x) for layer in linears[:3])
            output = linears[-1](attend(q, k, v, prompt))
            return output if len(linears) == 2 else (output, None)

        attention.forward = forward
    return plain


def shaken(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator).to(p))
    return model


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("blocks", [1, 5])
def test_prompted_attention_is_attention_written_out(build: Callable[[], nn.Module], blocks: int) -> None:
    model = shaken(build()).double()
    plain = copy.deepcopy(model)
    subset = fastntk.tune(model, "prompts+head", prompt_length=6, prompt_blocks=blocks)
    names = [name for name in subset.names if "prompt" in name]
    assert len(names) == 2 * blocks
    assert subset.numel == blocks * 6 * WIDTH + 4 * (WIDTH + 1)
    subset.set(torch.randn(subset.numel, dtype=torch.float64))
    leaves = [model.get_parameter(name).detach().clone().requires_grad_() for name in names]
    head = [name for name in subset.names if "prompt" not in name]
    plain.load_state_dict({**plain.state_dict(), **{n: model.get_parameter(n).detach() for n in head}})
    oracle = by_hand(plain, list(zip(leaves[::2], leaves[1::2])))
    x, u = torch.randn(3, 3, 32, 32, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    outputs, expected = logits(model, x), logits(oracle, x)
    torch.testing.assert_close(outputs, expected)
    gradients = torch.autograd.grad((outputs * u).sum(), [model.get_parameter(n) for n in names])
    wanted = torch.autograd.grad((expected * u).sum(), leaves)
    for a, b in zip(gradients, wanted):
        torch.testing.assert_close(a, b)
        assert b.abs().max() > 1e-6


@pytest.mark.parametrize("build", BUILDERS)
def test_prompts_change_the_output_and_prompts_of_length_zero_do_not(build: Callable[[], nn.Module]) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = shaken(build())
    before = logits(model, x)
    empty = copy.deepcopy(model)
    subset = fastntk.tune(empty, "prompts+head", prompt_length=0)
    assert subset.numel == 4 * (WIDTH + 1)
    torch.testing.assert_close(logits(empty, x), before)
    fastntk.tune(model, "prompts+head")
    assert (logits(model, x) - before).abs().max() > 1e-5


@pytest.mark.parametrize("build", BUILDERS)
def test_prompts_are_small_normal_numbers_drawn_from_the_seed(build: Callable[[], nn.Module]) -> None:
    prompts = []
    for seed in (0, 0, 1):
        torch.manual_seed(prompts.__len__())
        subset = fastntk.tune(build(), "prompts", prompt_length=40, seed=seed)
        prompts.append(subset.get())
    assert torch.equal(prompts[0], prompts[1])
    assert not torch.equal(prompts[0], prompts[2])
    assert prompts[0].std() == pytest.approx(0.02, rel=0.1)
    assert abs(prompts[0].mean()) < 0.002


@pytest.mark.parametrize("build", BUILDERS)
def test_copies_are_independent_and_keep_their_prompts(build: Callable[[], nn.Module]) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = shaken(build())
    subset = fastntk.tune(model, "prompts+head")
    other = copy.deepcopy(model)
    before = logits(model, x)
    torch.testing.assert_close(logits(other, x), before)
    moved = subset.on(other)
    vector = moved.get()
    vector[: 2 * WIDTH] += 1.0
    moved.set(vector)
    assert (logits(other, x) - before).abs().max() > 1e-5
    torch.testing.assert_close(logits(model, x), before)


@pytest.mark.parametrize("build", BUILDERS)
def test_prompts_travel_with_state_dict_and_files(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = shaken(build())
    subset = fastntk.tune(model, "prompts+head")
    subset.set(torch.randn(subset.numel))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "m.safetensors")
    fresh = build()
    fastntk.tune(fresh, "prompts+head", seed=9)
    fresh.load_state_dict(load_file(tmp_path / "m.safetensors"))
    torch.testing.assert_close(logits(fresh, x), logits(model, x))


def test_prompts_follow_the_models_mode_dtype_and_spec() -> None:
    model = timm_vit().double()
    subset = fastntk.tune(model, "prompts+head")
    assert not any(module.training for module in model.modules())
    assert subset.get().dtype == torch.float64
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(subset.names)
    assert fastntk.jacobian(model, subset, torch.randn(1, 3, 32, 32).double()).shape == (1, 4, subset.numel)
    again = fastntk.tune(model, "prompts+head", seed=5)
    assert torch.equal(again.get(), subset.get()), "a second call keeps the prompts that are there"
    assert fastntk.tune(model, "head").numel == 4 * (WIDTH + 1)


def test_names_of_prompts_and_head_are_those_of_the_model() -> None:
    model = timm_vit()
    subset = fastntk.tune(model, "prompts+head", prompt_blocks=2)
    expected = tuple(name for name, _ in model.named_parameters() if "prefix_prompt" in name or name.startswith("head."))
    assert subset.names == expected
    assert len(expected) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_length": 7}, "even and ≥ 0; got 7"),
        ({"prompt_length": -2}, "even and ≥ 0; got -2"),
        ({"prompt_blocks": 0}, "between 1 and 6"),
        ({"prompt_blocks": 7}, "between 1 and 6"),
    ],
)
def test_bad_prompt_sizes_are_refused_and_change_nothing(options: dict[str, int], message: str) -> None:
    model = timm_vit()
    before = list(model.state_dict())
    with pytest.raises(InputError, match=message):
        fastntk.tune(model, "prompts+head", **options)  # type: ignore[arg-type]
    assert list(model.state_dict()) == before


def test_prompts_of_another_size_do_not_replace_those_that_are_there() -> None:
    model = timm_vit()
    fastntk.tune(model, "prompts")
    with pytest.raises(InputError, match="already carries prompts in 5 blocks"):
        fastntk.tune(model, "prompts", prompt_length=4)
    with pytest.raises(InputError, match="already carries prompts"):
        fastntk.tune(model, "prompts", prompt_blocks=4)


def test_prompts_on_a_convolutional_network_are_refused() -> None:
    model = fastntk.build_model("resnet20", num_classes=3)
    with pytest.raises(InputError, match=r"no chain of attention blocks.*'norm[+]head'"):
        fastntk.tune(model, "prompts+head")


def unfused() -> nn.Module:
    model = timm_vit()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model


class AttentionByHand(nn.Module):
    """Nothing in it says what it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def hidden_call() -> nn.Module:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 5, enable_nested_tensor=False)
    return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Flatten(2, 4), nn.Linear(32 * 32, 8), layers, nn.Flatten(), nn.Linear(24, 3))


class InLists(nn.Module):
    """Blocks as pairs in a list, as many write them."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(32 * 32, 8)
        self.layers = nn.ModuleList(nn.ModuleList([AttentionByHand(), nn.Linear(8, 8)]) for _ in range(5))
        self.out = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x.flatten(2))
        for attention, linear in self.layers:  # type: ignore[misc]
            x = linear(x + attention(x))
        return self.out(x.flatten(1))


def in_lists() -> nn.Module:
    return InLists()


def in_sequence() -> nn.Module:
    chain = nn.Sequential(*(nn.Sequential(AttentionByHand()) for _ in range(5)))
    return nn.Sequential(nn.Flatten(2), nn.Linear(32 * 32, 8), chain, nn.Flatten(), nn.Linear(24, 3))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (unfused, "fused_attn = False: set it to True"),
        (lambda: hf_vit("eager"), "attn_implementation='sdpa'"),
        (hidden_call, r"built on nn\.MultiheadAttention"),
        (in_sequence, r"plain nn\.Sequential"),
        (in_lists, r"nn\.ModuleList"),
    ],
)
def test_attention_without_the_fused_call_is_refused_before_anything_is_attached(
    build: Callable[[], nn.Module], reason: str
) -> None:
    model, images = build().eval(), torch.randn(1, 3, 32, 32)
    names, before = list(model.state_dict()), logits(model, images)
    with pytest.raises(InputError, match=reason):
        fastntk.tune(model, "prompts+head")
    assert list(model.state_dict()) == names
    torch.testing.assert_close(logits(model, images), before)
    fastntk.tune(model, "head")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (hf_swin, "its attention looks through windows"),
        (lambda: hf_swin(depths=[2, 6]), "its attention looks through windows"),
        (hf_segformer, "its queries, keys and values are 4, 8 wide, and prompts would be 4"),
        (lambda: hf_segformer(depth=2), "its blocks hold several attention layers each"),
    ],
)
def test_attention_whose_keys_prompts_do_not_fit_is_refused_before_anything_is_attached(
    build: Callable[[], nn.Module], reason: str
) -> None:
    model, images = build(), torch.randn(1, 3, 32, 32)
    names, before = list(model.state_dict()), logits(model, images)
    with pytest.raises(InputError, match=f"{reason}. The model is as it was"):
        fastntk.tune(model, "prompts+head", prompt_blocks=2)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(logits(model, images), before)
    fastntk.tune(model, "head")


def test_attention_written_out_is_refused_and_leaves_no_mode_behind() -> None:
    blocks = [AttentionByHand() for _ in range(5)]
    model = nn.Sequential(nn.Sequential(*blocks), nn.Flatten(), nn.Linear(24, 3)).eval()
    fastntk.tune(model, "prompts+head")
    for _ in range(2):
        with pytest.raises(InputError, match="Prompts need exactly one"):
            logits(model, torch.randn(1, 3, 8))
    q = torch.randn(1, 2, 3, 4)
    output = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(output, torch.softmax(q @ q.transpose(2, 3) / 2, -1) @ q)


def test_an_error_inside_a_block_leaves_no_mode_behind() -> None:
    model = timm_vit()
    fastntk.tune(model, "prompts+head")
    block = blocks_of(model)[0]
    plain, block.mlp.forward = block.mlp.forward, lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model(torch.randn(1, 3, 32, 32))
    q = torch.randn(1, HEADS, 3, WIDTH // HEADS)
    output = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert output.shape == q.shape
    expected = torch.softmax(q @ q.transpose(2, 3) / (WIDTH / HEADS) ** 0.5, -1) @ q
    torch.testing.assert_close(output, expected)
    block.mlp.forward = plain
    assert logits(model, torch.randn(1, 3, 32, 32)).shape == (1, 4)
