"""Folders whose fields were changed and sealed again: every field of manifests, trace header and audit record, by every hostile
value, is refused by InputError, or accepted only where the value is one that this field may have."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastntk
from fastntk.auditing.record import sealed
from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.base.schema import read_json
from fastntk.cli.app import app
from fastntk.report import read_record
from fastntk.storage.manifest import MANIFEST, SEAL, seal
from fastntk.storage.results import load_result, save_result
from fastntk.storage.runs import load_run
from fastntk.training.trace_folder import HEADER
from json_places import ABSENT, Place, changed, places

DEEP: Any = "bottom"
for _ in range(200):
    DEEP = [DEEP]
HOSTILE: dict[str, Any] = {
    "absent": ABSENT,
    "null": None,
    "true": True,
    "minus one": -1,
    "fraction": 1.5,
    "vast float": 1e308,
    "vast integer": 10**30,
    "NaN": float("nan"),
    "text": "x",
    "no text": "",
    "half a character": "\ud800",
    "empty list": [],
    "list": ["x"],
    "empty object": {},
    "deep": DEEP,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def samples(seed: int = 0) -> fastntk.Samples:
    inputs = torch.randn(12, 12, generator=torch.Generator().manual_seed(seed))
    ids = [f"{seed}-{number}" for number in range(12)]
    return fastntk.Samples(inputs, torch.arange(12) % 3, ids, classes=["a", "b", "c"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[fastntk.Run, Path]:
    place = tmp_path_factory.mktemp("made")
    model = network()
    recipe = fastntk.Recipe(epochs=1, batch_size=6)
    run = fastntk.fit(model, fastntk.tune(model, "norm+head"), samples(), recipe, trace=True)
    run.save(place / "run")
    save_result(fastntk.unlearn(run, ids=["0-1", "0-2"]), place / "result")
    return run, place


def write_sealed(path: Path, content: dict[str, Any], name: str, digest: Callable[[dict[str, Any]], str]) -> None:
    content.pop(name, None)
    path.write_text(json.dumps({**content, name: digest(content)}))


def outcomes(
    content: Any, write: Callable[[Any], None], load: Callable[[], None], *, seals: set[Place]
) -> dict[Place, list[str]]:
    """By place, the hostile values that were accepted; whatever else than InputError comes up fails the test."""
    accepted: dict[Place, list[str]] = {}
    for at in places(content):
        if at in seals:
            continue
        for name, value in HOSTILE.items():
            write(changed(content, at, value))
            try:
                load()
            except InputError:
                continue
            except Exception as error:
                pytest.fail(f"{at} = {name}: {type(error).__name__}: {error}")
            accepted.setdefault(at, []).append(name)
    return accepted


TEXT = {"text", "no text"}
RUN_MAY: dict[str, set[str]] = {
    "model.class": {"text"},
    "model.card": {"null"},
    "model.config": {"null", "empty object"},  # not read where a model is given
    "prompts": {"null"},
    "adapters": {"absent", "null"},
    "recipe.lr": {"fraction"},
    "recipe.weight_decay": {"fraction"},
    "history": {"empty list"},
    "pretrained": {"null", "absent", "empty object"},  # less is then known, and no verdict gets better
    "pretrained.1.weight": {"absent"},
    "pretrained.1.bias": {"absent"},
    "history.0": {"absent", "empty object"},
    "history.0.epoch": {"absent"},
    "history.0.loss": {"absent", "minus one", "fraction", "vast float"},
    "history.0.accuracy": {"absent"},
    "history.0.seconds": {"absent", "fraction", "vast float"},
    "data.shape": {"null"},  # of a run whose data nobody saw
    "data.digest": {"null"},
    "data.per_class": {"absent"},
    "data.key": {"null", "absent", "text"},  # of a key that nobody has: ids are then compared by the trace alone
    "source": {"null", "empty object"},  # read where the data is loaded again
    "extra": {"empty object"},
    "adapter": {"absent", "null"},
    "trace": {"absent", "null"},
    "trace.body_gradients": {"true"},
    "trace.left": {"empty list"},
    **{f"versions.{name}": TEXT for name in ("fastntk", "torch", "python", "platform")},
}
RESULT_MAY = RUN_MAY | {
    "trace.body_gradients": set(),
    "trace.left": set(),
    "recipe.drawn_from": {"null", "absent"},  # a Retrain then draws from the samples at hand
    "data.key": {"text"},
    "extra": set(),
    "extra.method": {"text"},
    "extra.seconds": {"fraction", "vast float"},
    "extra.origin.data": {"null"},
}
TRACE_MAY = {
    "facts.left": {"empty list"},
    "facts.groups.0.options": {"empty object"},
    "facts.penalty": {"fraction"},
    "facts.drift": {"fraction", "vast float"},
    "facts.max_norm": {"null", "fraction", "vast float"},
    "facts.fingerprint": {"null", "empty list"},
    "facts.buffers": {"empty list", "list"},
    "facts.recipe": {"null", "absent"},  # batches of a Retrain are then drawn, not taken from the trace
    "files.samples.bin.shape": {"empty list"},
}


def unexpected(accepted: dict[Place, list[str]], may: dict[str, set[str]], *, free: str = "nothing") -> dict[str, set[str]]:
    """What was accepted and is not in the table; fields below ``free`` may be anything that is JSON within bounds."""
    named = {".".join(map(str, at)): set(values) for at, values in accepted.items()}
    bounds = set(HOSTILE) - {"vast integer", "NaN", "half a character", "deep"}
    rest = {name: values - (bounds if name.startswith(free) else may.get(name, set())) for name, values in named.items()}
    return {name: values for name, values in rest.items() if values}


def test_every_field_of_a_runs_manifest(made: tuple[fastntk.Run, Path]) -> None:
    folder = made[1] / "run"
    before = (folder / MANIFEST).read_text()
    model = network()
    accepted = outcomes(
        json.loads(before),
        lambda content: write_sealed(folder / MANIFEST, content, SEAL, seal),
        lambda: load_run(folder, samples=samples(), model=model),
        seals={(SEAL,)},
    )
    (folder / MANIFEST).write_text(before)
    assert unexpected(accepted, RUN_MAY) == {}
    assert accepted  # the table is not empty because nothing loads


def test_every_field_of_a_results_manifest(made: tuple[fastntk.Run, Path]) -> None:
    run, folder = made[0], made[1] / "result"
    before = (folder / MANIFEST).read_text()
    content = json.loads(before)
    details = content["extra"]["details"]
    for name in ("trace", "climb", "chain", "next_depth", "checkpoints", "correction", "exact", "devices"):
        del details[name]  # nobody reads these again
    accepted = outcomes(
        content,
        lambda content: write_sealed(folder / MANIFEST, content, SEAL, seal),
        lambda: load_result(folder, run),
        seals={(SEAL,)},
    )
    (folder / MANIFEST).write_text(before)
    assert unexpected(accepted, RESULT_MAY, free="extra.details") == {}
    read = {
        place[3]: values
        for place, values in accepted.items()
        if place[:3] == ("extra", "details", "validity") and len(place) == 4
    }
    assert set(read["verdict"]) == TEXT
    assert set(read["reasons"]) == {"absent", "empty list", "list"}


def test_every_field_of_a_trace_header(made: tuple[fastntk.Run, Path]) -> None:
    folder = made[1] / "run"
    manifest, before = (folder / MANIFEST).read_text(), (folder / "trace" / HEADER).read_text()
    model = network()

    def write(content: dict[str, Any]) -> None:
        write_sealed(folder / "trace" / HEADER, content, "seal", json_digest)
        whole = json.loads(manifest)
        whole["trace"]["sha256"] = hashlib.sha256((folder / "trace" / HEADER).read_bytes()).hexdigest()
        write_sealed(folder / MANIFEST, whole, SEAL, seal)

    def load() -> None:
        run = load_run(folder, samples=samples(), model=model)
        fastntk.unlearn(run, ids=["0-1", "0-2"], method="path-replay", depth="all")

    accepted = outcomes(json.loads(before), write, load, seals={("seal",)})
    (folder / MANIFEST).write_text(manifest)
    (folder / "trace" / HEADER).write_text(before)
    assert unexpected(accepted, TRACE_MAY) == {}


CARD_MAY = {
    "weights": {"null", *TEXT},
    "weights_sha256": {"null"},
    "fingerprint": {"empty object"},
    "fingerprint.conv1.weight": {"absent"},
    "notes": {"empty list", "list"},
    "input.mean.0": {"minus one", "fraction", "vast float"},
    "input.std.0": {"fraction", "vast float"},
    "input.interpolation": {"absent", *TEXT},
    "input.crop": {"absent"},
    "input.source": {"absent", *TEXT},
    "input.processor": {"absent", "null", "empty object"},
}


def test_every_field_of_a_models_card(tmp_path: Path) -> None:
    model = fastntk.build_model("resnet20", num_classes=3)
    subset = fastntk.tune(model, "head")
    data = fastntk.Samples(torch.zeros(3, 3, 32, 32), [0, 1, 2])
    folder = fastntk.Run(model, subset, subset.get(), data).save(tmp_path / "run")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["model"]["card"]["fingerprint"] = dict([next(iter(manifest["model"]["card"]["fingerprint"].items()))])

    def write(card: dict[str, Any]) -> None:
        write_sealed(folder / MANIFEST, {**manifest, "model": {**manifest["model"], "card": card}}, SEAL, seal)

    accepted = outcomes(manifest["model"]["card"], write, lambda: load_run(folder), seals=set())
    assert unexpected(accepted, CARD_MAY) == {}


HEADS = ("schema", "created", "fastntk", "subject", "request", "details", "reference", "accuracy", "cost", "verdict", "limits")


def test_every_field_of_an_audit_record(made: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    run, place = made
    result = load_result(place / "result", run)
    record = fastntk.audit(run, result, holdout=samples(1), reference="retrain", retrains=0, relearn_cap=1, probes=False)
    whole = json.loads(json.dumps(record))
    details = {name: whole["details"][name] for name in ("method", "options", "seconds", "validity", "outside_subset", "left")}
    whole["details"] = details
    file = tmp_path / "audit.json"

    def load() -> None:
        read_record(file)

    def resealed(record: dict[str, Any]) -> dict[str, Any]:
        try:
            return sealed(record)
        except (ValueError, RecursionError):  # what no JSON holds has no digest
            return record

    content, rest = {name: whole[name] for name in HEADS}, {name: whole[name] for name in whole if name not in HEADS}
    accepted = outcomes(content, lambda part: file.write_text(json.dumps(resealed({**rest, **part}))), load, seals=set())
    odd = {"vast integer", "NaN", "half a character", "deep"}
    assert not [at for at, values in accepted.items() if odd & set(values)]
    named = {".".join(map(str, at)): set(values) for at, values in accepted.items()}
    assert named.get("created", set()) == set()
    assert named.get("verdict.level", set()) == set()
    assert named["details.validity.reasons"] == {"absent", "empty list", "list"}
    numbers = [
        f"cost.{name}" for name in ("seconds", "retrain_seconds", "ratio_to_retrain", "peak_memory_bytes", "audit_seconds")
    ]
    assert not [name for name in numbers if named.get(name, set()) & {"list", "empty list", "empty object", "true", "text"}]


@pytest.mark.parametrize("name", ["vast integer", "NaN", "half a character", "deep"])
def test_the_command_line_ends_with_2(name: str, made: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    manifest = json.loads((made[1] / "run" / MANIFEST).read_text())
    write_sealed(tmp_path / MANIFEST, manifest | {"extra": {"hostile": HOSTILE[name]}}, SEAL, seal)
    for command in (["info"], ["plan", "--classes", "0"], ["report"]):
        outcome = CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]])
        assert outcome.exit_code == 2, outcome.output
        assert "bug of fastntk" not in outcome.output


@pytest.mark.parametrize("option", ["--lr", "--weight-decay"])
@pytest.mark.parametrize("value", ["1e38", "1e308", "inf", "nan", "-1"])
def test_rates_that_no_precision_holds_end_with_2(option: str, value: str, tmp_path: Path) -> None:
    command = ["finetune", "resnet20", "--data", "digits", option, value, "--out", str(tmp_path / "run")]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 2, outcome.output
    assert f"Recipe.{option[2:].replace('-', '_')}" in outcome.output.replace("lr and weight", "lr and Recipe.weight")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[" * 100_000, "1" * 5000, '{"a": 1e999}', "\ufeff{}", "{", ""])
def test_texts_that_are_refused_as_json(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json cannot be read"):
        load_run(tmp_path)


def test_a_pipe_in_place_of_a_file_is_refused_unopened(tmp_path: Path) -> None:
    """Opening it would wait for ever: the alarm then ends the test."""
    os.mkfifo(tmp_path / HEADER)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    try:
        with pytest.raises(InputError, match="is a pipe, not a regular file"):
            read_json(tmp_path / HEADER)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
