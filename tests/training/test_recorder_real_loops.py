"""Loops as real scripts have them: a disk that is full, weights written past autograd, passes that no step comes from."""

from __future__ import annotations

import copy
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.training.recorder import Recorder

N, CLASSES = 24, 4
LABELS = torch.arange(N) % CLASSES
IMAGES = torch.randn(N, 6, generator=torch.Generator().manual_seed(5))


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES))


def started(spec: str = "head", **record: object) -> tuple[nn.Sequential, torch.optim.Optimizer, Recorder]:
    model = network()
    subset = fastntk.tune(model, spec)
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=0.02)
    options = {"loss": F.cross_entropy} | record
    return model, optimizer, fastntk.record(model, subset, optimizer, **options)  # type: ignore[arg-type]


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder, *, gone: tuple[int, ...] = ()) -> None:
    for batch in torch.arange(N).split(8):
        kept = torch.tensor([k for k in batch.tolist() if k not in gone])
        with recorder.batch(kept, LABELS[kept]):
            optimizer.zero_grad()
            F.cross_entropy(model(IMAGES[kept]), LABELS[kept]).backward()
            optimizer.step()


# The disk


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """What is written beyond this many bytes of a file fails, as on a full disk: when buffers are flushed, and at every try."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("epochs", [1, 60], ids=["at the end", "on the way"])
@pytest.mark.filterwarnings("ignore:fastntk stopped recording")
def test_a_disk_that_stays_full_is_said_and_leaves_nothing(epochs: int, tmp_path: Path) -> None:
    model, optimizer, recorder = started(trace=tmp_path / "trace")
    with files_up_to(100):
        for _ in range(epochs):
            epoch(model, optimizer, recorder)
        with pytest.raises(InputError, match="too large"):
            recorder.finish()
    assert list(tmp_path.iterdir()) == []


# What is written past the optimiser


def _scaled(model: nn.Sequential, layer: int, name: str) -> None:
    getattr(model[layer], name).data.mul_(0.99)  # torch does not count what is written to .data


@pytest.mark.parametrize(("layer", "name"), [(3, "weight"), (3, "bias"), (1, "weight"), (1, "bias")])
def test_weights_written_past_autograd_are_noticed(layer: int, name: str) -> None:
    model, optimizer, recorder = started("norm+head")
    epoch(model, optimizer, recorder)
    _scaled(model, layer, name)
    with pytest.warns(UserWarning, match="parameters were changed"):
        epoch(model, optimizer, recorder)
    with pytest.raises(InputError, match="parameters were changed"):
        recorder.finish()


@pytest.mark.parametrize("when", ["cleared", "older", "before the first step"])
def test_a_state_of_the_optimiser_that_is_not_its_own_is_noticed(when: str) -> None:
    model, optimizer, recorder = started()
    epoch(model, optimizer, recorder)
    older = copy.deepcopy(optimizer.state_dict())
    if when == "before the first step":
        model, optimizer, recorder = started()
        optimizer.load_state_dict(older)
        with pytest.raises(InputError, match="optimiser's state .* was changed"):
            epoch(model, optimizer, recorder)
        return
    epoch(model, optimizer, recorder)
    if when == "cleared":
        optimizer.state.clear()
    else:
        optimizer.load_state_dict(older)
    with pytest.warns(UserWarning, match="optimiser's state .* was changed"):
        epoch(model, optimizer, recorder)
    with pytest.raises(InputError, match="optimiser's state .* was changed"):
        recorder.finish()


def test_the_same_state_loaded_again_is_no_change() -> None:
    model, optimizer, recorder = started()
    epoch(model, optimizer, recorder)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    epoch(model, optimizer, recorder)
    assert recorder.finish().trace.steps == 6
