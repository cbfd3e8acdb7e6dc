"""A method of unlearning, as data: what it is called and does, runs, costs, needs, takes, and how it is tuned; what it is given,
a :class:`Task`, and gives back, an :class:`Outcome`.

Everything else (command line, plans, reports, tuning, tables) reads this. A method is one file that ends in
``METHOD = Method(…)`` and one line in :mod:`fastntk.unlearning.registry`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_type_hints

from torch import Tensor, nn

from fastntk.base.errors import InputError
from fastntk.base.numbers import plain
from fastntk.data import Split
from fastntk.planning import Problem, Route
from fastntk.tangent import RowEngine, checked_engine
from fastntk.tangent.linearisation import Linearisation, Point, RowsAt, check_choices, linearise
from fastntk.training.network import check_samples, fast_copy
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.training.trace import Trace

Need = Literal["recipe", "rows", "engine", "trace", "images"]
"""``recipe``: how the run was trained; ``rows``: the linearisation; ``engine``: gradients of single samples; ``trace``: the
recorded path of the fine-tuning; ``images``: the run's samples."""


@dataclass(frozen=True)
class Outcome:
    """What a method gives back: the new tuned vector (d,), and details."""

    vector: Tensor
    details: dict[str, Any]
    trace: Trace | None = None
    """The path to it, retained samples only, where the method walked one."""
    model: nn.Module | None = None
    """A model of its own that has this vector, where more than the vector is new."""


@dataclass(frozen=True)
class RowOptions:
    """Where the linearisation is taken and its rows are kept: options of every method that needs rows.

    ``at``: the point. ``rows``: ``memory``, ``disk``, ``stream`` (never stored) or ``auto``, the first of them that fits.
    ``folder``: rows on disk for later requests, resumable; without one they go to ``scratch`` (default: the system's folder for
    temporary files) and are gone afterwards. Budgets in bytes; ``chunk``: images whose rows are made at a time.
    """

    at: Point = "trained"
    rows: RowsAt = "auto"
    folder: str | Path | None = None
    scratch: str | Path | None = None
    memory_budget: int | None = None
    disk_budget: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_choices(self.at, self.rows)
        if self.scratch is not None and not Path(self.scratch).is_dir():
            raise InputError(f"scratch={str(self.scratch)!r} is no folder: give one that exists, or leave it out.")


ROW_OPTIONS = tuple(option.name for option in fields(RowOptions))


def recipe_of(run: Run) -> Recipe:
    """The run's recipe, or an error that says what to do without one."""
    if run.recipe is None:
        other = "'fast-ntk', which needs only the anchor" if run.trace is None else "'path-replay', which walks along its trace"
        raise InputError(
            "This method replays the run's recipe, and the run has none. Give it: Run(..., recipe=Recipe(...)) with the "
            f"settings the model was fine-tuned with; or use method={other}. A Retrain can be made by a training function of "
            "your own: method='retrain', retrain=function."
        )
    return run.recipe


def trace_of(run: Run) -> Trace:
    """The run's trace, or an error that says what to do without one."""
    if run.trace is None:
        raise InputError(
            "This run has no trace, and this method walks along the recorded fine-tuning. fit(..., trace=True) records one, and "
            "so does the command finetune; without one use method='tangent-replay', which needs the recipe, or 'fast-ntk', "
            "which needs only the anchor."
        )
    return run.trace


@dataclass(eq=False)
class Task:
    """A request on a run. ``stages``: seconds by stage, filled in as they pass."""

    run: Run
    split: Split
    linearisation: Linearisation | None = None
    row_options: RowOptions = field(default_factory=RowOptions)
    route: Route | None = None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def keep(self) -> Tensor:
        """True for samples that stay, (n,)."""
        return self.split.keep

    @property
    def recipe(self) -> Recipe:
        """The run's recipe, or an error that says what to do without one."""
        return recipe_of(self.run)

    @property
    def trace(self) -> Trace:
        """The run's trace, or an error that says what to do without one."""
        return trace_of(self.run)

    @cached_property
    def engine(self) -> RowEngine:
        """The engine on a working copy of the run's model, guarded once; that of the linearisation where there is one."""
        if self.linearisation is not None:
            return self.linearisation.engine
        check_samples(self.run.model, self.run.data)
        work = fast_copy(self.run)
        return checked_engine(work, self.run.subset.on(work), self.run.data.inputs)

    def linearised(self) -> Linearisation:
        """The linearisation that was handed in, or a new one by the route."""
        row_options = self.row_options
        if self.linearisation is None:
            assert self.route is not None
            assert self.route.rows != "none"
            self.linearisation = linearise(
                self.run,
                self.engine,
                at=row_options.at,
                place=self.route.rows,
                folder=row_options.folder,
                scratch=row_options.scratch,
                chunk=row_options.chunk,
            )
            self.stages["rows"] = self.linearisation.seconds
        return self.linearisation


@dataclass(frozen=True)
class Option:
    """One keyword of a method: its type and default."""

    kind: Any
    default: Any


@dataclass(frozen=True, eq=False)
class Method:
    """``run(task, *, option=default, …)`` computes the new tuned vector on copies; ``cost(problem)`` names its routes in order of
    preference. ``summary`` completes the sentence "It was unlearned by …"; ``search_space``: values of options to try when it is
    tuned as a baseline (none: it is not). ``survey(run, options)``: what its cost has to know of the run besides counts.
    ``spared(options)``: which of its needs these options make unnecessary.
    """

    name: str
    summary: str
    run: Callable[..., Outcome]
    cost: Callable[[Problem], Sequence[Route]]
    needs: frozenset[Need] = frozenset()
    search_space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    survey: Callable[[Run, dict[str, Any]], Any] | None = None
    spared: Callable[[Mapping[str, Any]], frozenset[Need]] | None = None

    def needed(self, options: Mapping[str, Any]) -> frozenset[Need]:
        """What it needs with these options."""
        return self.needs if self.spared is None else self.needs - self.spared(self.filled(options))

    @cached_property
    def options(self) -> dict[str, Option]:
        """Keywords of ``run``, and of the rows where it needs them."""
        hints = get_type_hints(self.run)
        parameters = inspect.signature(self.run).parameters.values()
        own = {p.name: Option(hints.get(p.name, Any), p.default) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return own | (_row_options() if "rows" in self.needs else {})

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, numbers as plain ones, or a refusal that lists the known ones."""
        unknown = [name for name in options if name not in self.options]
        if unknown:
            names = ", ".join(self.options) or "none"
            raise InputError(f"Method {self.name!r} has no option {', '.join(unknown)}; it takes: {names}.")
        return {name: plain(value) for name, value in options.items()}

    def filled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, defaults where none was given."""
        return {name: option.default for name, option in self.options.items()} | dict(options)


def _row_options() -> dict[str, Option]:
    hints = get_type_hints(RowOptions)
    return {option.name: Option(hints[option.name], option.default) for option in fields(RowOptions)}
