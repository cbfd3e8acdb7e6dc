"""Checks that run once per use, on a handful of samples, before any row is trusted.

Per-sample rows exist only where each sample's output depends on that sample alone and on nothing random. Each guard
looks for one way to break that, and its message says what to do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.errors import InputError, listing
from fastntk.models import device_of, logits
from fastntk.tangent.rows import RowEngine
from fastntk.training.network import check_device
from fastntk.tuning import Subset

HANDFUL = 4
ROWS_TOLERANCE = 3e-2
"""For float32. A wrong route errs by its whole size; a ReLU at its kink may flip with the memory layout (3e-3 was seen)."""


def checked_engine(model: nn.Module, subset: Subset, inputs: Tensor) -> RowEngine:
    """Run all guards and return a row engine whose every route was compared with autograd."""
    check_mode(model)
    check_inputs(model, subset, inputs)
    handful = inputs[:HANDFUL]
    check_outputs(model, handful)
    engine = RowEngine(model, subset, handful)
    check_rows(engine, handful[:2])
    return engine


def check_mode(model: nn.Module) -> None:
    """Refuse train mode, anywhere in the model, and BatchNorm that has no statistics to freeze."""
    training = [name or type(module).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise InputError(
            f"The model is in train mode ({listing(training, most=4)}): BatchNorm would couple the samples and dropout "
            "would make rows random, so per-sample Jacobians do not exist. Call model.eval() first."
        )
    bare = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.running_mean is None or module.running_var is None)
    ]
    if bare:
        raise InputError(
            f"BatchNorm without running statistics ({listing(bare, most=4)}) uses the batch's own even in eval mode, "
            "which couples the samples. Build it with track_running_stats=True, or use GroupNorm."
        )


def check_inputs(model: nn.Module, subset: Subset, inputs: Tensor) -> None:
    """Refuse inputs of another dtype or device, no inputs, and a subset of another model."""
    if subset.model is not model:
        raise InputError("The subset belongs to another model: use subset.on(model).")
    if subset.numel == 0:
        raise InputError("The subset is empty: there is nothing to differentiate.")
    if inputs.dim() < 2 or len(inputs) == 0:
        raise InputError(f"Expected a batch of at least one input, (n, ...), got shape {tuple(inputs.shape)}.")
    first = next(iter(subset.parameters.values()))
    check_device(inputs, first.device)
    if inputs.dtype != first.dtype:
        raise InputError(
            f"Inputs are {inputs.dtype} but the tuned parameters are {first.dtype}. Convert the inputs: inputs.to(dtype); "
            "nothing is cast silently."
        )


@torch.no_grad()
def check_outputs(model: nn.Module, inputs: Tensor) -> None:
    """Two passes agree; a batch's output is that of its samples one by one; all of it is finite."""
    try:
        first, second = logits(model, inputs), logits(model, inputs)
        single = torch.cat([logits(model, x.unsqueeze(0)) for x in inputs])
    except (RuntimeError, AssertionError, IndexError) as error:
        raise InputError(
            f"The model cannot take inputs of shape {tuple(inputs.shape[1:])}: {str(error).splitlines()[0]}"
        ) from error
    if not torch.isfinite(first).all():
        raise InputError("The model's logits are not finite on the first samples: check weights and inputs for NaN.")
    if not _close(first, second):
        raise InputError(
            f"Two passes over the same {len(inputs)} samples differ by {_gap(first, second):.1e} (relative): something "
            "random is active in eval mode, for example F.dropout(x, p) without training=self.training."
        )
    if not _close(first, single):
        raise InputError(
            f"The output of a batch differs from that of its samples one by one by {_gap(first, single):.1e} "
            "(relative): the samples are coupled, for example by batch statistics. Per-sample rows do not exist then."
        )


def check_rows(engine: RowEngine, inputs: Tensor) -> None:
    """Compare Jᵀu of each sample with autograd's; send parameters that disagree by the slow, safe route.

    This catches models that move the batch dimension about: rows would then be of the wrong sample.
    """
    parameters = {name: p for name, p in engine.subset.parameters.items() if p.numel()}
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(engine.classes, generator=generator).to(device_of(engine.model), inputs.dtype)
    rows = engine.rows(inputs).dense()
    wrong = set(engine.misplaced)
    for i in range(len(inputs)):
        expected = _gradients(engine.model, parameters, inputs, u, i)
        for name, gradient in expected.items():
            product = torch.einsum("c,cd->d", u, rows[i][:, engine.slices[name]])
            if not _close(product, gradient.reshape(-1), tolerance=ROWS_TOLERANCE if inputs.dtype == torch.float32 else 1e-7):
                wrong.add(name)
    fixed = wrong & set(engine.direct)
    if wrong - fixed:
        raise InputError(f"Rows of {listing(sorted(wrong - fixed))} disagree with autograd: please report this model.")
    if fixed:
        engine.demote(fixed)
        check_rows(engine, inputs)


def _gradients(
    model: nn.Module, parameters: dict[str, nn.Parameter], inputs: Tensor, u: Tensor, sample: int
) -> dict[str, Tensor]:
    flags = {name: p.requires_grad for name, p in parameters.items()}
    for p in parameters.values():
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            output = logits(model, inputs)[sample]
            gradients = torch.autograd.grad((output * u).sum(), list(parameters.values()), allow_unused=True)
    finally:
        for name, p in parameters.items():
            p.requires_grad_(flags[name])
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), gradients)}


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def _close(a: Tensor, b: Tensor, *, tolerance: float | None = None) -> bool:
    if tolerance is None:
        tolerance = 1e-3 if a.dtype == torch.float32 else 1e-8
    scale = b.abs().max().clamp_min(1e-6)
    return bool((a - b).abs().max() <= tolerance * scale)
