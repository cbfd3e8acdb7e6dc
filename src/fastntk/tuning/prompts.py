"""Prefix prompts on stock vision transformers: learnt keys and values in front of a block's own.

In each chosen block, softmax(q [p_K; k]ᵀ / √h) [p_V; v] replaces softmax(q kᵀ / √h) v. No forked ViT: timm's, Hugging
Face's and most others' blocks end in ``F.scaled_dot_product_attention``, and a ``TorchFunctionMode`` that is active
only inside the block prepends p_K and p_V there. The prompts are ordinary parameters of a sub-module of the block,
so they travel with ``state_dict``, ``copy.deepcopy`` and optimisers.

Not for ``nn.MultiheadAttention``, which hides that call, nor for attention written out by hand: both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

from fastntk.base.errors import InputError, listing

PROMPT_STD = 0.02
PROMPT_NAME = "prefix_prompt"

_PROJECTION = re.compile(r"(?:^|\.)(?:to_)?(qkv|query|key|value|[qkv])(?:_proj)?$")


def expand_prefix(prefix: Tensor, batch: int, heads: int) -> Tensor:
    """(L, E) → (batch, heads, L, E / heads). A torch function of its own, so that other modes can step in."""
    if has_torch_function_unary(prefix):
        out: Tensor = handle_torch_function(expand_prefix, (prefix,), prefix, batch, heads)
        return out
    per_head: Tensor = prefix.unflatten(-1, (heads, -1)).transpose(0, 1)
    return per_head.expand(batch, *per_head.shape)


class _PrefixMode(TorchFunctionMode):
    """Prepends one block's prompts in the one attention call inside it."""

    def __init__(self, prompt: PrefixPrompt) -> None:
        super().__init__()
        self.prompt = prompt
        self.calls = 0

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls += 1
        return self._attend(*args, **kwargs)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *rest: Any,
        **kwargs: Any,
    ) -> Tensor:
        batch, heads = key.shape[0], key.shape[1]
        width = heads * key.shape[-1]
        if width != self.prompt.key.shape[-1]:
            raise InputError(f"Prompts are {self.prompt.key.shape[-1]} wide but this block's keys are {width}.")
        if kwargs.get("is_causal") or (len(rest) > 1 and rest[1]):
            raise InputError("Prefix prompts in causal attention are not supported: this is for image classifiers.")
        keys = torch.cat([expand_prefix(self.prompt.key, batch, heads).to(key.dtype), key], dim=-2)
        values = torch.cat([expand_prefix(self.prompt.value, batch, heads).to(value.dtype), value], dim=-2)
        if attn_mask is not None:
            length = self.prompt.key.shape[-2]
            attn_mask = F.pad(attn_mask, (length, 0), value=True if attn_mask.dtype == torch.bool else 0.0)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask, *rest, **kwargs)


class PrefixPrompt(nn.Module):
    """The key and value prompts of one block, (L/2, E) each, and the hooks that apply them."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key = nn.Parameter(key)
        self.value = nn.Parameter(value)
        self._modes: list[_PrefixMode] = []

    def attach(self, block: nn.Module) -> None:
        """Become a sub-module of the block, and be active while it runs.

        The hooks are bound methods: ``copy.deepcopy`` of the model rebinds them to the copied prompt.
        """
        self.train(block.training)
        block.add_module(PROMPT_NAME, self)
        block.register_forward_pre_hook(self._enter)
        block.register_forward_hook(self._leave, always_call=True)

    def _enter(self, block: nn.Module, args: Any) -> None:
        mode = _PrefixMode(self)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._modes.append(mode)

    def _leave(self, block: nn.Module, args: Any, output: Any) -> None:
        mode = self._modes.pop()
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if output is not None and mode.calls != 1:
            raise InputError(
                f"Prompts need exactly one F.scaled_dot_product_attention call in {type(block).__name__}, "
                f"saw {mode.calls}. timm: set fused_attn = True on the attention modules; Hugging Face: load with "
                "attn_implementation='sdpa'; blocks built on nn.MultiheadAttention are not supported."
            )


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """The encoder blocks in order: the longest chain of equal modules that contain attention."""
    best: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            blocks = list(module)
            if len(blocks) > len(best) and len({type(b) for b in blocks}) == 1 and _has_attention(blocks[0]):
                best = blocks
    if not best:
        raise InputError(
            f"spec 'prompts' needs a vision transformer, but {type(model).__name__} has no chain of attention blocks. "
            "Use 'norm+head' for convolutional networks."
        )
    return best


def attach_prompts(model: nn.Module, *, length: int = 10, blocks: int = 5, seed: int = 0) -> list[str]:
    """Add prompts drawn from N(0, 0.02²) to the first blocks; return the names of their parameters.

    ``length`` counts keys and values together: 10 is 5 keys and 5 values a block. A model that already carries
    prompts of the same shape keeps them as they are.
    """
    if length < 0 or length % 2:
        raise InputError(f"prompt_length counts keys and values together, so it is even and ≥ 0; got {length}.")
    chain = transformer_blocks(model)
    if not 1 <= blocks <= len(chain):
        raise InputError(f"prompt_blocks must be between 1 and {len(chain)} (the model's blocks), got {blocks}.")
    existing = [block for block in chain if hasattr(block, PROMPT_NAME)]
    width = _width(model, chain[0])
    if not existing:
        _check_attention(model, chain[:blocks], width)
    if existing:
        shapes = {tuple(block.get_submodule(PROMPT_NAME).get_parameter("key").shape) for block in existing}
        if len(existing) != blocks or shapes != {(length // 2, width)}:
            raise InputError(
                f"The model already carries prompts in {len(existing)} blocks of shape {shapes}; asked for {blocks} "
                f"blocks of ({length // 2}, {width}). Build the model again to change them."
            )
    else:
        generator = torch.Generator().manual_seed(seed)
        for block in chain[:blocks]:
            like = next(block.parameters())
            key, value = (PROMPT_STD * torch.randn(length // 2, width, generator=generator) for _ in range(2))
            PrefixPrompt(key.to(like), value.to(like)).attach(block)
    return [name for name, _ in model.named_parameters() if f".{PROMPT_NAME}." in f".{name}"]


def _check_attention(model: nn.Module, blocks: list[nn.Module], width: int) -> None:
    """Refuse, before anything is attached, blocks that are known not to call ``F.scaled_dot_product_attention`` in the open.

    Once, and with keys and values as wide as the prompts.
    """
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    modules = [module for block in blocks for module in block.modules()]
    projections = [_projections(block) for block in blocks]
    widths = {each for block in projections for pairs in block.values() for each in pairs}
    reason = None
    if any(isinstance(module, nn.MultiheadAttention) for module in modules):
        reason = "its blocks are built on nn.MultiheadAttention, which hides that call"
    elif isinstance(implementation, str) and implementation != "sdpa":
        reason = f"its attention is {implementation!r}: load it with attn_implementation='sdpa'"
    elif any(getattr(module, "fused_attn", True) is False for module in modules):
        reason = "its attention modules have fused_attn = False: set it to True"
    elif any(isinstance(block, nn.Sequential | nn.ModuleList) for block in blocks):
        reason = "its blocks are plain nn.Sequential or nn.ModuleList, of which prompts would be one more part: write a module"
    elif any("window" in type(module).__name__.lower() or hasattr(module, "shift_size") for module in modules):
        reason = "its attention looks through windows"
    elif any(len(pairs) > 1 for block in projections for pairs in block.values()):
        reason = "its blocks hold several attention layers each"
    elif widths - {width}:
        reason = f"its queries, keys and values are {listing(sorted(widths))} wide, and prompts would be {width}"
    if reason is not None:
        raise InputError(
            f"spec 'prompts' puts keys and values in front of F.scaled_dot_product_attention, and {type(model).__name__} has no "
            f"such call that could be reached: {reason}. The model is as it was; 'norm+head' tunes it without prompts."
        )


def _projections(block: nn.Module) -> dict[str, list[int]]:
    """Widths of the queries, keys and values that a block's linear layers make, by the layers' usual names; empty for others."""
    widths: dict[str, list[int]] = {}
    for path, module in block.named_modules():
        match = _PROJECTION.search(path.removesuffix(".base_layer"))  # where peft keeps the layer that it adapts
        if match and isinstance(module, nn.Linear):
            widths.setdefault(match[1], []).append(module.out_features // (3 if match[1] == "qkv" else 1))
    return widths


def _has_attention(block: nn.Module) -> bool:
    return any("attention" in type(m).__name__.lower() for m in block.modules())


def _width(model: nn.Module, block: nn.Module) -> int:
    config = getattr(model, "config", None)
    width = getattr(model, "embed_dim", None) or getattr(config, "hidden_size", None)
    if width is None:
        linears = [m for m in block.modules() if isinstance(m, nn.Linear)]
        width = linears[0].in_features if linears else None
    if width is None:
        raise InputError(f"Cannot tell the width of the attention in {type(block).__name__}.")
    return int(width)
