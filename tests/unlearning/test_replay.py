"""Tangent replay: exact on linear models, sane on networks, and a warning where the linear picture fails."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

import fastntk
from fastntk.base.errors import InputError
from fastntk.unlearning.tangent_replay import averaging, selection
from fastntk.unlearning.tangent_replay.averaging import SEEDS, STRIDE
from fastntk.unlearning.tangent_replay.blending import regression_weight
from fastntk.unlearning.tangent_replay.path_models import path_models
from fastntk.unlearning.tangent_replay.replay import replay
from fastntk.unlearning.tangent_replay.selection import nearest
from fastntk.unlearning.update import RETRAIN


def small_data(n: int = 60, classes: int = 4, *, dtype: torch.dtype = torch.float32) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 3, 8, 8, generator=generator)
    inputs = centres[labels] + 0.7 * torch.randn(n, 3, 8, 8, generator=generator)
    return fastntk.Samples(inputs.to(dtype), labels, ids=[f"img{i}" for i in range(n)])


def small_net(classes: int = 4) -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )  # fmt: skip
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    return net.eval()


def small_run(recipe: fastntk.Recipe | None = None) -> fastntk.Run:
    net = small_net()
    return fastntk.fit(
        net, fastntk.tune(net, "norm+head"), small_data(), recipe or fastntk.Recipe(epochs=6, lr=0.01, batch_size=16)
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_a_linear_model_under_replay_equals_retraining(optimizer: str, schedule: str, loss: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).double().eval()
    recipe = fastntk.Recipe(epochs=3, lr=0.01, batch_size=7, optimizer=optimizer, schedule=schedule, loss=loss, weight_decay=0.05)
    run = fastntk.fit(model, fastntk.tune(model, "head"), small_data(dtype=torch.float64), recipe)
    for request in ({"ids": ["img3", "img14", "img59"]}, {"classes": [2]}):
        made = fastntk.unlearn(run, method="tangent-replay", **request)
        true = fastntk.unlearn(run, method="retrain", **request)
        torch.testing.assert_close(made.subset.get(), true.subset.get(), rtol=1e-10, atol=1e-12)
        assert made.details["replay_miss"] < 1e-12
        assert made.details["average"]["seeds"] == 1


def test_whole_classes_aim_at_the_middle_where_the_seed_is_not_reproduced() -> None:
    calm = fastntk.unlearn(small_run(), classes=[1], method="tangent-replay", path="tangent")
    assert calm.details["average"]["miss"] < calm.details["average"]["noise"]
    assert calm.details["average"]["seeds"] == 1
    run = small_run(fastntk.Recipe(epochs=6, lr=0.05, batch_size=16))
    lin = fastntk.linearise_run(run)
    keep = run.data.labels != 1
    path = path_models(lin, "tangent")["tangent"]
    recipes = [dataclasses.replace(run.recipe, seed=k * STRIDE) for k in range(SEEDS)]
    ends = [replay(path, lin.anchor, run.data.labels, recipe, keep=keep)[0] for recipe in recipes]
    full = replay(path, lin.anchor, run.data.labels, run.recipe)[0]
    forget = lambda **options: fastntk.unlearn(
        run, method="tangent-replay", linearisation=lin, path="tangent", validate=False, blend=0, **options
    )
    made = forget(classes=[1])
    assert made.details["average"]["miss"] > made.details["average"]["noise"] > 0
    assert made.details["average"]["seeds"] == SEEDS
    torch.testing.assert_close(made.delta, sum(ends) / SEEDS - full, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(forget(classes=[1], average=1).delta, ends[0] - full, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(forget(classes=[1], average=2).delta, (ends[0] + ends[1]) / 2 - full, rtol=1e-4, atol=1e-5)
    assert forget(ids=["img1", "img2"]).details["average"]["seeds"] == 1
    for wrong in (0, -1, 2.5, True, "some"):
        with pytest.raises(InputError, match="average counts seeds"):
            forget(classes=[1], average=wrong)


def test_two_stand_ins_are_averaged_where_the_replay_misses_the_network() -> None:
    run = small_run(fastntk.Recipe(epochs=6, lr=0.05, batch_size=16))
    lin = fastntk.linearise_run(run)
    forget = lambda **options: fastntk.unlearn(run, classes=[1], linearisation=lin, validate=False, **options)
    regression = forget(method="fast-ntk").delta
    alone, made = (forget(method="tangent-replay", blend=blend) for blend in (0, "auto"))
    assert alone.details["blend"] == {"weight": 0.0}
    weight = made.details["blend"]["weight"]
    assert 0 < weight < 1
    assert made.details["average"]["miss"] > 0.01
    torch.testing.assert_close(made.delta, (1 - weight) * alone.delta + weight * regression, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(forget(method="tangent-replay", blend=1).delta, regression, rtol=1e-4, atol=1e-5)
    for wrong in (-0.1, 1.5, True, "some"):
        with pytest.raises(InputError, match="blend is the share"):
            forget(method="tangent-replay", blend=wrong)


def test_each_stand_in_counts_by_the_inverse_square_of_its_miss() -> None:
    truth, one = (torch.rand(20, 4, generator=torch.Generator().manual_seed(k)).softmax(1) for k in range(2))
    nearer = truth + (one - truth) / 3
    assert regression_weight(one, nearer, truth) == pytest.approx(0.9, rel=1e-4)
    assert regression_weight(nearer, one, truth) == pytest.approx(0.1, rel=1e-4)
    assert regression_weight(truth, one, truth) == regression_weight(truth, truth, truth) == 0.0
    assert regression_weight(one, truth, truth) == 1.0


def test_replay_lands_nearer_to_retrain_than_doing_nothing() -> None:
    run = small_run()
    true = fastntk.unlearn(run, method="retrain", classes=[1]).subset.get()
    made = fastntk.unlearn(run, method="tangent-replay", classes=[1]).subset.get()
    assert (made - true).norm() < 0.8 * (run.subset.get() - true).norm()


def test_path_models_are_right_where_they_should_be() -> None:
    run = small_run()
    lin = fastntk.linearise_run(run)
    everything = torch.arange(len(run.data))
    models = path_models(lin)
    assert list(models) == ["product", "curved", "tangent"]
    for name in ("product", "curved"):
        torch.testing.assert_close(models[name](everything, lin.theta), lin.outputs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(models[name](everything, lin.anchor), lin.anchor_outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(models["tangent"](everything, lin.theta), lin.outputs)
    direction = 1e-3 * torch.randn(run.subset.numel, generator=torch.Generator().manual_seed(0))
    expected = lin.outputs + lin.rows.matvec(direction)
    torch.testing.assert_close(models["tangent"](everything, lin.theta + direction), expected, rtol=1e-4, atol=1e-5)


def test_the_curved_path_has_the_networks_derivatives_at_theta() -> None:
    run = small_run()
    lin = fastntk.linearise_run(run)
    everything = torch.arange(len(run.data))
    jacobian = torch.func.jacfwd(lambda w: path_models(lin)["curved"](everything, w))(lin.theta)
    reach = lin.theta - lin.anchor
    for direction in (*torch.randn(5, run.subset.numel, generator=torch.Generator().manual_seed(0)), reach):
        torch.testing.assert_close(jacobian @ direction, lin.rows.matvec(direction), rtol=1e-3, atol=1e-3)
    # ``product`` arrives at θ along a chord, not along the rows.
    chord = torch.func.jvp(lambda w: path_models(lin)["product"](everything, w), (lin.theta,), (reach,))[1]
    assert (chord - lin.rows.matvec(reach)).norm() > 0.02 * chord.norm()


def test_off_the_curve_rows_count_by_the_way_to_theta() -> None:
    lin = fastntk.linearise_run(small_run())
    curved, layout = path_models(lin)["curved"], lin.rows.layout
    reach = torch.zeros_like(lin.theta)
    reach[layout.body_columns] = (lin.theta - lin.anchor)[layout.body_columns]
    aside = torch.zeros_like(reach)
    aside[layout.body_columns] = torch.randn(len(layout.body_columns), generator=torch.Generator().manual_seed(1))
    aside -= aside.dot(reach) / reach.dot(reach) * reach
    batch = torch.tensor([4, 9, 33])
    for share in (0.0, 0.3, 1.0, 1.4):
        on = lin.theta + (share - 1) * reach  # the head stays θ's, so what P lifts the head sees in full
        moved = curved(batch, on + aside) - curved(batch, on)
        torch.testing.assert_close(moved, share * lin.rows.matvec(aside)[batch], rtol=1e-3, atol=1e-4)


def test_the_path_that_finds_back_to_theta_is_taken() -> None:
    assert nearest({"product": 0.37, "curved": 0.28, "tangent": 0.25}) == "curved"
    assert nearest({"product": 0.37, "curved": 0.41, "tangent": 0.35}) == "product"
    assert nearest({"product": 0.61, "curved": 0.59, "tangent": 0.41}) == "tangent"
    assert nearest({"tangent": 0.9}) == "tangent"
    run = small_run(fastntk.Recipe(epochs=6, lr=0.05, batch_size=16))
    details = fastntk.unlearn(run, classes=[1], method="tangent-replay").details
    assert set(details["replay_misses"]) == {"product", "curved", "tangent"}
    assert details["path"] == nearest(details["replay_misses"])
    assert details["replay_miss"] == details["replay_misses"][details["path"]]


def test_a_path_that_diverges_or_is_exact_settles_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(fastntk.Recipe(epochs=6, lr=0.05, batch_size=16))
    forget = lambda **options: fastntk.unlearn(run, classes=[1], method="tangent-replay", validate=False, blend=0, **options)
    paths = selection.path_models

    def some_diverge(*names: str) -> None:
        hopeless = lambda batch, w: torch.full((len(batch), 4), torch.nan) * w[0]
        monkeypatch.setattr(
            selection, "path_models", lambda *given: {k: hopeless if k in names else m for k, m in paths(*given).items()}
        )

    some_diverge("product", "tangent")
    details = forget().details
    assert details["path"] == "curved"
    assert set(details["replay_misses"]) == {"curved"}
    assert details["replay_diverged"] == ["product", "tangent"]
    some_diverge("product", "curved", "tangent")
    with pytest.raises(InputError, match="training diverged"):
        forget()
    monkeypatch.setattr(selection, "path_models", paths)
    monkeypatch.setattr(selection, "EXACT", 1.0)
    assert set(forget().details["replay_misses"]) == {"product"}


def test_an_exact_replay_asks_no_other_path_and_later_requests_no_second_replay_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(fastntk.Recipe(epochs=2, lr=1e-4, batch_size=16))
    lin = fastntk.linearise_run(run)
    seen: list[str] = []
    for module in (selection, averaging):
        monkeypatch.setattr(
            module, "replay", lambda *args, **options: (seen.append(options["description"]), replay(*args, **options))[1]
        )
    for name in (1, 2):
        details = fastntk.unlearn(run, classes=[name], method="tangent-replay", linearisation=lin, average=1).details
        assert set(details["replay_misses"]) == {"product"}
    assert seen == ["replay of all (product)", "replay without", "replay without"]


def test_a_replay_that_misses_the_trained_weights_is_not_trusted() -> None:
    run = small_run(fastntk.Recipe(epochs=6, lr=0.01, batch_size=16))
    other = fastntk.Run(run.model, run.subset, run.anchor, run.samples, recipe=fastntk.Recipe(epochs=6, lr=0.2, seed=3))
    validity = fastntk.unlearn(other, classes=[1], method="tangent-replay").details["validity"]
    assert validity["verdict"] == "retrain instead"
    assert any("missed the trained weights" in reason for reason in validity["reasons"])


def test_replay_without_a_tuned_head_uses_the_tangent() -> None:
    net = small_net()
    nn.init.normal_(net[-1].weight)
    run = fastntk.fit(net, fastntk.tune(net, "norm"), small_data(), fastntk.Recipe(epochs=2, batch_size=16))
    result = fastntk.unlearn(run, ids=["img7"], method="tangent-replay")
    assert result.details["path"] == "tangent"
    with pytest.raises(InputError, match="path 'product' needs"):
        fastntk.unlearn(run, ids=["img7"], method="tangent-replay", path="product")


@pytest.mark.parametrize("method", ["fast-ntk", "tangent-replay", "retrain", "full", "max-loss", "random-label"])
def test_every_method_leaves_the_run_alone_and_is_deterministic(method: str) -> None:
    run = small_run()
    before = copy.deepcopy(run.model.state_dict())
    first = fastntk.unlearn(run, classes=[2], method=method)
    again = fastntk.unlearn(run, classes=[2], method=method)
    assert torch.equal(first.subset.get(), again.subset.get())
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    mine = {p.data_ptr() for p in run.model.state_dict().values() if p.numel()}
    assert not mine & {p.data_ptr() for p in first.model.state_dict().values() if p.numel()}
    torch.testing.assert_close(first.subset.get(), run.subset.get() + first.delta)
    assert first.model.state_dict().keys() == before.keys()
    json.dumps(first.details)
    assert first.seconds > 0
    assert set(first.retained.ids) | set(first.forgotten.ids) == set(run.data.ids)
    assert len(first.forgotten) == 15


def test_forgetting_methods_forget() -> None:
    run = small_run(fastntk.Recipe(epochs=20, lr=0.02, batch_size=16))
    right = lambda result: (fastntk.predict(result.model, result.forgotten.inputs).argmax(1) == 2).float().mean()
    assert right(fastntk.unlearn(run, classes=[2], method="full")) > 0.9
    for method in ("fast-ntk", "tangent-replay", "retrain"):
        assert right(fastntk.unlearn(run, classes=[2], method=method)) < 0.2, method


def test_replaying_nothing_forgotten_moves_nothing_and_order_does_not_matter() -> None:
    run = small_run()
    empty = fastntk.unlearn(run, ids=[], method="tangent-replay")
    assert empty.delta.abs().max() == 0
    one = fastntk.unlearn(fastntk.unlearn(run, ids=["img1"], method="tangent-replay"), ids=["img2"], method="tangent-replay")
    two = fastntk.unlearn(run, ids=["img2", "img1"], method="tangent-replay")
    assert torch.equal(one.subset.get(), two.subset.get())


def test_polish_finishes_on_the_real_network() -> None:
    run = small_run()
    lin = fastntk.linearise_run(run)
    true = fastntk.unlearn(run, classes=[1], method="retrain").subset.get()
    plain = fastntk.unlearn(run, classes=[1], method="tangent-replay", linearisation=lin)
    polished = fastntk.unlearn(run, classes=[1], method="tangent-replay", linearisation=lin, polish=3)
    assert polished.details["polish"] == 3
    assert (polished.subset.get() - plain.subset.get()).norm() > 0
    # Polishing all epochs from the anchor's optimiser state is retraining from θ + Δ: at least the recipe's first state is used.
    with pytest.raises(InputError, match="polish counts epochs"):
        fastntk.unlearn(run, classes=[1], method="tangent-replay", linearisation=lin, polish=7)
    assert (polished.subset.get() - true).norm() < 1.5 * (plain.subset.get() - true).norm()


class Wild(nn.Module):
    """Features that oscillate quickly in the tuned parameters: no linear step of any size is right."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(192), nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sin(60 * self.norm(x.flatten(1))))


@pytest.mark.parametrize("method", ["fast-ntk", "tangent-replay"])
def test_far_out_of_the_linear_regime_the_result_says_retrain(method: str) -> None:
    model = Wild().eval()
    nn.init.zeros_(model.out.weight)
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), small_data(), fastntk.Recipe(epochs=10, lr=0.05, batch_size=16))
    result = fastntk.unlearn(run, classes=[0], method=method)
    validity = result.details["validity"]
    assert validity["verdict"] == "retrain instead", validity
    assert validity["searched"] is not None
    assert validity["reasons"]
    assert validity["thresholds"]["retrain"] == RETRAIN


def test_batch_norm_statistics_are_renewed_only_where_they_were_updated() -> None:
    frozen = small_run()
    result = fastntk.unlearn(frozen, classes=[0])
    assert result.details["batch_norm_statistics"] == "untouched"
    assert torch.equal(result.model[1].running_mean, frozen.model[1].running_mean)
    updated = small_run(fastntk.Recipe(epochs=3, lr=0.01, batch_size=16, bn_stats="update"))
    result = fastntk.unlearn(updated, classes=[0])
    assert "estimated anew" in result.details["batch_norm_statistics"]
    kept = result.retained.inputs
    mean = result.model[0](kept).mean((0, 2, 3))
    torch.testing.assert_close(result.model[1].running_mean, mean, rtol=1e-3, atol=1e-4)
    assert not result.model.training


def test_weights_outside_the_subset_are_compared_with_the_pretrained_ones() -> None:
    model = fastntk.build_model("resnet20", num_classes=4)
    subset = fastntk.tune(model, "norm+head")
    samples = small_data(20)
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=1, batch_size=16))
    assert fastntk.unlearn(run, ids=["img0"], method="full").details["outside_subset"]["status"] == "pre-trained"
    with torch.no_grad():
        model.conv1.weight.add_(1e-3)
    report = fastntk.unlearn(run, ids=["img0"], method="full").details["outside_subset"]
    assert report["status"] == "differ"
    assert report["names"] == ["conv1.weight"]


def test_whole_class_by_ids_is_noted_and_ids_are_not_kept() -> None:
    run = small_run()
    ids = [i for i, label in zip(run.data.ids, run.data.labels.tolist()) if label == 3]
    result = fastntk.unlearn(run, ids=ids)
    assert result.details["request"]["whole_classes"] == [3]
    assert "img" not in json.dumps(result.details)


def _without_recipe(run: fastntk.Run) -> fastntk.Run:
    return fastntk.Run(run.model, run.subset, run.anchor, run.samples)


@pytest.mark.parametrize(
    ("change", "request_", "message"),
    [
        (_without_recipe, {"ids": ["img0"], "method": "tangent-replay"}, "the run has none"),
        (_without_recipe, {"ids": ["img0"], "method": "retrain"}, "the run has none"),
        (lambda r: fastntk.Run(r.model, r.subset, r.anchor, None), {"ids": ["img0"]}, "without its data"),
        (lambda r: r, {"ids": ["nobody"]}, "nobody"),
        (lambda r: r, {"ids": ["img0", "img0"]}, "img0"),
        (lambda r: r, {"classes": [0, 1, 2, 3]}, "retain"),
        (lambda r: r, {"classes": [9]}, "9"),
        (lambda r: r, {}, "classes"),
        (lambda r: r, {"ids": ["img0"], "method": "magic"}, "choose one of fast-ntk, path-replay"),
        (lambda r: r, {"ids": ["img0"], "method": "full", "lr": 1}, "it takes: none"),
    ],
)
def test_bad_requests(change, request_, message: str) -> None:  # type: ignore[no-untyped-def]
    run = change(small_run())
    before = copy.deepcopy(run.model.state_dict())
    with pytest.raises(InputError, match=message):
        fastntk.unlearn(run, **request_)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_a_run_needs_an_anchor() -> None:
    run = small_run()
    with pytest.raises(InputError, match="the anchor must be a tensor of shape"):
        fastntk.Run(run.model, run.subset, None, run.samples)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the anchor must be a tensor of shape"):
        fastntk.Run(run.model, run.subset, run.anchor[:-1], run.samples)


def test_a_linearisation_of_other_data_or_weights_is_refused() -> None:
    run = small_run()
    lin = fastntk.linearise_run(run)
    changed = fastntk.Samples(run.data.inputs + 1e-3, run.data.labels, ids=run.data.ids)
    with pytest.raises(InputError, match="other data"):
        fastntk.unlearn(fastntk.Run(run.model, run.subset, run.anchor, changed), ids=["img0"], linearisation=lin)
    run.subset.set(run.subset.get() * 1.01)
    with pytest.raises(InputError, match="other weights"):
        fastntk.unlearn(run, ids=["img0"], linearisation=lin)
