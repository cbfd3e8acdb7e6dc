"""Reading an optimiser that somebody else drives: which tuned parameters it moves, in which groups, by which options."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fastntk.base.errors import InputError, listing
from fastntk.training.optimizers import CONSTRUCTOR, IMPLEMENTATION, Group, check_optimizer
from fastntk.tuning import Subset

Numbers = list[dict[str, float]]
"""Of each group, its numeric options by name; "betas.0" is the first number of one that is a tuple."""
STATE_CHANGED = (
    "the optimiser's state (moments, momentum) was changed since its last recorded step, by something else than that step: "
    "loaded from a checkpoint, cleared"
)


class LiveOptimizer:
    """An optimiser of ``torch.optim`` before its first step. ``names``: of the tuned parameters in each of its groups."""

    def __init__(self, given: Any, model: nn.Module, subset: Subset) -> None:
        self.optimizer = unwrapped(given)
        self.names = groups_of(self.optimizer, model, subset)
        if has_stepped(self.optimizer):
            raise InputError("This optimiser has taken steps already: call record before the first one.")
        self._members = members(self.optimizer)
        own = set(map(id, subset.parameters.values()))
        self._others = [each for each in self._members if id(each) not in own]
        self._switches: list[dict[str, Any]] | None = None
        self._hooks: list[Any] = []

    def watch(self, before: Callable[..., Any], after: Callable[..., Any]) -> list[Any]:
        """Hooks around its step; what takes them away again."""
        self._hooks = [self.optimizer.register_step_pre_hook(before), self.optimizer.register_step_post_hook(after)]
        return self._hooks

    def watch_closely(self) -> None:
        """Put these hooks next to the step again: what the loop's own ones, registered since, do to gradients before it is then
        seen, and what they do to the parameters after it is told from it. Not during a step."""
        before, after = self._hooks
        pre, post = self.optimizer._optimizer_step_pre_hooks, self.optimizer._optimizer_step_post_hooks
        cast("OrderedDict[int, Any]", pre).move_to_end(before.id)
        cast("OrderedDict[int, Any]", post).move_to_end(after.id, last=False)

    def check(self) -> None:
        """Refuse, before a step, parameters that came to it, or that get gradients and are not tuned; and options other than
        numbers that are not those of the first step."""
        if list(map(id, members(self.optimizer))) != list(map(id, self._members)):
            raise InputError(
                "the optimiser has other parameters than at the start (add_param_group): that cannot be recorded. Give it all "
                "that will be tuned from the start; what is frozen (requires_grad_(False)) has no part until it is not"
            )
        if any(each.grad is not None for each in self._others):
            raise InputError("a parameter that is not in the subset gets gradients now: tune it as well, or leave it frozen")
        switches = [_split(options)[1] for options in _options(self.optimizer)]
        self._switches = self._switches or switches
        pairs = [
            (name, then.get(name, "a number"), now.get(name, "a number"))
            for then, now in zip(self._switches, switches)
            for name in then | now
        ]
        changes = sorted({f"{name} from {then} to {now}" for name, then, now in pairs if then != now})
        if changes:
            raise InputError(
                f"the optimiser's options changed during the training ({listing(changes)}), and a trace holds one value "
                "of an option that is not a number: leave it as it is at the first step"
            )

    def state_of(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """What it remembers of these parameters, number by number."""
        states = [self.optimizer.state[each] for each in parameters if each in self.optimizer.state]
        return [value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim() > 0]

    def skipped(self, parameters: Mapping[str, nn.Parameter], names: Sequence[str]) -> list[str]:
        """Those of these parameters that have no gradient, so that the coming step passes them over: no weight decay, no
        momentum. A gradient of zeros would stand for that only in plain SGD, whose are left out."""
        plain = {
            name
            for members, group in zip(self.names, self.optimizer.param_groups)
            if type(self.optimizer) is torch.optim.SGD and not group["momentum"] and not group["weight_decay"]
            for name in members
        }
        return [name for name in names if parameters[name].grad is None and name not in plain]


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The optimiser of ``torch.optim`` inside what a training framework put around it."""
    inner = optimizer
    while not isinstance(inner, torch.optim.Optimizer) or type(inner).__module__.split(".")[0] in ("accelerate", "lightning"):
        following = getattr(inner, "optimizer", None)
        if following is None or following is inner:
            break
        inner = following
    if not isinstance(inner, torch.optim.Optimizer):
        raise InputError(
            f"optimizer must be one of torch.optim, the one whose step() the loop calls; got {type(optimizer).__name__}."
        )
    if not type(inner).__module__.startswith("torch.optim"):
        raise InputError(
            f"The optimiser {type(inner).__module__}.{type(inner).__name__} is not one of torch.optim, so its steps could not be "
            "taken again. Use one of torch.optim, for example AdamW or SGD."
        )
    check_optimizer(type(inner).__name__)
    return inner


def groups_of(optimizer: torch.optim.Optimizer, model: nn.Module, subset: Subset) -> list[tuple[str, ...]]:
    """The names of the tuned parameters in each group; refused where the optimiser moves others, or not all of them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tuned, groups = set(subset.names), []
    strangers: list[str] = []
    for group in optimizer.param_groups:
        members = []
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name in tuned and name is not None:
                members.append(name)
            elif parameter.requires_grad:
                strangers.append(name or f"a tensor {tuple(parameter.shape)} that is not the model's")
        groups.append(tuple(members))
    if strangers:
        raise InputError(
            f"The optimiser also moves {len(strangers)} parameters that are not in the subset: {listing(strangers)}. What they "
            "learnt would stay after every request. Tune them as well (tune(model, 'all') for full fine-tuning), or freeze them."
        )
    missing = tuned - {name for members in groups for name in members}
    if missing:
        raise InputError(
            f"The optimiser does not have {len(missing)} of the tuned parameters: {listing(sorted(missing))}. Make it with "
            "subset.parameters.values(), or tune only what it has."
        )
    return groups


def members(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Some optimisers have a state from the start; a step counts in it, or fills it."""
    if type(optimizer).__name__ == "Adagrad":
        return any(float(state.get("step", 0)) > 0 for state in optimizer.state.values())
    return bool(optimizer.state)


def recorded_groups(optimizer: torch.optim.Optimizer, names: list[tuple[str, ...]]) -> tuple[Group, ...]:
    """The groups with their options as they are now, the rate aside."""
    return tuple(
        Group(members, {key: value for key, value in options.items() if key != "lr"})
        for members, options in zip(names, _options(optimizer))
    )


def numbers_of(optimizer: torch.optim.Optimizer) -> Numbers:
    """The numeric options of each group as they are now, the rate among them as "lr"."""
    return [_split(options)[0] for options in _options(optimizer)]


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group, as they are now, JSON-able: those that say where a step leads, as the optimiser uses them."""
    keys = [key for key in optimizer.defaults if key not in IMPLEMENTATION]
    return [
        {key: _plain((optimizer.defaults if key in CONSTRUCTOR else group)[key]) for key in keys if key in group}
        for group in optimizer.param_groups
    ]


def _split(options: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The numbers among these options, and the others; a tuple is each of its parts."""
    parts: dict[str, Any] = {}
    for key, value in options.items():
        parts |= {f"{key}.{place}": part for place, part in enumerate(value)} if isinstance(value, list) else {key: value}
    numbers = {name: float(part) for name, part in parts.items() if isinstance(part, int | float) and not isinstance(part, bool)}
    return numbers, {name: part for name, part in parts.items() if name not in numbers}


def varying(steps: list[Numbers]) -> dict[str, Tensor]:
    """The options that are not the same at all steps, (S, G) each, the rate aside; 0 where a group has none such."""
    if not steps:
        return {}
    names = sorted({name for numbers in steps[0] for name in numbers if name != "lr"})
    tables = {
        name: torch.tensor([[group.get(name, 0.0) for group in step] for step in steps], dtype=torch.float64) for name in names
    }
    return {name: table for name, table in tables.items() if bool((table != table[0]).any())}


def _plain(value: Any) -> Any:
    """JSON-able."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        raise InputError(f"an option of the optimiser is {type(value).__name__}, which a trace cannot hold.")
    return value
