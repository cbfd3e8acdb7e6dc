"""The softmax form against the optimum it stands for: a linear model under cross-entropy and a ridge, solved the plain way."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.tangent.linearisation import linearise_run
from fastntk.unlearning.fast_ntk.softmax import KEY

LAM = 0.3


def optimum(model: nn.Module, subset: fastntk.Subset, anchor: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """argmin Σ CE + λ/2‖w − w0‖² by damped Newton with autograd's Hessian: slow and obvious."""
    work = copy.deepcopy(model)
    on = subset.on(work)

    def objective(w: Tensor) -> Tensor:
        named, at = {}, 0
        for name, parameter in on.parameters.items():
            named[name] = w[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        outputs = torch.func.functional_call(work, named, (inputs,))
        return F.cross_entropy(outputs, labels, reduction="sum") + LAM / 2 * (w - anchor).square().sum()

    w = anchor.clone()
    for _ in range(40):
        g = torch.func.grad(objective)(w)
        step = torch.linalg.solve(torch.func.hessian(objective)(w), g)
        length = 1.0
        while objective(w - length * step) > objective(w) and length > 1e-6:
            length /= 2
        w = w - length * step
        if g.norm() < 1e-13:
            break
    return w


def logistic_run(*, start: float = 0.0, recipe: fastntk.Recipe | None = None) -> tuple[fastntk.Run, float]:
    """A linear model at its optimum on all samples, and λ as relative damping."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = (inputs[:, :3] + 0.8 * torch.randn(40, 3, generator=generator, dtype=torch.float64)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 3)).double().eval()
    subset = fastntk.tune(model, "head")
    anchor = start * torch.randn(subset.numel, generator=generator, dtype=torch.float64)
    subset.set(optimum(model, subset, anchor, inputs, labels))
    rows = fastntk.jacobian(model, subset, inputs)
    run = fastntk.Run(model, subset, anchor, fastntk.Samples(inputs, labels), recipe=recipe)
    return run, LAM * subset.numel / float(rows.square().sum())


@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("request_", [{"ids": [0, 5, 7]}, {"classes": [1]}])
def test_a_linear_model_equals_retraining_to_its_optimum(start: float, request_: dict[str, list[int]]) -> None:
    run, damping = logistic_run(start=start)
    result = fastntk.unlearn(run, method="fast-ntk", **request_, form="softmax", damping=damping)
    keep = torch.ones(40, dtype=torch.bool)
    keep[result.split.forget] = False
    expected = optimum(run.model, run.subset, run.anchor, run.data.inputs[keep], run.data.labels[keep])
    assert (result.subset.get() - expected).abs().max() < 1e-9
    assert (expected - run.subset.get()).abs().max() > 1e-3
    assert result.details["residual"] < 1e-10
    json.dumps(result.details)


def test_the_damping_is_the_one_the_run_was_trained_with() -> None:
    run, damping = logistic_run()
    result = fastntk.unlearn(run, method="fast-ntk", ids=[3], form="softmax")
    assert result.details["damping"] == pytest.approx(damping, rel=0.3)
    assert result.details["divergence"] < 1e-3
    assert min(result.details["damping_fit"].values()) >= 0


def test_nothing_forgotten_and_requests_in_any_order() -> None:
    run, _ = logistic_run(recipe=fastntk.Recipe())
    assert fastntk.unlearn(run, method="fast-ntk", ids=[]).delta.abs().max() == 0
    first = fastntk.unlearn(run, method="fast-ntk", ids=[1, 2])
    then = fastntk.unlearn(first, method="fast-ntk", ids=[9, 30])
    other = fastntk.unlearn(fastntk.unlearn(run, method="fast-ntk", ids=[30, 9]), method="fast-ntk", ids=[2, 1])
    union = fastntk.unlearn(run, method="fast-ntk", ids=[1, 2, 9, 30])
    assert union.details["form"] == "softmax"
    assert then.details["damping"] == union.details["damping"]
    torch.testing.assert_close(then.subset.get(), union.subset.get(), rtol=0, atol=1e-12)
    torch.testing.assert_close(other.subset.get(), union.subset.get(), rtol=0, atol=1e-12)


def test_the_form_is_chosen_and_said() -> None:
    squared = fastntk.Recipe(loss="squared")
    for recipe, options, form, because in (
        (fastntk.Recipe(), {}, "softmax", "the loss was cross-entropy"),
        (squared, {}, "ridge", "the loss was squared"),
        (fastntk.Recipe(), {"damping": 0.1}, "ridge", "damping given"),
        (fastntk.Recipe(), {"solver": "dual", "scale": 1.0}, "ridge", "scale, solver given"),
        (fastntk.Recipe(), {"rows": "stream"}, "ridge", "not stored"),
        (None, {}, "softmax", "no recipe"),
        (squared, {"form": "softmax"}, "softmax", "asked for"),
    ):
        run, _ = logistic_run(recipe=recipe)
        details = fastntk.unlearn(run, method="fast-ntk", ids=[0], **options).details  # type: ignore[arg-type]
        assert details["form"] == form
        assert because in details["form_because"]


def test_float32_rows_give_the_float64_answer() -> None:
    run, damping = logistic_run()
    exact = fastntk.unlearn(run, method="fast-ntk", classes=[2], form="softmax", damping=damping)
    model = copy.deepcopy(run.model).float()
    single = fastntk.Run(
        model, run.subset.on(model), run.anchor.float(), fastntk.Samples(run.data.inputs.float(), run.data.labels), recipe=None
    )
    made = fastntk.unlearn(single, method="fast-ntk", classes=[2], form="softmax", damping=damping)
    assert (made.delta - exact.delta).norm() / exact.delta.norm() < 1e-4


def test_what_requests_share_is_made_once() -> None:
    run, _ = logistic_run(recipe=fastntk.Recipe())
    lin = linearise_run(run)
    first = fastntk.unlearn(run, method="fast-ntk", ids=[0], linearisation=lin)
    regression = lin.memo[KEY]
    second = fastntk.unlearn(run, method="fast-ntk", ids=[1], linearisation=lin)
    assert lin.memo[KEY] is regression
    assert first.details["solve_full"] == second.details["solve_full"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "cubic"}, "form must be one of auto, ridge, softmax"),
        ({"form": "softmax", "solver": "dual"}, "solver belongs to form='ridge'"),
        ({"form": "softmax", "rows": "stream"}, "needs stored rows"),
        ({"form": "softmax", "damping": -1.0}, "damping must be a number > 0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    run, _ = logistic_run()
    with pytest.raises(InputError, match=message):
        fastntk.unlearn(run, method="fast-ntk", ids=[0], **options)
