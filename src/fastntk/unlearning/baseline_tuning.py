"""``tune_baseline``: the same budget of trials for every method, judged on a rehearsal of the request.

Trial 0 has the method's defaults; the others are drawn without repetition, by the seed, from the method's search space.
Successive halving, in two rounds: every trial runs on the first rehearsal seed; the ``survivors`` with the least scores, and the
defaults, run on every further seed. The least mean score among those that ran on all seeds wins, the earlier one of equals. With
one rehearsal seed there is one round. How a trial is scored: :mod:`fastntk.unlearning.rehearsal`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastntk.base.errors import InputError
from fastntk.base.progress import track
from fastntk.data import ForgetRequest
from fastntk.training.run import Run
from fastntk.unlearning.api import unlearn
from fastntk.unlearning.method import ROW_OPTIONS
from fastntk.unlearning.registry import METHODS, find_method
from fastntk.unlearning.rehearsal import Rehearsal, SeedRehearsal, rehearse

Options = dict[str, Any]
Trial = dict[str, Any]
BUDGET = 25
SURVIVORS = 4


@dataclass(frozen=True)
class TunedBaseline:
    """The options that did best, every trial with its scores, and how they were tried; all of it JSON-able.

    A trial: ``options``; ``score``, the mean over the seeds it ran on, None where it failed on one; ``scores`` by seed, with the
    distances and accuracies behind them; ``failed``, the reason, where it did.
    """

    method: str
    options: Options
    trials: tuple[Trial, ...]
    protocol: dict[str, Any]

    @property
    def score(self) -> float:
        """The winner's mean score."""
        return float(next(trial["score"] for trial in self.trials if trial["options"] == self.options))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {"method": self.method, "options": self.options, "trials": list(self.trials), "protocol": self.protocol}


def tune_baseline(
    run: Run,
    method: str,
    *,
    classes: Sequence[int | str] | None = None,
    ids: Sequence[int | str] | None = None,
    budget: int = BUDGET,
    survivors: int = SURVIVORS,
    validation: float = 0.2,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    fixed: Mapping[str, Any] | None = None,
    rehearsal: Rehearsal | None = None,
) -> TunedBaseline:
    """Choose a method's options for a request by ``budget`` trials, without the hold-out set and without the request's Retrain.

    ``rehearsal``: one from ``rehearse`` for this run and request, so that several methods share its trainings (``validation`` and
    ``seeds`` are then its own). ``seed`` decides the validation draw and which candidates are tried. ``budget``: trials, or all
    there are where the space is smaller; the ``survivors`` of them and the defaults go on to further seeds. ``grid``: axes to try
    in place of the method's search space; ``fixed``: options that every trial has. A trial that fails is kept with its reason.
    """
    _check_counts(budget, survivors)
    candidates, size = _candidates(method, grid, dict(fixed or {}), budget=budget, seed=seed)
    request = ForgetRequest(classes=classes, ids=ids)
    forget = tuple(run.data.ids[i] for i in request.resolve(run.data).forget.tolist())
    if rehearsal is None:
        rehearsal = rehearse(run, ids=forget, validation=validation, seed=seed, seeds=seeds)
    rehearsal.check(run, forget)
    trials, best = halved(rehearsal, method, candidates, survivors=survivors)
    protocol = {
        "budget": budget,
        "tried": len(trials),
        "space": size,
        "seed": seed,
        "seeds": [each.seed for each in rehearsal.seeds],
        "survivors": [number for number, trial in enumerate(trials) if len(trial["scores"]) == len(rehearsal.seeds)],
        "validation": {"share": rehearsal.share, "samples": len(rehearsal.validation), "seed": rehearsal.seed},
        "forget": len(forget),
        "whole_classes": list(rehearsal.whole_classes),
        "rehearsal_seconds": rehearsal.seconds,
        "nothing_done": statistics.fmean(each.judge(each.run.model)["score"] for each in rehearsal.seeds),
        "spread": rehearsal.spread,
    }
    return TunedBaseline(method, dict(best["options"]), tuple(trials), protocol)


def halved(rehearsal: Rehearsal, method: str, candidates: Sequence[Options], *, survivors: int) -> tuple[list[Trial], Trial]:
    """Every candidate on the first seed, then the best and the first one on the others: all trials, and the winner."""
    first, *others = rehearsal.seeds
    trials: list[Trial] = [{"options": options, "score": None, "scores": {}, "seconds": 0.0} for options in candidates]
    for trial in track(trials, f"tuning {method}"):
        _try(trial, first, method, rehearsal.forget)
    finite = [trial for trial in trials if trial["score"] is not None]
    if not finite:
        raise InputError(f"Every trial of {method!r} failed; the first said: {trials[0]['failed']}")
    best = sorted(finite, key=lambda trial: trial["score"])[:survivors]  # stable: the earlier one of equals
    finalists = [trial for trial in finite if trial is trials[0] or any(trial is each for each in best)]
    for each in others:
        for trial in track(finalists, f"tuning {method}, seed {each.seed}"):
            if trial["score"] is not None:
                _try(trial, each, method, rehearsal.forget)
    complete = [trial for trial in finalists if trial["score"] is not None]
    if not complete:
        raise InputError(f"Every trial of {method!r} that went on failed on a further seed; one said: {finalists[0]['failed']}")
    return trials, min(complete, key=lambda trial: trial["score"])


def _try(trial: Trial, rehearsal: SeedRehearsal, method: str, forget: tuple[str, ...]) -> None:
    """Unlearn on one seed, and put its score, or why there is none, into the trial."""
    options = trial["options"]
    share = not any(name in ROW_OPTIONS for name in options)  # rows at another point or place are not those of other trials
    seed_option = {"seed": rehearsal.seed} if "seed" in find_method(method).options else {}  # for methods that draw themselves
    linearisation = rehearsal.linearisation if share else None
    try:
        result = unlearn(rehearsal.run, ids=forget, method=method, linearisation=linearisation, **(seed_option | options))
        judgement = rehearsal.judge(result.model)
    except InputError as error:  # diverged; a wrong option would fail in every trial, and is then reported
        trial |= {"score": None, "failed": str(error)}
        return
    if share:
        rehearsal.linearisation = result.linearisation or rehearsal.linearisation
    trial["scores"][str(rehearsal.seed)] = judgement
    trial["score"] = statistics.fmean(each["score"] for each in trial["scores"].values())
    trial["seconds"] += result.seconds


def _check_counts(budget: int, survivors: int) -> None:
    for name, value in (("budget", budget), ("survivors", survivors)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} counts trials, from 1; got {value!r}.")


def _candidates(
    method: str, grid: Mapping[str, Sequence[Any]] | None, fixed: Options, *, budget: int, seed: int
) -> tuple[list[Options], int]:
    """``budget`` different sets of options, the defaults first, and how many there are."""
    space: Mapping[str, Sequence[Any]] = grid if grid is not None else METHODS[method].search_space if method in METHODS else {}
    if grid is None and not space:
        raise InputError(f"No search space for method {method!r}: give grid={{option: values}}, or tune one of {_known()}.")
    choices = find_method(method).options
    unknown = [name for name in [*space, *fixed] if name not in choices or (name in space and name in fixed)]
    if unknown or not space or not all(space.values()):
        raise InputError(
            f"grid: {method!r} takes {', '.join(choices) or 'nothing'}, each with a value or more, and none that is fixed; "
            f"got {dict(space)!r} and fixed {fixed!r}."
        )
    defaults = fixed | {name: choices[name].default for name in space}
    every = [fixed | dict(zip(space, values)) for values in itertools.product(*space.values())]
    others = [options for options in every if options != defaults]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed)).tolist()
    return [defaults, *(others[i] for i in order)][:budget], len(others) + 1


def _known() -> str:
    return ", ".join(name for name, method in METHODS.items() if method.search_space)
