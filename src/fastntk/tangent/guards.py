"""Checks that run once per use, on a handful of samples, before any row is trusted.

Per-sample rows exist only where each sample's output depends on that sample alone and on nothing random. Each guard
looks for one way to break that, and its message says what to do.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.errors import InputError, listing, said
from fastntk.base.gradients import check_differentiable, gradients_of
from fastntk.models import device_of, logits
from fastntk.tangent.rows import RowEngine
from fastntk.training.network import check_device
from fastntk.tuning import Subset

HANDFUL = 4
OUTPUT_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Of the largest logit."""
ROWS_TOLERANCE = {torch.float64: 1e-7, torch.float32: 3e-2, torch.float16: 0.3, torch.bfloat16: 0.3}
"""Of a parameter's largest gradient. A wrong route errs by its whole size. In float32 a ReLU at its kink may flip with the memory
layout (3e-3 was seen); in 16 bits right rows were seen to differ by 0.11."""
ROUNDINGS = 10
"""Rows differ from autograd's by at most so many times a parameter's own rounding where there is nothing else (4 was seen)."""
ROUNDING_AT_MOST = 3e-2
"""Of the model's largest gradient: what differs by more when the inputs' last digit does is no rounding, but a jump."""
BESIDE, BESIDE_BY = 2, 1e-3
"""What disagrees is looked at so often again, each time beside the inputs by this share of their largest entry."""


def checked_engine(model: nn.Module, subset: Subset, inputs: Tensor) -> RowEngine:
    """Run all guards and return a row engine whose every route was compared with autograd."""
    check_mode(model)
    check_inputs(model, subset, inputs)
    handful = inputs[:HANDFUL]
    check_outputs(model, handful)
    engine = RowEngine(model, subset, handful)
    if engine.dtype.itemsize < 4:
        # A route is right or wrong in every dtype, but 16 bits cannot always tell: a fifth of wrong rows went unseen.
        precise = copy.deepcopy(model).float()
        wide = handful.float() if handful.is_floating_point() else handful
        engine.demote(set(checked_engine(precise, subset.on(precise), wide).generic) & set(engine.direct))
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
    """Refuse inputs of another type, dtype or device, no inputs, and a subset of another model."""
    if subset.model is not model:
        raise InputError("The subset belongs to another model: use subset.on(model).")
    if subset.numel == 0:
        raise InputError("The subset is empty: there is nothing to differentiate.")
    check_differentiable(subset.parameters.items())
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"Inputs are a tensor (n, ...), as the model takes it, not {type(inputs).__name__}: torch.as_tensor(inputs)."
        )
    if inputs.dim() < 2 or len(inputs) == 0:
        raise InputError(f"Expected a batch of at least one input, (n, ...), got shape {tuple(inputs.shape)}.")
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(kinds) > 1 and any(kind.itemsize < 4 for kind in kinds):
        raise InputError(
            f"The model's parameters are of several kinds ({listing(sorted(str(kind) for kind in kinds))}), and rows are made in "
            "one. Convert model and inputs: model.float(), inputs.float()."
        )
    first = next(iter(subset.parameters.values()))
    check_device(inputs, first.device)
    if inputs.is_floating_point() and inputs.dtype != first.dtype:
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
    except InputError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise InputError(f"The model cannot take inputs of shape {tuple(inputs.shape[1:])}: {said(error)}") from error
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

    This catches models that move the batch dimension about: rows would then be of the wrong sample. A gradient that is zero in
    exact arithmetic (a key's bias: softmax does not see it) is nothing but rounding, which differs from route to route. So an
    error of the size of that parameter's own rounding is none. A unit at a kink (a ReLU's 0) may fall to either side of it by
    another route, and its gradient with it. So what disagrees has to do so again, for inputs a little beside these.
    """
    inputs = inputs.to(device_of(engine.model))
    wrong = _disagreeing(engine, inputs)
    for seed in range(BESIDE if inputs.is_floating_point() else 0):
        if wrong:
            wrong &= _beside(engine, inputs, wrong, seed=seed)
    demotable = wrong & set(engine.direct)
    if wrong - demotable:
        dtype = engine.dtype
        advice = "please report this model" if dtype.itemsize > 2 else f"{dtype} may be too coarse, use .float()"
        raise InputError(f"Rows of {listing(sorted(wrong - demotable))} disagree with autograd: {advice}.")
    if demotable:
        engine.demote(demotable)
        check_rows(engine, inputs)


def _beside(engine: RowEngine, inputs: Tensor, wrong: set[str], *, seed: int) -> set[str]:
    """What disagrees for inputs a little beside these; all that was ``wrong`` where the model cannot be asked there."""
    try:
        return _disagreeing(engine, _moved(inputs, BESIDE_BY, seed=seed))
    except Exception:  # whatever the user's model raises
        return wrong


def _disagreeing(engine: RowEngine, inputs: Tensor) -> set[str]:
    """The parameters whose Jᵀu is another one than autograd's, by more than their own rounding."""
    parameters = {name: p for name, p in engine.subset.parameters.items() if p.numel()}
    dtype, generator = engine.dtype, torch.Generator().manual_seed(0)
    u = torch.randn(engine.classes, generator=generator).to(inputs.device, dtype)
    rows = engine.rows(inputs).dense().cpu()  # with the comparison: not every device has float64
    expected = _gradients(engine.model, parameters, inputs, u)
    _check_finite(expected, dtype)
    errors = {}
    for name, gradients in expected.items():
        gaps = _most(torch.einsum("c,ncd->nd", u.cpu().double(), rows[:, :, engine.slices[name]].double()) - gradients)
        if not bool((gaps <= ROWS_TOLERANCE[dtype] * _most(gradients)).all()):
            errors[name] = float(gaps.max())
    if not errors:
        return set()
    rounding = _rounding(engine.model, {name: parameters[name] for name in errors}, inputs, u, expected)
    most = max(ROUNDING_AT_MOST, ROWS_TOLERANCE[dtype]) * max(float(_most(gradients).max()) for gradients in expected.values())
    return {name for name, error in errors.items() if not error <= ROUNDINGS * min(rounding[name], most)}


def _moved(inputs: Tensor, share: float, *, seed: int) -> Tensor:
    """The inputs with noise of this share of their largest entry, between their least and largest; whole numbers as they are."""
    if not inputs.is_floating_point():
        return inputs
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed)).to(inputs)
    return (inputs + share * inputs.abs().max() * noise).clamp(inputs.min(), inputs.max())


def _gradients(model: nn.Module, parameters: dict[str, nn.Parameter], inputs: Tensor, u: Tensor) -> dict[str, Tensor]:
    """Jᵀu of each sample by autograd: (n, numel) by name."""
    flags = {name: p.requires_grad for name, p in parameters.items()}
    for p in parameters.values():
        p.requires_grad_(True)
    leaves = list(parameters.values())
    try:
        with torch.enable_grad():
            values = (logits(model, inputs) * u).sum(1)
            gradients = [gradients_of(value, leaves, retain_graph=True) for value in values]
    finally:
        for name, p in parameters.items():
            p.requires_grad_(flags[name])
    return {name: torch.stack([g.reshape(-1).cpu() for g in column]) for name, column in zip(parameters, zip(*gradients))}


def _rounding(
    model: nn.Module, parameters: dict[str, nn.Parameter], inputs: Tensor, u: Tensor, expected: dict[str, Tensor]
) -> dict[str, float]:
    """Each parameter's own rounding: how much Jᵀu differs if the inputs' last digit does and u comes in two parts, v + (u − v).

    The two parts show rounding that the last digit does not, as in a float64 model with a float32 softmax inside.
    """
    most = dict.fromkeys(parameters, 0.0)
    for seed in range(2):
        v = torch.randn(u.shape, generator=torch.Generator().manual_seed(seed)).to(u)
        neighbour = _moved(inputs, torch.finfo(u.dtype).eps, seed=seed)
        one, other = (_gradients(model, parameters, neighbour, part) for part in (v, u - v))
        for name in parameters:
            most[name] = max(most[name], float(_most(one[name] + other[name] - expected[name]).max()))
    return most


def _check_finite(gradients: dict[str, Tensor], dtype: torch.dtype) -> None:
    infinite = [name for name, gradient in gradients.items() if not torch.isfinite(gradient).all()]
    if infinite:
        advice = "use .float() on model and inputs" if dtype.itemsize < 4 else "check weights and inputs"
        raise InputError(f"The gradients of {listing(infinite)} are not finite in {dtype}: {advice}.")


def _most(x: Tensor) -> Tensor:
    """The largest entry of each sample, (n, numel) → (n,), in float64."""
    return x.abs().amax(1).double()


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def _close(a: Tensor, b: Tensor) -> bool:
    scale = b.abs().max().clamp_min(1e-6)
    return bool((a - b).abs().max() <= OUTPUT_TOLERANCE[a.dtype] * scale)
