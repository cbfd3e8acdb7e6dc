"""End to end on a CUDA device beside the CPU. By name: ``pytest -m gpu tests/gpu``; skipped with the reason where there is none.

Fine-tuning in float64: what differs is the order of sums, so results agree to many digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.unlearning import METHODS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine"),
]
CUDA = torch.device("cuda:0")
RECIPE = fastntk.Recipe(epochs=4, lr=0.02, batch_size=8)
IDS = ["1", "6", "11"]


def data(n: int = 48, *, seed: int = 0) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(7)
    centres, labels = torch.randn(4, 3, 16, 16, generator=generator), torch.arange(n) % 4
    inputs = centres[labels] + 0.7 * torch.randn(n, 3, 16, 16, generator=generator.manual_seed(seed))
    return fastntk.Samples(inputs.double(), labels)


def run_on(device: torch.device, *, inputs_on: str = "cpu") -> fastntk.Run:
    model: nn.Module = fastntk.build_model("resnet20", num_classes=4, weights="cifar100").double().to(device)
    samples = data()
    samples = fastntk.Samples(samples.inputs.to(inputs_on), samples.labels, ids=samples.ids)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, RECIPE, trace=True)


@pytest.fixture(scope="module")
def runs() -> dict[str, fastntk.Run]:
    return {"cpu": run_on(torch.device("cpu")), "cuda": run_on(CUDA), "beside": run_on(CUDA, inputs_on="cuda:0")}


def close(gpu: torch.Tensor, cpu: torch.Tensor, *, tolerance: float = 1e-4) -> None:
    assert gpu.device == CUDA
    assert float((gpu.cpu() - cpu).norm()) <= tolerance * float(cpu.norm())


def test_fit_and_rows(runs: dict[str, fastntk.Run]) -> None:
    for name in ("cuda", "beside"):
        close(runs[name].subset.get(), runs["cpu"].subset.get())
        rows = [fastntk.jacobian(run.model, run.subset, run.data.inputs[:4]) for run in (runs[name], runs["cpu"])]
        close(rows[0], rows[1])


@pytest.mark.parametrize("name", ["cuda", "beside"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method(runs: dict[str, fastntk.Run], method: str, name: str) -> None:
    result, expected = (fastntk.unlearn(runs[each], ids=IDS, method=method) for each in (name, "cpu"))
    close(result.subset.get(), expected.subset.get(), tolerance=1e-2)
    assert result.details["devices"]["network"] == "cuda:0"


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fast-ntk", "form": "ridge", "solver": "primal", "rows": "stream"},
        {"method": "fast-ntk", "form": "ridge", "solver": "cg", "rows": "disk"},
        {"method": "path-replay", "depth": "all", "checkpoints": 2, "correction": 2, "exact": 1},
        {"method": "tangent-replay", "polish": 1},
    ],
    ids=str,
)
def test_routes(runs: dict[str, fastntk.Run], options: dict[str, Any]) -> None:
    result, expected = (fastntk.unlearn(runs[each], classes=[0], **options) for each in ("cuda", "cpu"))
    close(result.subset.get(), expected.subset.get(), tolerance=1e-2)


def test_audit_save_and_load(runs: dict[str, fastntk.Run], tmp_path: Path) -> None:
    run = runs["cuda"]
    result = fastntk.unlearn(run, classes=[0])
    record = fastntk.audit(run, result, holdout=data(16, seed=1), reference="retrain", relearn_cap=3)
    assert record["verdict"]
    run.save(tmp_path / "run")
    loaded = fastntk.Run.load(tmp_path / "run", run.data, device="cuda")
    assert loaded.anchor.device.type == loaded.subset.get().device.type == "cuda"
    assert torch.equal(loaded.subset.get(), run.subset.get())
    assert fastntk.Run.load(tmp_path / "run").anchor.device.type == "cpu"
