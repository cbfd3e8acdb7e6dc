"""SalUn, Fisher forgetting and SSD as their authors' code does them, against plain loops; and what their trials share."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastntk
from fastntk.unlearning import METHODS
from fastntk.unlearning.baselines import fisher as fisher_module
from fastntk.unlearning.baselines import ssd as ssd_module
from fastntk.unlearning.baselines.common import descent as descent_module
from fastntk.unlearning.baselines.fisher import fisher, noise_deviation
from fastntk.unlearning.method import Task
from fastntk.unlearning.reuse import share_between_trials

CLASSES, SIZE = 4, 48


def toy() -> fastntk.Samples:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(SIZE) % CLASSES
    centres = torch.randn(CLASSES, 3, 6, 6, generator=generator)
    return fastntk.Samples((centres[labels] + 0.5 * torch.randn(SIZE, 3, 6, 6, generator=generator)).double(), labels)


def toy_run() -> fastntk.Run:
    torch.manual_seed(2)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)]
    model = nn.Sequential(*layers).double().eval()
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), toy(), fastntk.Recipe(epochs=15, lr=0.02, batch_size=16))


@pytest.fixture
def run() -> fastntk.Run:
    return toy_run()


def positions_of(run: fastntk.Run, label: int) -> list[int]:
    return (run.data.labels == label).nonzero().flatten().tolist()


def gradient(run: fastntk.Run, positions: list[int]) -> Tensor:
    """Of the mean loss of these samples, by one plain backward pass, (d,)."""
    loss = F.cross_entropy(run.model(run.data.inputs[positions]), run.data.labels[positions])
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(run.subset.parameters.values()))])


def fisher_by_hand(run: fastntk.Run, positions: list[int]) -> Tensor:
    """Σ_y p_y (∇ log p_y)², sample by sample and label by label, (d,)."""
    total = torch.zeros(run.subset.numel, dtype=torch.float64)
    parameters = list(run.subset.parameters.values())
    for i in positions:
        logs = run.model(run.data.inputs[i : i + 1]).log_softmax(1)[0]
        for log in logs:
            grads = torch.autograd.grad(log, parameters, retain_graph=True)
            total += log.exp().detach() * torch.cat([grad.flatten() for grad in grads]).square()
    return total / len(positions)


# SalUn


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Positions and labels of every loss that a descent takes, in order."""
    taken: list[tuple[list[int], list[int]]] = []
    plain = descent_module.Descent.loss

    def loss(self: descent_module.Descent, batch: Tensor, **options: Tensor) -> Tensor:
        labels = options.get("labels")
        taken.append((batch.tolist(), (self.labels[batch] if labels is None else labels).tolist()))
        return plain(self, batch, **options)

    monkeypatch.setattr(descent_module.Descent, "loss", loss)
    return taken


def test_an_epoch_of_salun_passes_over_what_goes_and_then_over_what_stays(
    run: fastntk.Run, recorded: list[tuple[list[int], list[int]]]
) -> None:
    result = fastntk.unlearn(run, classes=[2], method="salun", epochs=2, batch_size=8)
    goes = positions_of(run, 2)
    stays = [i for i in range(SIZE) if i not in goes]
    of_mask, epochs = recorded[:2], recorded[2:]  # 12 samples in batches of 8
    assert sorted(i for batch, _ in of_mask for i in batch) == goes
    per_epoch = 2 + math.ceil(len(stays) / 8)
    assert len(epochs) == 2 * per_epoch == result.details["steps"]
    for first in (0, per_epoch):
        epoch = epochs[first : first + per_epoch]
        assert sorted(i for batch, _ in epoch[:2] for i in batch) == goes
        assert sorted(i for batch, _ in epoch[2:] for i in batch) == stays
        assert all(labels == run.data.labels[batch].tolist() for batch, labels in epoch[2:])
    drawn = [dict(zip(batch, labels)) for batch, labels in (*epochs[:2], *epochs[per_epoch : per_epoch + 2])]
    assert (drawn[0] | drawn[1]) != (drawn[2] | drawn[3])  # drawn anew in every epoch


@pytest.mark.parametrize(("labels", "expected"), [("any", {0, 1, 2, 3}), ("other", {0, 1, 3})])
@pytest.mark.parametrize("order", ["passes", "mixed"])
def test_where_salun_draws_labels_from(
    run: fastntk.Run, recorded: list[tuple[list[int], list[int]]], labels: str, expected: set[int], order: str
) -> None:
    fastntk.unlearn(run, classes=[2], method="salun", labels=labels, order=order, epochs=10, batch_size=SIZE)
    goes = set(positions_of(run, 2))
    drawn = [label for batch, given in recorded[1:] for i, label in zip(batch, given) if i in goes]
    assert len(drawn) == 10 * len(goes)
    assert set(drawn) == expected


def test_mixed_salun_takes_the_weighted_mean_of_the_batch(run: fastntk.Run) -> None:
    """One batch of everything: the first Adam step is against the sign of the gradient, by hand with the same draws."""
    alpha, lr = 0.25, 1e-3
    made = fastntk.unlearn(
        run, classes=[2], method="salun", order="mixed", alpha=alpha, share=1.0, epochs=1, lr=lr, batch_size=SIZE, seed=3
    )
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(6))
    goes, stays = positions_of(run, 2), [i for i in range(SIZE) if run.data.labels[i] != 2]
    batch = torch.tensor(goes + stays)[order]
    labels = run.data.labels[batch].clone()
    own = labels == 2
    labels[own] = (2 + torch.randint(0, CLASSES, (len(goes),), generator=torch.Generator().manual_seed(7))) % CLASSES
    losses = F.cross_entropy(run.model(run.data.inputs[batch]), labels, reduction="none")
    grads = torch.autograd.grad((losses * torch.where(own, 1.0, alpha)).mean(), list(run.subset.parameters.values()))
    total = torch.cat([grad.flatten() for grad in grads]) + 1e-3 * (run.subset.get() - run.anchor)
    clear = total.abs() > 1e-5
    assert int(clear.sum()) > 50
    torch.testing.assert_close(made.delta[clear], -lr * total.sign()[clear], rtol=1e-2, atol=1e-8)


def test_salun_without_a_weight_on_what_stays_never_sees_it(
    run: fastntk.Run, recorded: list[tuple[list[int], list[int]]]
) -> None:
    for order in ("passes", "mixed"):
        fastntk.unlearn(run, classes=[2], method="salun", alpha=0.0, order=order)
    assert {i for batch, _ in recorded for i in batch} == set(positions_of(run, 2))


# Fisher forgetting


def fisher_task(run: fastntk.Run, **request: object) -> Task:
    return Task(run, fastntk.ForgetRequest(**request).resolve(run.data))  # type: ignore[arg-type]


def deviation_by_hand(run: fastntk.Run, diagonal: Tensor, alpha: float, gone: int | None) -> Tensor:
    """The rule of the authors' code, number by number."""
    parts = []
    for name, part in run.subset.split(diagonal).items():
        head = name.startswith("5.")
        cap = 1e2 if head else 1e3
        values = part.clone()
        for index in torch.cartesian_prod(*map(torch.arange, part.shape)).reshape(-1, part.ndim).tolist():
            row = part[index[0]].flatten() if part.ndim == 2 else part[index[0]].reshape(1)
            variance = alpha**2 * sum(min(1 / (float(each) + 1e-8), cap) for each in row) / len(row)
            if head and index[0] == gone:
                variance = 1e-4
            values[tuple(index)] = math.sqrt(10 * variance if head or part.ndim == 1 else variance)
        parts.append(values.flatten())
    return torch.cat(parts)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_fisher_noise_has_the_formulas_mean_and_deviation(run: fastntk.Run, form: str) -> None:
    alpha, clip, count = 0.02, 0.06, 200
    task, theta = fisher_task(run, classes=[1]), run.subset.get()
    options = {"alpha": alpha, "form": form, "clip": clip}
    draws = torch.stack([fisher(task, seed=seed, **options).vector for seed in range(count)])  # type: ignore[arg-type]
    rows = run.subset.split(torch.arange(run.subset.numel))
    gone = torch.cat([rows["5.weight"][1], rows["5.bias"][1:2]])
    diagonal = fisher_by_hand(run, [i for i in range(SIZE) if i % CLASSES != 1])
    if form == "code":
        wanted = deviation_by_hand(run, diagonal, alpha, 1)
    else:
        wanted = alpha * diagonal.pow(-0.25)
        wanted[gone] = 0.01
    wanted = wanted.clamp(max=clip)
    mean = theta.clone()
    mean[gone] = 0
    ratio = (draws - mean).square().mean(0) / wanted.square()
    # Each ratio is χ²_200/200, of standard deviation √(2/200) = 0.1.
    assert (ratio - 1).abs().max() < 5 * 0.1
    assert abs(float(ratio.mean()) - 1) < 0.05
    assert ((draws.mean(0) - mean) / wanted).abs().max() < 5 / count**0.5
    clipped = int((wanted == clip).sum())
    assert 0 < clipped < len(wanted)
    details = fastntk.unlearn(run, classes=[1], method="fisher", **options).details
    assert (details["clipped"], details["zeroed"]) == (clipped, 33)


def test_fishers_deviation_is_the_codes_number_by_number(run: fastntk.Run) -> None:
    diagonal = torch.rand(run.subset.numel, generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(12)
    assert (diagonal < 1e-3).any()
    expected = deviation_by_hand(run, diagonal, 0.01, None)
    torch.testing.assert_close(noise_deviation(diagonal, run, alpha=0.01, form="code"), expected, rtol=1e-12, atol=0)


def test_only_classes_that_go_as_a_whole_lose_their_row(run: fastntk.Run) -> None:
    weight = run.subset.split(torch.arange(run.subset.numel))["5.weight"]
    silent = {"method": "fisher", "alpha": 0.0, "form": "paper"}
    both = fastntk.unlearn(run, classes=[0, 3], **silent).subset.get()
    assert (both[weight[[0, 3]]].abs() < 0.06).all()  # deviation 0.01
    assert torch.equal(both[weight[[1, 2]]], run.subset.get()[weight[[1, 2]]])
    for request in ({"classes": [0], "class_rows": "noise"}, {"ids": [0, 4]}):
        assert fastntk.unlearn(run, **request, **silent).delta.abs().max() == 0  # type: ignore[arg-type]


def test_fishers_rows_are_those_of_a_tuned_head(run: fastntk.Run) -> None:
    model = copy.deepcopy(run.model)
    norms = fastntk.tune(model, "norm")
    only = fastntk.Run(model, norms, norms.get(), run.samples)
    assert fastntk.unlearn(only, classes=[1], method="fisher").details["zeroed"] == 0
    wide = nn.Sequential(nn.Flatten(), nn.Linear(108, CLASSES + 2)).double().eval()
    head = fastntk.tune(wide, "head")
    more = fastntk.Run(wide, head, head.get(), run.samples)
    assert fastntk.unlearn(more, classes=[1], method="fisher").details["zeroed"] == 109  # 108 weights and a bias


# SSD


@pytest.mark.parametrize("batch_size", [1, 5, 64])
@pytest.mark.parametrize("request_", [{"classes": [1, 3]}, {"ids": [0, 1, 2, 5, 7, 9, 13, 30, 31]}])
def test_ssd_by_batches_by_hand(run: fastntk.Run, batch_size: int, request_: dict[str, list[int]]) -> None:
    alpha, dampening = 1.3, 0.8
    if "classes" in request_:
        goes, stays = (positions_of(run, a) + positions_of(run, b) for a, b in ((1, 3), (0, 2)))
    else:
        goes = request_["ids"]
        stays = [i for i in range(SIZE) if i not in goes]
    everything = stays + goes

    def importance(positions: list[int]) -> Tensor:
        parts = [positions[first : first + batch_size] for first in range(0, len(positions), batch_size)]
        return torch.stack([gradient(run, part).square() for part in parts]).mean(0)

    on_forget, on_all = importance(goes), importance(everything)
    factor = torch.where(on_forget > alpha * on_all, (dampening * on_all / on_forget).clamp(max=1), 1.0)
    options = {"alpha": alpha, "dampening": dampening, "importance": "batch", "batch_size": batch_size}
    result = fastntk.unlearn(run, **request_, method="ssd", **options)
    torch.testing.assert_close(result.subset.get(), factor * run.subset.get(), rtol=1e-9, atol=1e-12)
    assert 0 < result.details["dampened"] == int((factor < 1).sum())


def test_batches_of_one_are_single_samples(run: fastntk.Run) -> None:
    one = fastntk.unlearn(run, classes=[1], method="ssd", importance="batch", batch_size=1)
    torch.testing.assert_close(
        one.subset.get(), fastntk.unlearn(run, classes=[1], method="ssd", importance="sample").subset.get()
    )


# What trials share


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the expensive parts, as often as they are computed."""
    calls: list[str] = []

    def counted(name: str, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def count(*args: object, **options: object) -> Tensor:
            calls.append(name)
            return plain(*args, **options)

        return count

    monkeypatch.setattr(fisher_module, "fisher_diagonal", counted("fisher", fisher_module.fisher_diagonal))
    monkeypatch.setattr(ssd_module, "importances", counted("ssd", ssd_module.importances))
    return calls


@pytest.mark.parametrize("method", ["fisher", "ssd"])
def test_trials_of_a_rehearsal_share_one_computation_and_others_do_not(
    run: fastntk.Run, computing: list[str], method: str
) -> None:
    rehearsal = fastntk.rehearse(run, classes=[1])
    request = {"ids": rehearsal.forget, "method": method, "alpha": 1.2}
    first, again = (fastntk.unlearn(rehearsal.run, **request) for _ in range(2))
    assert computing == [method]
    assert torch.equal(first.subset.get(), again.subset.get())
    stage = "fisher" if method == "fisher" else "importance"
    assert stage in first.details["seconds"]
    assert stage not in again.details["seconds"]
    assert (first.details[f"{stage}_reused"], again.details[f"{stage}_reused"]) == (False, True)
    plain = dataclasses.replace(rehearsal.run)  # the same run, not enrolled
    computed = [fastntk.unlearn(plain, **request) for _ in range(2)]
    assert computing == 3 * [method]
    assert all(torch.equal(each.subset.get(), first.subset.get()) for each in computed)
    assert not any(each.details[f"{stage}_reused"] for each in computed)


@pytest.mark.parametrize("method", ["fisher", "ssd"])
def test_whatever_decides_it_makes_trials_compute_again(run: fastntk.Run, computing: list[str], method: str) -> None:
    share_between_trials(run)

    def computes(**request: object) -> bool:
        before = len(computing)
        result = fastntk.unlearn(run, method=method, **request)  # type: ignore[arg-type]
        fresh = fastntk.unlearn(dataclasses.replace(run), method=method, **request)  # type: ignore[arg-type]
        assert torch.equal(result.subset.get(), fresh.subset.get())
        return len(computing) - before == 2

    assert computes(classes=[1])
    assert not computes(classes=[1])
    assert computes(classes=[2])
    assert computes(ids=[1, 5])
    run.subset.set(run.subset.get() * 1.5)
    assert computes(classes=[1])
    with torch.no_grad():
        run.model[0].weight.mul_(2.0)  # outside the subset
    assert computes(classes=[1])
    run.model[1].running_mean.add_(0.5)
    assert computes(classes=[1])
    run.model[1].eps = 0.1  # type: ignore[assignment]
    assert computes(classes=[1])
    run.data.inputs.mul_(0.5)
    assert computes(classes=[1])
    assert not computes(classes=[1])


def test_a_batch_size_that_plays_no_part_is_no_reason_to_compute(run: fastntk.Run, computing: list[str]) -> None:
    share_between_trials(run)
    for batch_size in (4, 8):
        fastntk.unlearn(run, classes=[1], method="ssd", importance="sample", batch_size=batch_size)
    assert computing == ["ssd"]
    for batch_size in (4, 8):
        fastntk.unlearn(run, classes=[1], method="ssd", importance="batch", batch_size=batch_size)
    assert computing == ["ssd"] * 3


def test_a_value_that_is_shared_cannot_be_spoilt_by_who_gets_it(run: fastntk.Run) -> None:
    share_between_trials(run)
    task = fisher_task(run, classes=[1])
    first = fisher(task, alpha=0.01).vector
    fisher(task, alpha=0.0)
    assert torch.equal(fisher(task, alpha=0.01).vector, first)


@pytest.mark.parametrize("method", ["salun", "fisher", "ssd"])
def test_search_spaces_have_room_for_a_budget_of_25_with_the_defaults_in_them(method: str) -> None:
    space, options = METHODS[method].search_space, METHODS[method].options
    decisive = [values for name, values in space.items() if name != "class_rows"]  # single samples have none
    assert math.prod(map(len, decisive)) >= 25
    assert all(options[name].default in values for name, values in space.items())
    assert all(len(set(values)) == len(values) for values in space.values())
