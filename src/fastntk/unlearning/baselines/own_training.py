"""Retrain in a training loop that is not ours: a function of the user, called with the ids to keep and a seed.

    retrain(keep_ids: list[str], seed: int) -> a model | its state_dict | the tuned vector (d,) | a Run

It trains from the user's own pre-trained weights, on the samples of these ids alone, and returns what came of it, of the same
architecture as the run's model. The run's own seed is its recipe's, 0 where it has none: called with that one, it should train
as the run was trained; every other seed means another draw of whatever the loop draws. A model may differ outside the tuned
subset too (full fine-tuning), so all of its state is taken. A ``Run``, as ``fastntk.record`` makes one, brings its trace along:
ensembles of ``path-replay`` need that of every model.

What comes back is checked; whether the samples were really left out cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError, listing
from fastntk.models.card import fingerprint_of
from fastntk.training.network import working_copy
from fastntk.training.run import Run
from fastntk.tuning.outside import outside

Retrainer = Callable[[list[str], int], nn.Module | Mapping[str, Tensor] | Tensor | Run]
CONTRACT = "retrain(keep_ids, seed) returns an nn.Module, a state_dict, the tuned vector or a Run"


@dataclass(frozen=True, eq=False)
class OwnTraining:
    """What came back. ``model``: a copy of the run's with that state, in eval mode. ``whole``: all of it came back, not the tuned
    vector alone. ``outside``: weights outside the tuned subset that are not as in the run. ``run``: where a Run came back.
    """

    model: nn.Module
    whole: bool
    outside: tuple[str, ...]
    run: Run | None

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of all tensors, by name."""
        return fingerprint_of(self.model)


def own_seed(run: Run) -> int:
    """The seed that stands for the run's own."""
    return 0 if run.recipe is None else run.recipe.seed


def function_name(function: Any) -> str:
    """``module:function``, for records."""
    target = getattr(function, "func", function)  # functools.partial
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', '?')}:{name}"


def check_function(retrain: object) -> None:
    """Refuse what cannot be called."""
    if not callable(retrain):
        raise InputError(
            f"retrain must be a function of your own, {CONTRACT}; got {type(retrain).__name__}. On the command line: "
            "--retrain-with MODULE:FUNCTION."
        )


def train_own(run: Run, retrain: Retrainer, keep_ids: Sequence[str], *, seed: int) -> OwnTraining:
    """Call the function and check what it returns; the run's model is not touched."""
    check_function(retrain)
    before = fingerprint_of(run.model)
    output = retrain(list(keep_ids), seed)
    if fingerprint_of(run.model) != before:
        raise InputError(
            f"{function_name(retrain)} trained the run's own model, which is now another one: load the run again, and let the "
            "function train a model of its own."
        )
    state, whole = _state(run, output)
    _check_state(run, state, name=function_name(retrain))
    model = working_copy(run)
    model.load_state_dict(state)
    after = fingerprint_of(model)
    if after == before:
        raise InputError(
            f"{function_name(retrain)} returned the run's own weights, to the last bit: it has to train again from the "
            f"pre-trained weights, on the {len(keep_ids):,} samples it is given, with the seed it is given."
        )
    outside_names = [name for name in outside(run.subset) if after[name] != before[name]]
    return OwnTraining(model, whole, tuple(outside_names), output if isinstance(output, Run) else None)


def _state(run: Run, returned: object) -> tuple[dict[str, Any], bool]:
    """What was returned as a whole state, and whether all of it was returned."""
    if isinstance(returned, Run):
        returned = returned.model
    if isinstance(returned, nn.Module):
        return dict(returned.state_dict()), True
    if isinstance(returned, Tensor):
        if returned.shape != (run.subset.numel,):
            raise InputError(
                f"retrain returned a tensor of shape {tuple(returned.shape)}; a tuned vector has shape ({run.subset.numel},), "
                "as run.subset.get() has."
            )
        parts = run.subset.split(returned.detach())
        tuned = {alias: parts[name] for alias, name in run.subset.aliases.items()}
        return {**run.model.state_dict(), **tuned}, False
    if isinstance(returned, Mapping):
        return dict(returned), True
    raise InputError(f"{CONTRACT}; got {type(returned).__name__}.")


def _check_state(run: Run, state: Mapping[str, Any], *, name: str) -> None:
    """Refuse another architecture, another precision, and numbers that are none."""
    expected = run.model.state_dict()
    both = [key for key in expected if key in state and isinstance(expected[key], Tensor)]
    faults = {
        "missing": set(expected) - set(state),
        "not in the run's model": set(state) - set(expected),
        "no tensor": {key for key in both if not isinstance(state[key], Tensor)},
    }
    tensors = [key for key in both if key not in faults["no tensor"]]
    faults["of another shape"] = {key for key in tensors if state[key].shape != expected[key].shape}
    faults["of another dtype"] = {key for key in tensors if state[key].dtype != expected[key].dtype}
    parts = [f"{what}: {listing(sorted(keys))}" for what, keys in faults.items() if keys]
    if parts:
        raise InputError(
            f"{name} returned another architecture than the run's {type(run.model).__name__}; {'; '.join(parts)}. Return a model "
            "of the same layers and precision, not wrapped (of a compiled or a parallel model, the module inside)."
        )
    wrong = [key for key in tensors if state[key].is_floating_point() and not bool(torch.isfinite(state[key]).all())]
    if wrong:
        raise InputError(
            f"{name} returned weights that are no numbers (NaN or infinite): {listing(wrong)}: its training diverged."
        )
