"""The recorded path: recording changes no weight, a folder vouches for every byte, and what does not belong is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.digest import json_digest
from fastntk.base.errors import DivergedError, InputError
from fastntk.training import recording
from fastntk.training import trace_writer as traces
from fastntk.training.loop import epoch_batches, learning_rate
from fastntk.training.optimizers import KNOWN, Group, Span, StackOptimizer
from fastntk.training.recording import FitRecorder, trace_size
from fastntk.training.series import Series, SeriesWriter
from fastntk.training.trace import Trace
from fastntk.training.trace_folder import HEADER, read_trace, write_trace


def samples(n: int = 20, *, seed: int = 0) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(seed)
    return fastntk.Samples(torch.randn(n, 3, 6, 6, generator=generator), torch.arange(n) % 3, classes=["a", "b", "c"])


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()  # fmt: skip


def fitted(trace: Any = True, *, spec: str = "norm+head", model: nn.Module | None = None, **options: Any) -> fastntk.Run:
    model = net() if model is None else model
    recipe = fastntk.Recipe(**{"epochs": 2, "lr": 0.02, "batch_size": 8} | options)
    return fastntk.fit(model, fastntk.tune(model, spec), samples(), recipe, trace=trace)


def recorded(run: fastntk.Run) -> Trace:
    assert run.trace is not None
    return run.trace


@pytest.fixture(scope="module")
def run() -> fastntk.Run:
    return fitted()


# -- recording ------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("bn_stats", ["frozen", "update"])
def test_the_weights_are_the_same_bytes_with_and_without(
    optimizer: str, schedule: str, loss: str, bn_stats: str, tmp_path: Path
) -> None:
    options = {"optimizer": optimizer, "schedule": schedule, "loss": loss, "bn_stats": bn_stats}
    plain, memory, folder = (fitted(trace, **options) for trace in (None, True, tmp_path / "trace"))
    assert plain.trace is None
    for run in (memory, folder):
        assert all(torch.equal(value, run.model.state_dict()[name]) for name, value in plain.model.state_dict().items())
        assert [each["loss"] for each in run.history] == [each["loss"] for each in plain.history]
    one, other = recorded(memory), recorded(folder)
    assert one.facts == other.facts
    for name, series in one.series.items():
        assert torch.equal(series.to_memory(), other.series[name].to_memory())


def test_what_is_recorded_is_what_happened(run: fastntk.Run) -> None:
    trace, recipe = recorded(run), run.recipe
    assert recipe is not None
    assert (trace.epochs, trace.steps, trace.visits) == (2, 6, 40)
    assert trace.epoch_steps.tolist() == [0, 3, 6]
    assert trace.bounds.tolist() == [0, 8, 16, 20, 28, 36, 40]
    order = torch.cat([batch for epoch in range(2) for batch in epoch_batches(20, recipe, epoch)])
    assert torch.equal(trace.visited, order)
    assert trace.rates[:, 0].tolist() == [learning_rate(recipe, step, 6) for step in range(6)]
    assert bool((trace.clips == 1).all())
    assert trace.facts.body == ("1.weight", "1.bias")
    assert (trace.facts.head_weight, trace.facts.head_bias, trace.facts.left) == ("5.weight", "5.bias", ())
    # Each step again, from the recorded weights of its epoch's start: features and gradients are autograd's.
    model = net()
    subset = fastntk.tune(model, "norm+head")
    assert trace.weights is not None
    assert trace.gradients is not None
    assert trace.bias is not None
    assert torch.equal(trace.weights[0], run.anchor)
    assert torch.equal(trace.weights[2], run.subset.get())
    for epoch in (0, 1):
        step = int(trace.epoch_steps[epoch])
        batch = trace.visited[int(trace.bounds[step]) : int(trace.bounds[step + 1])]
        subset.set(trace.weights[epoch])
        features = model[:5](run.data.inputs[batch])
        torch.testing.assert_close(trace.features.read(int(trace.bounds[step]), int(trace.bounds[step + 1])), features.detach())
        loss = nn.functional.cross_entropy(model[5](features), run.data.labels[batch])
        *grads, bias = torch.autograd.grad(loss, [model[1].weight, model[1].bias, model[5].bias])
        torch.testing.assert_close(trace.gradients[step], torch.cat(grads))
        torch.testing.assert_close(trace.bias[step], bias)


def test_sizes_are_said_before_and_after(run: fastntk.Run) -> None:
    trace, recipe = recorded(run), run.recipe
    assert recipe is not None
    said = trace_size(run.subset, run.data, recipe)
    assert said["nbytes"] == pytest.approx(trace.nbytes, rel=0.05)
    summary = trace.summary()
    json.dumps(summary)
    assert summary["nbytes"] == trace.nbytes
    assert summary["bytes"] == {
        "samples": 40 * 4, "features": 40 * 4 * 4, "gradients": 6 * 8 * 4, "weights": 3 * run.subset.numel * 4,
        "bias": 6 * trace.facts.classes * 4,
    }  # fmt: skip
    assert trace.listed.inputs.numel() == 0


def test_where_there_is_no_room_the_body_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "GRADIENTS_UP_TO", 0)
    run = fitted()
    trace = recorded(run)
    assert trace.gradients is None
    assert trace.weights is None
    assert trace.facts.left == ("1.weight", "1.bias")
    assert trace.facts.body == ()
    with pytest.raises(InputError, match="taken too much room"):
        fastntk.unlearn(run, classes=[1], method="path-replay", depth="all")
    assert fastntk.unlearn(run, classes=[1], method="path-replay").details["depth"] == "head"


def test_half_precision_is_for_large_single_precision_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "HALF_ABOVE", 0)
    half = recorded(fitted())
    assert half.features.dtype == torch.float16
    assert half.gradients is not None
    assert half.gradients.dtype == torch.float32
    double = net().double()
    data = fastntk.Samples(samples().inputs.double(), samples().labels)
    run = fastntk.fit(double, fastntk.tune(double, "head"), data, fastntk.Recipe(epochs=1), trace=True)
    assert recorded(run).features.dtype == torch.float64


# -- failures while it is recorded ----------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("when", ["step", "seal"])
def test_a_training_that_stops_leaves_no_folder_and_the_old_weights(
    error: type[BaseException], when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "step":
        true = FitRecorder.gradient

        def gradient(self: FitRecorder, loss: Tensor) -> list[Tensor]:
            if self._taken == 4:
                raise error
            return true(self, loss)

        monkeypatch.setattr(recording.FitRecorder, "gradient", gradient)
    else:

        def stopped(*args: Any) -> None:
            raise error

        monkeypatch.setattr("fastntk.training.fitting.seal_trace", stopped)
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error):
        fitted(tmp_path / "deep" / "trace", model=model, bn_stats="update")
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model[5]._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_divergence_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        fitted(tmp_path / "trace", lr=1e6, optimizer="sgd", loss="squared", epochs=5)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused_before_training(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(InputError, match="exists already"):
        fitted(tmp_path, model=model)
    assert bool((model[5].weight == net()[5].weight).all())


class Scaled(nn.Module):
    """Something follows the head, and the head starts at zero, so that the logits do not show it."""

    def __init__(self, after: Callable[[Tensor], Tensor], *, zero: bool = False) -> None:
        super().__init__()
        self.head, self.after = nn.Linear(108, 3), after
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(x.flatten(1)))


class Dense(nn.Module):
    """A head on every position, averaged afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(2).transpose(1, 2)).mean(1)


@pytest.mark.parametrize(
    ("model", "spec", "message"),
    [
        (net(), "norm", r"the head \(5.weight\) is not tuned"),
        (net(), "norm+5.bias", r"the head \(5.weight\) is not tuned"),
        (Dense(), "head", r"flat features \(n, H\); head is given \(2, 36, 3\)"),
        (Scaled(lambda out: 2 * out), "head", "something follows the head"),
        (Scaled(lambda out: out.softmax(1)), "head", "something follows the head"),
        (Scaled(lambda out: 2 * out, zero=True), "head", "something follows the head"),
        (Scaled(torch.tanh, zero=True), "head", "something follows the head"),
    ],
)
def test_models_that_have_no_such_path_are_refused_before_training(
    model: nn.Module, spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("it was trained")

    monkeypatch.setattr("fastntk.training.fitting.train", never)
    for trace in (True, tmp_path / "trace"):
        with pytest.raises(InputError, match=message):
            fitted(trace, spec=spec, model=model.eval())
    assert list(tmp_path.iterdir()) == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# -- whose trace it is ----------------------------------------------------------------------------


def test_a_trace_of_another_run_is_refused(run: fastntk.Run) -> None:
    trace, given = recorded(run), (run.model, run.subset, run.anchor)
    assert fastntk.Run(*given, run.data, trace=trace).trace is trace
    other = fitted(seed=1)
    with pytest.raises(InputError, match="another trained weights"):
        fastntk.Run(*given, run.data, trace=recorded(other))
    with pytest.raises(InputError, match="another anchor"):
        fastntk.Run(run.model, run.subset, run.anchor + 1, run.data, trace=trace)
    with pytest.raises(InputError, match=r"other tuned parameters \(1.bias, 1.weight\)"):
        fastntk.Run(*given, run.data, trace=recorded(fitted(spec="head")))
    renamed = fastntk.Samples(run.data.inputs, run.data.labels, ids=[f"x{i}" for i in range(20)])
    with pytest.raises(InputError, match="it has other ids than"):
        fastntk.Run(*given, renamed, trace=trace)
    with pytest.raises(InputError, match="it has other labels than"):
        fastntk.Run(*given, fastntk.Samples(run.data.inputs, run.data.labels.flip(0)), trace=trace)
    with pytest.raises(InputError, match="it has other ids than"):
        fastntk.Run(*given, run.data.subset(range(10)), trace=trace)


# -- folders --------------------------------------------------------------------------------------


@pytest.fixture
def folder(run: fastntk.Run, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    target.mkdir()
    write_trace(recorded(run), target)
    return target


def test_a_folder_read_again_is_the_same_trace(run: fastntk.Run, folder: Path) -> None:
    trace, again = recorded(run), read_trace(folder)
    assert again.facts == trace.facts
    assert (again.listed.ids, again.listed.classes) == (trace.listed.ids, trace.listed.classes)
    for name in ("bounds", "rates", "clips", "epoch_steps"):
        assert torch.equal(getattr(again, name), getattr(trace, name))
    for name, series in trace.series.items():
        assert torch.equal(series.to_memory(), again.series[name].to_memory())
    stored = dataclasses.replace(run, trace=again)
    made, same = (fastntk.unlearn(each, classes=[1], depth="all") for each in (stored, run))
    assert torch.equal(made.subset.get(), same.subset.get())


FILES = ("bias.bin", "features.bin", "gradients.bin", "listed.json", "samples.bin", "steps.safetensors", "weights.bin")


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_truncated_edited_or_missing_are_refused(name: str, folder: Path) -> None:
    path = folder / name
    whole = path.read_bytes()
    assert sorted(file.name for file in folder.iterdir()) == sorted((*FILES, HEADER))
    path.write_bytes(whole[:-3])
    with pytest.raises(InputError, match=rf"{name} has {len(whole) - 3} bytes, .* truncated or replaced"):
        read_trace(folder)
    for place in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=f"{name} was changed"):
            read_trace(folder)
    path.unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        read_trace(folder)
    path.write_bytes(whole)
    read_trace(folder)


def test_headers_that_are_edited_are_refused(folder: Path) -> None:
    path = folder / HEADER
    header = json.loads(path.read_text())
    for change in ({"format": "other/9"}, {"facts": header["facts"] | {"penalty": 0.5}}, {"files": {}}):
        path.write_text(json.dumps(header | change))
        with pytest.raises(InputError, match=r"was changed after it was written|is not a trace that"):
            read_trace(folder)
    files = {name: entry for name, entry in header["files"].items() if name != "samples.bin"}
    _seal(path, header | {"files": files})
    with pytest.raises(InputError, match="lists other files than a trace has"):
        read_trace(folder)
    _seal(path, header | {"files": header["files"] | {"../secret.bin": header["files"]["samples.bin"]}})
    with pytest.raises(InputError, match="lists other files than a trace has"):
        read_trace(folder)
    for text in ("", "[]", "{", "nan"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"cannot be read|is not a trace"):
            read_trace(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"holds no trace: trace.json is missing"):
        read_trace(folder)


def test_parts_that_do_not_fit_each_other_are_refused_whoever_sealed_them(run: fastntk.Run, tmp_path: Path) -> None:
    trace = recorded(run)
    visits = trace.samples.to_memory()
    wrong = {
        "bounds": {"bounds": trace.bounds[:-1]},
        "falling": {"bounds": trace.bounds[[0, 2, 1, 3, 4, 5, 6]]},
        "rates": {"rates": trace.rates[:-1]},
        "epochs": {"epoch_steps": torch.tensor([0, 3, 5])},
        "visits": {"samples": Series.of(visits[:-1])},
        "who": {"samples": Series.of(visits + 1)},
        "minus": {"samples": Series.of(visits - 1)},
        "gradients": {"gradients": Series.of(torch.zeros(5, 8))},
        "weights": {"weights": Series.of(torch.zeros(2, run.subset.numel))},
    }
    for name, change in wrong.items():
        folder = tmp_path / name
        folder.mkdir()
        write_trace(dataclasses.replace(trace, **change), folder)
        with pytest.raises(InputError, match="do not fit each other"):
            read_trace(folder)
        shutil.rmtree(folder)


def _seal(path: Path, header: dict[str, Any]) -> None:
    plain = {name: value for name, value in header.items() if name != "seal"}
    path.write_text(json.dumps(plain | {"seal": json_digest(plain)}))


# -- parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_a_series_is_read_in_slices_from_memory_and_from_a_file(
    shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    rows = (100 * torch.randn(7, *shape)).to(dtype)
    memory, file = SeriesWriter(shape, dtype), SeriesWriter(shape, dtype, tmp_path / "x.bin")
    for writer in (memory, file):
        for part in rows.split(3):
            writer.append(part)
    (one, nothing), (other, digest) = memory.finish(), file.finish()
    assert nothing is None
    assert digest is not None
    for series in (one, other):
        assert len(series) == 7
        assert series.nbytes == rows.nbytes
        assert torch.equal(series.to_memory(), rows)
        assert torch.equal(series.read(2, 6), rows[2:6])
        assert torch.equal(series[4], rows[4])
        assert series.read(3, 3).shape == (0, *shape)
        for start, stop in ((-1, 2), (3, 2), (0, 8)):
            with pytest.raises(InputError, match="of a series of 7"):
                series.read(start, stop)
    with pytest.raises(InputError, match="rows of shape"):
        SeriesWriter((3,), dtype).append(torch.zeros(2, 4))
    with pytest.raises(FileExistsError):
        SeriesWriter(shape, dtype, tmp_path / "x.bin")


@pytest.mark.parametrize("name", KNOWN)
def test_a_rebuilt_optimiser_steps_a_stack_as_its_parts(name: str) -> None:
    """Two vectors of a matrix and another parameter, in two groups with other options, against torch's optimiser on each."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 2), "b": (2, 2) if name == "Muon" else (4,)}
    spans = [Span("a", 0, 6, shapes["a"]), Span("b", 6, 10, shapes["b"])]
    start, grads = (torch.randn(*shape, 10, generator=generator, dtype=torch.float64) for shape in ((2,), (4, 2)))
    decay = {} if name in ("Rprop",) else {"weight_decay": 0.1}
    groups = (Group(("a",), decay), Group(("b",), {}))
    stack = start.clone()
    together = StackOptimizer(name, groups, stack, spans)
    own = [[row[:6].view(shapes["a"]).clone(), row[6:].view(shapes["b"]).clone()] for row in start]
    single = [getattr(torch.optim, name)([{"params": [a], **decay}, {"params": [b]}], lr=1.0) for a, b in own]
    for step, grad in enumerate(grads):
        rates = [0.1 / (1 + step), 0.2 / (1 + step)]
        together.step(grad, rates)
        for pair, part, optimizer in zip(own, grad, single):
            pair[0].grad, pair[1].grad = part[:6].view(shapes["a"]), part[6:].view(shapes["b"])
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
            optimizer.step()
    expected = torch.stack([torch.cat([a.reshape(-1), b.reshape(-1)]) for a, b in own])
    torch.testing.assert_close(stack, expected, rtol=1e-12, atol=1e-13)


def test_a_trace_on_disk_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    fitted(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
