"""The tuned parameters of a model as one small file, and the one call that puts them into a served model.

Norm layers and heads live under names that every loader knows. Prompts do not: a stock ViT has no place for them until they
are attached. So serving code that builds its own backbone needs exactly

    fastntk.load_tuned(model, "unlearned.safetensors")

which attaches the prompts that the file holds and writes every tensor. Buffers (BatchNorm statistics) are in the file too,
since unlearning may have estimated them anew. Frozen weights are not: they come from the backbone's own checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fastntk.base.atomic import write_file
from fastntk.base.errors import InputError, listing
from fastntk.base.files import regular_file
from fastntk.tuning.prompts import PROMPT_NAME, attach_prompts
from fastntk.tuning.subset import Subset

MARK = {"format": "fastntk-tuned", "version": "1"}


def save_tuned(subset: Subset, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the tuned parameters and the buffers of the subset's model to a ``.safetensors`` file; return its path."""
    parameters = {name for name, _ in subset.model.named_parameters()}
    buffers = {name: value for name, value in subset.model.state_dict().items() if name not in parameters}
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in {**subset.parameters, **buffers}.items()}
    return write_file(Path(path), safetensors.torch.save(plain, metadata=MARK), overwrite=overwrite, replaceable=_check_ours)


def _check_ours(path: Path) -> tuple[str, ...]:
    """Refuse to replace what ``save_tuned`` did not write."""
    _read(path)
    return ()


@torch.no_grad()
def load_tuned(model: nn.Module, path: str | Path) -> nn.Module:
    """Attach the prompts that a file of ``save_tuned`` holds, write its values into the model, and return the model.

    The model has to be the architecture the file was made with, with the same frozen weights (they are not in the
    file, so this cannot be checked). A file that does not fit is refused before anything is written.
    """
    tensors = _read(Path(path))
    prompts = [value for name, value in tensors.items() if name.endswith(f"{PROMPT_NAME}.key")]
    trial = copy.deepcopy(model) if prompts else model  # prompts cannot be taken off again: the first try is on a copy
    for target in (trial, model):
        if prompts:
            attach_prompts(target, length=2 * len(prompts[0]), blocks=len(prompts))
        _check(target, tensors, path=path)
    state = model.state_dict()
    for name, value in tensors.items():
        state[name].copy_(value)
    return model


def _read(path: Path) -> dict[str, Tensor]:
    regular_file(path, expected="a file written by fastntk.save_tuned")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}. Expected one written by fastntk.save_tuned.") from error
    if {name: metadata.get(name) for name in MARK} != MARK:
        raise InputError(f"{path} was not written by fastntk.save_tuned of this version: load it as its writer says.")
    return tensors


def _check(model: nn.Module, tensors: Mapping[str, Tensor], *, path: str | Path) -> None:
    state = model.state_dict()
    absent = [name for name in tensors if name not in state]
    shapes = [
        f"{name} {tuple(value.shape)} (the model has {tuple(state[name].shape)})"
        for name, value in tensors.items()
        if name in state and value.shape != state[name].shape
    ]
    if absent or shapes:
        reasons = [f"{what}: {listing(names)}" for what, names in (("unknown names", absent), ("other shapes", shapes)) if names]
        raise InputError(
            f"{path} does not fit this {type(model).__name__}; {'; '.join(reasons)}. Build the model as it was for "
            "fine-tuning: the same architecture, image size, number of classes and, with peft, the same adapter."
        )
