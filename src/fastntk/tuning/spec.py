"""From a spec such as ``"norm+head"`` to the tuned parameters; everything else is frozen.

Words: ``norm`` (γ, β of BatchNorm, LayerNorm, GroupNorm), ``head`` (the last linear layer), ``prompts`` (prefix prompts
in the first blocks of a ViT), ``lora`` (what the active adapter of peft trains, the head apart), ``all``; anything else is a
glob over parameter names. ``+`` makes a union. Parameters that peft keeps but does not use (``original_module``, adapters that
are not active) belong to none.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fastntk.base.errors import InputError, listing
from fastntk.base.gradients import check_differentiable
from fastntk.tuning.adapters import adapter_parameters, adapters_of, attach_lora, inside
from fastntk.tuning.head import find_head
from fastntk.tuning.prompts import attach_prompts
from fastntk.tuning.subset import Subset

WORDS = ("norm", "head", "prompts", "lora", "all")
NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def tune(
    model: nn.Module,
    spec: str,
    *,
    prompt_length: int = 10,
    prompt_blocks: int = 5,
    lora_rank: int | None = None,
    lora_targets: Sequence[str] | str | None = None,
    seed: int = 0,
) -> Subset:
    """Choose what is tuned, attach prompts or LoRA if asked, freeze the rest, and return the subset.

    ``prompt_length`` counts keys and values together, in each of the first ``prompt_blocks`` blocks; ``seed`` draws
    the prompts.

    ``lora`` takes the adapter that you applied with peft. Where the model has none, one is attached in place: rank ``lora_rank``
    (8) on ``lora_targets``, names as in peft's ``target_modules`` (every linear layer inside attention); ``seed`` draws it, and
    ``lora+head`` also lists the head in ``modules_to_save``.
    """
    if not isinstance(spec, str):
        raise InputError(f"spec must be text, a sum such as 'norm+head'; got {spec!r}.")
    check_differentiable(model.named_parameters())
    terms = [term.strip() for term in spec.split("+")]
    if not all(terms):
        raise InputError(f"spec {spec!r} has an empty term: write a sum such as 'norm+head'.")
    if "lora" not in terms and (lora_rank, lora_targets) != (None, None):
        raise InputError(
            f"lora_rank and lora_targets are of the term 'lora', which spec {spec!r} does not have: write {spec + '+lora'!r}, or "
            "leave them out."
        )
    has_adapters = bool(adapters_of(model))
    if has_adapters and (lora_rank, lora_targets) != (None, None):
        raise InputError(
            "The model has an adapter already, which 'lora' takes as it is: leave out lora_rank and lora_targets, or build the "
            "model again."
        )

    def attach(target: nn.Module) -> set[str]:
        if "lora" in terms and not has_adapters:
            head = find_head(target)[0] if "head" in terms else None
            attach_lora(target, rank=lora_rank, targets=lora_targets, head=head, seed=seed)
        # Resolve everything that can fail before prompts are attached.
        names = {name for term in terms if term != "prompts" for name in _names(target, term)}
        if "prompts" in terms:
            names |= set(attach_prompts(target, length=prompt_length, blocks=prompt_blocks, seed=seed))
            names |= set(_names(target, "all")) if "all" in terms else set()
        return names

    if "lora" in terms and not has_adapters:
        attach(copy.deepcopy(model))  # whatever fails should leave no adapter behind
    names = attach(model)
    subset = Subset(model, names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return subset


def _names(model: nn.Module, term: str) -> list[str]:
    idle = adapters_of(model).idle
    every = [name for name, _ in model.named_parameters() if not inside(name, idle)]
    if term == "all":
        return every
    if term == "head":
        return _in_module(every, find_head(model)[0])
    if term == "lora":
        return _adapter_names(model)
    if term == "norm":
        return [name for name in _norm_names(model) if name in every]
    matches = [name for name in every if fnmatchcase(name, term)]
    if not matches:
        raise InputError(
            f"Unknown spec term {term!r}: it is none of {', '.join(WORDS)} and matches no parameter name. "
            f"Names of this model: {listing(every)}."
        )
    return matches


def _in_module(names: list[str], module: str) -> list[str]:
    inner = f"{module}.parametrizations." if module else "parametrizations."  # where weight_norm and the like keep a weight
    return [name for name in names if name.rpartition(".")[0] == module or name.startswith(inner)]


def _adapter_names(model: nn.Module) -> list[str]:
    """What the active adapter trains, without the head, which has a word of its own."""
    names = adapter_parameters(model)
    try:
        head = _in_module(names, find_head(model)[0])
    except InputError:  # no head, or one that carries an adapter, whose parameters belong here
        return names
    return [name for name in names if name not in head]


def _norm_names(model: nn.Module) -> list[str]:
    names = [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters()
    ]
    if not names:
        raise InputError(
            f"spec 'norm' needs normalisation layers with weights, but {type(model).__name__} has none "
            "(looked for BatchNorm, LayerNorm and GroupNorm). Try 'head', 'all' or a glob over parameter names."
        )
    return names
