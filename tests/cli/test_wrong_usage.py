"""Wrong usage of every command: exit code 2, one clear message on standard error, no traceback, nothing changed on disk.

One table over all commands; what `report` makes of broken records is in test_report.py, which has such records.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastntk.cli.app import app
from fastntk.storage.manifest import SEAL, seal

SMALL = ["--data", "digits", "--images-per-class", "4", "--only-classes", "3", "--epochs", "1", "--seed", "1"]


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def reseal(path: Path, **changes: Any) -> None:
    """Change a manifest as somebody would who knows how: its own digest fits again."""
    manifest = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps(manifest | {SEAL: seal(manifest)}), "utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a run, a result, and things that are broken or in the way; one for all cases: none changes it."""
    place = tmp_path_factory.mktemp("wrong-usage")
    run, result = place / "run", place / "result"
    assert command("finetune", "resnet20", "--weights", "cifar100", *SMALL, "--out", run).exit_code == 0
    assert command("unlearn", run, "--classes", "0", "--method", "full", "--out", result).exit_code == 0
    (place / "taken").mkdir()
    (place / "file").write_text("not a folder")
    (place / "bad.safetensors").write_bytes(b"nothing of use")
    (place / "empty-classes" / "cats").mkdir(parents=True)
    (place / "splits" / "train" / "cats").mkdir(parents=True)
    (place / "broken-picture" / "cats").mkdir(parents=True)
    (place / "broken-picture" / "cats" / "one.png").write_bytes(b"no picture")
    (place / "broken-picture" / "dogs").mkdir()
    (place / "broken-picture" / "dogs" / "two.png").write_bytes(b"nor this")
    (place / "empty.txt").write_text("\n \n")
    (place / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (place / "unknown.txt").write_text("nobody\n")
    (place / "people.csv").write_text("id,person\n1,Ada\nnobody,Bob\n")
    (place / "twice.csv").write_text("id,person\n1,Ada\n1,Ada\n")
    (place / "header.csv").write_text("file,name\n1,Ada\n")
    for name in ("short", "edited", "future", "lost", "unsourced", "no-manifest"):
        shutil.copytree(run, place / name)
    os.truncate(place / "short" / "base.safetensors", 500)
    edited = place / "edited" / "manifest.json"
    edited.write_text(edited.read_text("utf-8").replace("digits", "digitz"), "utf-8")
    reseal(place / "future" / "manifest.json", version=99)
    (place / "lost" / "anchor.safetensors").unlink()
    reseal(place / "unsourced" / "manifest.json", source=None)
    (place / "no-manifest" / "manifest.json").write_text("{", "utf-8")
    return place


TUNE = "finetune resnet20 --data digits --images-per-class 2 --epochs 1"
DO = "unlearn run --out new"
LOOK = "audit run result --holdout digits@test"
WRONG = {
    # finetune, info, pretrain, demo
    "nonsense": "No such command",
    "finetune": "Missing",
    "finetune resnet20 --data digits": "--out",
    f"{TUNE} --out new --colour red": "No such option",
    f"{TUNE} --out new --epochs many": "'--epochs'",
    f"{TUNE} --out new --epochs -1": "epochs must be",
    f"{TUNE} --out new --lr 0": "lr must be",
    f"{TUNE} --out new --lr nan": "lr must be",
    f"{TUNE} --out new --batch-size 0": "batch_size must be",
    f"{TUNE} --out new --optimizer rmsprop": "adam, sgd",
    f"{TUNE} --out new --schedule steps": "cosine, linear, constant",
    f"{TUNE} --out new --weight-decay -1": "weight_decay must be",
    f"{TUNE} --out new --seed -3": "--seed",
    f"{TUNE} --out new --threads 0": "--threads",
    f"{TUNE} --out new --device gpu": "device must be one of auto, cpu, cuda, mps",
    f"{TUNE} --out new --device cuda:99": "device 'cuda:99' is not there",
    f"{TUNE} --out new --tune prompts": "vision transformer",
    f"{TUNE} --out new --tune norm+": "empty term",
    f"{TUNE} --out new --tune nose": "Unknown spec term",
    f"{TUNE} --out new --weights bad.safetensors": "bad.safetensors",
    f"{TUNE} --out new --weights nowhere.safetensors": "nowhere.safetensors",
    f"{TUNE} --out new --image-size 3": "image_size",
    f"{TUNE} --out new --only-classes cat": "no class 'cat'",
    f"{TUNE} --out taken": "exists already",
    f"{TUNE} --out taken --overwrite": "not replaced",
    f"{TUNE} --out file": "exists already",
    f"{TUNE} --out file/run": "is not a folder",
    "finetune resnet21 --data digits --out new": "unknown model 'resnet21'",
    "finetune timm:no_such_model --data digits --out new": "no_such_model",
    "finetune resnet20 --data diggits --out new": "unknown data source",
    "finetune resnet20 --data digits@holdout --out new": "unknown split",
    "finetune resnet20 --data nowhere.npz --out new": "nowhere.npz",
    "finetune resnet20 --data empty-classes --out new": "cats",
    "finetune resnet20 --data digits --images-per-class 0 --out new": "at least 1",
    "finetune resnet20 --data digits --images-per-class 9999 --out new": "fewer than 9999",
    "info nowhere": "no such folder",
    "info file": "it is a file",
    "info taken": "no manifest.json",
    "info short": "truncated",
    "info edited": "changed after it was written",
    "info future": "format version 99",
    "pretrain timm:vit_tiny_patch16_224 --data digits --out new.safetensors": "cannot pretrain",
    "pretrain resnet20 --data digits --out new.pt": "ends in .safetensors",
    "pretrain resnet20 --data digits --out file": "exists already",
    "pretrain resnet20 --data digits --out new.safetensors --epochs 0": "--epochs",
    "demo --out taken": "not replaced",
    "finetune resnet20 --data splits --out new": "holds splits (train)",
    "finetune resnet20 --data broken-picture --epochs 1 --out new": "cannot be decoded as an image",
    f"{TUNE} --out /proc/new": "/proc refuses a new folder",
    "info lost": "anchor.safetensors is missing",
    "info no-manifest": "manifest.json cannot be read",
    "pretrain resnet20 --data nowhere --out new.safetensors": "unknown data source",
    "demo --out file/demo": "is not a folder",
    "demo --seed x": "--seed",
    # unlearn, plan
    "unlearn run": "--out",
    "unlearn nowhere --classes 0 --out new": "no such folder",
    "unlearn taken --classes 0 --out new": "no manifest.json",
    "unlearn result --classes 0 --out new": "class 0 (0) has no samples",
    DO: "Nothing to forget",
    f"{DO} --classes 9": "unknown classes: 9",
    f"{DO} --classes nine": "unknown classes: 'nine'",
    f"{DO} --classes ,": "no class in",
    f"{DO} --classes 0,1,2": "nothing would be left to retain",
    f"{DO} --ids nobody": "unknown ids: nobody",
    f"{DO} --ids ,": "names no id",
    f"{DO} --ids-file nowhere.txt": "nowhere.txt is not there",
    f"{DO} --ids-file empty.txt": "holds no id",
    f"{DO} --ids-file binary.txt": "cannot be read as a text file",
    f"{DO} --ids-file unknown.txt": "unknown ids: nobody",
    f"{DO} --ids-file taken": "taken is a folder, not a regular file: expected a text file",
    f"{DO} --ids x*,y?": "no id matches x*, y?",
    f"{DO} --person Ada": "--person and --persons-file go together",
    f"{DO} --persons-file people.csv": "--person and --persons-file go together",
    f"{DO} --person Ada --persons-file nowhere.csv": "nowhere.csv is not there",
    f"{DO} --person Eve --persons-file people.csv": "does not know 'Eve'; it has 2 persons",
    f"{DO} --person Bob --persons-file people.csv": "gives 'Bob' ids that are not in the data: nobody",
    f"{DO} --person Ada --persons-file twice.csv": "line 3: 1,Ada is in line 2 already",
    f"{DO} --person Ada --persons-file header.csv": "names the columns id and person once each, not 'file,name'",
    "plan run --person Eve --persons-file people.csv": "does not know 'Eve'",
    f"{DO} --classes 0 --method fast-ntk --damping 0": "damping must be a number > 0",
    f"{DO} --classes 0 --method fast-ntk --damping -1": "damping must be a number > 0",
    f"{DO} --classes 0 --method fast-ntk --damping nan": "damping must be a number > 0",
    f"{DO} --classes 0 --damping much": "--damping",
    f"{DO} --classes 0 --method magic": "Unknown method 'magic': choose one of fast-ntk",
    f"{DO} --classes 0 --method full --damping 1": "Method 'full' has no option damping; it takes: none",
    f"{DO} --classes 0 --method tangent-replay --path crooked": "one of auto, tangent, product",
    f"{DO} --classes 0 --method tangent-replay --polish 99": "polish counts epochs",
    f"{DO} --classes 0 --option chunk": "expected key=value",
    f"{DO} --classes 0 --option chunk=few": "expected a whole number or none, got 'few'",
    f"{DO} --classes 0 --option colour=red": "has no option colour",
    f"{DO} --classes 0 --damping 0.1 --option damping=1": "given twice",
    f"{DO} --classes 0 --seed -1": "--seed",
    f"{DO} --classes 0 --data nowhere.npz": "nowhere.npz",
    f"{DO} --classes 0 --after nowhere": "no such folder",
    f"{DO} --classes 0 --after run": "holds a 'run'; expected 'result'",
    "unlearn run --classes 0 --out taken": "exists already",
    "unlearn run --classes 0 --out taken --overwrite": "not replaced",
    "plan run": "Nothing to forget",
    "plan run --classes 7": "unknown classes: 7",
    "plan nowhere --classes 0": "no such folder",
    "plan run --classes 0 --memory-budget lots": "'lots' is no amount of memory",
    "plan run --classes 0 --memory-budget 0": "no amount of memory",
    "plan run --classes 0 --memory-budget 1kB": "fits",
    "unlearn short --classes 0 --out new": "truncated",
    "unlearn future --classes 0 --out new": "format version 99",
    "unlearn edited --classes 0 --out new": "changed after it was written",
    "unlearn unsourced --classes 0 --method fast-ntk --out new": "does not say where its data came from",
    "unlearn run --classes 0 --out /proc/new": "/proc refuses a new folder",
    "plan result --classes 0": "class 0 (0) has no samples",
    "plan lost --classes 0": "anchor.safetensors is missing",
    "plan run --classes 0 --disk-budget some": "'some' is no amount of memory",
    "unlearn run --classes 0 --depth deep --method path-replay --out new": "depth must be head, all, auto or a number",
    "unlearn run --classes 0 --checkpoints some --method path-replay --out new": "whole numbers joined by commas",
    "unlearn run --classes 0 --no-images --method retrain --out new": "retrain needs the images",
    # erase
    "erase": "RUN",
    "erase nowhere --yes": "no such folder",
    "erase run": "Add --yes",
    "erase taken --yes": "was not written by",
    # audit
    "audit run result": "--holdout",
    "audit run --holdout digits@test": "RESULT",
    "audit nowhere result --holdout digits@test --out new.json": "no such folder",
    "audit run nowhere --holdout digits@test --out new.json": "no such folder",
    "audit result run --holdout digits@test --out new.json": "holds a 'run'; expected 'result'",
    "audit run run --holdout digits@test --out new.json": "holds a 'run'; expected 'result'",
    "audit short result --holdout digits@test --out new.json": "truncated",
    "audit run result --holdout nowhere.npz": "nowhere.npz",
    f"{LOOK} --reference nowhere": "no such folder",
    f"{LOOK} --require nonsense": "nonsense",
    f"{LOOK} --relearn-cap -1": "--relearn-cap",
    f"{LOOK} --retrains -1": "--retrains",
    f"{LOOK} --out taken": "exists already",
    f"{LOOK} --out taken --overwrite": "not replaced",
    # report (more in test_report.py)
    "report": "RESULT",
    "report nowhere": "nowhere is not there",
    "report result": "audit",
    "report result --thumbnails": "--thumbnails needs --run RUN",
    # reproduce
    "reproduce": "TABLE",
    "reproduce table1": "--out",
    "reproduce table9 --out new --plan": "table9",
    "reproduce table1 --out new --plan --models resnet21": "resnet21",
    "reproduce table1 --out new --plan --methods magic": "magic",
    "reproduce table1 --out new --plan --seeds 0": "At least one seed",
    "reproduce table1 --out new --plan --images-per-class few": "few",
    "reproduce table1 --out file --data-root nowhere": "file",
}


def digest(folder: Path) -> str:
    """Of every path, kind, mode and content below a folder."""
    sha = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        entry = path.lstat()
        sha.update(f"{path.relative_to(folder)} {entry.st_mode} {entry.st_size}\n".encode())
        if path.is_file():
            sha.update(path.read_bytes())
    return sha.hexdigest()


def one_message(stderr: str) -> str:
    """The message alone: ours is one line that starts with Error; typer draws a box below its usage line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stderr)
    if "╭" in plain or plain.startswith("Usage:"):
        assert plain.count("Usage:") == 1, plain
        return re.sub(r"[│╭╮╰╯─\s]+", " ", plain)
    assert re.fullmatch(r"Error: [^\n]+\n", plain), plain
    return plain


@pytest.mark.parametrize("usage", WRONG)
def test_wrong_usage_is_one_message_and_changes_nothing(usage: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = digest(place)
    result = command(*usage.split())
    assert result.exit_code == 2, result.output
    assert WRONG[usage] in one_message(result.stderr)
    assert "Traceback" not in result.output
    assert digest(place) == before


def test_with_json_standard_output_stays_empty(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for usage in (
        "info nowhere",
        f"{DO} --classes 9",
        f"{DO} --classes 0 --method tangent-replay --polish 99",
        "plan run --classes 7",
    ):
        result = command(*usage.split(), "--json")
        assert (result.exit_code, result.stdout) == (2, ""), usage


def test_a_folder_without_permission_to_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    access = os.access  # root may write anywhere, so the system's reply is replaced
    monkeypatch.setattr(os, "access", lambda path, mode, **more: not mode & os.W_OK and access(path, mode, **more))
    for usage in (f"{TUNE} --out new", "unlearn run --classes 0 --out new", "demo --out new"):
        before = digest(place)
        result = command(*usage.split())
        assert result.exit_code == 2, result.output
        assert "no permission to write in" in one_message(result.stderr)
        assert digest(place) == before


def test_the_table_covers_every_command() -> None:
    assert len(WRONG) >= 40
    commands = {info.callback.__name__ for info in app.registered_commands if info.callback}
    assert commands <= {usage.split()[0] for usage in WRONG}
