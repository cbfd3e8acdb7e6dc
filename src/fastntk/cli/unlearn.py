"""``fastntk unlearn``: a run and a request in, an unlearned model beside it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError
from fastntk.base.schema import MAX_GIVEN
from fastntk.base.text import byte_size, duration, percent
from fastntk.cli.method_options import method_options
from fastntk.cli.options import Device, Json, Overwrite, RunFolder, Threads, use_threads
from fastntk.cli.output import Output, note, progress
from fastntk.cli.request import (
    AcceptOutside,
    Classes,
    DataOverride,
    DiskBudget,
    Ids,
    IdsFile,
    Images,
    LossWith,
    MemoryBudget,
    Person,
    PersonsFile,
    RetrainWith,
    RowsPlace,
    TraceRead,
    check_request,
    load_function,
    nearest_folder,
    open_with_trace,
    row_options,
    tell_outside,
)
from fastntk.unlearning.registry import METHODS

if TYPE_CHECKING:
    from fastntk.unlearning import Unlearned
    from fastntk.unlearning.job import Job


def unlearn(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="RESULT", help="The new folder to write.")],
    classes: Classes = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    person: Person = None,
    persons_file: PersonsFile = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help=f"{', '.join(list(METHODS)[:-1])} or {list(METHODS)[-1]} "
            "(default: path-replay with a trace, else tangent-replay with a recipe, else fast-ntk).",
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option("--after", metavar="RESULT", help="An earlier result of this run, whose request is extended."),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            "--depth", help="path-replay: what may leave its recorded path: head, a number of last blocks, all, or auto."
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints", help="path-replay: how many points of the recorded path have rows, or their epochs (2,7,20)."
        ),
    ] = None,
    correction: Annotated[
        str | None,
        typer.Option("--correction", help="path-replay: at how many points the new path is corrected, or their epochs."),
    ] = None,
    damping: Annotated[
        float | None, typer.Option("--damping", help="fast-ntk: relative damping, and equation (1) (default: fitted).")
    ] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="fast-ntk: the scale s instead of a fit.")] = None,
    solver: Annotated[str | None, typer.Option("--solver", help="fast-ntk: auto (default), primal, dual, matrix-free …")] = None,
    path: Annotated[str | None, typer.Option("--path", help="tangent-replay: auto (default), product, curved, tangent.")] = None,
    polish: Annotated[int | None, typer.Option("--polish", help="tangent-replay: last epochs done on the real network.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="INT", min=0, max=MAX_GIVEN, help="For methods that draw: another seed.")
    ] = None,
    retrain_with: RetrainWith = None,
    loss_with: LossWith = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Any other option of the method.")
    ] = None,
    accept_outside: AcceptOutside = None,
    data: DataOverride = None,
    images: Images = True,
    trace: TraceRead = True,
    rows: RowsPlace = None,
    memory_budget: MemoryBudget = None,
    disk_budget: DiskBudget = None,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Make a copy of a run's model that behaves as if it had never seen some of its data.

    The run is not changed. The result has weights of the same names and shapes, and a manifest with what was asked (keyed
    digests of ids only; the key is in a file beside it, RESULT.request.key) and done. Exit code 3: written, but the step's own
    check says to retrain instead, or weights outside the tuned ones were trained on the data too (or nothing is known of them),
    which is said first: --accept-outside.

    A result is the run of the next request: give its folder in place of RUN. With a trace (path-replay) it needs nothing of
    the first run, which can be erased (`fastntk erase`), nor, at depth head, any image: where images are gone the command says
    so and goes on with the trace alone.

    Examples:

    fastntk unlearn runs/digits --classes 0 --method tangent-replay --out results/without-0

    fastntk unlearn runs/digits --ids-file deletions.txt --out results/without-those

    fastntk unlearn runs/photos --person "Ada L." --persons-file people.csv --out results/without-ada

    fastntk unlearn results/without-0 --ids 11,25 --depth head --out results/second
    """
    from fastntk.base.atomic import check_output

    output = Output(as_json=json)
    requested_ids = check_request(classes, ids, ids_file, person, persons_file)
    _check_beside(run, out)
    output.replacing(out, check_output(out, overwrite=overwrite, replaceable=_going))

    from fastntk.data.request import parse_classes
    from fastntk.storage.results import load_result, save_result
    from fastntk.unlearning import prepare
    from fastntk.unlearning.api import default_method

    arguments: dict[str, Any] = {"depth": depth, "checkpoints": checkpoints, "correction": correction}
    arguments |= {"damping": damping, "scale": scale, "solver": solver, "path": path, "polish": polish, "seed": seed}
    if retrain_with is not None and method != "retrain":
        raise InputError("--retrain-with goes with --method retrain: it is the training that one does.")
    arguments["retrain"] = None if retrain_with is None else load_function(retrain_with, option="--retrain-with")
    arguments |= row_options(rows=rows, memory_budget=memory_budget, disk_budget=disk_budget)
    if method is not None:
        method_options(method, arguments, option or [])  # a wrong option costs no minute of work
    use_threads(threads)
    with progress():
        loaded_run, absent = open_with_trace(run, data, images=images, device=device, loss_with=loss_with, trace=trace)
        name = default_method(loaded_run)[0] if method is None else method
        options = method_options(name, arguments, option or [])
        if "scratch" in METHODS[name].options:
            options.setdefault("scratch", str(nearest_folder(out)))
        if absent is not None:
            options = without_images(name, options, absent)
        earlier = None if after is None else load_result(after, loaded_run)
        labels = None if classes is None else parse_classes(classes, loaded_run.listed)
        sample_ids = None if requested_ids is None else requested_ids.resolve(loaded_run.listed)
        job = prepare(
            earlier or loaded_run,
            classes=labels,
            ids=sample_ids,
            method=method,
            options=options,
            measured=True,
            accept_outside=accept_outside,
        )
        check_not_empty(job)
        open_question = job.leaves_open and tell_outside(output, job.outside, accept_outside)
        output.say("Unlearning")
        output.facts({"run": run, "device": loaded_run.anchor.device, **job.facts(), "why": f"{name}: {job.because}"})
        result = job.execute()
        save_result(result, out, overwrite=overwrite)
        record = summary(result, run=run, out=out)
    trustworthy = _tell(output, record)
    reference = ["--reference", "retrain"] if loaded_run.recipe is not None else ["--retrain-with", "MODULE:FUNCTION"]
    as_here = (("--data", data), ("--loss-with", loss_with), ("--device", None if device == "auto" else device))
    again = [str(word) for pair in as_here if pair[1] is not None for word in pair] + ([] if trace else ["--no-trace"])
    audited = ["fastntk", "audit", str(run), str(out), "--holdout", "SRC", *again, *reference]
    then = ["fastntk", "info", str(out)] if absent else audited
    output.finish(record, wrote=str(out), then=then)
    if not trustworthy or open_question:
        raise typer.Exit(3)


def _check_beside(run: Path, out: Path) -> None:
    """Refuse an output that `erase` would remove with something else, or that takes its run's place."""
    from fastntk.storage.manifest import is_bundle

    around = next((folder for folder in out.resolve().parents if folder == run.resolve() or is_bundle(folder)), None)
    if around is not None:
        raise InputError(f"{out} is inside {around}: `fastntk erase` would remove it with that folder. Choose one beside it.")
    if run.resolve() == out.resolve():
        raise InputError(
            f"--out {out} is the run of this request: without it the result could not be audited. Choose one beside it, and "
            "`fastntk erase` the run when the result is served."
        )


def _going(out: Path) -> tuple[str, ...]:
    """What goes with a result that is replaced; torch is loaded only where a folder has to be read."""
    from fastntk.storage.replacing import replaceable

    return replaceable("result")(out)


def check_not_empty(job: Job) -> None:
    """Refuse a request that names nothing: on a command line that is a mistake."""
    if len(job.task.split.forget) == 0:
        raise InputError("the request is empty: name at least one class or id to forget")


def without_images(method: str, options: dict[str, Any], absent: str) -> dict[str, Any]:
    """The options for a request on the trace alone, said on standard error; refuses what needs images."""
    advice = "Give them (--data SRC), or take what needs none: --method path-replay --depth head."
    if "images" in METHODS[method].needed(options):
        raise InputError(f"{absent} {method} needs the images. {advice}")
    if method != "path-replay":
        note(f"{absent} Going on without images.")
        return options
    depth = options.get("depth", "auto")
    if str(depth) not in ("head", "0", "auto"):
        raise InputError(f"{absent} Depth {depth} needs the images. {advice}")
    note(f"{absent} Going on with the trace alone: depth head.")
    return {**options, "depth": "head"}


def summary(result: Unlearned, *, run: Path, out: Path) -> dict[str, Any]:
    """The record that ``--json`` prints; no ids in it. Accuracies are null where there are no images."""
    return {
        "command": "unlearn",
        "run": str(run),
        "out": str(out),
        "method": result.method,
        "seconds": result.seconds,
        "accuracy": None if result.run.samples is None else result.accuracies(),
        "trace": None if result.trace is None else result.trace.summary(),
        "details": result.details,
    }


def _tell(output: Output, record: dict[str, Any]) -> bool:
    """Print the outcome; return whether the step passed its own check."""
    details, accuracy = record["details"], record["accuracy"]
    validity = details.get("validity", {})
    verdict = validity.get("verdict", "not applicable")
    facts: dict[str, object] = {"accuracy": "not measured, for there are no images"}
    if accuracy is not None:
        facts = {
            f"accuracy, {name}": f"{percent(accuracy[name]['before'])} → {percent(accuracy[name]['after'])}"
            for name in ("retain", "forget")
        }
    facts |= _path_facts(details)
    if record["trace"] is not None:
        facts["trace"] = (
            f"{byte_size(record['trace']['nbytes'])}, of the retained samples: this result is the run of a next request"
        )
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


def _path_facts(details: dict[str, Any]) -> dict[str, object]:
    """What path-replay did, and what going deeper would cost."""
    if "depth" not in details:
        return {}
    facts: dict[str, object] = {
        "depth": details["depth"],
        "moved": f"{len(details['moved'])} tuned tensors; {len(details['left'])} stay on their recorded path",
    }
    further = details.get("next_depth")
    if further is not None:
        cost = percent(further["of_retrain"])
        facts["going deeper"] = (
            f"--depth {further['depth']}: {further['numbers']:,} numbers of the body move, for about {cost} of a Retrain"
        )
    return facts
