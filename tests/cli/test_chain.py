"""All commands one after another on real images and weights, as an engineer would type them; ``--json`` of each is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from fastntk import schemas
from fastntk.cli.app import app

SMALL_PROMPTS = ["--tune", "prompts+head", "--image-size", "42"]
CASES = {
    "resnet20 on CIFAR-10": {
        "model": ["resnet20", "--weights", "weights/cifar100_resnet20.safetensors", "--tune", "norm+head"],
        "data": ("data/cifar10-5k.npz", "train", "test"),
        "sizes": ["--images-per-class", "20", "--epochs", "4"],
        "forget": ["--classes", "airplane,3"],
    },
    "ViT-S/14 on Caltech": {
        "model": ["timm:vit_small_patch14_dinov2", "--weights", "weights/vit_small_patch14_dinov2.safetensors", *SMALL_PROMPTS],
        "data": ("data/caltech50", "train", "holdout"),
        "sizes": ["--only-classes", "Faces,Leopards,Motorbikes,airplanes", "--images-per-class", "10", "--epochs", "3"],
        "forget": ["--classes", "Leopards"],
    },
}


def printed(*arguments: object, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    outcome = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert outcome.exit_code in codes, outcome.output
    record: dict[str, Any] = json.loads(outcome.stdout)
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_from_finetune_to_report(name: str, shared: Callable[[str], Path], tmp_path: Path) -> None:
    case: dict[str, Any] = CASES[name]
    model = [str(shared(part)) if part.startswith("weights/") else part for part in case["model"]]
    path, train, test = case["data"]
    source = str(shared(path))
    run, result = tmp_path / "run", tmp_path / "result"
    records = {
        "finetune": printed("finetune", *model, "--data", f"{source}@{train}", *case["sizes"], "--out", run),
        "plan": printed("plan", run, *case["forget"]),
        # So few images and epochs may well fail the step's own check, which is exit code 3.
        "unlearn": printed("unlearn", run, *case["forget"], "--method", "tangent-replay", "--out", result, codes=(0, 3)),
        "info": printed("info", result),
    }
    for command, record in records.items():
        jsonschema.validate(record, schemas.load(command))
    audit = printed(
        "audit", run, result, "--holdout", f"{source}@{test}", "--reference", "retrain", "--require", "forget_accuracy<=101"
    )
    jsonschema.validate(json.loads((result / "audit.json").read_text("utf-8")), schemas.load("audit-1"))
    assert audit["accuracy"]["forget"].keys() == {"full", "unlearned", "retrain"}
    report = printed("report", result)
    page = Path(report["out"]).read_text("utf-8")
    assert report["verdict"] in page.lower()
    assert source not in page
