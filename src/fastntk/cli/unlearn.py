"""``fastntk unlearn``: a run and a request in, an unlearned model beside it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.text import duration, percent
from fastntk.cli.method_options import METHOD_NAMES, method_options
from fastntk.cli.options import Json, Overwrite, RunFolder, Threads, use_threads
from fastntk.cli.output import Output, progress
from fastntk.cli.request import Classes, DataOverride, Ids, IdsFile, Request, check_request, open_run, resolve

if TYPE_CHECKING:
    from torch import nn

    from fastntk.data import Samples
    from fastntk.training.run import Run
    from fastntk.unlearning import Unlearned


def unlearn(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="RESULT", help="The new folder to write.")],
    classes: Classes = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    method: Annotated[
        str,
        typer.Option("--method", help=f"{', '.join(METHOD_NAMES[:-1])} or {METHOD_NAMES[-1]}."),
    ] = "fast-ntk",
    after: Annotated[
        Path | None,
        typer.Option("--after", metavar="RESULT", help="An earlier result of this run, whose request is extended."),
    ] = None,
    damping: Annotated[
        float | None, typer.Option("--damping", help="fast-ntk: relative damping, and equation (1) (default: fitted).")
    ] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="fast-ntk: the scale s instead of a fit.")] = None,
    solver: Annotated[str | None, typer.Option("--solver", help="fast-ntk: auto (default), primal, dual, matrix-free …")] = None,
    path: Annotated[str | None, typer.Option("--path", help="tangent-replay: auto (default), product, curved, tangent.")] = None,
    polish: Annotated[int | None, typer.Option("--polish", help="tangent-replay: last epochs done on the real network.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="For methods that draw: another seed.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Any other option of the method.")
    ] = None,
    data: DataOverride = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Make a copy of a run's model that behaves as if it had never seen some of its data.

    The run is not changed. The result has weights of the same names and shapes, and a manifest with what was asked
    (digests of ids only) and done. Exit code 3: written, but the step's own check says to retrain instead.

    Examples:

    fastntk unlearn runs/digits --classes 0 --method tangent-replay --out results/without-0

    fastntk unlearn runs/digits --ids-file deletions.txt --out results/without-those
    """
    from fastntk.base.atomic import check_output

    output = Output(as_json=json)
    named = check_request(classes, ids, ids_file)
    check_output(out, overwrite=overwrite, replaceable=_is_result)

    from fastntk.storage.results import load_result, save_result
    from fastntk.unlearning import unlearn as forget

    given = {"damping": damping, "scale": scale, "solver": solver, "path": path, "polish": polish, "seed": seed}
    options = method_options(method, given, option or [])
    use_threads(threads)
    with progress():
        loaded = open_run(run, data)
        earlier = None if after is None else load_result(after, loaded)
        request = resolve(classes, named, loaded.data)
        _announce(output, run, loaded, request, method=method, options=options)
        result = forget(earlier or loaded, classes=request.classes, ids=request.ids, method=method, **options)
        save_result(result, out, overwrite=overwrite)
        record = summary(result, run=run, out=out)
    trusted = _tell(output, record)
    output.finish(record, wrote=str(out), then=f"fastntk audit {run} {out} --holdout SRC --reference retrain")
    if not trusted:
        raise typer.Exit(3)


def _announce(output: Output, folder: Path, run: Run, request: Request, *, method: str, options: dict[str, Any]) -> None:
    """Say what is about to happen and how long it will take."""
    from fastntk.data import ForgetRequest

    forget = len(ForgetRequest(classes=request.classes, ids=request.ids).resolve(run.data).forget)
    output.say("Unlearning")
    output.facts(
        {
            "run": folder,
            "request": f"forget {forget:,} of {len(run.data):,} samples",
            "method": ", ".join([method, *(f"{name} {value}" for name, value in options.items())]),
            "tuned": f"{run.subset.numel:,} parameters, {run.data.num_classes} classes",
            "estimate": _estimate(run, request, forget=forget, method=method, options=options),
        }
    )


def _estimate(run: Run, request: Request, *, forget: int, method: str, options: dict[str, Any]) -> str:
    """Time of this method from a short calibration; refuses rows that the memory cannot hold."""
    from fastntk.base.errors import BudgetError
    from fastntk.base.text import byte_size
    from fastntk.planning.plan import plan
    from fastntk.planning.routes import softmax_first
    from fastntk.training.recipe import Recipe
    from fastntk.unlearning.baselines.costs import training_passes
    from fastntk.unlearning.fast_ntk.method import RIDGE_OPTIONS

    if method == "full":
        return "nothing to compute"
    made = plan(run, classes=request.classes, ids=request.ids)
    recipe = run.recipe or Recipe()
    retain = max(made.sizes.retain, 1)
    retained_epoch = made.retrain_seconds / max(recipe.epochs, 1)
    if method == "retrain":
        seconds = made.retrain_seconds
    elif (passes := training_passes(method, options, retain=retain, forget=forget, classes=run.data.num_classes)) is not None:
        seconds = retained_epoch * passes / retain
    else:
        routes = [route for route in made.routes if route.method == method and route.rows == "in memory"]
        fitting = [route for route in routes if route.fits or route.why_not.startswith("needs the recipe")]
        if not fitting:
            raise BudgetError(
                f"The rows of this run do not fit: {byte_size(made.sizes.stored)} of rows, "
                f"{byte_size(made.memory_budget)} of memory to use. Tune fewer parameters, or use --method retrain."
            )
        if not set(RIDGE_OPTIONS) & set(options) and options.get("form") != "ridge":
            fitting = softmax_first(fitting)
        seconds = min(route.seconds for route in fitting) + retained_epoch * options.get("polish", 0)
    return f"{duration(seconds)} (Retrain {duration(made.retrain_seconds)}), from a short calibration"


def summary(result: Unlearned, *, run: Path, out: Path) -> dict[str, Any]:
    """The record that ``--json`` prints; no ids in it."""
    return {
        "command": "unlearn",
        "run": str(run),
        "out": str(out),
        "method": result.method,
        "seconds": result.seconds,
        "accuracy": {
            name: {"before": right(result.run.model, samples), "after": right(result.model, samples)}
            for name, samples in (("retain", result.retained), ("forget", result.forgotten))
        },
        "details": result.details,
    }


def right(model: nn.Module, samples: Samples) -> float:
    """The fraction of samples the model gets right."""
    from fastntk.training.network import predict

    return float((predict(model, samples.inputs).argmax(1) == samples.labels).double().mean())


def _tell(output: Output, record: dict[str, Any]) -> bool:
    """Print the outcome; return whether the step passed its own check."""
    details, accuracy = record["details"], record["accuracy"]
    validity = details.get("validity", {})
    verdict = validity.get("verdict", "not applicable")
    facts: dict[str, object] = {
        f"accuracy, {name}": f"{percent(accuracy[name]['before'])} → {percent(accuracy[name]['after'])}"
        for name in ("retain", "forget")
    }
    facts["validity"] = verdict
    if "error" in validity:
        errors = ", ".join(f"{name} {value:.2f}" for name, value in validity["error"].items())
        facts["validity"] = f"{verdict} (relative error of the predicted logits: {errors})"
    if validity.get("reasons"):
        facts["because"] = "; ".join(validity["reasons"])
    if "form" in details:
        facts["form"] = f"{details['form']} ({details['form_because']})"
    if "replay_miss" in details:
        facts["replay miss"] = f"{percent(details['replay_miss'])} of the fine-tuning's own length, on all data"
    if "replay_diverged" in details:
        facts["left out"] = f"the path {', '.join(details['replay_diverged'])}: its replay of all data diverged"
    facts["BN statistics"] = details["batch_norm_statistics"]
    facts["other weights"] = details["outside_subset"]["message"]
    output.say(f"Done in {duration(record['seconds'])}")
    output.facts(facts)
    if verdict == "retrain instead":
        output.say("This step is not to be trusted, for the reason given: retrain instead.")
        return False
    return True


def _is_result(folder: Path) -> bool:
    """Whether a folder is a result; a run is never replaced by one."""
    from fastntk.base.errors import InputError
    from fastntk.storage.manifest import read_manifest
    from fastntk.storage.results import RESULT

    try:
        return bool(read_manifest(folder, kinds=(RESULT,)))
    except InputError:
        return False
