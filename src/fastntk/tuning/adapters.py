"""Adapters of peft (LoRA, DoRA, IA³ and others): which parameters the active one trains, and LoRA where a model has none.

peft replaces a layer by one that holds the old layer as ``base_layer`` and its own parameters by adapter name. A module that is
listed in ``modules_to_save`` becomes a wrapper of the untouched ``original_module`` and of one trained copy an adapter. That
structure is read here, never the spelling of parameter names. A model can hold such layers only after somebody imported peft, so
nothing is imported to find out that there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from fastntk.base.errors import InputError, listing
from fastntk.models.torchvision_ops import import_optional

LORA_RANK = 8
"""Of the adapter that is attached where a model has none."""


@dataclass(frozen=True)
class Adapters:
    """Names in ``model.named_modules()`` of what peft put into a model; all empty where it did not.

    ``layers``: those that carry an adapter. ``wrappers``: those of ``modules_to_save``. Inside of them, ``trained``: parameters
    of the active adapter in layers; ``copies``: its copies in wrappers; ``idle``: what a forward pass does not use, that is
    ``original_module`` where a copy is active, and other adapters.
    """

    layers: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.layers or self.wrappers)


def adapters_of(model: nn.Module) -> Adapters:
    """What peft put into the model, by peft's own classes."""
    if "peft" not in sys.modules:
        return Adapters()
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    layers, wrappers, trained, copies, idle = [], [], [], [], []
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            active, inactive = _paths(name, module)
            layers.append(name)
            trained += active
            idle += inactive
        elif isinstance(module, AuxiliaryTrainingWrapper):
            active, inactive = _paths(name, module)
            wrappers.append(name)
            copies += active
            idle += [*inactive, *([_join(name, "original_module")] if active else [])]
    return Adapters(tuple(layers), tuple(wrappers), tuple(trained), tuple(copies), tuple(idle))


def inside(name: str, modules: Iterable[str]) -> bool:
    """Whether a parameter or module is one of these modules or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def active_adapter(model: nn.Module) -> str:
    """The name of the one adapter that the forward pass uses; refused where it is not one, disabled or merged."""
    adapters = adapters_of(model)
    modules = [model.get_submodule(name) for name in (*adapters.layers, *adapters.wrappers)]
    names = sorted({adapter for module in modules for adapter in _active(module)})
    if any(module.merged_adapters for module in modules):
        raise InputError("The adapters are merged into the weights of the model: take them out again, model.unmerge_adapter().")
    if not names:
        raise InputError(
            "The model has no active adapter of peft: model.set_adapter(name) activates one, "
            "model.base_model.enable_adapter_layers() enables disabled ones."
        )
    if len(names) > 1:
        raise InputError(f"Expected one active adapter, got {listing(names)}: choose one with model.set_adapter(name).")
    return names[0]


def adapter_parameters(model: nn.Module) -> list[str]:
    """All that the active adapter trains: its parameters, copies of ``modules_to_save``, and biases where its config says so."""
    adapter = active_adapter(model)
    adapters = adapters_of(model)
    every = [name for name, _ in model.named_parameters() if not inside(name, adapters.idle)]
    names = {name for name in every if inside(name, (*adapters.trained, *adapters.copies))}
    bias = getattr(adapter_configs(model).get(adapter), "bias", "none")
    if bias == "all":
        names |= {name for name in every if name.rpartition(".")[2] == "bias"}
    elif bias.endswith("_only"):
        names |= {_join(layer, "base_layer.bias") for layer in adapters.layers} & set(every)
    return [name for name in every if name in names]


def adapter_configs(model: nn.Module) -> dict[str, Any]:
    """The configurations of peft that ride on the model, by adapter name."""
    configs = getattr(model, "peft_config", None)
    return dict(configs) if isinstance(configs, dict) else {}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of a ``PeftModel``; any other model as it is."""
    if "peft" not in sys.modules:
        return model
    from peft import PeftModel

    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    assert isinstance(inner, nn.Module)
    return inner


def backbone_names(model: nn.Module) -> dict[str, str]:
    """By ``state_dict`` name: what a tensor was called before peft was applied. Tensors that peft brought are left out."""
    adapters = adapters_of(model)
    holders = {
        **{_join(layer, "base_layer"): layer for layer in adapters.layers},
        **{_join(wrapper, "original_module"): wrapper for wrapper in adapters.wrappers},
    }
    outer = "" if unwrapped(model) is model else "base_model.model."
    names = {}
    for name in model.state_dict():
        holder = next((path for path in holders if name.startswith(f"{path}.")), None)
        if holder is None and inside(name, (*adapters.layers, *adapters.wrappers)):
            continue
        plain = name if holder is None else _join(holders[holder], name[len(holder) + 1 :])
        names[name] = plain.removeprefix(outer)
    return names


def attach_lora(
    model: nn.Module,
    *,
    rank: int | None = None,
    targets: Sequence[str] | str | None = None,
    head: str | None = None,
    seed: int = 0,
) -> None:
    """Put LoRA into the model, in place, by peft's ``inject_adapter_in_model``: W becomes W + B·A, with B zero at the start.

    ``targets`` as peft's ``target_modules``; None: every linear layer inside attention. ``head``: the name of the module that is
    trained whole, as in peft's ``modules_to_save``. ``seed`` draws A.
    """
    peft = import_optional("peft", extra="peft")
    size = LORA_RANK if rank is None else rank
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"lora_rank must be a whole number ≥ 1, got {size!r}.")
    modules = _attention_layers(model) if targets is None else targets if isinstance(targets, str) else list(targets)
    config = peft.LoraConfig(r=size, lora_alpha=size, target_modules=modules, modules_to_save=None if head is None else [head])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(config, model)
        except ValueError as error:
            raise InputError(f"peft cannot attach LoRA to {modules}: {str(error).splitlines()[0]}") from error
    adapters = adapters_of(model)
    if head is not None and adapters.wrappers != (head,):
        raise InputError(
            f"The head is {head!r}, but peft takes by the end of a name, and would train {listing(adapters.wrappers)} whole. "
            "Apply peft yourself (peft.get_peft_model), then tune(model, 'lora+head')."
        )
    for name in (*adapters.layers, *adapters.wrappers):
        model.get_submodule(name).train(model.training)


def _attention_layers(model: nn.Module) -> list[str]:
    """Names of all linear layers inside attention, but for ``nn.MultiheadAttention``, which does not call its own."""
    modules = dict(model.named_modules())

    def attends(name: str) -> bool:
        around = [modules[".".join(name.split(".")[:end])] for end in range(1, name.count(".") + 1)]
        return any("attention" in type(module).__name__.lower() for module in around) and not any(
            isinstance(module, nn.MultiheadAttention) for module in around
        )

    names = [name for name, module in modules.items() if isinstance(module, nn.Linear) and attends(name)]
    if not names:
        raise InputError(
            f"spec 'lora' adapts the linear layers inside attention, and {type(model).__name__} has none that can be adapted. "
            "Name layers: tune(model, 'lora+head', lora_targets=['fc1', 'fc2'])."
        )
    return names


def _active(module: Any) -> list[str]:
    """Adapters that this layer or wrapper holds and uses."""
    if module.disable_adapters:
        return []
    keys = {key for _, container in _containers(module) for key in container}
    return [adapter for adapter in module.active_adapters if adapter in keys]


def _paths(name: str, module: Any) -> tuple[list[str], list[str]]:
    """Paths of this layer's or wrapper's parameters: of active adapters, of others."""
    active = _active(module)
    paths = [
        (key in active, _join(name, f"{attribute}.{key}")) for attribute, container in _containers(module) for key in container
    ]
    return [path for is_active, path in paths if is_active], [path for is_active, path in paths if not is_active]


def _containers(module: Any) -> list[tuple[str, Any]]:
    """The dicts by adapter name in which this layer or wrapper keeps what is trained."""
    containers = [(attribute, attrgetter(attribute)(module)) for attribute in module.adapter_layer_names]
    return [
        (attribute, container) for attribute, container in containers if isinstance(container, nn.ModuleDict | nn.ParameterDict)
    ]


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
