"""``fastntk demo``: the whole story on embedded data, offline.

Every step is a function from what the steps before made to rows of the table and entries of the record; a new step is
one more function called by :func:`demo`.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.cli.finetune import announce, prepare
from fastntk.cli.options import Json, Seed, Threads, use_threads
from fastntk.cli.output import Output, percent, progress

if TYPE_CHECKING:
    from torch import nn

    from fastntk.data import Samples
    from fastntk.run import Run

MODEL, WEIGHTS = "resnet20", "cifar100"
SOURCE: dict[str, Any] = {"data": "digits@train", "images_per_class": 60, "only_classes": None}
HOLDOUT = "digits@test"
RECORD = "demo.json"
EPOCHS = 10


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run and the record go.")] = Path(
        "fastntk-demo"
    ),
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show on embedded data what this package does; offline, about a minute.

    A ResNet-20 that knows CIFAR-100 learns handwritten digits by tuning 0.7 % of its parameters. The folder of an
    earlier demo is replaced, any other is refused.

    Example:

    fastntk demo --out demo-out
    """
    from fastntk.atomic import check_output, new_folder

    output = Output(as_json=json)
    check_output(out, overwrite=True, replaceable=is_demo)
    use_threads(threads)
    with progress(), new_folder(out, overwrite=True, replaceable=is_demo) as work:
        run, holdout, rows = fine_tune_step(output, seed=seed, folder=work / "run")
        record = {"command": "demo", "format": "fastntk-demo", "out": str(out), "seed": seed, "rows": rows}
        (work / RECORD).write_text(jsonlib.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    output.table(
        ("model", f"{len(run.data)} training digits", f"{len(holdout)} new digits"),
        [(row["model"], percent(row["train"]), percent(row["holdout"])) for row in rows],
        title="Accuracy",
    )
    output.finish(record, wrote=f"{out} (run/ and {RECORD})", then=f"fastntk info {out / 'run'}")


def fine_tune_step(output: Output, *, seed: int, folder: Path) -> tuple[Run, Samples, list[dict[str, Any]]]:
    """Fine-tune, keep the run; return it, the hold-out samples and the rows before and after."""
    from fastntk.bundle import save_run
    from fastntk.data import load_source
    from fastntk.models import input_spec
    from fastntk.recipe import Recipe
    from fastntk.training import fit

    recipe = Recipe(epochs=EPOCHS, seed=seed)
    subset, samples = prepare(MODEL, SOURCE, spec="norm+head", weights=WEIGHTS, image_size=None, prompts={}, seed=seed)
    holdout = load_source(HOLDOUT, spec=input_spec(subset.model), classes=samples.classes)
    announce(output, f"{MODEL}, weights {WEIGHTS}", subset=subset, samples=samples, recipe=recipe, source=SOURCE)
    before = accuracy_row("before fine-tuning", subset.model, train=samples, holdout=holdout)
    run = dataclasses.replace(fit(subset.model, subset, samples, recipe), source=SOURCE)
    save_run(run, folder)
    return run, holdout, [before, accuracy_row("fine-tuned", run.model, train=samples, holdout=holdout)]


def accuracy_row(name: str, model: nn.Module, *, train: Samples, holdout: Samples) -> dict[str, Any]:
    """Accuracy on both sets, as fractions."""
    from fastntk.training import predict

    def right(samples: Samples) -> float:
        return float((predict(model, samples.inputs).argmax(1) == samples.labels).double().mean())

    return {"model": name, "train": right(train), "holdout": right(holdout)}


def is_demo(folder: Path) -> bool:
    """Whether a folder is the output of an earlier demo."""
    try:
        record = jsonlib.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("format") == "fastntk-demo"
