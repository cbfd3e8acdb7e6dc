"""The tuned parameters outside the head as a row of blocks, and engines whose backward passes stop after the last k of them.

Block 0 is the nearest to the head. A *depth* of k is the head and blocks 0 … k − 1: their rows need the network's activations
from the first parameter of block k − 1 on, and nothing before it, so neither graph nor backward pass exists there.

Blocks come from two things: the module names (which parameters belong together) and the order in which a forward pass first
meets the parameters (which block comes when). No list of architectures is involved. Not for choosing a depth.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fastntk.base.errors import InputError
from fastntk.tangent.rows import RowEngine
from fastntk.tuning.adapters import adapters_of, inside

LAYERS_OF_A_BLOCK = 3
"""A numbered module with so many layers that hold parameters is a block: a residual block has more, conv + norm has fewer."""
UNUSED = "unused"
"""Name of the last block where the forward pass does not meet some tuned parameters. Its rows are zero and cost nothing."""


@dataclass(frozen=True)
class Block:
    """Tuned parameters that one depth adds, in the order of ``subset.names``; ``name``: that of the module they are in."""

    name: str
    parameters: tuple[str, ...]


def blocks(engine: RowEngine) -> tuple[Block, ...]:
    """All tuned parameters outside the head, each in one block; the block that a forward pass meets last comes first.

    A block is placed where the first of its parameters is first met: a backward pass has to reach that far. Parameters shared
    by modules of several blocks are a block of their own, for the same reason. Parameters that the pass does not meet at all
    are the last block, named ``unused``.
    """
    owners = _owners(engine.model)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in engine.order:  # so that groups, too, are in the order in which they are first met
        groups.setdefault(owners[name], []).append(name)
    sequence = [_block(engine, _title(owner), names) for owner, names in reversed(groups.items())]
    unmet = set(engine.subset.names) - set(engine.head_names) - set(engine.order)
    return (*sequence, *([_block(engine, UNUSED, unmet)] if unmet else []))


def truncated(engine: RowEngine, k: int) -> RowEngine:
    """The engine for the head and the last k blocks; 0 is the head alone, ``len(blocks(engine))`` all that is tuned."""
    every = blocks(engine)
    least = 0 if engine.head_names else 1
    if not least <= k <= len(every):
        reason = "" if engine.head_names else " (no tuned parameter belongs to a head whose rows are in closed form)"
        raise InputError(f"Expected a number of blocks between {least} and {len(every)}{reason}, got {k}.")
    return engine.truncated((*engine.head_names, *(name for block in every[:k] for name in block.parameters)))


def _block(engine: RowEngine, title: str, names: list[str] | set[str]) -> Block:
    members = set(names)
    return Block(title, tuple(name for name in engine.subset.names if name in members))


def _owners(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """By parameter name: the blocks it lies in, one unless modules share it."""
    aliases = dict(model.named_parameters(remove_duplicate=False))
    adapters = adapters_of(model)
    # A layer with an adapter is one layer, however many modules it is made of.
    places = {alias: _adapted(alias, (*adapters.layers, *adapters.wrappers)) for alias in aliases}
    layers = {place.rpartition(".")[0] for place in places.values()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[str, dict[str, None]] = {name: {} for name in names.values()}
    for alias, parameter in aliases.items():
        owners[names[id(parameter)]][_owner(places[alias], layers)] = None
    return {name: tuple(paths) for name, paths in owners.items()}


def _adapted(parameter: str, adapted: tuple[str, ...]) -> str:
    """The name as if a layer that peft replaced were a plain one."""
    layer = min((layer for layer in adapted if inside(parameter, [layer])), key=len, default=None)
    return parameter if layer is None else f"{layer}.{parameter.rpartition('.')[2]}"


def _owner(parameter: str, layers: set[str]) -> str:
    """The block of one parameter by its name; ``layers``: all modules that hold parameters themselves.

    The deepest numbered module around it that holds at least three layers; else the outermost numbered one; else its own
    module, or itself where that is the whole model.
    """
    module = parameter.rpartition(".")[0]
    parts = module.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]  # from the outside in
    candidates = [path for path in around if path.rpartition(".")[2].isdigit()]
    large = [path for path in candidates if sum(f"{layer}.".startswith(f"{path}.") for layer in layers) >= LAYERS_OF_A_BLOCK]
    return large[-1] if large else candidates[0] if candidates else module or parameter


def _title(owner: tuple[str, ...]) -> str:
    return owner[0] if len(owner) == 1 else f"{owner[0]} (shared)"
