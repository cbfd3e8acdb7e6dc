"""What every method is given: the run, the split, the route to take, and one checked engine for all that looks at the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from fastntk.base.errors import InputError
from fastntk.data import Split
from fastntk.planning import Route
from fastntk.tangent import RowEngine, checked_engine
from fastntk.tangent.linearisation import Linearisation, linearise
from fastntk.training.network import check_samples, fast_copy
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.unlearning.method import RowOptions


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
        if self.run.recipe is None:
            raise InputError(
                "This method replays the run's recipe, and the run has none. Give it: Run(..., recipe=Recipe(...)) with the "
                "settings the model was fine-tuned with; or use method='fast-ntk', which needs only the anchor."
            )
        return self.run.recipe

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
        asked = self.row_options
        if self.linearisation is None:
            assert self.route is not None
            assert self.route.rows != "none"
            self.linearisation = linearise(
                self.run,
                self.engine,
                at=asked.at,
                place=self.route.rows,
                folder=asked.folder,
                scratch=asked.scratch,
                chunk=asked.chunk,
            )
            self.stages["rows"] = self.linearisation.seconds
        return self.linearisation
