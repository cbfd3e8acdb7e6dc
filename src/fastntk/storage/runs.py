"""Runs on disk: a fine-tuned model, its anchor, and what is known of its making, in one verified folder.

    tuned.safetensors   the tuned parameters by name          θ
    anchor.safetensors  the same names before fine-tuning     w0
    base.safetensors    every other entry of the state_dict   (frozen weights, buffers)
    manifest.json       model card, recipe, history, digests of data, files and trace
    trace/              the path of the fine-tuning, where it was recorded (:mod:`fastntk.storage.traces`)
    adapter/            of models that peft was applied to: the adapter in peft's format (:mod:`fastntk.storage.adapters`)

The data is not in it; of ids and labels only the trace has any, and that of a result those of the retained samples. The digest of
the data is in the manifest, so that a run is never paired with other data; ``source`` says where it can be loaded again
(:mod:`fastntk.storage.data`).

Layout and verification of a folder are :mod:`fastntk.storage.manifest`; here is what goes in and how a model comes out again.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.device import find_device
from fastntk.base.errors import InputError, listing
from fastntk.data import Samples
from fastntk.models import build_model
from fastntk.models.card import attach_card, card_from_dict, card_of
from fastntk.models.foreign_code import refuse_code
from fastntk.storage.adapters import adapter_facts, with_adapters, write_adapter
from fastntk.storage.data import check_data, data_facts, fitted
from fastntk.storage.keys import read_key, stored_key
from fastntk.storage.manifest import Bundle, file_name, read_bundle, write_bundle
from fastntk.storage.replacing import replaceable
from fastntk.storage.traces import store_trace, stored_trace
from fastntk.training.losses import LossFunction
from fastntk.training.network import check_finite
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run, as_listed
from fastntk.tuning import Subset, attach_prompts
from fastntk.tuning.adapters import adapters_of, unwrapped
from fastntk.tuning.prompts import PROMPT_NAME

RUN = "run"
RESULT = "result"
PARTS = ("tuned", "anchor", "base")


def save_run(
    run: Run,
    folder: str | Path,
    *,
    overwrite: bool = False,
    kind: str = RUN,
    extra: Mapping[str, Any] | None = None,
    take_trace: bool = False,
) -> Path:
    """Write a run to a new folder, atomically; return the folder. Its trace goes with it, its key into a file beside it.

    ``overwrite``: a folder of the same kind is replaced, with its audit and report; one that holds anything else is refused.
    Other kinds of the same shape (an unlearned model) give their ``kind`` and what else the manifest should say in
    ``extra`` (JSON-able; never ids, labels or pictures of samples). ``take_trace``: the files of a trace on the same disk are
    moved and not copied; the run's own ``trace`` cannot be read afterwards.
    """
    state = tensor_state(run.model)
    tuned = {name: state[name] for name in run.subset.names}
    parts = {
        "tuned": tuned,
        "anchor": run.subset.split(run.anchor),
        "base": {name: value for name, value in state.items() if name not in tuned},
    }
    trace = run.trace

    def fill(work: Path) -> dict[str, Any]:
        return {
            "adapter": write_adapter(run, work),
            "trace": None if trace is None else store_trace(trace, work, take=take_trace),
        }

    check = replaceable(kind) if overwrite else None
    with stored_key(Path(folder), run.key):
        return write_bundle(Path(folder), parts, kind=kind, content=_content(run, extra), replaceable=check, fill=fill)


def load_run(
    folder: str | Path,
    *,
    samples: Samples | None = None,
    model: nn.Module | None = None,
    device: str | torch.device | None = None,
    kinds: tuple[str, ...] = (RUN, RESULT),
    trace: bool = True,
    loss: LossFunction | None = None,
) -> Run:
    """Read and verify a folder and rebuild its run; the model is in eval mode, all but the subset frozen.

    ``samples``: the data of the run, compared with the digest in the manifest (``source_samples`` loads it again
    where the manifest says from where). ``model``: a model of the same architecture to load into, needed for one
    that ``build_model`` did not make; it is changed in place, and only after everything was checked. Adapters of peft that the
    saved model had are attached where the given one has none; of one that was a ``PeftModel``, the run's model is then the
    ``PeftModel`` around the given one. ``device``: where the model is put (``"auto"``, ``"cuda"``, …); None leaves it where it
    is: on the CPU, or where ``model`` was.

    A result is the run of the next request: its samples are the retained ones, labels and class names those of before.
    ``trace=False``: leave the trace out (it is not read, so neither verified). ``loss``: the function that the loop was recorded
    with, where it was one of its own, which no file holds.
    """
    target = None if device is None else find_device(device)
    bundle = read_bundle(Path(folder), kinds=kinds)
    manifest = bundle.manifest
    key = read_key(bundle.folder, manifest["data"].get("key"))
    recorded = stored_trace(bundle.folder, manifest) if trace else None
    if recorded is not None and loss is not None:
        recorded = recorded.with_loss(loss)
    if samples is not None:
        samples = fitted(samples, manifest["data"])
        if recorded is not None and manifest["data"]["digest"] is None:
            samples = as_listed(samples, recorded)
        check_data(manifest, samples, key=key)
    subset = _stored_model(bundle, model)
    if target is not None:
        subset.model.to(target)
    anchor = torch.cat([bundle.parts["anchor"][name].reshape(-1) for name in subset.names])
    recipe = manifest["recipe"]
    return Run(
        subset.model,
        subset,
        anchor.to(subset.get().device),
        samples,
        recipe=None if recipe is None else Recipe.from_dict(recipe),
        history=tuple(manifest["history"]),
        source=manifest["source"],
        trace=recorded,
        data_facts=manifest["data"],
        pretrained=manifest.get("pretrained"),
        key=key,
    )


def _stored_model(bundle: Bundle, given: nn.Module | None) -> Subset:
    """The tuned subset of the model in a folder, which is built anew or loaded into the one given; in eval mode."""
    manifest, folder, state = bundle.manifest, bundle.folder, _stored_state(bundle)
    model = _rebuild(manifest["model"], folder, state) if given is None else given
    adapters = manifest.get("adapters")
    if adapters is not None and not adapters_of(model):
        if given is not None:  # adapters cannot be taken off again: the first try is on a copy
            trial = with_adapters(copy.deepcopy(given), adapters)
            _fit_architecture(trial, state, manifest=manifest, folder=folder)
        model = with_adapters(model, adapters)
    _fit_architecture(model, state, manifest=manifest, folder=folder)
    subset = Subset(model, manifest["subset"])
    _load_state(model, state)
    check_finite(model, what=str(folder))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in subset.names)
    if manifest["model"]["card"] is not None:
        attach_card(model, card_from_dict(manifest["model"]["card"]))
    model.eval()
    return subset


def tensor_state(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict; refused where it holds anything but dense tensors."""
    state = model.state_dict()
    unsupported = [name for name, value in state.items() if not isinstance(value, Tensor) or value.layout != torch.strided]
    if unsupported:
        raise InputError(
            f"{type(model).__name__} keeps state that is no plain tensor: {listing(unsupported)}. Remove it before saving."
        )
    return dict(state)


def _content(run: Run, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    card = card_of(run.model)
    return {
        "model": {
            "class": type(unwrapped(run.model)).__name__,
            "card": None if card is None else dataclasses.asdict(card),
            "config": _config(run.model),
        },
        "subset": list(run.subset.names),
        "tuned": run.subset.numel,
        "ratio": run.subset.ratio,
        "prompts": _prompts(run.model.state_dict()),
        "adapters": adapter_facts(run.model),
        "recipe": None if run.recipe is None else run.recipe.to_dict(),
        "bn_stats": "unknown" if run.recipe is None else run.recipe.bn_stats,
        "history": list(run.history),
        "pretrained": None if run.pretrained is None else dict(run.pretrained),
        "data": data_facts(run),
        "source": run.source,
        "extra": dict(extra or {}),
    }


def _config(model: nn.Module) -> dict[str, Any] | None:
    """The configuration of a Hugging Face model: the folder or hub page it came from may be gone when it is loaded."""
    to_json = getattr(getattr(model, "config", None), "to_json_string", None)
    return dict(json.loads(to_json(use_diff=False))) if callable(to_json) else None


def _prompts(state: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The prompts in a model's state; None where it has none."""
    keys = [value for name, value in state.items() if name.endswith(f"{PROMPT_NAME}.key")]
    return {"length": 2 * len(keys[0]), "blocks": len(keys)} if keys and keys[0].ndim else None


def _rebuild(stored: Mapping[str, Any], folder: Path, state: Mapping[str, Tensor]) -> nn.Module:
    """The architecture, by its configuration or card; its weights are loaded afterwards."""
    if stored["config"] is not None:
        refuse_code(stored["config"], where=f"the model configuration in {folder}")
        model = _from_config(stored["config"], folder)
        if type(model).__name__ == stored["class"]:
            return model
    elif stored["card"] is not None:
        card = card_from_dict(stored["card"])
        if not any(value.ndim and len(value) == card.num_classes for value in state.values()):  # or a vast head would be made
            raise InputError(f"{folder}: none of its tensors belongs to a head of {card.num_classes} classes, as its card says.")
        return build_model(card.name, num_classes=card.num_classes, image_size=card.image_size)
    raise InputError(
        f"{folder} holds a {stored['class']} that build_model did not make, so only you can make it again: "
        f"Run.load(folder, samples, model=...) with a {stored['class']} of the same architecture."
    )


def _from_config(config: Mapping[str, Any], folder: Path) -> nn.Module:
    from fastntk.models.torchvision_ops import import_optional

    transformers = import_optional("transformers", extra="hf")
    with torch.random.fork_rng(devices=[]):
        try:
            kind = transformers.AutoConfig.for_model(**config)
            model = transformers.AutoModelForImageClassification.from_config(kind, trust_remote_code=False)
        except Exception as error:  # whatever a configuration that was tampered with makes of a foreign library
            raise InputError(f"{folder}: transformers cannot build a model from the configuration there: {error}") from error
    assert isinstance(model, nn.Module)
    return model


def _stored_state(bundle: Bundle) -> dict[str, Tensor]:
    """All tensors by name, after checking that the parts fit each other."""
    manifest, parts = bundle.manifest, bundle.parts
    absent = [part for part in PARTS if part not in parts]
    if absent:
        raise InputError(f"{bundle.folder}: its manifest does not list {listing(map(file_name, absent))}.")
    tuned, anchor, base = parts["tuned"], parts["anchor"], parts["base"]
    names = set(manifest["subset"])
    for part in ("tuned", "anchor"):
        if set(parts[part]) != names:
            raise InputError(
                f"{bundle.folder}: the tensors in {part} are not the tuned names of the manifest; they differ in "
                f"{listing(sorted(set(parts[part]) ^ names))}."
            )
    numbers = sum(value.numel() for value in tuned.values())
    if numbers != manifest["tuned"]:
        raise InputError(f"{bundle.folder}: its manifest says {manifest['tuned']} tuned parameters, its files have {numbers}.")
    odd = [name for name in names if tuned[name].shape != anchor[name].shape]
    if odd or names & set(base):
        raise InputError(f"{bundle.folder}: tuned, anchor and base do not fit together: {listing(odd or names & set(base))}.")
    return {**base, **tuned}


def _fit_architecture(model: nn.Module, state: Mapping[str, Tensor], *, manifest: Mapping[str, Any], folder: Path) -> None:
    """Attach the prompts that were saved, and refuse a model whose state has other names or shapes."""
    prompts = manifest["prompts"]
    if prompts != _prompts(state):
        raise InputError(f"{folder}: the prompts of its manifest ({prompts}) are not those of its files.")
    if prompts is not None and _prompts(model.state_dict()) is None:
        # First without them: a model that does not fit should not come back with prompts in it.
        without = {name: value for name, value in state.items() if f".{PROMPT_NAME}." not in f".{name}"}
        _check_names(model, without, folder=folder)
        attach_prompts(model, length=prompts["length"], blocks=prompts["blocks"])
    _check_names(model, state, folder=folder)


def _check_names(model: nn.Module, state: Mapping[str, Tensor], *, folder: Path) -> None:
    expected = model.state_dict()
    for what, names in (
        ("the model lacks", set(state) - set(expected)),
        ("the folder lacks", set(expected) - set(state)),
        ("of another shape", {n for n in set(state) & set(expected) if state[n].shape != expected[n].shape}),
    ):
        if names:
            raise InputError(
                f"{folder} does not fit this {type(model).__name__}: {what}: {listing(sorted(names))}. Give "
                "model=... of the architecture and number of classes that was saved, in the same library version."
            )


@torch.no_grad()
def _load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the values in place, so that tied weights stay tied; a float64 model stays float64."""
    for name, target in model.state_dict(keep_vars=True).items():
        if target.dtype != state[name].dtype:
            target.data = target.data.to(state[name].dtype)
        target.data.copy_(state[name])
