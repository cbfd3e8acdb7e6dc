"""``fastntk pretrain``: train a CIFAR backbone from scratch, so that weights can be made again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastntk.base.text import duration, percent
from fastntk.cli.options import DATA_HELP, Json, Seed, Threads, use_threads
from fastntk.cli.output import Output, progress

if TYPE_CHECKING:
    from fastntk.data import Samples


def pretrain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="resnet20 … resnet110 or mobilenetv2_x0_5.")],
    data: Annotated[str, typer.Option("--data", metavar="SRC", help=DATA_HELP)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The .safetensors file to write.")],
    images_per_class: Annotated[
        int | None, typer.Option("--images-per-class", help="Use only the first N images of each class.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the data.")] = 10,
    lr: Annotated[float, typer.Option("--lr", help="The highest rate of the one-cycle schedule.")] = 0.1,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images a step.")] = 128,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Train all of a CIFAR network from random weights; the file then serves as --weights of finetune.

    SGD, one-cycle schedule, random crops and flips. Hours on a CPU for CIFAR-100; the package embeds the weights of
    one such training as --weights cifar100.

    Example:

    fastntk pretrain resnet20 --data cifar100@train --epochs 10 --out weights/resnet20.safetensors
    """
    from fastntk.base.atomic import check_output
    from fastntk.base.errors import InputError
    from fastntk.data import load_source
    from fastntk.models import build_model, input_spec
    from fastntk.models.build import CIFAR_NAMES
    from fastntk.training.pretrain import pretrain as train

    output = Output(as_json=json)
    check_output(out)
    if model not in CIFAR_NAMES:
        raise InputError(f"cannot pretrain {model!r}: expected one of {', '.join(CIFAR_NAMES)}")
    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: expected a file name that ends in .safetensors")
    use_threads(threads)
    with progress():
        # Only for the images it expects; the model that is trained is built by the library call.
        spec = input_spec(build_model(model, num_classes=2))
        samples = load_source(data, spec=spec, images_per_class=images_per_class)
        _announce(output, model, data=data, samples=samples, epochs=epochs, lr=lr, batch_size=batch_size)
        trained = train(model, samples, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed, out=out)
    last = trained.history[-1]
    output.say(f"Trained: accuracy {percent(last.accuracy)} on the augmented images in the last epoch.")
    record = {
        "command": "pretrain",
        "out": str(trained.path),
        "sha256": trained.sha256,
        "model": model,
        "samples": len(samples),
        "classes": samples.num_classes,
        "history": [dataclasses.asdict(epoch) for epoch in trained.history],
    }
    then = ["fastntk", "finetune", model, "--weights", str(out), "--data", "digits", "--out", "RUN"]
    output.finish(record, wrote=f"{out} (SHA-256 {trained.sha256[:16]}…)", then=then)


def _announce(output: Output, name: str, *, data: str, samples: Samples, epochs: int, lr: float, batch_size: int) -> None:
    from fastntk.models import build_model
    from fastntk.training.fitting import estimated_seconds
    from fastntk.training.recipe import Recipe
    from fastntk.tuning import tune

    everything = tune(build_model(name, num_classes=samples.num_classes), "all")
    recipe = Recipe(epochs=epochs, lr=lr, batch_size=batch_size)
    output.say("Training from scratch")
    output.facts(
        {
            "model": f"{name}, {everything.numel:,} parameters",
            "data": f"{len(samples):,} samples in {samples.num_classes} classes from {data}",
            "recipe": f"{epochs} epochs, SGD, one cycle up to {lr:g}, batches of {batch_size}",
            "estimate": f"{duration(estimated_seconds(everything, samples, recipe))}, from one short batch",
        }
    )
