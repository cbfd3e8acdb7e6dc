"""Loops as real scripts have them: a disk that is full, weights written past autograd, passes that no step comes from."""

from __future__ import annotations

import copy
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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
        with pytest.raises(InputError, match=r"optimiser's state .* was changed"):
            epoch(model, optimizer, recorder)
        return
    epoch(model, optimizer, recorder)
    if when == "cleared":
        optimizer.state.clear()
    else:
        optimizer.load_state_dict(older)
    with pytest.warns(UserWarning, match=r"optimiser's state .* was changed"):
        epoch(model, optimizer, recorder)
    with pytest.raises(InputError, match=r"optimiser's state .* was changed"):
        recorder.finish()


def test_the_same_state_loaded_again_is_no_change() -> None:
    model, optimizer, recorder = started()
    epoch(model, optimizer, recorder)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    epoch(model, optimizer, recorder)
    assert recorder.finish().trace.steps == 6


# Passes of the head that no step comes from, and several of one batch


def losses(model: nn.Module, batch: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    return F.cross_entropy(model(IMAGES[batch] + noise), LABELS[batch])


def looks(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, recorder: Recorder | None) -> None:
    """Accuracies after the step, gradients enabled: on the batch, on some others."""
    with recorder.batch(batch, LABELS[batch]) if recorder else nullcontext():
        optimizer.zero_grad()
        losses(model, batch).backward()
        optimizer.step()
        model(IMAGES[batch])
        for others in torch.arange(N).split(10):
            model(IMAGES[others])


def two_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, recorder: Recorder | None) -> None:
    with recorder.batch(batch, LABELS[batch]) if recorder else nullcontext():
        for noise in (0.0, 0.1):
            optimizer.zero_grad()
            losses(model, batch, noise).backward()
            optimizer.step()


def two_views(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, recorder: Recorder | None) -> None:
    """As the refusal of two passes advises."""
    optimizer.zero_grad()
    for noise in (0.0, 0.1):
        with recorder.batch(batch, LABELS[batch]) if recorder else nullcontext():
            (losses(model, batch, noise) / 2).backward()
    optimizer.step()


def passed_over(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, recorder: Recorder | None) -> None:
    """A step that has no gradient, as Lightning takes where training_step returns None."""
    with recorder.batch(batch, LABELS[batch]) if recorder else nullcontext():
        optimizer.zero_grad()
        if 9 not in batch:
            losses(model, batch).backward()
        optimizer.step()


@pytest.mark.parametrize(("work", "steps"), [(looks, 9), (two_steps, 18), (two_views, 9), (passed_over, 6)])
@pytest.mark.filterwarnings("ignore:a batch of 8 samples was announced")
def test_passes_are_told_apart(work: Callable[..., None], steps: int) -> None:
    model, optimizer, recorder = started()
    other = network()
    without = torch.optim.AdamW(fastntk.tune(other, "head").parameters.values(), lr=0.02)
    gone = [0, 5, 17]
    for number in range(9):
        batch = torch.arange(N).split(8)[number % 3]
        work(model, optimizer, batch, recorder)
        work(other, without, torch.tensor([k for k in batch.tolist() if k not in gone]), None)
    run = recorder.finish()
    assert run.trace.steps == steps
    assert run.trace.epochs == 3 or work is two_views  # two batches of each
    result = fastntk.unlearn(run, ids=gone, method="path-replay", depth="head")
    wanted = torch.cat([parameter.detach().flatten() for parameter in other[3].parameters()])
    assert float((run.subset.get() + result.delta - wanted).norm()) < 1e-5
    assert float((run.subset.get() - wanted).norm()) > 1e-2


def test_a_gradient_of_one_of_several_later_passes_is_refused() -> None:
    model, optimizer, recorder = started()
    batch = torch.arange(8)
    with recorder.batch(batch, LABELS[batch]):
        losses(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = losses(model, batch)
        losses(model, batch, 0.1)
        with pytest.warns(UserWarning, match=r"two forward passes .* torch\.no_grad"):
            loss.backward()
        optimizer.step()
    with pytest.raises(InputError, match="two forward passes"):
        recorder.finish()


def test_checkpointing_that_ends_before_the_head_is_recorded_and_of_the_head_named() -> None:
    batch = torch.arange(8)
    model, optimizer, recorder = started("norm+head")
    with recorder.batch(batch, LABELS[batch]):
        features = torch.utils.checkpoint.checkpoint(model[:3], IMAGES[batch], use_reentrant=False)
        F.cross_entropy(model[3](features), LABELS[batch]).backward()
        optimizer.step()
    assert recorder.finish().trace.steps == 1
    model, _, recorder = started("norm+head")
    with recorder.batch(batch, LABELS[batch]):
        outputs = torch.utils.checkpoint.checkpoint(model, IMAGES[batch], use_reentrant=False)
        with pytest.raises(InputError, match=r"two forward passes .* checkpointing .* let it end before the head"):
            F.cross_entropy(outputs, LABELS[batch]).backward()


def test_a_head_whose_hooks_are_passed_by_is_named() -> None:
    """As in a model that was compiled, and used, before it was recorded."""
    model, optimizer, recorder = started()
    batch = torch.arange(8)
    with recorder.batch(batch, LABELS[batch]):
        F.cross_entropy(F.linear(model[:3](IMAGES[batch]), model[3].weight, model[3].bias), LABELS[batch]).backward()
        with pytest.raises(InputError, match=r"the head saw no images .* compiled and used before record"):
            optimizer.step()


# What is said


def test_a_wrapper_is_told_from_another_model() -> None:
    model, optimizer, recorder = started()
    with pytest.raises(InputError, match=r"inside this DataParallel.*model\.module"):
        fastntk.record(nn.DataParallel(model), recorder.subset, optimizer, loss=F.cross_entropy)


@pytest.mark.parametrize(("strength", "said"), [(1e-3, True), (1e-6, False)])
def test_a_small_penalty_on_the_head_is_said(strength: float, said: bool) -> None:
    model, optimizer, recorder = started()
    for batch in torch.arange(N).split(8):
        with recorder.batch(batch, LABELS[batch]):
            optimizer.zero_grad()
            (losses(model, batch) + strength * model[3].weight.square().sum()).backward()
            optimizer.step()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        recorder.finish()
    assert [str(each.message) for each in found if "something else than the loss given" in str(each.message)] != [] or not said
    assert said or not found


def test_a_model_that_goes_on_after_its_head_is_recorded_with_a_loss_that_does() -> None:
    def cooled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(4 * outputs, targets)

    for loss in (F.cross_entropy, cooled):
        model, optimizer, recorder = started(loss=loss)
        batch = torch.arange(8)
        with recorder.batch(batch, LABELS[batch]):
            cooled(model(IMAGES[batch]), LABELS[batch]).backward()
            if loss is cooled:
                optimizer.step()
                continue
            with pytest.raises(InputError, match="where the model goes on from there"):
                optimizer.step()
    assert recorder.finish().trace.steps == 1


# Best weights


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("spec", ["head", "norm+head"])
def test_best_weights_loaded_at_the_end_are_where_the_path_ends(spec: str, where: str, tmp_path: Path) -> None:
    """Two epochs of four, accumulated, with an option that changed later: the record is that of a training of two epochs."""
    runs = []
    for epochs in (2, 4):
        model, optimizer, recorder = started(spec, trace=True if where == "memory" else tmp_path / f"{epochs}")
        for number in range(epochs):
            if number == 2:
                best = copy.deepcopy(model.state_dict())
                optimizer.param_groups[0]["weight_decay"] = 0.3
            for batch in torch.arange(N).split(8):
                optimizer.zero_grad()
                for part in batch.split(4):
                    with recorder.batch(part, LABELS[part]):
                        (losses(model, part) / 2).backward()
                optimizer.step()
        if epochs == 2:
            runs.append(recorder.finish())
            continue
        model.load_state_dict(best)
        with pytest.warns(UserWarning, match="those after step 6 of 12, as where the best"):
            runs.append(recorder.finish())
    short, cut = (run.trace for run in runs)
    assert (cut.steps, cut.epochs, cut.visits) == (short.steps, short.epochs, short.visits) == (6, 2, 2 * N)
    for name, series in short.series.items():
        assert torch.equal(series.to_memory(), cut.series[name].to_memory())
    for ids in ([], [0, 5]):
        wanted, found = (fastntk.unlearn(run, ids=ids, method="path-replay", depth="head").delta for run in runs)
        assert float((wanted - found).norm()) < 1e-6
        assert (float(found.norm()) > 1e-3) == bool(ids)


def test_weights_that_the_path_never_had_are_refused() -> None:
    model, optimizer, recorder = started()
    epoch(model, optimizer, recorder)
    model[3].load_state_dict({name: 1.01 * value for name, value in model[3].state_dict().items()})
    with pytest.raises(InputError, match="path does not lead to them"):
        recorder.finish()


# BatchNorm


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_of_a_recorded_loop_are_said_to_be_an_approximation(training: bool) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)).train(training)
    subset = fastntk.tune(model, "head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=0.02)
    recorder = fastntk.record(model, subset, optimizer, loss=F.cross_entropy)
    epoch(model, optimizer, recorder)
    result = fastntk.unlearn(recorder.finish(), ids=[3], method="path-replay", depth="head")
    assert ("batch statistics" in result.details.get("note", "")) == training
