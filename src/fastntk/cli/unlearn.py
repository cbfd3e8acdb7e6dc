"""``fastntk unlearn``: a run and a request in, an unlearned model beside it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.text import duration, percent
from fastntk.cli.method_options import method_options
from fastntk.cli.options import Json, Overwrite, RunFolder, Threads, use_threads
from fastntk.cli.output import Output, progress
from fastntk.cli.request import (
    Classes,
    DataOverride,
    DiskBudget,
    Ids,
    IdsFile,
    MemoryBudget,
    RowsPlace,
    check_request,
    nearest_folder,
    open_run,
    row_options,
)
from fastntk.unlearning.registry import METHODS

if TYPE_CHECKING:
    from fastntk.unlearning import Unlearned
    from fastntk.unlearning.api import Job


def unlearn(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="RESULT", help="The new folder to write.")],
    classes: Classes = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    method: Annotated[
        str,
        typer.Option("--method", help=f"{', '.join(list(METHODS)[:-1])} or {list(METHODS)[-1]}."),
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
    rows: RowsPlace = None,
    memory_budget: MemoryBudget = None,
    disk_budget: DiskBudget = None,
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
    sample_ids = check_request(classes, ids, ids_file)
    check_output(out, overwrite=overwrite, replaceable=_is_result)

    from fastntk.data.request import parse_classes
    from fastntk.storage.results import load_result, save_result
    from fastntk.unlearning import prepare

    given = {"damping": damping, "scale": scale, "solver": solver, "path": path, "polish": polish, "seed": seed}
    given |= row_options(rows=rows, memory_budget=memory_budget, disk_budget=disk_budget)
    options = method_options(method, given, option or [])
    if "rows" in METHODS[method].needs:
        options.setdefault("scratch", str(nearest_folder(out)))
    use_threads(threads)
    with progress():
        loaded = open_run(run, data)
        earlier = None if after is None else load_result(after, loaded)
        labels = None if classes is None else parse_classes(classes, loaded.data)
        job = prepare(earlier or loaded, classes=labels, ids=sample_ids, method=method, options=options, measured=True)
        check_not_empty(job)
        output.say("Unlearning")
        output.facts({"run": run, **job.facts()})
        result = job.execute()
        save_result(result, out, overwrite=overwrite)
        record = summary(result, run=run, out=out)
    trusted = _tell(output, record)
    output.finish(record, wrote=str(out), then=f"fastntk audit {run} {out} --holdout SRC --reference retrain")
    if not trusted:
        raise typer.Exit(3)


def check_not_empty(job: Job) -> None:
    """Refuse a request that names nothing: on a command line that is a mistake."""
    from fastntk.base.errors import InputError

    if len(job.task.split.forget) == 0:
        raise InputError("the request is empty: name at least one class or id to forget")


def summary(result: Unlearned, *, run: Path, out: Path) -> dict[str, Any]:
    """The record that ``--json`` prints; no ids in it."""
    return {
        "command": "unlearn",
        "run": str(run),
        "out": str(out),
        "method": result.method,
        "seconds": result.seconds,
        "accuracy": result.accuracies(),
        "details": result.details,
    }


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
    from fastntk.storage.runs import RESULT

    try:
        return bool(read_manifest(folder, kinds=(RESULT,)))
    except InputError:
        return False
