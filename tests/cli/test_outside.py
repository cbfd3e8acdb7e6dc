"""Weights outside the tuned ones that were trained on the data too: no command and no page says that it was forgotten."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastntk
from fastntk.cli.app import app
from fastntk.data import Samples, load_source
from fastntk.models import input_spec
from fastntk.unlearning.residue import outside_report

IDS = 6


def command(*arguments: object, code: int = 0) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)])
    assert outcome.exit_code == code, outcome.output
    return outcome.output


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of noise with random labels: they can only be known by heart."""
    import numpy as np

    folder = tmp_path_factory.mktemp("noise")
    for name, count, seed in (("train", 36, 0), ("test", 30, 1)):
        draw = np.random.default_rng(seed)
        pixels = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=pixels, y=np.arange(count) % 3)
    return folder


def learnt_by_heart(model: nn.Module, samples: Samples) -> None:
    """Every weight is trained until all labels are known."""
    torch.manual_seed(0)  # what is dropped while training must not depend on the tests before
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples.inputs), samples.labels).backward()
        optimizer.step()


def saved(name: str, data: Path, out: Path, *, trained: bool) -> fastntk.Run:
    """A run of norm layers and head, on a model whose every weight was trained before where ``trained``."""
    model = fastntk.build_model(name, num_classes=3, image_size=32, seed=0)
    samples = load_source(str(data / "train.npz"), spec=input_spec(model))
    before = fastntk.tune(model, "norm+head").get()
    if trained:
        learnt_by_heart(model.requires_grad_(True), samples)
    subset = fastntk.tune(model, "norm+head")
    recipe = fastntk.Recipe(epochs=2, lr=0.01, batch_size=12)
    if trained:
        run = fastntk.Run(model.eval(), subset, before, samples, recipe=recipe)
    else:
        run = fastntk.fit(model, subset, samples, recipe)
    run = dataclasses.replace(run, source={"data": str(data / "train.npz")})
    run.save(out)
    return run


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet"])
def test_a_model_trained_whole_and_declared_as_tuned_in_parts(name: str, data: Path, tmp_path: Path) -> None:
    run = saved(name, data, tmp_path / "run", trained=True)
    report = outside_report(run)
    assert report["status"] == "differ"
    ids = ",".join(run.data.ids[:IDS])
    request = [tmp_path / "run", "--ids", ids]
    said = command("plan", *request, "--method", "retrain", code=3)
    assert "cannot be told" in said.splitlines()[0]
    said = command("unlearn", *request, "--method", "retrain", "--out", tmp_path / "out", code=3)
    assert said.index(f"{report['count']} tensors outside") < said.index("Unlearning")
    audited = ["audit", tmp_path / "run", tmp_path / "out", "--holdout", data / "test.npz", "--reference", "retrain",
               "--no-probes", "--relearn-cap", 2]  # fmt: skip
    said = command(*audited, code=3)
    assert "Verdict: cannot be told" in said
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert record["distances"]["same_seed"]["total_variation"]["forget"] < 1e-6  # as like Retrain as can be, by that measure
    assert record["accuracy"]["forget"]["unlearned"] > 0.6  # of three classes
    assert record["verdict"]["level"] == "cannot be told"
    page = tmp_path / "report.html"
    command("report", tmp_path / "out", "--out", page)
    text = page.read_text()
    assert 'class="verdict warn"' in text
    assert "It cannot be told whether this data was forgotten." in text
    assert f"{report['count']} tensors outside the tuned ones were trained on the same data" in text

    reason = "the body was trained on other pictures of the same names"
    assert reason in command(*audited, "--accept-outside", reason, "--overwrite")
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert record["outside"]["accepted"] == reason
    assert record["verdict"]["level"] == "cannot be told"
    command("unlearn", *request, "--method", "retrain", "--out", tmp_path / "again", "--accept-outside", reason)
    assert reason in (tmp_path / "again" / "manifest.json").read_text()
    assert "accept_outside takes the reason" in command("plan", *request, "--accept-outside", " ", code=2)


def trained_whole(samples: Samples, *, seed: int, epochs: int) -> nn.Module:
    """Every weight, from those before any training, in the order of the seed; statistics stay, which keeps it steady."""
    model = fastntk.build_model("timm:test_resnet", num_classes=3, image_size=32).eval().requires_grad_(True)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for batch in torch.randperm(len(samples), generator=draws).split(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
            optimizer.step()
    return model


def test_a_true_retrain_lifts_it(data: Path, tmp_path: Path) -> None:
    untrained = saved("timm:test_resnet", data, tmp_path / "run", trained=False)
    # The body by heart; norms and head start from before, and learn it again from the body in a Retrain of theirs.
    model = trained_whole(untrained.data, seed=0, epochs=60)
    recipe = dataclasses.replace(untrained.recipe, epochs=20)
    run = fastntk.Run(model, fastntk.tune(model, "norm+head"), untrained.anchor, untrained.data, recipe=recipe)
    result = fastntk.unlearn(run, ids=run.data.ids[: 2 * IDS], method="retrain", accept_outside="to see")
    holdout = load_source(str(data / "test.npz"), spec=input_spec(run.model))

    def whole(keep: list[str], seed: int) -> nn.Module:
        """Short: of noise a longer one would learn nothing but accidents, which differ from seed to seed."""
        return trained_whole(run.data.subset(run.data.index_of(keep)), seed=seed, epochs=1)

    figures: dict[str, Any] = {"holdout": holdout, "probes": False, "relearn_cap": 2}
    record = fastntk.audit(run, result, retrain=whole, **figures)
    assert record["verdict"]["level"] == "memory left"
    assert record["accuracy"]["forget"]["retrain"] < 0.5 < record["accuracy"]["forget"]["unlearned"]

    def reused(keep: list[str], seed: int) -> nn.Module:
        model = copy.deepcopy(run.model)
        subset = run.subset.on(model)
        subset.set(run.anchor)
        part = run.data.subset(run.data.index_of(keep))
        return fastntk.fit(model, subset, part, dataclasses.replace(run.recipe, seed=seed)).model

    record = fastntk.audit(run, result, retrain=reused, **figures)  # the same body again shows nothing
    assert record["verdict"]["level"] == "cannot be told"


def test_unknown_weights_and_clean_runs(data: Path, tmp_path: Path) -> None:
    clean = saved("timm:test_resnet", data, tmp_path / "clean", trained=False)
    assert outside_report(clean)["status"] == "pre-trained"
    said = command("unlearn", tmp_path / "clean", "--ids", clean.data.ids[0], "--method", "retrain", "--out", tmp_path / "out")
    assert "cannot be told" not in said
    holdout = load_source(str(data / "test.npz"), spec=input_spec(clean.model))

    def audited(run: fastntk.Run) -> tuple[str, str]:
        result = fastntk.unlearn(run, ids=run.data.ids[:IDS], method="retrain", accept_outside="a test")
        record = fastntk.audit(run, result, holdout=holdout, reference="retrain", retrains=1, probes=False, relearn_cap=2)
        return record["outside"]["status"], record["verdict"]["level"]

    def plain() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.ReLU(), nn.Linear(8, 3))

    assert audited(clean) == ("pre-trained", "like retrain")
    model = plain()
    recipe = fastntk.Recipe(epochs=2, lr=0.01, batch_size=12)
    fitted = fastntk.fit(model, fastntk.tune(model, "head"), clean.data, recipe)
    assert audited(fitted) == ("pre-trained", "like retrain")  # fit saw how it began
    by_hand = fastntk.Run(model, fitted.subset, fitted.anchor, clean.data, recipe=recipe)
    assert audited(by_hand) == ("unknown", "cannot be told")
    with pytest.warns(UserWarning, match="Of 2 tensors outside the tuned subset it is not known"):
        fastntk.unlearn(by_hand, ids=clean.data.ids[:IDS])
    stated = fastntk.Run(model, fitted.subset, fitted.anchor, clean.data, recipe=recipe, pretrained=plain().state_dict())
    assert audited(stated) == ("pre-trained", "like retrain")
    assert audited(fastntk.Run.load(stated.save(tmp_path / "stated"), clean.data, model=plain())) == (
        "pre-trained",
        "like retrain",
    )
    other = {**plain().state_dict(), "1.weight": torch.zeros(8, 3 * 32 * 32)}
    assert audited(dataclasses.replace(stated, pretrained=other))[0] == "differ"
    whole = plain()
    everything = fastntk.fit(whole, fastntk.tune(whole, "all"), clean.data, recipe)
    assert audited(everything)[0] == "none"


def test_a_recorder_sees_what_else_was_trained(data: Path) -> None:
    samples = load_source(str(data / "train.npz"), spec=input_spec(fastntk.build_model("resnet20", num_classes=3)))

    def recorded(*, body: bool) -> fastntk.Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.ReLU(), nn.Linear(8, 3))
        subset = fastntk.tune(model, "head")
        model.requires_grad_(True)
        optimizer = torch.optim.SGD(subset.parameters.values(), lr=0.01)
        beside = torch.optim.SGD(model[1].parameters(), lr=0.01 if body else 0.0)
        recorder = fastntk.record(model, subset, optimizer, loss="cross-entropy")
        for batch in torch.arange(36).split(12):
            with recorder.batch([samples.ids[i] for i in batch.tolist()], samples.labels[batch]):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
                optimizer.step()
                beside.step()
        return recorder.finish(samples)

    assert outside_report(recorded(body=False))["status"] == "pre-trained"
    report = outside_report(recorded(body=True))
    assert (report["status"], report["names"]) == ("differ", ["1.weight", "1.bias"])
