"""A toy that overfits: random features, a tuned norm and head, labels half noise. Trains in a fraction of a second."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.auditing import AuditRecord, parse_record
from fastntk.data import Samples

PUBLISHED = Path(__file__).parents[2] / "results" / "audit" / "resnet20-100-class-0.json"
CLASSES, WIDTH = 3, 96


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    nn.init.zeros_(model[3].weight)
    nn.init.zeros_(model[3].bias)
    return model.eval()


def random_samples(count: int, *, seed: int, prefix: str) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    truth = inputs[:, :CLASSES].argmax(1)
    noise = torch.randint(0, CLASSES, (count,), generator=generator)
    labels = torch.where(torch.rand(count, generator=generator) < 0.5, noise, truth)
    return Samples(inputs, labels, ids=[f"{prefix}{number:04d}x" for number in range(count)], classes=["ant", "bee", "cat"])


@dataclass(frozen=True, eq=False)
class Toy:
    run: fastntk.Run
    holdout: Samples

    def ids(self, count: int) -> list[str]:
        return [self.run.data.ids[number] for number in range(0, 3 * count, 3)]


@pytest.fixture(scope="session")
def toy() -> Toy:
    model = network()
    subset = fastntk.tune(model, "norm+head")
    samples = random_samples(90, seed=0, prefix="train-")
    recipe = fastntk.Recipe(epochs=40, lr=5e-2, batch_size=45, weight_decay=0.0)
    return Toy(fastntk.fit(model, subset, samples, recipe), random_samples(240, seed=1, prefix="unseen-"))


def merged(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries put together; ``...`` takes a field away."""
    out = dict(whole)
    for name, value in part.items():
        if value is ...:
            out.pop(name, None)
        else:
            out[name] = merged(out[name], value) if isinstance(value, dict) and isinstance(out.get(name), dict) else value
    return out


@pytest.fixture(scope="session")
def record_with() -> Callable[..., AuditRecord]:
    """A published record with other figures, as parts of a dictionary laid over it one after the other."""
    published = json.loads(PUBLISHED.read_text("utf-8"))

    def make(*parts: dict[str, Any]) -> AuditRecord:
        content = copy.deepcopy(published)
        for part in parts:
            content = merged(content, part)
        return parse_record(content)

    return make
