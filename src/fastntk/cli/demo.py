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

from fastntk.base.marks import AUDIT, REPORT
from fastntk.base.text import duration, percent
from fastntk.cli.finetune import announce, prepare
from fastntk.cli.options import Device, Json, Seed, Threads, use_threads
from fastntk.cli.output import Output, progress

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastntk.data import Samples
    from fastntk.training.run import Run
    from fastntk.unlearning import Unlearned

MODEL, WEIGHTS = "resnet20", "cifar100"
SOURCE: dict[str, Any] = {"data": "digits@train", "images_per_class": 60, "only_classes": None}
HOLDOUT = "digits@test"
RECORD = "demo.json"
EPOCHS = 10
DIGIT, IMAGES = 0, 20
TANGENT = ("fast-ntk", "tangent-replay")
METHODS = ("full", "retrain", "path-replay", *TANGENT, "max-loss", "random-label")
METHODS_SINGLE = ("full", "retrain", "path-replay", *TANGENT)
REPORTED = "path-replay"
RESULTS = ("result", "result-images")
KEPT, GONE = "holdout_kept_classes", "holdout_forgotten_classes"


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run and the record go.")] = Path("fastntk-demo"),
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show on embedded data what this package does; offline, three minutes or less on two cores.

    A ResNet-20 that knows CIFAR-100 learns handwritten digits by tuning 0.7 % of its parameters. Then it is made to
    forget one digit, and in a second request 20 single images, by every method, beside retraining without them. Both
    requests are audited and get a report to open in a browser. The folder of an earlier demo is replaced, any other
    is refused.

    Example:

    fastntk demo --out demo-out
    """
    from fastntk.base.atomic import check_output, new_folder
    from fastntk.base.device import find_device

    output = Output(as_json=json)
    output.replacing(out, check_output(out, overwrite=True, replaceable=check_demo))
    where = find_device(device)
    use_threads(threads)
    with progress(), new_folder(out, overwrite=True, replaceable=check_demo) as work:
        run, holdout, rows = fine_tune_step(output, seed=seed, folder=work / "run", device=where)
        requests = forget_step(output, run, holdout, folder=work)
        reports = [str(out / name / REPORT) for name in RESULTS]
        record = {
            "command": "demo",
            "format": "fastntk-demo",
            "out": str(out),
            "seed": seed,
            "rows": rows,
            "requests": requests,
            "reports": reports,
        }
        (work / RECORD).write_text(jsonlib.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    output.table(
        ("model", f"{len(run.data)} training digits", f"{len(holdout)} new digits"),
        [(row["model"], percent(row["train"]), percent(row["holdout"])) for row in rows],
        title="Accuracy",
    )
    for request in requests:
        # Over all digits the figure falls with the forgotten one, which is no damage.
        unseen = ("hold-out, kept digits", "hold-out, forgotten") if KEPT in request["rows"][0] else ("hold-out",)
        output.table(
            ("method", "retain", "forget", *unseen, "forget loss", "seconds"),
            [_cells(row) for row in request["rows"]],
            title=request["title"],
        )
    output.say(
        "retrain is the reference. path-replay walks along the recorded fine-tuning (it picks its depth by itself); fast-ntk and "
        "tangent-replay include the rows, made once for both requests."
    )
    for request, page in zip(requests, reports):
        output.say(f"{request['title']}, {REPORTED}: {request['verdict']}. Report: {page}")
    output.finish(
        record, wrote=f"{out} (run/, {', '.join(f'{name}/' for name in RESULTS)} and {RECORD})", then=f"open {reports[0]}"
    )


def fine_tune_step(output: Output, *, seed: int, folder: Path, device: torch.device) -> tuple[Run, Samples, list[dict[str, Any]]]:
    """Fine-tune, keep the run; return it, the hold-out samples and the rows before and after."""
    from fastntk.data import load_source
    from fastntk.models import input_spec
    from fastntk.storage.runs import save_run
    from fastntk.training.fitting import fit
    from fastntk.training.recipe import Recipe

    recipe = Recipe(epochs=EPOCHS, seed=seed)
    subset, samples = prepare(MODEL, SOURCE, spec="norm+head", weights=WEIGHTS, image_size=None, prompts={}, seed=seed)
    subset.model.to(device)
    holdout = load_source(HOLDOUT, spec=input_spec(subset.model), classes=samples.classes)
    announce(output, f"{MODEL}, weights {WEIGHTS}", subset=subset, samples=samples, recipe=recipe, source=SOURCE)
    before = accuracy_row("before fine-tuning", subset.model, train=samples, holdout=holdout)
    run = dataclasses.replace(fit(subset.model, subset, samples, recipe, trace=True), source=SOURCE)
    save_run(run, folder)
    return run, holdout, [before, accuracy_row("fine-tuned", run.model, train=samples, holdout=holdout)]


def forget_step(output: Output, run: Run, holdout: Samples, *, folder: Path) -> list[dict[str, Any]]:
    """Both requests by every method, rows made once for both; keep, audit and report each request's path replay."""
    from fastntk.tangent.linearisation import linearise_run
    from fastntk.unlearning import unlearn

    images = single_images(run)
    requests: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
        (f"Forget the digit {DIGIT}", {"classes": [DIGIT]}, METHODS),
        (f"Forget {len(images)} single images", {"ids": images}, METHODS_SINGLE),
    ]
    linearisation = linearise_run(run)
    output.say(f"Jacobian rows of {len(run.data)} images in {duration(linearisation.seconds)}")
    entries = []
    for name, (title, request, methods) in zip(RESULTS, requests):
        results, rows = {}, []
        for method in methods:
            tangent = method in TANGENT
            results[method] = unlearn(run, method=method, linearisation=linearisation if tangent else None, **request)
            seconds = results[method].seconds + (linearisation.seconds if tangent else 0.0)
            rows.append(forget_row(results[method], holdout) | {"seconds": seconds})
        verdict = evidence_step(results, holdout, folder=folder / name)
        entries.append({"title": title, "forget": len(results[REPORTED].forgotten), "rows": rows, "verdict": verdict})
    return entries


def evidence_step(results: dict[str, Unlearned], holdout: Samples, *, folder: Path) -> str:
    """Save a result with its audit, Retrain of two seeds beside it, and its report; return the audit's verdict."""
    from fastntk.auditing import audit
    from fastntk.report import write_report
    from fastntk.storage.results import save_result
    from fastntk.unlearning import unlearn

    result, retrain = results[REPORTED], results["retrain"]
    save_result(result, folder)
    other = unlearn(result.run, ids=result.forgotten.ids, method="retrain", seed=retrain.details["seed"] + 1)
    record = audit(result.run, result, holdout=holdout, reference=[retrain, other])
    (folder / AUDIT).write_text(jsonlib.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    write_report(record, folder / REPORT)
    return str(record["verdict"]["level"])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    unseen = (KEPT, GONE) if KEPT in row else ("holdout",)
    shares = (percent(row[name]) for name in ("retain", "forget", *unseen))
    return (row["method"], *shares, f"{row['forget_loss']:.2f}", f"{row['seconds']:.1f}")


def forget_row(result: Unlearned, holdout: Samples) -> dict[str, Any]:
    """Accuracies after unlearning, as fractions, and the mean loss of what was forgotten.

    Where whole classes were forgotten, hold-out also by kept and forgotten classes.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from fastntk.training.network import accuracy_on, predict

    sets = {"retain": result.retained, "forget": result.forgotten, "holdout": holdout}
    if result.split.whole_classes:
        gone = torch.isin(holdout.labels, torch.tensor(result.split.whole_classes))
        sets |= {KEPT: holdout.subset(torch.nonzero(~gone).squeeze(1)), GONE: holdout.subset(torch.nonzero(gone).squeeze(1))}
    accuracies = {name: accuracy_on(result.model, samples) for name, samples in sets.items()}
    outputs = predict(result.model, result.forgotten.inputs)
    loss = float(cross_entropy(outputs.double(), result.forgotten.labels))
    return {"method": result.method, **accuracies, "forget_loss": loss}


def single_images(run: Run) -> list[str]:
    """A few ids, evenly spaced over the data, so that several digits are among them."""
    count = min(IMAGES, len(run.data) // 2)
    return [run.data.ids[position * len(run.data) // count] for position in range(count)]


def accuracy_row(name: str, model: nn.Module, *, train: Samples, holdout: Samples) -> dict[str, Any]:
    """Accuracy on both sets, as fractions."""
    from fastntk.training.network import accuracy_on

    return {"model": name, "train": accuracy_on(model, train), "holdout": accuracy_on(model, holdout)}


def check_demo(folder: Path) -> tuple[str, ...]:
    """Refuse what is not the output of an earlier demo, or was added to; say what goes with it."""
    from fastntk.base.errors import InputError, listing
    from fastntk.base.schema import read_json
    from fastntk.storage.keys import key_file
    from fastntk.storage.replacing import replaceable

    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or record.get("format") != "fastntk-demo":
        raise InputError(f"its {RECORD} is not that of a demo")
    parts = {"run": "run", **dict.fromkeys(RESULTS, "result")}
    keys = {key_file(folder / name).name for name in parts}
    strangers = sorted({path.name for path in folder.iterdir()} - {RECORD, *parts, *keys})
    if strangers:
        raise InputError(f"it holds what the demo did not write: {listing(strangers)}")
    for name, kind in parts.items():
        if (folder / name).exists():
            replaceable(kind)(folder / name)
    return ("an earlier demo", *(f"{name}/" for name in parts if (folder / name).exists()))
