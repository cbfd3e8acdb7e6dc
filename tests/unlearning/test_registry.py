"""A method is one file and one line: everything else reads the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastntk
from fastntk.base.errors import InputError
from fastntk.cli.method_options import method_options
from fastntk.planning import Problem, Route
from fastntk.unlearning import METHODS, Method, Outcome, Task, register, unregister


def shrink(task: Task, *, share: float = 0.5) -> Outcome:
    """Half-way back to the anchor: a baseline that nobody should use."""
    theta = task.run.subset.get()
    return Outcome(theta + share * (task.run.anchor - theta), {"share": share})


def cost(problem: Problem) -> list[Route]:
    return [problem.passes(0, batch=1, note="a step back")]


@pytest.fixture
def shrinking() -> Iterator[Method]:
    method = Method(
        "shrink", "a step back to where the fine-tuning began", shrink, cost, search_space={"share": (0.25, 0.75, 1.0)}
    )
    register(method)
    yield method
    unregister("shrink")


@pytest.fixture
def run() -> fastntk.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    samples = fastntk.Samples(torch.randn(30, 3, 2, 2), torch.arange(30) % 3)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=3, lr=0.05))


def test_one_registered_method_is_known_everywhere(shrinking: Method, run: fastntk.Run, tmp_path: Path) -> None:
    result = fastntk.unlearn(run, classes=[0], method="shrink", share=1.0)
    torch.testing.assert_close(result.subset.get(), run.anchor)
    assert result.details["summary"] == shrinking.summary
    plan = fastntk.plan(run, classes=[0], method="shrink")
    assert plan.route("shrink").solver == "a step back"
    assert method_options("shrink", {}, ["share=0.25"]) == {"share": 0.25}
    with pytest.raises(InputError, match="has no option nothing; it takes: share"):
        fastntk.unlearn(run, classes=[0], method="shrink", nothing=1)
    tuned = fastntk.tune_baseline(run, "shrink", classes=[0], budget=3)
    assert {trial["options"]["share"] for trial in tuned.trials} <= {0.25, 0.5, 0.75, 1.0}
    holdout = fastntk.Samples(torch.randn(12, 3, 2, 2), torch.arange(12) % 3)
    record = fastntk.audit(run, result, holdout=holdout, relearn_cap=2)
    page = fastntk.write_report(record, tmp_path / "report.html")
    assert shrinking.summary in Path(page).read_text("utf-8")


def test_the_command_line_takes_it(shrinking: Method, tmp_path: Path) -> None:
    from fastntk.cli.app import app

    runner = CliRunner()
    base = ["finetune", "resnet20", "--weights", "cifar100", "--data", "digits@train", "--images-per-class", "3", "--epochs", "1"]
    assert runner.invoke(app, [*base, "--out", str(tmp_path / "run")]).exit_code == 0
    asked = ["unlearn", str(tmp_path / "run"), "--classes", "0", "--method", "shrink", "--option", "share=0.75", "--json"]
    done = runner.invoke(app, [*asked, "--out", str(tmp_path / "result")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["details"]["share"] == 0.75


def test_names_are_unique_and_ours_stay(shrinking: Method) -> None:
    assert list(METHODS)[-1] == "shrink"
    with pytest.raises(InputError, match="There is a method 'shrink' already"):
        register(shrinking)
    with pytest.raises(InputError, match="was not registered"):
        unregister("retrain")


def test_every_method_says_what_it_is_does_and_needs() -> None:
    for name, method in METHODS.items():
        assert method.name == name
        assert method.summary
        assert not method.summary.endswith(".")
        assert set(method.search_space) <= set(method.options)
        assert method.needs <= {"rows", "recipe", "engine", "trace", "images"}
    assert {name for name, method in METHODS.items() if "rows" in method.needs} == {"fast-ntk", "tangent-replay"}


def test_a_method_without_rows_uses_no_foreign_linearisation_and_hands_it_on(run: fastntk.Run) -> None:
    first = fastntk.unlearn(run, ids=[0], method="fast-ntk", form="ridge", at="anchor")
    chained = fastntk.unlearn(first, ids=[1], method="fisher", seed=3)
    alone = fastntk.unlearn(run, ids=[0, 1], method="fisher", seed=3)
    assert torch.equal(chained.subset.get(), alone.subset.get())
    assert chained.linearisation is first.linearisation
