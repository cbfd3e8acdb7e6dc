"""``fastntk demo``: the whole story on embedded data, offline.

Every step is a function from what the steps before made to rows of the table and entries of the record; a new step is
one more function called by :func:`demo`.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.marks import AUDIT, REPORT
from fastntk.base.text import duration, percent
from fastntk.cli.demo_tables import forget_rows, table_of, words_of
from fastntk.cli.finetune import announce, prepare
from fastntk.cli.options import Device, Json, Seed, Threads, use_threads
from fastntk.cli.output import Output, progress

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastntk.auditing import PredictionCache
    from fastntk.data import Samples
    from fastntk.training.run import Run
    from fastntk.unlearning import Unlearned

MODEL, WEIGHTS = "resnet20", "cifar100"
SOURCE: dict[str, Any] = {"data": "digits@train", "images_per_class": 30, "only_classes": None}
HOLDOUT = "digits@test"
RECORD = "demo.json"
EPOCHS, LR = 15, 3e-3
DIGIT, IMAGES = 0, 20
RETRAINS = 4
"""Retrains of different seeds: how far apart they are is what a distance to them is measured in."""
RELEARN_CAP = 25
TANGENT = ("fast-ntk", "tangent-replay")
REPORTED, SHALLOW = "path-replay", "path-replay, head"
OPTIONS: dict[str, dict[str, Any]] = {SHALLOW: {"method": "path-replay", "depth": "head"}}
"""What a row of another name than its method's is."""
METHODS_SINGLE = ("full", SHALLOW, REPORTED, "retrain")
METHODS = ("full", SHALLOW, REPORTED, *TANGENT, "max-loss", "random-label", "retrain")
RESULTS = ("result", "result-images")
TWO_LINES = """\
recorder = fastntk.record(model, subset, optimizer, loss=loss)   # before the first step
    with recorder.batch(ids, targets):                           # around each step; then: run = recorder.finish()"""


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run and the record go.")] = Path("fastntk-demo"),
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show on embedded data what this package does; offline, three minutes or less on two cores.

    A ResNet-20 that knows CIFAR-100 learns handwritten digits by tuning 0.7 % of its parameters, and the training is recorded.
    Then it is made to forget one digit by this package's methods and two baselines, and in a second request those 20 images that
    it holds to most. For both
    it is trained again without them, with several seeds: what a request costs, what it forgets and how near it comes is
    compared with that. Both requests are audited and get a report to open in a browser. The folder of an earlier demo is
    replaced, any other is refused.

    Example:

    fastntk demo --out demo-out
    """
    from fastntk.base.atomic import check_output, new_folder
    from fastntk.base.device import find_device

    output = Output(as_json=json)
    output.replacing(out, check_output(out, overwrite=True, replaceable=check_demo))
    where = find_device(device)
    use_threads(threads)
    started = time.perf_counter()
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
            "seconds": time.perf_counter() - started,
        }
        (work / RECORD).write_text(jsonlib.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    output.table(
        ("model", f"{len(run.data)} training digits", f"{len(holdout)} new digits"),
        [(row["model"], percent(row["train"]), percent(row["holdout"])) for row in rows],
        title="Accuracy",
    )
    for request in requests:
        output.table(*table_of(request), title=request["title"], whole_names=True)
        output.say(words_of(request))
        output.say()
    for request, page in zip(requests, reports):
        output.say(f"{request['title']}, {REPORTED}: {request['verdict']}. Report: {page}")
    output.say()
    output.say("The same for your own training, with two lines more in its loop:")
    output.say(TWO_LINES)
    output.say("    result = fastntk.unlearn(run, ids=[…])                       # docs/howto.md has the whole loop")
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

    recipe = Recipe(epochs=EPOCHS, lr=LR, seed=seed)
    subset, samples = prepare(MODEL, SOURCE, spec="norm+head", weights=WEIGHTS, image_size=None, prompts={}, seed=seed)
    subset.model.to(device)
    holdout = load_source(HOLDOUT, spec=input_spec(subset.model), classes=samples.classes)
    announce(output, f"{MODEL}, weights {WEIGHTS}", subset=subset, samples=samples, recipe=recipe, source=SOURCE)
    before = accuracy_row("before fine-tuning", subset.model, train=samples, holdout=holdout)
    run = dataclasses.replace(fit(subset.model, subset, samples, recipe, trace=True), source=SOURCE)
    save_run(run, folder)
    return run, holdout, [before, accuracy_row("fine-tuned", run.model, train=samples, holdout=holdout)]


def forget_step(output: Output, run: Run, holdout: Samples, *, folder: Path) -> list[dict[str, Any]]:
    """Both requests by their methods; keep, audit and report each request's path replay.

    The first request makes what the second one finds on the run, so the costs are those of a first and a next request. Rows of
    fast-ntk and tangent-replay are made here, and their cost is added to both.
    """
    from fastntk.auditing import PredictionCache
    from fastntk.tangent.linearisation import linearise_run

    images = single_images(output, run)
    linearisation = linearise_run(run)
    output.say(f"Jacobian rows of {len(run.data)} images in {duration(linearisation.seconds)}")
    requests: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
        (f"First request: forget the digit {DIGIT}", {"classes": [DIGIT]}, METHODS),
        (f"Second request, of the same run: forget {len(images)} images", {"ids": images}, METHODS_SINGLE),
    ]
    entries = []
    for name, (title, request, methods) in zip(RESULTS, requests):
        results = {label: _unlearned(run, label, request, linearisation) for label in methods}
        retrain = results["retrain"]
        others = [
            _unlearned(run, "retrain", {**request, "seed": retrain.details["seed"] + count}, None) for count in range(1, RETRAINS)
        ]
        retrains, cache = [retrain, *others], PredictionCache()
        audits = {REPORTED: evidence_step(results[REPORTED], retrains, holdout, cache, folder=folder / name)}
        for label in (label for label in methods if label not in (REPORTED, "retrain")):
            audits[label] = _short_audit(results[label], retrains, holdout, cache)
        shared_seconds = {label: linearisation.seconds if label in TANGENT else 0.0 for label in results}
        rows = forget_rows(results, audits, holdout, shared=shared_seconds)
        verdict, forget_count = audits[REPORTED]["verdict"]["level"], len(retrain.forgotten)
        entries.append({"title": title, "forget": forget_count, "retrains": RETRAINS, "rows": rows, "verdict": verdict})
    return entries


def _unlearned(run: Run, label: str, request: dict[str, Any], linearisation: Any) -> Unlearned:
    """A row's result, with the run's seed; the rows are for those who need them, and hold nothing that another row computed."""
    from fastntk.unlearning import unlearn
    from fastntk.unlearning.registry import METHODS as KNOWN

    options = OPTIONS.get(label, {"method": label})
    assert run.recipe is not None
    seed_option = {"seed": run.recipe.seed} if "seed" in KNOWN[options["method"]].options else {}
    if label in TANGENT:
        linearisation.memo.clear()
    return unlearn(run, **{**seed_option, **request}, **options, linearisation=linearisation if label in TANGENT else None)


def _short_audit(result: Unlearned, retrains: list[Unlearned], holdout: Samples, cache: PredictionCache) -> dict[str, Any]:
    """By predictions and losses alone."""
    from fastntk.auditing import audit

    return audit(
        result.run,
        result,
        holdout=holdout,
        reference=retrains,
        relearn_cap=0,
        probes=False,
        membership=False,
        predictions=cache,
    )


def evidence_step(
    result: Unlearned, retrains: list[Unlearned], holdout: Samples, cache: PredictionCache, *, folder: Path
) -> dict[str, Any]:
    """Save a result with its audit, the Retrains beside it, and its report; return the audit."""
    from fastntk.auditing import audit
    from fastntk.report import write_report
    from fastntk.storage.results import save_result

    save_result(result, folder)
    record = audit(result.run, result, holdout=holdout, reference=retrains, relearn_cap=RELEARN_CAP, predictions=cache)
    (folder / AUDIT).write_text(jsonlib.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    write_report(record, folder / REPORT)
    return record


def single_images(output: Output, run: Run) -> list[str]:
    """The ids of those images whose own loss would rise most if they had not been there: where forgetting shows."""
    from fastntk.unlearning.removals import removals

    count = min(IMAGES, len(run.data) // 2)
    effects = removals(run, list(run.data.ids))
    output.say(f"What each of {len(run.data)} images does for its own loss, from the trace, in {duration(effects.seconds)}")
    return [run.data.ids[position] for position in effects.loss_change.argsort(descending=True)[:count].tolist()]


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
