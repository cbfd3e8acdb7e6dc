"""A request that was checked and planned, and its execution: from the method's new vector to a model with its evidence."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastntk.base.device import with_float64
from fastntk.base.digest import new_key
from fastntk.base.gradients import with_gradients
from fastntk.base.text import byte_size, duration
from fastntk.data import Split
from fastntk.models import device_of
from fastntk.planning import Plan
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.network import check_finite, working_copy
from fastntk.training.run import Run
from fastntk.unlearning.baselines.own_training import function_name
from fastntk.unlearning.method import ROW_OPTIONS, Method, Task
from fastntk.unlearning.residue import cannot_be_told, renew_statistics
from fastntk.unlearning.result import Unlearned, ids_digest

RETURNED = "As the training function returned them, with the rest of the model."


@dataclass(frozen=True, eq=False)
class Job:
    """A request that was checked and planned, ready to be executed: what was planned is what runs."""

    method: Method
    options: dict[str, Any]
    task: Task
    plan: Plan
    previous: Unlearned | None
    known: Linearisation | None
    """One that was there before; a method that needs none hands it on."""
    preparing_seconds: float
    because: str = ""
    """Why this method."""
    accepted: str | None = None
    """Why it is done although weights outside the subset may remember."""

    @property
    def outside(self) -> dict[str, Any]:
        """What is known of the weights outside the tuned subset."""
        return dict(self.plan.outside) | ({} if self.accepted is None else {"accepted": self.accepted})

    @property
    def leaves_open(self) -> bool:
        """Whether weights that this method does not reach may remember the samples."""
        return cannot_be_told(self.outside) and self.options.get("retrain") is None

    def facts(self) -> dict[str, str]:
        """What is about to happen, what it takes, and what Retrain would take: name and value, for people."""
        run, split, retrain = self.task.run, self.task.split, self.plan.retrain_seconds
        route = self.plan.route(self.method.name)
        words = [self.method.name, *(f"{name} {value}" for name, value in self._named_options().items())]
        memory = f", {byte_size(route.memory)} of memory" if route.memory else ""
        if retrain is None:
            beside = "no recipe is recorded, so Retrain's time is not known"
        else:
            beside = f"Retrain {duration(retrain)}" if math.isfinite(retrain) else "Retrain's is not known without images"
        estimate = f"{duration(route.seconds)}, from a short calibration ({beside})"
        return {
            "request": f"forget {len(split.forget):,} of {len(run.listed):,} samples",
            "method": ", ".join(words),
            "tuned": f"{run.subset.numel:,} parameters, {run.listed.num_classes} classes",
            "route": route.name.partition(": ")[2] + memory,
            "estimate": estimate if math.isfinite(route.seconds) else f"not known ({route.solver})",
        }

    def _named_options(self) -> dict[str, Any]:
        """The options for people and records: folders and functions by name."""
        options = {name: value for name, value in self.options.items() if name != "scratch"}  # holds nothing any more
        return {name: _named(value) for name, value in options.items()}

    @with_gradients
    def execute(self) -> Unlearned:
        """Do it."""
        started = time.perf_counter() - self.preparing_seconds
        task, origin = self.task, self.task.run
        task.route = self.plan.route(self.method.name)
        for_rows = ROW_OPTIONS if "rows" in self.method.needs else ()
        own = {name: value for name, value in self.options.items() if name not in for_rows}
        outcome = self.method.run(task, **own)
        vector = outcome.vector.to(origin.anchor.device)
        model = working_copy(origin) if outcome.model is None else outcome.model
        if outcome.model is None:
            for module, own_module in zip(model.modules(), origin.model.modules()):
                module.training = own_module.training
        else:
            model.train(origin.model.training)
        origin.subset.on(model).set(vector)
        check_finite(model, what=f"The model that {self.method.name} made")
        key = (self.previous.key if self.previous else origin.key) or new_key()
        details = {
            "method": self.method.name,
            "devices": _devices(origin, self.method),
            "method_because": self.because,
            "summary": self.method.summary,
            "options": self._named_options(),
            "request": _request_details(origin, task.split, self.previous, key),
            **outcome.details,
            **(renew_statistics(origin, model, task.split) if outcome.model is None else {"batch_norm_statistics": RETURNED}),
            "outside_subset": self.outside if outcome.model is None else {"status": "retrained", "message": RETURNED},
            "seconds": task.stages | {"total": time.perf_counter() - started},
            "peak_memory_bytes": _peak_memory(),
        }
        start = self.previous.subset.get() if self.previous else origin.subset.get()
        return Unlearned(
            run=origin,
            model=model,
            delta=vector - start,
            method=self.method.name,
            split=task.split,
            seconds=time.perf_counter() - started,
            details=details,
            linearisation=task.linearisation or self.known,
            trace=outcome.trace,
            key=key,
        )


def _request_details(run: Run, split: Split, previous: Unlearned | None, key: bytes) -> dict[str, Any]:
    """What was asked, without naming anybody: counts, classes and a keyed digest of the ids."""
    return {
        "forget": len(split.forget),
        "retain": len(split.retain),
        "whole_classes": list(split.whole_classes),
        "ids_digest": ids_digest(run.listed.subset(split.forget).ids, key) if len(split.forget) else None,
        "chained": previous is not None,
    }


def _named(value: Any) -> Any:
    """A JSON-able value of an option."""
    if isinstance(value, range):
        return list(value)
    return str(value) if isinstance(value, Path) else function_name(value) if callable(value) else value


def _devices(run: Run, method: Method) -> dict[str, str]:
    """Where what is done: the network on its own device; stored rows, traces and what is computed with them on the CPU."""
    network = device_of(run.model)
    if "rows" in method.needs:
        sums = with_float64(network)
        return {
            "network": str(network),
            "stored rows": "cpu",
            "sums of streamed rows": f"float64 on {sums}",
            "solves": "float64 on cpu",
        }
    return {"network": str(network)} | ({"replay": "cpu"} if method.name == "path-replay" else {})


def _peak_memory() -> int:
    """Peak resident bytes of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
