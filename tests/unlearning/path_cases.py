"""Small runs with a trace, and the replay of a head the slow and obvious way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.digest import tensor_digest
from fastntk.training.optimizers import Group
from fastntk.training.trace import TraceFacts
from fastntk.training.trace_writer import TraceWriter

NAMES = ("ant", "bee", "cat", "dog")


def points(n: int = 40, *, dtype: torch.dtype = torch.float64, seed: int = 5) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    inputs = torch.randn(4, 6, generator=generator)[labels] + 0.8 * torch.randn(n, 6, generator=generator)
    return fastntk.Samples(inputs.to(dtype), labels, ids=[f"p{i}" for i in range(n)], classes=NAMES)


def recipe(**options: Any) -> fastntk.Recipe:
    return fastntk.Recipe(**{"epochs": 3, "lr": 0.02, "batch_size": 8, "weight_decay": 0.01} | options)


def head_run(*, dtype: torch.dtype = torch.float64, bias: bool = True, spec: str = "head", **options: Any) -> fastntk.Run:
    """Only the head is tuned."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=bias)).to(dtype).eval()
    return fastntk.fit(model, fastntk.tune(model, spec), points(dtype=dtype), recipe(**options), trace=True)


class Layers(nn.Module):
    """Three norms before the head, each a block; what a user might write."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 7)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 7), nn.Tanh()) for _ in range(3))
        self.out = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x)


def body_run(*, dtype: torch.dtype = torch.float64, trace: Any = True, **options: Any) -> fastntk.Run:
    """Norms and head are tuned."""
    torch.manual_seed(4)
    model = Layers().to(dtype).eval()
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), points(dtype=dtype), recipe(**options), trace=trace)


def traced_head(
    batches: Sequence[Sequence[int]], *, epochs: int = 2, n: int = 12, **facts: Any
) -> tuple[fastntk.Run, list[tuple[list[int], Tensor]]]:
    """A run whose trace was written batch by batch (the same in every epoch, other features at every visit), and those visits."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 4)).double().eval()
    subset = fastntk.tune(model, "head")
    anchor, samples = subset.get(), points(n)
    visits = [(list(batch), torch.randn(len(batch), 3, dtype=torch.float64)) for _ in range(epochs) for batch in batches]
    known: dict[str, Any] = {"optimizer": "Adam", "penalty": 0.01, "loss": "cross-entropy"} | facts
    options = known.pop("options", {})
    stated = known | {"groups": (Group(subset.names, options),)}
    writer = TraceWriter(features=3, body=0, width=subset.numel, dtype=torch.float64, half=False, gradients=True)
    for step, (batch, features) in enumerate(visits):
        if step % len(batches) == 0:
            writer.epoch(anchor)
        writer.step(torch.tensor(batch), features, anchor[:0], rate=0.05 / (1 + step), clip=1.0)
    if known["optimizer"] in ("Adam", "SGD"):
        subset.set(slow_head(anchor, visits, samples.labels, known | {"options": options}))
    writer.epoch(subset.get())
    trace, _ = writer.finish(
        TraceFacts(
            classes=4, features=3, head_weight="0.weight", head_bias="0.bias", body=(), left=(),
            anchor=tensor_digest(anchor), trained=tensor_digest(subset.get()), **stated,
        ),
        samples,
    )  # fmt: skip
    return fastntk.Run(model, subset, anchor, None, trace=trace), visits


def slow_head(
    anchor: Tensor, visits: Sequence[tuple[list[int], Tensor]], labels: Tensor, facts: dict[str, Any], gone: Sequence[int] = ()
) -> Tensor:
    """The head trained on these features without some samples, by torch's own layer, loss and optimiser."""
    head = nn.Linear(3, 4).double()
    start = [anchor[:12].view(4, 3), anchor[12:]]
    with torch.no_grad():
        for parameter, value in zip(head.parameters(), start):
            parameter.copy_(value)
    optimizer = getattr(torch.optim, facts["optimizer"])(head.parameters(), lr=1.0, **facts.get("options", {}))
    for step, (batch, features) in enumerate(visits):
        stay = [k for k, sample in enumerate(batch) if sample not in gone]
        if not stay:
            continue
        loss = nn.functional.cross_entropy(head(features[stay]), labels[[batch[k] for k in stay]])
        loss = loss + 0.5 * facts["penalty"] * sum((p - s).square().sum() for p, s in zip(head.parameters(), start))
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + step)
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in head.parameters()])


def without(run: fastntk.Run, *, method: str = "path-replay", depth: Any = None, **options: Any) -> fastntk.Unlearned:
    """A request, by path-replay at a depth or by another method."""
    return fastntk.unlearn(run, method=method, **({} if depth is None else {"depth": depth}), **options)


def theta(made: fastntk.Unlearned | fastntk.Run) -> Tensor:
    return made.subset.get()
