"""Adapters of peft in the folder of a run: what is needed to build them again, and a copy in peft's own format.

    adapter/adapter_config.json, adapter/adapter_model.safetensors    as ``PeftModel.save_pretrained`` writes them

Loading a run reads neither: its own files hold all weights. The copy is for serving, ``PeftModel.from_pretrained(backbone,
"RUN/adapter")``, and is written only where it holds everything that was tuned.
"""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from fastntk.base.errors import InputError, listing
from fastntk.models.foreign_code import refuse_code
from fastntk.models.torchvision_ops import import_optional
from fastntk.training.run import Run
from fastntk.tuning.adapters import active_adapter, adapter_configs, adapters_of, unwrapped

ADAPTER = "adapter"


def adapter_facts(model: nn.Module) -> dict[str, Any] | None:
    """What a manifest says of the model's adapters; None where peft put none into it, or into a part of it only."""
    configs = adapter_configs(model)
    if not adapters_of(model) or not configs:
        return None
    return {
        "wrapped": unwrapped(model) is not model,
        "active": active_adapter(model),
        "configs": {name: json.loads(json.dumps(config.to_dict(), default=sorted)) for name, config in configs.items()},
    }


def with_adapters(model: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
    """Apply peft to a model without adapters, in place, as a manifest says; return the model, or the ``PeftModel`` around it.

    Weights of the adapters are drawn anew, to be loaded afterwards.
    """
    peft = import_optional("peft", extra="peft")
    refuse_code(facts["configs"], where="an adapter in the manifest")
    if facts["active"] not in facts["configs"]:
        raise InputError(f"The adapter {facts['active']!r} has no configuration; there are {listing(facts['configs'])}.")
    try:
        configs = {name: peft.PeftConfig.from_peft_type(**config) for name, config in facts["configs"].items()}
        return _attached(model, facts, configs, peft)
    except Exception as error:  # whatever a configuration that was tampered with makes of a foreign library
        raise InputError(f"peft cannot attach the adapters that were saved: {error}") from error


def _attached(model: nn.Module, facts: Mapping[str, Any], configs: Mapping[str, Any], peft: Any) -> nn.Module:
    first, *others = configs
    with torch.random.fork_rng(devices=[]), _refusing(model):
        if not facts["wrapped"]:
            for name, config in configs.items():
                peft.inject_adapter_in_model(config, model, adapter_name=name)
            for name in (*adapters_of(model).layers, *adapters_of(model).wrappers):
                layer: Any = model.get_submodule(name)
                layer.set_adapter([facts["active"]])
            return model
        outer = peft.get_peft_model(model, configs[first], adapter_name=first)
        for name in others:
            outer.add_adapter(name, configs[name])
        outer.set_adapter(facts["active"])
    assert isinstance(outer, nn.Module)
    return outer


@contextlib.contextmanager
def _refusing(model: nn.Module) -> Iterator[None]:
    """What peft says of a model that the saved adapters are not of."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The adapters of this run do not fit this {type(model).__name__}: {reason.rstrip('.')}. Give model=... of the "
            "architecture that they were trained in."
        ) from error


def write_adapter(run: Run, folder: Path) -> str | None:
    """Write the active adapter into the sub-folder ``adapter`` in peft's format and return its name, None where there is none.

    An adapter that lacks tuned parameters would serve another model than this one, so it is not written; a warning says so.
    """
    if adapter_facts(run.model) is None:
        return None
    peft = import_optional("peft", extra="peft")
    name = active_adapter(run.model)
    # Embeddings are of text models: to look for them, peft would ask the hub.
    state = peft.get_peft_model_state_dict(run.model, adapter_name=name, save_embedding_layers=False)
    addresses = {value.data_ptr() for value in state.values()}
    missing = [each for each, parameter in run.subset.parameters.items() if parameter.data_ptr() not in addresses]
    if missing:
        warnings.warn(
            f"no adapter in peft's format was saved beside the run, for it has no place for {listing(missing)}: list their "
            "modules in modules_to_save of the peft config. The run itself is complete",
            stacklevel=2,
        )
        return None
    prefix = "" if unwrapped(run.model) is not run.model else "base_model.model."
    config = copy.deepcopy(adapter_configs(run.model)[name])
    config.inference_mode = True
    config.save_pretrained(str(folder / ADAPTER))
    tensors = {f"{prefix}{key}": value.detach().cpu().contiguous().clone() for key, value in state.items()}
    safetensors.torch.save_file(tensors, folder / ADAPTER / "adapter_model.safetensors", metadata={"format": "pt"})
    return ADAPTER
