"""The baselines against slow oracles and known answers, on models small enough to do by hand."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.unlearning import METHODS
from fastntk.unlearning.baselines.common.distillation import divergence
from fastntk.unlearning.baselines.common.importance import fisher_diagonal, loss_importance
from fastntk.unlearning.baselines.push_away import MOST_EPOCHS
from fastntk.unlearning.baselines.salun import forget_gradient, most_salient
from fastntk.unlearning.method import Task

TRAINED = ("fine-tune", "l1-sparse", "neggrad+", "scrub", "bad-teacher", "salun")
NEW = (*TRAINED, "ssd", "fisher")


def toy(n: int = 48, classes: int = 4, *, dtype: torch.dtype = torch.float32) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 3, 6, 6, generator=generator)
    inputs = centres[labels] + 0.5 * torch.randn(n, 3, 6, 6, generator=generator)
    return fastntk.Samples(inputs.to(dtype), labels)


def net(classes: int = 4) -> nn.Module:
    torch.manual_seed(2)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, classes),
    )  # fmt: skip
    nn.init.zeros_(made[-1].weight)
    nn.init.zeros_(made[-1].bias)
    return made.eval()


def toy_run(*, loss: str = "cross-entropy", dtype: torch.dtype = torch.float64) -> fastntk.Run:
    model = net().to(dtype)
    recipe = fastntk.Recipe(epochs=15, lr=0.02, batch_size=16, loss=loss)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), toy(dtype=dtype), recipe)


def task_of(run: fastntk.Run, **request: object) -> Task:
    return Task(run, fastntk.ForgetRequest(**request).resolve(run.data), None)  # type: ignore[arg-type]


def accuracy(model: nn.Module, samples: fastntk.Samples) -> float:
    return float((fastntk.predict(model, samples.inputs).argmax(1) == samples.labels).double().mean())


def loss_of(run: fastntk.Run, outputs: Tensor, label: Tensor) -> Tensor:
    if run.recipe is not None and run.recipe.loss == "squared":
        return 0.5 * (outputs - F.one_hot(label, outputs.shape[1]) + 1 / outputs.shape[1]).square().sum()
    return F.cross_entropy(outputs, label)


def gradients(run: fastntk.Run, positions: Tensor) -> Tensor:
    """One backward pass per sample: the slow way, (n, d)."""
    rows = []
    for i in positions.tolist():
        loss = loss_of(run, run.model(run.data.inputs[i : i + 1]), run.data.labels[i : i + 1])
        grads = torch.autograd.grad(loss, list(run.subset.parameters.values()))
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


def fisher_by_hand(run: fastntk.Run, positions: Tensor) -> Tensor:
    """Σ_y p_y (∇ log p_y)², sample by sample and label by label, (d,)."""
    total = torch.zeros(run.subset.numel, dtype=torch.float64)
    parameters = list(run.subset.parameters.values())
    for i in positions.tolist():
        logs = run.model(run.data.inputs[i : i + 1]).log_softmax(1)[0]
        for log in logs:
            grads = torch.autograd.grad(log, parameters, retain_graph=True)
            total += log.exp().detach() * torch.cat([grad.flatten() for grad in grads]).square()
    return total / len(positions)


# What every baseline owes


@pytest.mark.parametrize("method", NEW)
def test_the_run_is_left_alone_and_the_same_seed_gives_the_same_bytes(method: str) -> None:
    run = toy_run(dtype=torch.float32)
    run.model.train()  # modes are restored, and used by no method
    before, state = copy.deepcopy(run.model.state_dict()), torch.get_rng_state()
    first = fastntk.unlearn(run, classes=[2], method=method)
    again = fastntk.unlearn(run, classes=[2], method=method)
    assert torch.equal(first.subset.get(), again.subset.get())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert all(module.training for module in (*run.model.modules(), *first.model.modules()))
    run.model.eval()
    assert torch.equal(fastntk.unlearn(run, classes=[2], method=method).subset.get(), first.subset.get())
    assert torch.equal(first.model[1].running_mean, run.model[1].running_mean)
    json.dumps(first.details)


@pytest.mark.parametrize("method", [*TRAINED, "fisher"])
def test_another_seed_gives_another_model(method: str) -> None:
    run = toy_run()
    options = {} if method == "fisher" else {"batch_size": 10}  # several batches, so that their order counts
    one, two = (fastntk.unlearn(run, classes=[2], method=method, seed=seed, **options).subset.get() for seed in (0, 1))
    assert (one - two).abs().max() > 1e-6


@pytest.mark.parametrize("method", NEW)
def test_forgetting_nothing_changes_nothing(method: str) -> None:
    result = fastntk.unlearn(toy_run(), ids=[], method=method)
    assert result.delta.abs().max() == 0
    assert "nothing to forget" in result.details["note"]


@pytest.mark.parametrize("method", NEW)
def test_hyper_parameters_are_in_the_details_and_unknown_ones_are_refused(method: str) -> None:
    run = toy_run()
    details = fastntk.unlearn(run, ids=[1], method=method).details
    defaults = METHODS[method].run.__kwdefaults__
    assert defaults.items() <= details.items()
    with pytest.raises(InputError, match="it takes: " + ", ".join(defaults).replace("+", r"\+")):
        fastntk.unlearn(run, ids=[1], method=method, magic=3)


WRONG = [
    *((method, option, value) for method in TRAINED for option, value in (
        ("lr", 0.0), ("lr", float("nan")), ("lr", "fast"), ("epochs", -1), ("epochs", 1.5), ("epochs", True), ("batch_size", 0),
        ("schedule", "magic"), ("seed", -1),
    )),
    ("neggrad+", "alpha", 1.1), ("neggrad+", "alpha", -0.1), ("scrub", "alpha", -1.0), ("scrub", "gamma", -1.0),
    ("scrub", "max_epochs", -1), ("scrub", "temperature", 0.0), ("scrub", "forget_batch_size", 0), ("scrub", "rewind", 1.5),
    ("scrub", "rewind", True), ("l1-sparse", "gamma", -1e-4), ("l1-sparse", "towards", "infinity"),
    ("bad-teacher", "temperature", -1), ("bad-teacher", "share", 0.0), ("bad-teacher", "share", 1.1),
    ("ssd", "alpha", 0), ("ssd", "dampening", -1), ("ssd", "towards", "infinity"),
    ("salun", "share", 0), ("salun", "share", 1.2), ("salun", "alpha", float("inf")), ("fisher", "alpha", -1),
    ("fisher", "clip", -1), ("fisher", "seed", 0.5), ("fisher", "form", "book"), ("fisher", "class_rows", True),
    ("salun", "order", "paired"), ("salun", "labels", "own"), ("ssd", "importance", "class"), ("ssd", "batch_size", 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def any_run() -> fastntk.Run:
    return toy_run()


@pytest.mark.parametrize(("method", "option", "value"), WRONG)
def test_values_out_of_range_are_refused_with_all_the_ranges(
    any_run: fastntk.Run, method: str, option: str, value: object
) -> None:
    with pytest.raises(InputError, match=f"cannot take {option}=") as caught:
        fastntk.unlearn(any_run, ids=[1], method=method, **{option: value})
    assert all(f"{name}: " in str(caught.value) for name in METHODS[method].run.__kwdefaults__)


def test_a_descent_that_diverges_says_what_to_lower() -> None:
    run = toy_run(dtype=torch.float32)
    huge = fastntk.Samples(run.data.inputs * 1e38, run.data.labels, run.data.ids)
    with pytest.raises(InputError, match="it diverged"):
        fastntk.unlearn(dataclasses.replace(run, samples=huge), classes=[0], method="neggrad+", alpha=0.0)


def test_a_run_without_recipe_is_unlearned_by_cross_entropy_without_penalty() -> None:
    run = toy_run()
    bare = fastntk.Run(run.model, run.subset, run.anchor, run.samples)
    for method in NEW:
        result = fastntk.unlearn(bare, classes=[1], method=method)
        assert result.delta.abs().max() > 0 or method == "ssd"
        assert result.details.get("weight_decay", 0.0) == 0.0


def test_prompts_can_be_unlearned() -> None:
    ensure_operators()
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **shape).eval()
    data = fastntk.Samples(torch.randn(12, 3, 16, 16), torch.arange(12) % 3)
    subset = fastntk.tune(model, "prompts+head", prompt_length=4, prompt_blocks=1)
    run = fastntk.fit(model, subset, data, fastntk.Recipe(epochs=2, lr=0.01, batch_size=6))
    for method in NEW:
        result = fastntk.unlearn(run, classes=[1], method=method)
        assert torch.isfinite(result.subset.get()).all()


# Each one's known answers


def test_fine_tune_by_hand() -> None:
    run = toy_run()
    made = fastntk.unlearn(
        run, ids=[0, 5], method="fine-tune", epochs=2, lr=0.01, batch_size=64, schedule="constant"
    ).subset.get()
    model, keep = copy.deepcopy(run.model), [i for i in range(48) if i not in (0, 5)]
    subset = run.subset.on(model)
    optimizer = torch.optim.Adam(subset.parameters.values(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        away = torch.cat([p.flatten() for p in subset.parameters.values()]) - run.anchor
        (F.cross_entropy(model(run.data.inputs[keep]), run.data.labels[keep]) + 1e-3 / 2 * away.square().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(made, subset.get(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("neggrad+", {"alpha": 1.0}),
        ("scrub", {"max_epochs": 0, "alpha": 0.0, "gamma": 1.0}),
        ("l1-sparse", {"gamma": 0.0, "towards": "anchor"}),
        ("l1-sparse", {"gamma": 0.0, "towards": "zero"}),
    ],
)
def test_methods_that_reduce_to_fine_tuning(method: str, options: dict[str, float]) -> None:
    run = toy_run()
    common = {"classes": [1], "epochs": 3, "lr": 0.01, "batch_size": 10, "seed": 4}
    expected = fastntk.unlearn(run, method="fine-tune", **common)
    assert torch.equal(fastntk.unlearn(run, method=method, **common, **options).subset.get(), expected.subset.get())
    assert expected.delta.abs().max() > 0


def test_neggrad_plus_takes_the_step_of_its_objective() -> None:
    run = toy_run()
    alpha, lr = 0.7, 1e-3
    made = fastntk.unlearn(run, classes=[3], method="neggrad+", alpha=alpha, lr=lr, epochs=1, batch_size=48)
    labels = run.data.labels
    retain, forget = (
        gradients(run, (labels != 3).nonzero().flatten()).mean(0),
        gradients(run, (labels == 3).nonzero().flatten()).mean(0),
    )
    gradient = alpha * retain - (1 - alpha) * forget + 1e-3 * (run.subset.get() - run.anchor)
    # Adam's first step is lr·g/(|g| + 1e-8).
    torch.testing.assert_close(made.delta, -lr * gradient / (gradient.abs() + 1e-8), rtol=1e-6, atol=1e-9)


def test_divergence_is_kullback_leibler_from_teacher_to_student() -> None:
    teacher, student = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    p, q = teacher.softmax(1), student.softmax(1)
    torch.testing.assert_close(divergence(teacher.log_softmax(1), student), (p * (p / q).log()).sum(1).mean())
    assert divergence(teacher.log_softmax(1), teacher).abs() < 1e-15


def test_scrub_leaves_the_teacher_on_what_goes_and_keeps_to_it_on_what_stays() -> None:
    run = toy_run()
    result = fastntk.unlearn(run, classes=[1], method="scrub", max_epochs=4, epochs=6, lr=0.02, batch_size=12)
    teacher, made = (fastntk.predict(model, run.data.inputs) for model in (run.model, result.model))
    gone = run.data.labels == 1
    apart = [float(divergence(teacher[part].log_softmax(1), made[part])) for part in (gone, ~gone)]
    assert apart[0] > 4 * apart[1]


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_importance_is_the_mean_of_squared_per_sample_gradients(loss: str) -> None:
    run = toy_run(loss=loss)
    positions = torch.tensor([3, 4, 9, 20, 31])
    made = loss_importance(task_of(run, ids=[0]), positions, description="")
    torch.testing.assert_close(made, gradients(run, positions).square().mean(0), rtol=1e-9, atol=1e-14)
    assert not torch.allclose(made, gradients(run, positions).mean(0).square(), rtol=0.1)


def test_fisher_diagonal_is_the_expectation_over_the_models_own_labels() -> None:
    run = toy_run()
    positions = torch.arange(7)
    made = fisher_diagonal(task_of(run, ids=[0]), positions, description="")
    torch.testing.assert_close(made, fisher_by_hand(run, positions), rtol=1e-9, atol=1e-14)
    squared = toy_run(loss="squared")  # Gaussian: Σ_c J_c²
    rows = fastntk.jacobian(squared.model, squared.subset, squared.data.inputs[:7])
    torch.testing.assert_close(
        fisher_diagonal(task_of(squared, ids=[0]), positions, description=""), rows.square().sum(1).mean(0)
    )


@pytest.mark.parametrize("towards", ["zero", "anchor"])
@pytest.mark.parametrize("dampening", [0.3, 1.0, 5.0])
def test_ssd_by_hand(towards: str, dampening: float) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double().eval()
    subset = fastntk.tune(model, "head")
    run = fastntk.fit(model, subset, toy(dtype=torch.float64), fastntk.Recipe(epochs=3, lr=0.01, batch_size=16))
    result = fastntk.unlearn(run, classes=[2], method="ssd", alpha=1.5, dampening=dampening, towards=towards)
    on_all = gradients(run, torch.arange(48)).square().mean(0)
    on_forget = gradients(run, (run.data.labels == 2).nonzero().flatten()).square().mean(0)
    expected, theta = [], run.subset.get()
    for j in range(subset.numel):
        target = float(run.anchor[j]) if towards == "anchor" else 0.0
        factor = min(dampening * float(on_all[j] / on_forget[j]), 1.0) if on_forget[j] > 1.5 * on_all[j] else 1.0
        expected.append(target + factor * (float(theta[j]) - target))
    torch.testing.assert_close(result.subset.get(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    moved = int((result.delta != 0).sum())
    assert moved == result.details["dampened"]
    assert (moved > 0) == (dampening < 5)  # λ beyond the largest ratio of four dampens nothing
    assert result.details["largest_ratio"] <= 4 + 1e-9


def test_ssd_chooses_nothing_beyond_the_largest_possible_ratio() -> None:
    assert fastntk.unlearn(toy_run(), classes=[2], method="ssd", alpha=4.0).delta.abs().max() == 0  # n / n_f = 4


def test_salun_moves_only_the_most_salient_parameters() -> None:
    run = toy_run(dtype=torch.float32)
    mask = most_salient(forget_gradient(task_of(run, classes=[1]), batch_size=5), 0.3)
    slow = gradients(run, (run.data.labels == 1).nonzero().flatten()).mean(0)
    torch.testing.assert_close(forget_gradient(task_of(run, classes=[1]), batch_size=5), slow, rtol=1e-4, atol=1e-6)
    assert slow.abs()[mask].min() >= slow.abs()[~mask].max() * (1 - 1e-4)
    assert int(mask.sum()) == round(0.3 * run.subset.numel)
    result = fastntk.unlearn(run, classes=[1], method="salun", share=0.3, epochs=3, lr=0.05, batch_size=5)
    before, after = run.subset.get(), result.subset.get()
    assert torch.equal(before[~mask], after[~mask])
    assert bool((before[mask] != after[mask]).all())
    assert result.details["movable"] == int(mask.sum())


# What they are for


# An epoch of this toy is one step, so more of them, and larger ones, than by default.
STRONG = {
    "neggrad+": {"alpha": 0.6, "lr": 0.02, "epochs": 5},
    "scrub": {"lr": 0.05, "max_epochs": 3, "epochs": 5},
    "ssd": {"alpha": 1.5, "dampening": 0.3},
    "salun": {"lr": 0.02, "epochs": 5},
}


@pytest.mark.parametrize("method", STRONG)
def test_methods_that_aim_at_the_forgotten_class_forget_it(method: str) -> None:
    run = toy_run(dtype=torch.float32)
    result = fastntk.unlearn(run, classes=[2], method=method, **STRONG[method])
    before, after = (accuracy(model, result.forgotten) for model in (run.model, result.model))
    assert before > 0.9
    assert after < 0.5
    assert accuracy(result.model, result.retained) > after


@pytest.mark.parametrize("method", [*NEW, "amnesiac", "deltagrad"])
def test_the_documented_defaults_are_the_defaults(method: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text("utf-8")
    section = text.split(f"\n## `{method}`")[1].split("\n## ")[0]
    options = dict(pair.split("=") for pair in re.findall(r"`(\w+=[^`,]+)`", section.split("Options:")[1].split(".\n")[0]))
    common = dict(pair.split("=") for pair in re.findall(r"`(\w+=[^`,]+)`", text.split("\n## ")[0]))
    for name, default in METHODS[method].run.__kwdefaults__.items():
        if name != "seed":
            written = options[name] if name in options else common[name]
            if default is None:
                assert written == "None", name
                continue
            assert written.strip('"') == default if isinstance(default, str) else float(written) == default, name


@pytest.mark.parametrize("method", ["max-loss", "random-label"])
def test_pushing_away_stops_once_nothing_forgotten_is_named_right(method: str) -> None:
    run = toy_run()
    forgotten = run.data.subset(task_of(run, classes=[1]).split.forget)
    rate = 0.01
    made = fastntk.unlearn(run, classes=[1], method=method, lr=rate)
    taken = made.details["epochs"]
    assert 1 <= taken < MOST_EPOCHS
    assert accuracy(made.model, forgotten) == 0
    before = fastntk.unlearn(run, classes=[1], method=method, lr=rate, epochs=taken - 1)
    assert accuracy(before.model, forgotten) > 0
    told = fastntk.unlearn(run, classes=[1], method=method, lr=rate, epochs=taken)
    assert torch.equal(told.delta, made.delta)
    with pytest.warns(UserWarning, match=f"{method}: after {MOST_EPOCHS} epochs.* are still classified correctly. Raise"):
        assert fastntk.unlearn(run, classes=[1], method=method, lr=1e-9).details["epochs"] == MOST_EPOCHS


def test_ascent_that_overflows_is_an_error() -> None:
    with pytest.raises(InputError, match="Lower the learning rate"):
        fastntk.unlearn(toy_run(dtype=torch.float32), classes=[1], method="max-loss", lr=1e6, epochs=50)
