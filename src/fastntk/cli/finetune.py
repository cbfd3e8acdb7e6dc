"""``fastntk finetune``: fine-tune a stock model on a data source and keep the run."""

from __future__ import annotations

import dataclasses
import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError
from fastntk.base.text import byte_size, duration, is_utf8, percent
from fastntk.cli.options import DATA_HELP, Device, Json, Overwrite, Seed, Threads, use_threads
from fastntk.cli.output import Output, progress

if TYPE_CHECKING:
    from fastntk.data import Samples
    from fastntk.training.recipe import Recipe
    from fastntk.training.run import Run
    from fastntk.tuning import Subset


class ClassNames(enum.Enum):
    """Whether class names are written into the folder."""

    shown = "shown"
    hidden = "hidden"


def finetune(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="resnet20 … resnet110, mobilenetv2_x0_5, timm:NAME, or hf:NAME-OR-FOLDER."),
    ],
    data: Annotated[str, typer.Option("--data", metavar="SRC", help=DATA_HELP)],
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The new folder to write.")],
    tune: Annotated[
        str,
        typer.Option("--tune", metavar="SPEC", help="What is tuned: a sum of norm, head, prompts, lora, all, or name globs."),
    ] = "norm+head",
    weights: Annotated[
        str | None, typer.Option("--weights", help="cifar100, pretrained (the publisher's) or a file; none = random.")
    ] = None,
    image_size: Annotated[int | None, typer.Option("--image-size", help="Pixels a side the model is built for.")] = None,
    images_per_class: Annotated[
        int | None, typer.Option("--images-per-class", help="Use only the first N images of each class.")
    ] = None,
    only_classes: Annotated[
        str | None, typer.Option("--only-classes", help="The first K classes (a number), or names joined by commas.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 20,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate at the first step.")] = 2e-3,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images a step.")] = 64,
    optimizer: Annotated[str, typer.Option("--optimizer", help="adam or sgd.")] = "adam",
    schedule: Annotated[str, typer.Option("--schedule", help="cosine, linear or constant.")] = "cosine",
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Pull towards the values before fine-tuning.")] = 1e-3,
    seed: Seed = 0,
    prompt_length: Annotated[int, typer.Option("--prompt-length", help="Keys and values together, a block.")] = 10,
    prompt_blocks: Annotated[int, typer.Option("--prompt-blocks", help="How many of the first blocks.")] = 5,
    class_names: Annotated[
        ClassNames,
        typer.Option(
            "--class-names",
            help="hidden: where names are people's, write keyed digests of them; classes are then known by their numbers.",
        ),
    ] = ClassNames.shown,
    trace: Annotated[
        bool | None,
        typer.Option(
            "--trace/--no-trace",
            help="Record the path of the fine-tuning, so that later requests take seconds (default: where the model allows it).",
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Fine-tune a small part of a stock model, and keep what unlearning needs to know of it.

    The run folder holds the weights, their values before fine-tuning, the recipe and digests of the data; never the
    data itself. Its sub-folder trace/ holds the path of the fine-tuning, recorded at no extra pass: ids, labels, and the head's
    input at every visit of a sample; its size is said before and after.

    Examples:

    fastntk finetune resnet20 --weights cifar100 --data digits --images-per-class 60 --epochs 10 --out runs/digits

    fastntk finetune resnet20 --weights cifar100 --data cifar10-5k.npz --tune norm+head --out runs/cifar

    fastntk finetune resnet20 --weights cifar100 --data faces@train --class-names hidden --out runs/faces

    fastntk finetune timm:vit_small_patch14_dinov2 --weights vit.safetensors --image-size 112
    --data photos@train --tune prompts+head --lr 5e-3 --out runs/photos
    """
    from fastntk.base.atomic import check_output, scratch_folder, sweep
    from fastntk.base.device import find_device
    from fastntk.base.digest import new_key
    from fastntk.storage.replacing import replaceable
    from fastntk.storage.runs import RUN, save_run
    from fastntk.storage.traces import trace_places
    from fastntk.training.fitting import fit
    from fastntk.training.recipe import Recipe

    output = Output(as_json=json)
    output.replacing(out, check_output(out, overwrite=overwrite, replaceable=replaceable(RUN)))
    where = find_device(device)
    recipe = Recipe(
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        optimizer=optimizer,  # type: ignore[arg-type]  # checked by Recipe, which names the choices
        schedule=schedule,  # type: ignore[arg-type]
        weight_decay=weight_decay,
        seed=seed,
    )
    use_threads(threads)
    source: dict[str, Any] = {"data": portable(data), "images_per_class": images_per_class, "only_classes": only_classes}
    key = new_key() if class_names is ClassNames.hidden else None
    with progress():
        if key is not None:
            source |= {"class_names": class_names.value, "only_classes": hidden_choice(source, key)}
        subset, samples = prepare(
            model,
            source,
            spec=tune,
            weights=weights,
            image_size=image_size,
            prompts={"prompt_length": prompt_length, "prompt_blocks": prompt_blocks},
            seed=seed,
            hide=key,
        )
        subset.model.to(where)
        no_trace = no_trace_because(subset, samples, recipe, wanted=trace)
        announce(
            output,
            model,
            subset=subset,
            samples=samples,
            recipe=recipe,
            source=source,
            trace=trace_fact(subset, samples, recipe, no_trace),
        )
        trace_path, *earlier = trace_places(out)
        for place in earlier:
            sweep(place)
        with scratch_folder(trace_path.parent, trace_path.name) as scratch:
            recorded = None if no_trace is not None else scratch / "trace"
            run = dataclasses.replace(fit(subset.model, subset, samples, recipe, trace=recorded), source=source, key=key)
            save_run(run, out, overwrite=overwrite, take_trace=recorded is not None)
    record = summary(run, name=model, out=out, unrecorded=no_trace)
    seconds, accuracy = record["seconds"], record["accuracy"]
    if run.trace is not None:
        output.say(f"Recorded {byte_size(run.trace.nbytes)}: {run.trace.visits:,} visits in {run.trace.steps:,} steps.")
    if accuracy is not None:
        output.say(f"Fine-tuned in {duration(seconds)}: accuracy {percent(accuracy)} in the last epoch.")
    output.finish(record, wrote=str(out), then=["fastntk", "plan", str(out), "--classes", str(int(samples.labels.min()))])


def prepare(
    name: str,
    source: dict[str, Any],
    *,
    spec: str,
    weights: str | None,
    image_size: int | None,
    prompts: dict[str, Any],
    seed: int,
    hide: bytes | None = None,
) -> tuple[Subset, Samples]:
    """Build the model for the classes of the source, choose what is tuned, and load the data for that model.

    ``hide``: the key by which class names become digests.
    """
    from fastntk.data import load_source
    from fastntk.data.catalog import hiding, select
    from fastntk.data.sources import open_source
    from fastntk.models import build_model, input_spec
    from fastntk.tuning import tune

    selection = {"images_per_class": source["images_per_class"], "only_classes": source["only_classes"]}
    classes = select(hiding(open_source(source["data"]), hide), **selection).classes
    model = build_model(name, num_classes=len(classes), weights=weights, image_size=image_size, seed=seed)
    subset = tune(model, spec, seed=seed, **prompts)
    return subset, load_source(source["data"], spec=input_spec(model), hide=hide, **selection)


def hidden_choice(source: dict[str, Any], key: bytes) -> list[str] | None:
    """The classes that were chosen, by the digests of their names; None where all were."""
    from fastntk.data.catalog import chosen, hiding
    from fastntk.data.sources import open_source

    if source["only_classes"] is None:
        return None
    catalog = open_source(source["data"])
    names = hiding(catalog, key).names
    return [names[label] for label in chosen(catalog, source["only_classes"])]


def no_trace_because(subset: Subset, samples: Samples, recipe: Recipe, *, wanted: bool | None) -> str | None:
    """Why no trace is recorded, None where one is; refused where one is ``wanted`` (None: where possible) and cannot be."""
    from fastntk.training.network import check_samples
    from fastntk.training.recording import FitRecorder

    if wanted is False:
        return "as asked (--no-trace)"
    check_samples(subset.model, samples)
    try:
        FitRecorder(subset.model, subset, samples, recipe).writer.close()
    except InputError as error:
        if wanted:
            raise
        return str(error)
    return None


def announce(
    output: Output,
    name: str,
    *,
    subset: Subset,
    samples: Samples,
    recipe: Recipe,
    source: dict[str, Any],
    trace: str | None = None,
) -> None:
    """Say what is about to happen, how long it will take and how much a trace will."""
    from fastntk.models import card_of
    from fastntk.training.fitting import estimated_seconds

    card = card_of(subset.model)
    notes = "; ".join(() if card is None else card.notes)
    decay = f", weight decay {recipe.weight_decay:g}" if recipe.weight_decay else ""
    output.say("Fine-tuning")
    output.facts(
        {
            "model": name,
            **({"note": notes} if notes else {}),
            "device": subset.get().device,
            "tuned": f"{subset.numel:,} of {round(subset.numel / subset.ratio):,} parameters ({percent(subset.ratio)})",
            "data": f"{len(samples):,} samples in {samples.num_classes} classes from {source['data']}",
            "recipe": f"{recipe.epochs} epochs, {recipe.optimizer}, lr {recipe.lr:g} ({recipe.schedule}), "
            f"batches of {recipe.batch_size}{decay}, seed {recipe.seed}",
            **({} if trace is None else {"trace": trace}),
            "estimate": f"{duration(estimated_seconds(subset, samples, recipe))}, from one short batch",
        }
    )


def trace_fact(subset: Subset, samples: Samples, recipe: Recipe, unrecorded: str | None) -> str:
    """What will be recorded, for people: its size, and what it leaves out to stay small."""
    from fastntk.training.recording import trace_size

    if unrecorded is not None:
        return f"not recorded: {unrecorded}"
    size = trace_size(subset, samples, recipe)
    half = ", features in half precision" if size["half"] else ""
    head = "" if size["gradients"] else ", of the head only: the gradients of the rest would be too large"
    return f"about {size['size']} will be recorded{half}{head}"


def summary(run: Run, *, name: str, out: Path, unrecorded: str | None) -> dict[str, Any]:
    """The record that ``--json`` prints."""
    assert run.recipe is not None
    last = run.history[-1] if run.history else {}
    return {
        "command": "finetune",
        "out": str(out),
        "model": name,
        "tuned": run.subset.numel,
        "ratio": run.subset.ratio,
        "samples": len(run.data),
        "classes": run.data.num_classes,
        "source": run.source,
        "recipe": run.recipe.to_dict(),
        "loss": last.get("loss"),
        "accuracy": last.get("accuracy"),
        "trace": None if run.trace is None else run.trace.summary(),
        "no_trace_because": unrecorded,
        "seconds": sum(epoch["seconds"] for epoch in run.history),
    }


def portable(data: str) -> str:
    """The source word with an absolute path, so that the run finds its data from any folder."""
    from fastntk.data.sources import parse_source

    name = parse_source(data)
    if not name.place or (name.kind == "hf" and not Path(name.place).expanduser().exists()):
        return data
    place = Path(os.path.abspath(Path(name.place).expanduser()))  # links stay: a cache may name what they lead to otherwise
    if not is_utf8(str(place)):
        raise InputError(
            f"the path of the data is not UTF-8, so no run could say where it is: {str(place)!a}; rename its folders"
        )
    split = "" if name.split is None else f"@{name.split}"
    return f"{place}{split}" if name.kind in ("npz", "folder") else f"{name.kind}:{place}{split}"
