"""From a spec such as ``"norm+head"`` to the tuned parameters; everything else is frozen.

Words: ``norm`` (γ, β of BatchNorm, LayerNorm, GroupNorm), ``head`` (the last linear layer), ``prompts`` (prefix prompts
in the first blocks of a ViT), ``all``; anything else is a glob over parameter names. ``+`` makes a union.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.errors import InputError, listing
from fastntk.tuning.head import find_head
from fastntk.tuning.prompts import attach_prompts
from fastntk.tuning.subset import Subset

WORDS = ("norm", "head", "prompts", "all")
NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def tune(model: nn.Module, spec: str, *, prompt_length: int = 10, prompt_blocks: int = 5, seed: int = 0) -> Subset:
    """Choose what is tuned, attach prompts if asked, freeze the rest, and return the subset.

    ``prompt_length`` counts keys and values together, in each of the first ``prompt_blocks`` blocks; ``seed`` draws
    the prompts.
    """
    terms = [term.strip() for term in spec.split("+")]
    if not all(terms):
        raise InputError(f"spec {spec!r} has an empty term: write a sum such as 'norm+head'.")
    # Resolve everything that can fail before the model is touched.
    names = {name for term in terms if term != "prompts" for name in _names(model, term)}
    if "prompts" in terms:
        names |= set(attach_prompts(model, length=prompt_length, blocks=prompt_blocks, seed=seed))
    if "all" in terms:
        names = {name for name, _ in model.named_parameters()}
    subset = Subset(model, names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return subset


def _names(model: nn.Module, term: str) -> list[str]:
    every = [name for name, _ in model.named_parameters()]
    if term == "all":
        return every
    if term == "head":
        prefix, _ = find_head(model)
        return [name for name in every if name.rpartition(".")[0] == prefix]
    if term == "norm":
        return _norm_names(model)
    matches = [name for name in every if fnmatchcase(name, term)]
    if not matches:
        raise InputError(
            f"Unknown spec term {term!r}: it is none of {', '.join(WORDS)} and matches no parameter name. "
            f"Names of this model: {listing(every)}."
        )
    return matches


def _norm_names(model: nn.Module) -> list[str]:
    names = [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters(recurse=False)
    ]
    if not names:
        raise InputError(
            f"spec 'norm' needs normalisation layers with weights, but {type(model).__name__} has none "
            "(looked for BatchNorm, LayerNorm and GroupNorm). Try 'head', 'all' or a glob over parameter names."
        )
    return names
