"""``tune_baseline``: the same small budget of trials for every baseline, judged on a rehearsal of the request.

Trial 0 has the method's defaults; the others are drawn without repetition, by the seed, from the method's search space. The
trial with the least score wins, the earlier one of equals. How a trial is scored: :mod:`fastntk.unlearning.rehearsal`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import ForgetRequest
from fastntk.training.run import Run
from fastntk.unlearning.api import unlearn
from fastntk.unlearning.registry import METHODS, find_method
from fastntk.unlearning.rehearsal import Rehearsal, rehearse


@dataclass(frozen=True)
class TunedBaseline:
    """The options that did best, every trial with its score, and how they were tried; all of it JSON-able."""

    method: str
    options: dict[str, Any]
    trials: tuple[dict[str, Any], ...]
    protocol: dict[str, Any]

    @property
    def score(self) -> float:
        """The least score."""
        return min(float(trial["score"]) for trial in self.trials if trial["score"] is not None)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {"method": self.method, "options": self.options, "trials": list(self.trials), "protocol": self.protocol}


def tune_baseline(
    run: Run,
    method: str,
    *,
    classes: Sequence[int | str] | None = None,
    ids: Sequence[int | str] | None = None,
    budget: int = 8,
    validation: float = 0.2,
    seed: int = 0,
    grid: Mapping[str, Sequence[Any]] | None = None,
    rehearsal: Rehearsal | None = None,
) -> TunedBaseline:
    """Choose a baseline's options for a request by ``budget`` trials, without the hold-out set and without Retrain.

    ``rehearsal``: one from ``rehearse`` for this run and request, so that several methods share its one training
    (``validation`` is then its own). ``grid``: axes to try in place of the method's search space; the defaults get no trial then.
    ``seed`` decides the validation draw and which candidates are tried. A trial that fails is kept with its reason, no score.
    """
    candidates = _candidates(method, grid, budget=budget, seed=seed)
    request = ForgetRequest(classes=None if classes is None else tuple(classes), ids=None if ids is None else tuple(ids))
    forget = tuple(run.data.ids[i] for i in request.resolve(run.data).forget.tolist())
    if rehearsal is None:
        rehearsal = rehearse(run, ids=forget, validation=validation, seed=seed)
    rehearsal.check(run, forget)
    trials = tuple(_trial(rehearsal, method, options) for options in track(candidates, f"tuning {method}"))
    scored = [trial for trial in trials if trial["score"] is not None]
    if not scored:
        raise InputError(f"Every trial of {method!r} failed; the first said: {trials[0]['failed']}")
    protocol = {
        "budget": len(trials),
        "seed": seed,
        "validation": {"share": rehearsal.share, "samples": len(rehearsal.validation), "seed": rehearsal.seed},
        "forget": len(forget),
        "whole_classes": list(rehearsal.whole_classes),
        "rehearsal_seconds": rehearsal.seconds,
        "nothing_done": rehearsal.judge(rehearsal.run.model),
    }
    best = min(scored, key=lambda trial: trial["score"])
    return TunedBaseline(method, dict(best["options"]), trials, protocol)


def _trial(rehearsal: Rehearsal, method: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        result = unlearn(rehearsal.run, ids=rehearsal.forget, method=method, **options)
    except InputError as error:  # diverged; a wrong option would fail in every trial, and is then reported
        return {"options": options, "score": None, "failed": str(error)}
    return {"options": options, **rehearsal.judge(result.model), "seconds": result.seconds}


def _candidates(method: str, grid: Mapping[str, Sequence[Any]] | None, *, budget: int, seed: int) -> list[dict[str, Any]]:
    """``budget`` different sets of options: the defaults first, unless a grid was given."""
    space: Mapping[str, Sequence[Any]] = grid if grid is not None else METHODS[method].search_space if method in METHODS else {}
    if grid is None and not space:
        raise InputError(f"No search space for method {method!r}: give grid={{option: values}}, or tune one of {_known()}.")
    known = find_method(method).options
    unknown = [name for name in space if name not in known]
    if unknown or not space or not all(space.values()):
        raise InputError(f"grid: {method!r} takes {', '.join(known) or 'nothing'}, each with a value or more; got {space!r}.")
    every = [dict(zip(space, values)) for values in itertools.product(*space.values())]
    defaults = [] if grid is not None else [{name: known[name].default for name in space}]
    others = [options for options in every if options not in defaults]
    most = len(others) + len(defaults)
    if isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget <= most:
        raise InputError(f"budget counts trials, 1 to {most} for the search space of {method!r}; got {budget!r}.")
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed)).tolist()
    return (defaults + [others[i] for i in order])[:budget]


def _known() -> str:
    return ", ".join(name for name, method in METHODS.items() if method.search_space)
