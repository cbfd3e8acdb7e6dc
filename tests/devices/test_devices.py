"""The whole package with a model that is not on the CPU: nothing mixes devices, and the numbers are those of the CPU.

The other device is pretended (``pretend_device``); tests/gpu repeats the main ones where there is a GPU.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pretend_device import CPU, DEVICE, Elsewhere, MixedDevices, move, pretending
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

import fastntk
from fastntk.base.device import find_device
from fastntk.base.errors import InputError
from fastntk.linalg import DenseRows, solve
from fastntk.tangent import TangentOperator, accumulate, checked_engine
from fastntk.unlearning import METHODS

RECIPE = fastntk.Recipe(epochs=3, lr=0.02, batch_size=8)
EXPECTED: dict[str, fastntk.Unlearned | None] = {}
"""Results on the CPU."""
WHERE = pytest.mark.parametrize("inputs_on", [CPU, DEVICE], ids=["inputs on the CPU", "inputs beside the model"])


class Net(nn.Module):
    """Two blocks and a head, with a frozen stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.Tanh())
            for _ in range(2)
        )
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean((2, 3)))


def network(*, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    model = Net().to(dtype).eval()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def samples(n: int = 32, *, on: torch.device = CPU, dtype: torch.dtype = torch.float64, seed: int = 7) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(4, 3, 6, 6, generator=generator)
    labels = torch.arange(n) % 4
    inputs = centres[labels] + 0.7 * torch.randn(n, 3, 6, 6, generator=generator.manual_seed(seed))
    return fastntk.Samples(inputs.to(dtype).to(on), labels.to(on), ids=[f"p{seed}-{i}" for i in range(n)])


def fitted(model: nn.Module, data: fastntk.Samples, **options: Any) -> fastntk.Run:
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), data, RECIPE, **options)


@cache
def here() -> fastntk.Run:
    """The run on the CPU."""
    with _disable_current_modes():
        return fitted(network(), samples(), trace=True)


@cache
def there(inputs_on: torch.device = CPU) -> fastntk.Run:
    """The same elsewhere."""
    return fitted(move(network()), samples(on=inputs_on), trace=True)


@pytest.fixture(autouse=True)
def _pretend() -> Iterator[None]:
    with pretending():
        yield


def same(elsewhere: Tensor, here: Tensor) -> None:
    assert elsewhere.device == DEVICE
    torch.testing.assert_close(elsewhere.cpu(), here, rtol=1e-6, atol=1e-7)


def both(method: str, *, inputs_on: torch.device = CPU, classes: Any = None, ids: Any = None, **options: Any) -> None:
    """A method gives the same elsewhere."""
    request = {"classes": classes, "ids": ids} if classes or ids else {"ids": ["p7-1", "p7-6", "p7-11"]}
    key = f"{method} {request} {options}"
    with _disable_current_modes():  # the CPU needs no pretence, and is faster without
        expected = EXPECTED.setdefault(key, None) or fastntk.unlearn(here(), method=method, **request, **options)
    EXPECTED[key] = expected
    result = fastntk.unlearn(there(inputs_on), method=method, **request, **options)
    same(result.delta, expected.delta)
    same(result.subset.get(), expected.subset.get())
    json.dumps(result.details)
    assert result.details["devices"]["network"] == str(DEVICE)


# The pretended device itself


def test_mixing_raises_as_on_a_gpu() -> None:
    x, y = torch.randn(3, 2), torch.randn(3, 2).to(DEVICE)
    assert isinstance(y, Elsewhere)
    assert (y * 2).device == (y + torch.tensor(1.0)).device == y[torch.tensor([0, 2])].device == DEVICE
    assert y.cpu().device == CPU
    assert float(y.sum()) == float(y.cpu().sum())
    x[:] = y
    assert torch.equal(x, y.cpu())
    for wrong in (
        lambda: x + y,
        lambda: x.add_(y),
        lambda: torch.cat([x, y]),
        lambda: torch.isin(y, x),
        lambda: x[torch.zeros(1, dtype=torch.long, device=DEVICE)],
        lambda: y.index_select(0, torch.tensor([0])),
        lambda: torch.where(x > 0, y, y),
        lambda: torch.randn(2, generator=torch.Generator(), device=DEVICE),
    ):
        with pytest.raises(MixedDevices):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        y.numpy()


# Training, rows, products


@WHERE
@pytest.mark.parametrize("bn_stats", ["frozen", "update"])
def test_fit(inputs_on: torch.device, bn_stats: str) -> None:
    recipe = fastntk.Recipe(epochs=2, lr=0.02, batch_size=8, bn_stats=bn_stats)  # type: ignore[arg-type]
    vectors = []
    for model, on in ((network(), CPU), (move(network()), inputs_on)):
        run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(on=on), recipe)
        vectors.append(run.subset.get())
        assert run.anchor.device == run.subset.get().device
    same(vectors[1], vectors[0])


@WHERE
def test_a_trace_is_on_the_cpu(inputs_on: torch.device, tmp_path: Path) -> None:
    expected = here().trace
    for trace in (there(inputs_on).trace, fitted(move(network()), samples(on=inputs_on), trace=tmp_path / "trace").trace):
        assert trace is not None
        assert expected is not None
        for name, series in trace.series.items():
            torch.testing.assert_close(series.read(0, len(series)), expected.series[name].read(0, len(series)))


@WHERE
@pytest.mark.parametrize("spec", ["norm+head", "head", "all", "layers.0.*"])
def test_jacobian(inputs_on: torch.device, spec: str) -> None:
    rows = []
    for model, on in ((network(), CPU), (move(network()), inputs_on)):
        rows.append(fastntk.jacobian(model, fastntk.tune(model, spec), samples(5, on=on).inputs))
    same(rows[1], rows[0])


@WHERE
@pytest.mark.parametrize("place", ["memory", "disk", "stream"])
def test_a_linearisation_is_on_the_cpu(inputs_on: torch.device, place: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rows": place, "folder": tmp_path / "rows" if place == "disk" else None}
    lin = fastntk.linearise_run(there(inputs_on), **options)
    expected = fastntk.linearise_run(here())
    lin.check_run(there(inputs_on))
    for name in ("point", "theta", "anchor", "outputs", "anchor_outputs", "features", "anchor_features"):
        torch.testing.assert_close(getattr(lin, name), getattr(expected, name))
    if place != "stream":
        assert not isinstance(lin.rows, TangentOperator)
        torch.testing.assert_close(lin.rows.dense(), expected.rows.dense())  # type: ignore[union-attr]


def test_products_without_rows_come_back_where_the_vector_is() -> None:
    model, inputs = move(network()), samples(9).inputs
    subset = fastntk.tune(model, "norm+head")
    operator = TangentOperator(model, subset, inputs, chunk=4)
    rows = fastntk.jacobian(model, subset, inputs).cpu()
    n, classes, d = rows.shape
    v, u = torch.randn(d, 2, dtype=torch.float64), torch.randn(n, classes, 2, dtype=torch.float64)
    torch.testing.assert_close(operator.matvec(v), torch.einsum("ncd,dk->nck", rows, v))
    torch.testing.assert_close(operator.rmatvec(u), torch.einsum("ncd,nck->dk", rows, u))
    same(operator.matvec(v.to(DEVICE)), torch.einsum("ncd,dk->nck", rows, v))
    flat = rows.reshape(n * classes, d)
    same(operator.gram(), flat.T @ flat)
    same(operator.kernel(), flat @ flat.T)
    torch.testing.assert_close(operator.column_norms2(), flat.square().sum(0))
    sums = accumulate(checked_engine(model, subset, inputs), inputs, u)
    torch.testing.assert_close(sums.rhs, torch.einsum("ncd,nck->dk", rows, u))


def test_a_device_without_float64_sums_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As mps: whatever is added up or solved in float64 is on the CPU."""
    monkeypatch.setattr("fastntk.base.device.WITHOUT_FLOAT64", {DEVICE.type})
    single = {"dtype": torch.float32}
    with pretending(float64=False):
        run = fitted(move(network(**single)), samples(**single), trace=True)
        expected = fitted(network(**single), samples(**single), trace=True)
        operator = TangentOperator(run.model, run.subset, run.data.inputs, chunk=4)
        rows = fastntk.jacobian(run.model, run.subset, run.data.inputs).cpu().double().flatten(0, 1)
        torch.testing.assert_close(operator.gram(), rows.T @ rows)
        torch.testing.assert_close(operator.column_norms2(), rows.square().sum(0))
        torch.testing.assert_close(operator.kernel(), rows @ rows.T)
        for method in ("fast-ntk", "path-replay", "tangent-replay", "retrain", "ssd", "fisher", "amnesiac", "deltagrad"):
            deltas = [fastntk.unlearn(each, ids=["p7-1"], method=method).delta for each in (run, expected)]
            torch.testing.assert_close(deltas[0].cpu(), deltas[1], rtol=1e-2, atol=1e-3)
        result = fastntk.unlearn(run, classes=[0], method="fast-ntk", form="ridge", solver="primal", rows="stream")
        assert result.details["devices"]["sums of streamed rows"] == "float64 on cpu"
        fastntk.audit(run, result, holdout=samples(16, seed=8, **single), reference="retrain", relearn_cap=1)


@pytest.mark.parametrize("solver", ["primal", "eigen", "dual", "cg", "lsmr"])
def test_solves_with_rows_elsewhere(solver: str) -> None:
    tensor, t = torch.randn(6, 3, 10, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    expected = solve(DenseRows(tensor), t, damping=0.1, solver=solver).value
    torch.testing.assert_close(solve(DenseRows(tensor.to(DEVICE)), t, damping=0.1, solver=solver).value, expected)


# Methods


@WHERE
@pytest.mark.parametrize("rows", ["memory", "disk"])
def test_fast_ntk_softmax(inputs_on: torch.device, rows: str) -> None:
    both("fast-ntk", inputs_on=inputs_on, form="softmax", rows=rows)


@pytest.mark.parametrize(
    ("solver", "rows"),
    [*((solver, "memory") for solver in ("primal", "eigen", "dual", "cg", "lsmr")), ("primal", "stream"), ("dual", "stream")],
)
def test_fast_ntk_ridge(solver: str, rows: str) -> None:
    both("fast-ntk", form="ridge", solver=solver, rows=rows, damping=10.0, classes=[0])


def test_fast_ntk_ridge_with_inputs_beside_the_model() -> None:
    both("fast-ntk", inputs_on=DEVICE, form="ridge", solver="primal", rows="stream", classes=[0])


@pytest.mark.parametrize("path", ["auto", "tangent", "product", "curved"])
def test_tangent_replay(path: str) -> None:
    both("tangent-replay", path=path, classes=[0] if path == "auto" else None)


@WHERE
def test_tangent_replay_polished(inputs_on: torch.device) -> None:
    both("tangent-replay", inputs_on=inputs_on, polish=1)


@WHERE
@pytest.mark.parametrize(
    "options",
    [
        {"depth": "head"},
        {"depth": "auto"},
        {"depth": 1},
        {"depth": 1, "rows": "disk", "exact": 1},
        {"depth": "all", "checkpoints": 2, "correction": 2, "exact": 1},
    ],
    ids=str,
)
def test_path_replay(inputs_on: torch.device, options: dict[str, Any]) -> None:
    both("path-replay", inputs_on=inputs_on, **options)


@pytest.mark.parametrize("depth", ["head", 1])
def test_requests_in_a_row(depth: Any) -> None:
    results = []
    for run in (here(), there()):
        first = fastntk.unlearn(run, ids=["p7-1"], method="path-replay", depth=depth)
        assert first.trace is not None
        results.append(fastntk.unlearn(first.as_run(), ids=["p7-6"], method="path-replay", depth="head").delta)
    same(results[1], results[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: str) -> None:
    both(method)


@pytest.mark.parametrize("method", ["retrain", "max-loss", "scrub", "fisher", "deltagrad"])
def test_methods_with_inputs_beside_the_model(method: str) -> None:
    """One of each kind of access to the samples; tangent-replay, fast-ntk and path-replay are above."""
    both(method, inputs_on=DEVICE)


def test_a_head_whose_bias_is_not_tuned() -> None:
    deltas = []
    for model in (network(), move(network())):
        subset = fastntk.tune(model, "norm+head.weight")
        run = fastntk.fit(model, subset, samples(), RECIPE, trace=True)
        deltas.append([fastntk.unlearn(run, ids=["p7-1"], method=name).delta for name in ("path-replay", "amnesiac")])
    for elsewhere, expected in zip(deltas[1], deltas[0]):
        same(elsewhere, expected)


# Around them


@WHERE
def test_plan(inputs_on: torch.device) -> None:
    plan = fastntk.plan(there(inputs_on), classes=[0])
    assert plan.chosen
    result = fastntk.unlearn(there(inputs_on), classes=[0], plan=fastntk.plan(there(inputs_on), classes=[0], method="fast-ntk"))
    assert result.delta.device == DEVICE


def test_statistics_are_estimated_anew() -> None:
    recipe = fastntk.Recipe(epochs=1, batch_size=8, bn_stats="update")
    models = []
    for model in (network(), move(network())):
        run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), recipe)
        models.append(fastntk.unlearn(run, ids=["p7-1"], method="retrain").model)
    for name, expected in models[0].named_buffers():
        same(dict(models[1].named_buffers())[name], expected)


def test_removals() -> None:
    results = [fastntk.removals(run, [["p7-1"], ["p7-6", "p7-11"]]) for run in (here(), there())]
    for mine, expected in zip(results[1].losses, results[0].losses):
        torch.testing.assert_close(mine, expected)


def test_rehearsals_and_tuned_baselines() -> None:
    tuned = [fastntk.tune_baseline(run, "fine-tune", classes=[0], budget=2) for run in (here(), there())]
    assert tuned[0].options == tuned[1].options


@WHERE
def test_audit(inputs_on: torch.device, tmp_path: Path) -> None:
    records = []
    for run, on in ((here(), CPU), (there(inputs_on), inputs_on)):
        result = fastntk.unlearn(run, classes=[0], method="fast-ntk")
        records.append(
            fastntk.audit(
                run, result, holdout=samples(16, on=on, seed=8), reference="retrain", relearn_cap=3,
                ensemble=8 if inputs_on == CPU else None, ensemble_kind="tangent", cache=tmp_path / str(len(records)),
            )
        )  # fmt: skip
    json.dumps(records[1])
    for name in ("accuracy", "relearn", "flow"):
        assert records[1][name] == records[0][name]


def test_save_and_load(tmp_path: Path) -> None:
    run = there()
    run.save(tmp_path / "run")
    for model, device in ((network(), CPU), (move(network()), DEVICE)):
        loaded = fastntk.Run.load(tmp_path / "run", samples(), model=model)
        assert loaded.anchor.device == loaded.subset.get().device == device
        assert torch.equal(loaded.subset.get().cpu(), run.subset.get().cpu())
        result = fastntk.unlearn(loaded, ids=["p7-1"])
        fastntk.save_result(result, tmp_path / str(device))
        again = fastntk.load_run(tmp_path / str(device), model=copy.deepcopy(model))
        assert torch.equal(again.subset.get().cpu(), result.subset.get().cpu())
    tuned = tmp_path / "tuned.safetensors"
    fastntk.save_tuned(run.subset, tuned)
    other = move(network())
    fastntk.load_tuned(other, tuned)
    same(run.subset.on(other).get(), run.subset.get().cpu())


def test_inputs_elsewhere_are_refused_for_a_model_on_the_cpu() -> None:
    model = network()
    with pytest.raises(InputError, match="Inputs are on lazy:0, the model is on cpu"):
        fitted(model, samples(on=DEVICE))


def test_a_run_is_loaded_to_a_device(tmp_path: Path) -> None:
    there().save(tmp_path / "run")
    loaded = fastntk.Run.load(tmp_path / "run", samples(), model=network(), device=DEVICE)
    assert loaded.anchor.device == loaded.subset.get().device == DEVICE
    same(fastntk.unlearn(loaded, ids=["p7-1"]).delta, fastntk.unlearn(here(), ids=["p7-1"]).delta)
    for absent in ("cuda:7", torch.device("cuda", 7)):
        with pytest.raises(InputError, match="device 'cuda:7' is not there"):
            fastntk.Run.load(tmp_path / "run", model=network(), device=absent)


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == CPU
    for name, message in {
        "cuda": "sees no CUDA device",
        "gpu": "must be one of auto, cpu, cuda, mps",
        "cpu:1": "not 'cpu:1'",
    }.items():
        with pytest.raises(InputError, match=message):
            find_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda", 1)
    assert find_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    with pytest.raises(InputError, match="there are 2 CUDA devices"):
        find_device(torch.device("cuda", 2))
    with pytest.raises(InputError, match="there are 2 CUDA devices"):
        find_device("cuda:2")
