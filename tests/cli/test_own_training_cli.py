"""On the command line: a run of which only the trace is at hand, and Retrain by a module of the user."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from invoking import command
from torch import nn

import fastntk
import fastntk.schemas
from fastntk.auditing import schema

MODULE = """
import torch
import fastntk

def retrain(keep_ids, seed):
    model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100")
    subset = fastntk.tune(model, "head")
    samples = fastntk.load_source("digits", spec=fastntk.input_spec(model), images_per_class=4, only_classes=3)
    part = samples.subset(samples.index_of(keep_ids))
    fastntk.fit(model, subset, part, fastntk.Recipe(epochs=1, seed=seed, batch_size=4))
    return model.state_dict()

def broken(keep_ids, seed):
    raise RuntimeError("out of coffee")

def loss(logits, targets):
    return torch.nn.functional.multi_margin_loss(logits, targets)

number = 3
"""


def printed(*arguments: object) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(command(*arguments, "--json").stdout)
    jsonschema.validate(record, schema() if arguments[0] == "audit" else fastntk.schemas.load(str(arguments[0])))
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was saved without images, recipe and source, and a result of it."""
    out = tmp_path_factory.mktemp("own-training")
    model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100")
    samples = fastntk.load_source("digits", spec=fastntk.input_spec(model), images_per_class=4, only_classes=3)
    run = fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=2, batch_size=4), trace=True)
    dataclasses.replace(run, samples=None, recipe=None).save(out / "run")
    command("unlearn", out / "run", "--ids", samples.ids[1], "--out", out / "result")
    (out / "own_training_example.py").write_text(MODULE)
    return out


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's module, as the present one; the module is forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_training_example", raising=False)
    return folder


def test_a_run_without_images_is_planned_served_and_shown(folder: Path, tmp_path: Path) -> None:
    plan = printed("plan", folder / "run", "--classes", "0")
    assert list(plan["chosen"]) == ["path-replay"]
    assert plan["chosen"]["path-replay"]["seconds"] > 0
    shown = printed("info", folder / "result")
    assert shown["data"]["digest"] is None
    text = command("info", folder / "result").output
    assert "source         not recorded" in text
    assert "--holdout SRC --data SRC --retrain-with MODULE:FUNCTION" in text
    second = command("unlearn", folder / "result", "--classes", "2", "--out", tmp_path / "second")
    assert "Give it: --data SRC" in second.stderr
    assert "Going on with the trace alone: depth head" in second.stderr
    assert "accuracy" in second.output
    assert "not measured, for there are no images" in second.output
    taken = command("unlearn", folder / "run", "--classes", "2", "--method", "amnesiac", "--option", "epochs=0",
                    "--out", tmp_path / "taken")  # fmt: skip
    assert "Going on without images" in taken.stderr
    for options in (["--method", "fast-ntk"], ["--method", "retrain"], ["--depth", "1"], ["--method", "amnesiac"]):
        refused = command("unlearn", folder / "run", "--classes", "2", *options, "--out", tmp_path / "no", code=2)
        assert "needs the images. Give them (--data SRC)" in refused.output
    refused = command("audit", folder / "run", folder / "result", "--holdout", "digits@test", code=2)
    assert "Give it: --data SRC" in refused.output


def test_an_audit_with_a_module_of_the_user(here: Path) -> None:
    options = ["--holdout", "digits@test", "--data", "digits", "--relearn-cap", "1", "--no-probes"]
    function = ["--retrain-with", "own_training_example:retrain"]
    record = printed("audit", here / "run", here / "result", *options, *function, "--out", here / "audit.json")
    assert record["reference"]["made_by"] == "own_training_example:retrain"
    assert (record["reference"]["seed"], record["reference"]["other_seeds"]) == (0, [1])
    assert record["distances"]["retrain_spread"]["total_variation"]["holdout"] > 0
    made = printed(
        "unlearn", here / "run", "--ids", _forgotten(here), "--method", "retrain", *function, "--out", here / "retrain"
    )
    assert made["details"]["options"]["retrain"] == "own_training_example:retrain"
    again = printed("audit", here / "run", here / "result", *options, "--reference", here / "retrain", "--out", here / "b.json")
    assert again["distances"]["same_seed"] == record["distances"]["same_seed"]


@pytest.fixture(scope="module")
def own_loss(folder: Path) -> Path:
    """A run that was recorded with the loss of the user's module."""
    model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100")
    subset = fastntk.tune(model, "head")
    samples = fastntk.load_source("digits", spec=fastntk.input_spec(model), images_per_class=4, only_classes=3)
    optimizer, loss = torch.optim.SGD(subset.parameters.values(), lr=0.1), nn.functional.multi_margin_loss
    recorder = fastntk.record(model.eval(), subset, optimizer, loss=loss)
    for part in torch.arange(len(samples)).split(4) * 2:
        with recorder.batch([samples.ids[k] for k in part], samples.labels[part]):
            optimizer.zero_grad()
            loss(model(samples.inputs[part]), samples.labels[part]).backward()
            optimizer.step()
    dataclasses.replace(recorder.finish(samples), samples=None).save(folder / "own-loss")
    return folder / "own-loss"


def test_a_loss_of_the_users_own_is_named(own_loss: Path, here: Path) -> None:
    request = [own_loss, "--ids", fastntk.load_run(own_loss).listed.ids[1]]
    assert "--loss-with MODULE:FUNCTION" in command("plan", *request).output
    refused = command("unlearn", *request, "--out", here / "never", code=2)
    assert "recorded with a loss of one's own" in refused.output
    assert "--loss-with MODULE:FUNCTION" in refused.output
    named = ["--loss-with", "own_training_example:loss"]
    assert "--loss-with own_training_example:loss" in command("plan", *request, *named).output
    command("unlearn", *request, *named, "--out", here / "by-own-loss")
    run = fastntk.load_run(own_loss, loss=nn.functional.multi_margin_loss)
    expected = fastntk.unlearn(run, ids=[run.listed.ids[1]]).delta
    assert torch.equal(fastntk.load_result(here / "by-own-loss", run).delta, expected)
    assert float(expected.norm()) > 0
    command("audit", own_loss, here / "by-own-loss", *named, "--holdout", "digits@test", "--data", "digits", "--no-probes",
            "--relearn-cap", "1")  # fmt: skip


def test_a_wrong_loss_or_one_that_is_not_needed_is_refused(own_loss: Path, here: Path) -> None:
    for run, text, message in (
        (own_loss, "loss", "--loss-with 'loss': expected MODULE:FUNCTION, as in mytraining:loss"),
        (own_loss, "torch.nn.functional:soft_margin_loss", "not the loss that the trace was recorded with"),
        (here / "run", "own_training_example:loss", "was recorded with the loss cross-entropy, which is known"),
    ):
        refused = command("unlearn", run, "--classes", "1", "--loss-with", text, "--out", here / "never", code=2)
        assert message in refused.output


def test_images_are_asked_for_and_left_out_at_once(here: Path) -> None:
    options = ["--classes", "1", "--no-images", "--data", "digits"]
    for name, *more in (("plan",), ("unlearn", "--out", here / "never")):
        assert "--no-images and --data contradict each other" in command(name, here / "run", *options, *more, code=2).output


def test_a_model_without_a_card_reads_no_source(here: Path, tmp_path: Path) -> None:
    from fastntk.models.torchvision_ops import import_optional

    transformers = import_optional("transformers", extra="hf")
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8,
                                    patch_size=4, num_labels=3)  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    samples = fastntk.Samples(torch.randn(6, 3, 8, 8), [0, 1, 2] * 2)
    run = fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=1), trace=True)
    run.save(tmp_path / "run")
    for data in ([], ["--data", "digits"]):
        refused = command("unlearn", tmp_path / "run", "--classes", "0", "--method", "fast-ntk", *data, "--out", tmp_path / "no",
                          code=2)  # fmt: skip
        assert "ViTForImageClassification, was not made by build_model" in refused.output
        assert "Run.load(folder, samples=...)" in refused.output
    command("unlearn", tmp_path / "run", "--classes", "0", "--out", tmp_path / "result")
    assert "fastntk plan" in command("info", tmp_path / "result").output


def test_nothing_is_imported_unless_asked_for(here: Path) -> None:
    command("info", here / "run")
    assert "own_training_example" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retrain", "expected MODULE:FUNCTION, as in mytraining:retrain"),
        ("own_training_example:", "expected MODULE:FUNCTION"),
        ("no_such_module:retrain", "importing no_such_module failed: ModuleNotFoundError"),
        ("own_training_example:absent", "own_training_example has no function 'absent'"),
        ("own_training_example:number", "has no function 'number'"),
        ("own_training_example:broken", "own_training_example:broken failed: RuntimeError: out of coffee. `fastntk --debug"),
    ],
)
def test_what_goes_wrong_in_the_users_module_is_said(here: Path, text: str, message: str) -> None:
    refused = command("unlearn", here / "run", "--classes", "1", "--method", "retrain", "--retrain-with", text,
                      "--out", here / "never", code=2)  # fmt: skip
    assert message in refused.output
    assert not (here / "never").exists()


def test_the_function_goes_with_retrain_only(here: Path) -> None:
    refused = command("unlearn", here / "run", "--classes", "1", "--retrain-with", "own_training_example:retrain",
                      "--out", here / "never", code=2)  # fmt: skip
    assert "--retrain-with goes with --method retrain" in refused.output


def _forgotten(folder: Path) -> str:
    run = fastntk.load_run(folder / "run")
    return fastntk.load_result(folder / "result", run).forgotten.ids[0]
