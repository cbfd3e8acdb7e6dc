"""The closed form against retraining where that has an exact answer, and the identities of docs/method.md."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import BudgetError, InputError
from fastntk.data import Split
from fastntk.linalg import DenseRows
from fastntk.unlearning.fast_ntk.ridge import _raised, closed_form


def linear_run(
    n: int = 40, features: int = 6, classes: int = 3, *, lam: float = 0.7, bias: bool = True, start: float = 0.0
) -> tuple[fastntk.Run, float]:
    """A linear model at its ridge optimum towards the anchor, for targets onehot − 1/C; and λ as relative damping."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, features, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=generator)
    model = nn.Sequential(nn.Linear(features, classes, bias=bias)).double().eval()
    subset = fastntk.tune(model, "head")
    subset.set(start * torch.randn(subset.numel, generator=generator, dtype=torch.float64))
    anchor = subset.get()
    samples = fastntk.Samples(inputs, labels)
    rows = fastntk.jacobian(model, subset, inputs).flatten(0, 1)
    subset.set(ridge(model, subset, anchor, inputs, labels, lam))
    return fastntk.Run(model, subset, anchor, samples), lam * subset.numel / float(rows.square().sum())


def ridge(model: nn.Module, subset: fastntk.Subset, anchor: Tensor, inputs: Tensor, labels: Tensor, lam: float) -> Tensor:
    """Retraining in closed form: argmin ½‖f(w) − t‖² + λ/2‖w − w0‖²."""
    work = copy.deepcopy(model)
    on = subset.on(work)
    on.set(anchor)
    rows = fastntk.jacobian(work, on, inputs).flatten(0, 1)
    outputs = work(inputs).detach()
    targets = F.one_hot(labels, outputs.shape[1]).double() - 1 / outputs.shape[1]
    system = rows.T @ rows + lam * torch.eye(subset.numel, dtype=torch.float64)
    return anchor + torch.linalg.solve(system, rows.T @ (targets - outputs).flatten())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("solver", ["auto", "primal", "dual", "matrix-free", "eigen", "lsmr"])
def test_linear_model_equals_retraining(bias: bool, start: float, solver: str) -> None:
    run, damping = linear_run(bias=bias, start=start)
    forget = [0, 5, 7]
    result = fastntk.unlearn(run, ids=forget, method="fast-ntk", damping=damping, solver=solver)
    keep = torch.ones(40, dtype=torch.bool)
    keep[forget] = False
    expected = ridge(run.model, run.subset, run.anchor, run.data.inputs[keep], run.data.labels[keep], 0.7)
    tolerance = 1e-10 if solver in ("auto", "primal", "dual", "eigen") else 1e-7
    assert (result.subset.get() - expected).abs().max() < tolerance
    assert result.details["scale"] == pytest.approx(1.0, abs=1e-8)
    assert result.details["scale_fit"] == "least-squares"
    assert result.details["validity"]["verdict"] == "ok"


@pytest.mark.parametrize("solver", ["primal", "dual", "matrix-free"])
def test_a_solver_and_rank_that_were_decided_are_taken_as_they_are(solver: str) -> None:
    run, damping = linear_run()
    split = fastntk.ForgetRequest(ids=[0, 5, 7]).resolve(run.data)
    lin = fastntk.linearise_run(run)
    update = lambda **options: closed_form(lin, run.data.labels, split, damping=damping, **options)
    # Nothing is chosen, so no budget is looked at: one of a byte refuses every solver that is only named.
    decided = update(solver=solver, rank=16, memory_budget=1)
    torch.testing.assert_close(decided.delta, update().delta, rtol=1e-6, atol=1e-9)
    assert decided.solver == solver
    for name in (solver, "auto"):
        with pytest.raises(BudgetError, match="fits the memory budget"):
            update(solver=name, memory_budget=1)


def test_forgetting_a_whole_class_of_a_linear_model() -> None:
    run, damping = linear_run()
    result = fastntk.unlearn(run, method="fast-ntk", classes=[1], damping=damping)
    keep = run.data.labels != 1
    expected = ridge(run.model, run.subset, run.anchor, run.data.inputs[keep], run.data.labels[keep], 0.7)
    assert (result.subset.get() - expected).abs().max() < 1e-10
    assert result.details["request"]["whole_classes"] == [1]


def test_forgetting_nothing_changes_nothing() -> None:
    run, damping = linear_run()
    for method, options in (("fast-ntk", {"damping": damping}), ("full", {})):
        result = fastntk.unlearn(run, ids=[], method=method, **options)
        assert result.delta.abs().max() == 0


@pytest.mark.parametrize("method", ["fast-ntk"])
def test_requests_in_any_order_equal_their_union(method: str) -> None:
    run, damping = linear_run()
    options = {"damping": damping}
    first = fastntk.unlearn(run, ids=[1, 2], method=method, **options)
    then = fastntk.unlearn(first, ids=[9, 30], method=method, **options)
    other = fastntk.unlearn(
        fastntk.unlearn(run, method="fast-ntk", ids=[30, 9], **options), method="fast-ntk", ids=[2, 1], **options
    )
    union = fastntk.unlearn(run, ids=[1, 2, 9, 30], method=method, **options)
    torch.testing.assert_close(then.subset.get(), union.subset.get(), rtol=0, atol=1e-13)
    torch.testing.assert_close(other.subset.get(), union.subset.get(), rtol=0, atol=1e-13)
    torch.testing.assert_close(first.delta + then.delta, union.delta, rtol=0, atol=1e-13)
    assert then.linearisation is first.linearisation
    with pytest.raises(InputError, match="Already forgotten"):
        fastntk.unlearn(first, method="fast-ntk", ids=[1])


def test_the_printed_form_mended_is_the_same_update() -> None:
    """Δ/s = P·J_fᵀ·M·V, corrected and damped, on a network that is not linear."""
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    subset = fastntk.tune(model, "norm+head")
    anchor = subset.get()
    anchor[-27:] = 0
    subset.set(anchor)
    samples = fastntk.Samples(torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=3, lr=0.05, batch_size=4))
    forget = torch.tensor([0, 4])
    result = fastntk.unlearn(run, method="fast-ntk", ids=forget.tolist(), scale=2.5, validate=False)
    rows = fastntk.jacobian(model, subset, samples.inputs)
    lam = 1e-2 * float(rows.square().sum()) / subset.numel
    assert result.details["lambda"] == pytest.approx(lam)
    keep = torch.ones(12, dtype=torch.bool)
    keep[forget] = False
    jr, jf = rows[keep].flatten(0, 1), rows[forget].flatten(0, 1)
    t = F.one_hot(samples.labels, 3).double() - 1 / 3
    tr, tf = t[keep].flatten(), t[forget].flatten()
    eye = lambda m: torch.eye(m, dtype=torch.float64)
    inner = torch.linalg.inv(jr @ jr.T + lam * eye(len(jr)))
    projector = eye(subset.numel) - jr.T @ inner @ jr
    cross = jr @ jf.T
    m = torch.linalg.inv(jf @ jf.T + lam * eye(len(jf)) - cross.T @ inner @ cross)
    v = -tf + cross.T @ inner @ tr
    torch.testing.assert_close(result.delta, 2.5 * projector @ jf.T @ m @ v)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0.0}, "damping must be a number > 0"),
        ({"damping": -1.0}, "damping must be a number > 0"),
        ({"damping": float("nan")}, "damping must be a number > 0"),
        ({"scale": float("inf")}, "scale must be a finite number"),
        ({"scale_fit": "best"}, "scale_fit must be one of auto, least-squares, softmax"),
        ({"solver": "magic"}, "solver must be one of"),
        ({"at": "moon"}, "linearisation point must be one of"),
        ({"dampening": 1}, "no option dampening; it takes: damping, scale"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    run, _ = linear_run()
    with pytest.raises(InputError, match=message):
        fastntk.unlearn(run, ids=[0], method="fast-ntk", **options)


def test_rows_in_memory_on_disk_and_streamed_give_one_answer(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    subset = fastntk.tune(model, "norm+head")
    samples = fastntk.Samples(torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=3, lr=0.05, batch_size=4))
    memory = fastntk.unlearn(run, method="fast-ntk", ids=[0, 4], rows="memory", form="ridge")
    disk = fastntk.unlearn(run, method="fast-ntk", ids=[0, 4], folder=tmp_path / "rows", form="ridge")
    for solver in ("primal", "matrix-free"):
        stream = fastntk.unlearn(run, method="fast-ntk", ids=[0, 4], rows="stream", solver=solver)
        torch.testing.assert_close(stream.delta, memory.delta, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(disk.delta, memory.delta)
    assert [r.details["rows"]["kept"] for r in (memory, disk, stream)] == ["memory", "disk", "stream"]
    with pytest.raises(InputError, match="rows='disk' and folder"):
        fastntk.unlearn(run, ids=[0], method="tangent-replay", rows="stream")
    scratch = fastntk.unlearn(run, method="fast-ntk", ids=[0, 4], rows="disk", scratch=tmp_path, form="ridge")
    assert torch.equal(scratch.delta, disk.delta)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"], "rows that nobody asked to keep were left behind"
    with pytest.raises(fastntk.BudgetError, match="rows='disk', with a folder"):
        fastntk.unlearn(run, method="fast-ntk", ids=[0], rows="memory", memory_budget=100)


def test_a_bare_linear_layer_is_a_model_too() -> None:
    model = nn.Linear(6, 3).double().eval()
    subset = fastntk.tune(model, "head")
    samples = fastntk.Samples(torch.randn(10, 6, dtype=torch.float64), torch.arange(10) % 3)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=2, batch_size=4))
    made = fastntk.unlearn(run, ids=[1], method="tangent-replay")
    true = fastntk.unlearn(run, ids=[1], method="retrain")
    torch.testing.assert_close(made.subset.get(), true.subset.get(), rtol=1e-10, atol=1e-12)


def test_the_scale_is_raised_until_a_forgotten_class_is_no_longer_named() -> None:
    rows = DenseRows(torch.eye(2, dtype=torch.float64).repeat(3, 1, 1))
    outputs = torch.tensor([[3.0, 0.0], [5.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    split = Split(forget=torch.tensor([0, 1]), retain=torch.tensor([2]), whole_classes=(0,))
    common = {"step": torch.tensor([-1.0, 1.0], dtype=torch.float64), "offset": torch.zeros(2, dtype=torch.float64)}
    # At s both logits are (3 − s, s) and (5 − s, s): the second sample loses its name beyond s = 2.5.
    assert 2.5 < _raised(rows, outputs, labels, split, fitted=1.0, **common) < 2.52
    assert _raised(rows, outputs, labels, split, fitted=2.6, **common) == 2.6
    # Three-fold is the ceiling, and the least scale that names as few as can be is enough: one of two, from 1.5 on.
    assert 1.5 < _raised(rows, outputs, labels, split, fitted=0.6, **common) < 1.52
    assert _raised(rows, outputs, labels, dataclasses.replace(split, whole_classes=()), fitted=1.0, **common) == 1.0
