"""The network beside a trace: blocks, rows at points of the path, true features. What it makes is kept for later requests.

Everything here needs the images; a replay of the head does not come here. One of these lives in ``trace.memo`` as long as the
trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fastntk.base.gradients import write_count
from fastntk.models import logits
from fastntk.tangent import RowEngine
from fastntk.tangent.blocks import Block, blocks
from fastntk.tangent.guards import HANDFUL, check_inputs, check_mode, check_outputs, check_rows
from fastntk.tangent.in_memory import rows_in_memory
from fastntk.tangent.on_disk import rows_in_scratch
from fastntk.training.network import check_samples, fast_copy, fast_layout
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.path_replay.columns import columns_of
from fastntk.unlearning.path_replay.motion import Checkpoint


class PathNetwork:
    """A working copy of the run's model that is moved along the path. ``seconds``: what rows and features took."""

    def __init__(self, run: Run, trace: Trace) -> None:
        check_samples(run.model, run.data)
        self.run, self.trace, self.state = run, trace, _state(run)
        self._work = fast_copy(run)
        self._subset = run.subset.on(self._work)
        self._kept: dict[tuple[int, int], Checkpoint] = {}
        self._features: dict[int, Tensor] = {}
        self.seconds: dict[str, float] = {}
        check_mode(self._work)
        handful = run.data.inputs[:HANDFUL]
        check_inputs(self._work, self._subset, handful)
        self.engine = RowEngine(self._work, self._subset, handful)
        self._checked = False

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Of the body, from the head inwards, up to the first with a parameter whose path the trace does not have."""
        sequence = []
        for block in blocks(self.engine):
            if not set(block.parameters) <= set(self.trace.facts.body):
                break
            sequence.append(block)
        return tuple(sequence)

    def names(self, depth: int) -> tuple[str, ...]:
        """Tuned parameters of the last ``depth`` blocks."""
        return tuple(name for block in self.blocks[:depth] for name in block.parameters)

    def numbers(self, depth: int) -> int:
        """How many numbers those are."""
        return sum(self.run.subset.parameters[name].numel() for name in self.names(depth))

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """By depth 0, 1, …: floating-point operations for the rows of one image over those of one training pass of it.

        Counted, not timed: the same on every machine.
        """
        with self.engine.lock:
            image = self.run.data.inputs[:1]
            forward = self._operations(lambda: self.engine.outputs(image))
            vector = self.run.subset.get()
            targets = None if self.trace.targets is None else self.trace.targets.read(0, 1)
            training = self._operations(lambda: self.gradient(vector, torch.zeros(1, dtype=torch.long), targets))
            costs = [0.0]
            for depth in range(1, len(self.blocks) + 1):
                engine = self._engine(depth)
                if engine.generic:
                    rows = self._operations(lambda engine=engine: engine.rows(image))  # type: ignore[misc]
                else:
                    one = self._operations(lambda engine=engine: engine.probed_rows(image, self._probe()))  # type: ignore[misc]
                    rows = forward + max(1, self.engine.backwards) * max(0.0, one - forward)
                costs.append(rows / max(training, 1.0))
        return tuple(costs)

    def _probe(self) -> Tensor:
        probe = torch.zeros(1, self.engine.classes, 1, dtype=self.engine.dtype)
        probe[:, 0] = 1
        return probe

    @staticmethod
    def _operations(work: Callable[[], object]) -> float:
        """Floating-point operations, counted."""
        with FlopCounterMode(display=False) as counter:
            work()
        return float(counter.get_total_flops())

    def _engine(self, depth: int) -> RowEngine:
        """Stops its backward passes at the deepest parameter of this depth."""
        facts = self.trace.facts
        head = [name for name in (facts.head_weight, facts.head_bias) if name is not None]
        return self.engine.truncated((*self.names(depth), *head))

    def check(self) -> None:
        """The guards of rows, once."""
        if self._checked:
            return
        self._subset.set(self.run.subset.get())
        handful = self.run.data.inputs[:HANDFUL]
        check_outputs(self._work, handful)
        self._checked = True

    def rows(
        self, depth: int, epochs: Sequence[int], *, place: str, scratch: str | Path | None, chunk: int | None
    ) -> tuple[list[Checkpoint], float]:
        """Rows at the starts of these epochs (or the end), and the seconds they took, now or before."""
        points, seconds = [], 0.0
        with self.engine.lock:
            for epoch in epochs:
                if not self._depths_kept(epoch, depth):
                    started = time.perf_counter()
                    self._kept[depth, epoch] = self._rows(depth, epoch, place=place, scratch=scratch, chunk=chunk)
                    self.seconds[f"rows, depth {depth}, epoch {epoch}"] = time.perf_counter() - started
                source_depth = min(self._depths_kept(epoch, depth))
                seconds += self.seconds[f"rows, depth {source_depth}, epoch {epoch}"]
                points.append(self._cut(self._kept[source_depth, epoch], source_depth, depth))
        assert all(point.of(torch.arange(1)).shape[2] == self.numbers(depth) for point in points)
        return points, seconds

    def has_rows(self, depth: int, epochs: Sequence[int]) -> bool:
        """Whether all of them are here already."""
        return all(self._depths_kept(epoch, depth) for epoch in epochs)

    def _depths_kept(self, epoch: int, least: int) -> list[int]:
        """Depths, from ``least`` on, that have rows at this epoch."""
        return [depth for depth, other in self._kept if other == epoch and depth >= least]

    def _cut(self, point: Checkpoint, have: int, want: int) -> Checkpoint:
        if have == want:
            return point
        wider = columns_of(self.run, self.trace, self.names(have)).body
        narrow = columns_of(self.run, self.trace, self.names(want)).body
        places = torch.searchsorted(*(columns.sort().values for columns in (wider, narrow)))
        order = wider.argsort()[places]
        back = torch.empty_like(order)
        back[narrow.argsort()] = order
        return point.cut(back)

    def _rows(self, depth: int, epoch: int, *, place: str, scratch: str | Path | None, chunk: int | None) -> Checkpoint:
        trace, inputs = self.trace, self.run.data.inputs
        assert trace.weights is not None
        self.check()
        weights = trace.weights[epoch]
        self._subset.set(weights)
        engine = self._engine(depth)
        check_rows(engine, inputs[:2])
        if place == "memory":
            rows = rows_in_memory(engine, inputs, chunk=chunk)
        else:
            rows = rows_in_scratch(engine, inputs, scratch, chunk=chunk, samples_digest=self.run.data.digest())
        own = engine.subset.slices
        where = torch.cat([torch.arange(own[name].start, own[name].stop) for name in trace.facts.body if name in own])
        position = torch.empty(engine.subset.numel, dtype=torch.long)
        position[rows.layout.body_columns] = torch.arange(len(rows.layout.body_columns))
        order = position[where]
        point = Checkpoint(int(trace.epoch_steps[epoch]), rows.body, self.lift(epoch), on_disk=place == "disk")
        return point if torch.equal(order, torch.arange(len(order))) else point.cut(order)

    def lift(self, epoch: int) -> Tensor:
        """W⁺ (H, C) of the head at the start of an epoch."""
        facts = self.trace.facts
        assert self.trace.weights is not None
        head = self.trace.weights[epoch][columns_of(self.run, self.trace).head].view(facts.classes, facts.features)
        lift: Tensor = torch.linalg.pinv(head.double(), rtol=1e-6).to(head)
        return lift

    def features(self, vector: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (k, C) and true features (k, H) of the samples at these positions, with this tuned vector, on the CPU."""
        inputs = self.run.data.inputs if positions is None else self.run.data.inputs[positions]
        with self.engine.lock:
            self._subset.set(vector)
            outputs, features = self.engine.outputs(inputs)
        assert features is not None
        return outputs, features

    def gradient(
        self, vector: Tensor, positions: Tensor, targets: Tensor | None = None, parts: Sequence[tuple[slice, float]] = ()
    ) -> tuple[Tensor, Tensor]:
        """The gradient (d,) of these samples' mean loss at this tuned vector, and their features (k, H), on the CPU.

        ``targets``: what they are trained towards, None for their labels. ``parts``: batches of which the loss is a weighted sum.
        """
        with self.engine.lock:
            self._subset.set(vector)
            parameters = self._subset.parameters
            head = self._work.get_submodule(self.trace.facts.head_weight.rpartition(".")[0])
            head_inputs: list[Tensor] = []
            hook = head.register_forward_pre_hook(lambda module, args: head_inputs.append(args[0].detach()))
            try:
                with torch.enable_grad():
                    outputs = logits(self._work, fast_layout(self._work, self.run.data.inputs[positions]))
                    labels = self.run.data.labels[positions] if targets is None else targets
                    labels = labels.to(outputs.device)
                    batches = parts or ((slice(None), 1.0),)
                    loss = sum(
                        (share * self.trace.loss.mean(outputs[part], labels[part]) for part, share in batches),
                        torch.zeros(()).to(outputs),
                    )
                    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
            finally:
                hook.remove()
        return torch.cat([gradient.reshape(-1) for gradient in gradients]).cpu(), head_inputs[0].cpu()

    def recorded_features(self, epoch: int) -> Tensor:
        """Of all samples at the start of an epoch of the recorded path (n, H); kept."""
        if epoch not in self._features:
            assert self.trace.weights is not None
            started = time.perf_counter()
            self._features[epoch] = self.features(self.trace.weights[epoch])[1]
            self.seconds[f"features, epoch {epoch}"] = time.perf_counter() - started
        return self._features[epoch]


def network_of(run: Run, trace: Trace) -> PathNetwork:
    """The one kept with the trace, for this run's weights and images as they are now."""
    with _LOCK:
        network = trace.memo.get("network")
        if not isinstance(network, PathNetwork) or network.state != _state(run):
            network = PathNetwork(run, trace)
            trace.memo["network"] = network
        return network


_LOCK = threading.Lock()


def _state(run: Run) -> tuple[object, ...]:
    """Changes where the model or the data is another one, or torch saw it written to."""
    versions = tuple(write_count(tensor) for tensor in (*run.model.parameters(), *run.model.buffers()))
    return id(run.model), id(run.data), run.data.version, versions
