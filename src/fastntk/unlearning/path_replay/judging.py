"""What a replay predicts, how far two predictions are apart, and how far two seeds would be: all from the trace, without the
network.

Noise: the head is replayed without the forgotten samples in other batch orders. The body's part in the seed-to-seed spread is not
seen, so the noise is rather too small, and a climb that is compared with it goes rather too deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastntk.data import Split
from fastntk.training.run import Run
from fastntk.training.trace import Trace
from fastntk.unlearning.path_replay.columns import columns_of
from fastntk.unlearning.path_replay.replay import Lanes, Motion, replay
from fastntk.unlearning.update import some

SHUFFLES = 3
MOST = 512
"""Samples of each set that are looked at, evenly spaced."""


@dataclass(frozen=True, eq=False)
class Watched:
    """Some retained and some forgotten samples: their positions, labels and features at their last visit on the recorded path."""

    positions: Tensor
    forgotten: Tensor
    labels: Tensor
    features: Tensor


def watched(trace: Trace, split: Split, *, most: int = MOST) -> Watched:
    """Evenly spaced samples of both sets that were visited at least once."""
    last = trace.last_visits
    parts = [some(part[last[part] >= 0], most) for part in (split.retain, split.forget)]
    positions = torch.cat(parts)
    forget_mask = torch.cat([torch.zeros(len(parts[0]), dtype=torch.bool), torch.ones(len(parts[1]), dtype=torch.bool)])
    empty = torch.empty(0, trace.facts.features, dtype=trace.features.dtype)
    features = torch.cat([empty, *(trace.features.read(i, i + 1) for i in last[positions].tolist())])
    return Watched(positions, forget_mask, trace.listed.labels[positions], features)


def predicted(watch: Watched, lanes: Lanes, lane: int, *, step: int, motion: Motion | None, constant: Tensor | None) -> Tensor:
    """Logits (k, C) of the watched samples that the replay expects of a lane at its end."""
    h = watch.features.to(lanes.values)
    if motion is not None:
        h = h + motion.at(step, watch.positions).forward((lanes.body - lanes.body[:1])[[0, lane]])[1]
    offset = lanes.bias[lane] if lanes.bias is not None else 0.0 if constant is None else constant
    logits: Tensor = h @ lanes.head[lane].T + offset
    return logits


def change(first: Tensor, second: Tensor, watch: Watched) -> dict[str, float]:
    """Mean total variation on retained and forgotten samples, and the mean change of the forgotten samples' loss, of two sets of
    logits (k, C)."""
    p, q = first.double().softmax(1), second.double().softmax(1)
    apart = 0.5 * (p - q).abs().sum(1)
    rows = torch.arange(len(watch.labels))
    loss = (p[rows, watch.labels].clamp_min(1e-30).log() - q[rows, watch.labels].clamp_min(1e-30).log()).abs()
    sets = {"retain": ~watch.forgotten, "forget": watch.forgotten}
    figures = {name: float(apart[where].mean()) if bool(where.any()) else 0.0 for name, where in sets.items()}
    return figures | {"forget_loss": float(loss[watch.forgotten].mean()) if bool(watch.forgotten.any()) else 0.0}


def noise(run: Run, trace: Trace, watch: Watched, keep: Tensor) -> dict[str, float]:
    """The mean :func:`change` between replays of the head without the forgotten samples that differ in batch order only."""
    columns = columns_of(run, trace)
    anchor = columns.anchor(run, trace)
    outputs: list[Tensor] = []
    for shuffle in range(SHUFFLES):

        def order(epoch: int, visits: int, shuffle: int = shuffle) -> Tensor:
            return torch.from_numpy(np.random.default_rng([shuffle, epoch]).permutation(visits))

        lanes = replay(trace, anchor, keep.unsqueeze(0), spans=columns.spans, order=order, description="noise of seeds").lanes
        outputs.append(predicted(watch, lanes, 1, step=trace.steps, motion=None, constant=anchor.get("constant")))
    pairs = [change(outputs[i], outputs[j], watch) for i in range(SHUFFLES) for j in range(i)]
    return {name: sum(pair[name] for pair in pairs) / len(pairs) for name in pairs[0]}


def within(figures: dict[str, float], limit: dict[str, float]) -> bool:
    """Whether every change is below the noise."""
    return all(value <= limit[name] for name, value in figures.items())


def rounded(figures: dict[str, float]) -> dict[str, Any]:
    """For records."""
    return {name: float(f"{value:.3g}") for name, value in figures.items()}
