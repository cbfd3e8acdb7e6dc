"""``fastntk plan``: what unlearning would cost, before any of it is done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError
from fastntk.cli.method_options import method_options
from fastntk.cli.options import Device, Json, RunFolder, Threads, use_threads
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
    RowsPlace,
    TraceRead,
    check_request,
    nearest_folder,
    needs_loss,
    open_with_trace,
    row_options,
    tell_outside,
)

if TYPE_CHECKING:
    from fastntk.planning import Plan


def plan(
    run: RunFolder,
    classes: Classes = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    person: Person = None,
    persons_file: PersonsFile = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="Plan this one, as `unlearn` would do it (default: path-replay with a trace, and all that work on rows).",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="With --method: an option of it, as for `unlearn`.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="RESULT", help="Where the result will go: its disk takes rows that do not fit.")
    ] = Path("result"),
    accept_outside: AcceptOutside = None,
    loss_with: LossWith = None,
    duplicates: Annotated[
        str,
        typer.Option(
            "--duplicates",
            help="Copies of what is forgotten among what stays: exact, or near for those that look alike too (JPEG, resized).",
        ),
    ] = "exact",
    data: DataOverride = None,
    images: Images = True,
    trace: TraceRead = True,
    rows: RowsPlace = None,
    memory_budget: MemoryBudget = None,
    disk_budget: DiskBudget = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Estimate time and memory of every way to forget, and of retraining, from a calibration of a few seconds.

    Samples that stay although they are copies of some that go are named first: erasing one copy erases nothing.
    Nothing is written. One route is marked ->: the cheapest of those that the methods take, or retrain. The last line has its
    command. Exit code 3: weights outside the tuned ones were trained on the data too, or nothing is known of them, which is said
    before all.

    Examples:

    fastntk plan runs/digits --classes 0

    fastntk plan runs/digits --ids-file deletions.txt --method tangent-replay --memory-budget 4GB
    """
    output = Output(as_json=json)
    if duplicates not in ("exact", "near"):
        raise InputError(f"--duplicates {duplicates}: expected exact or near.")
    requested_ids = check_request(classes, ids, ids_file, person, persons_file)
    places = row_options(rows=rows, memory_budget=memory_budget, disk_budget=disk_budget)
    if option and method is None:
        raise InputError("--option goes with --method: it is an option of that one.")

    from fastntk.data.request import parse_classes
    from fastntk.unlearning import plan as make_plan
    from fastntk.unlearning.registry import find_method
    from fastntk.unlearning.residue import check_reason, outside_report

    check_reason(accept_outside)

    entry = None if method is None else find_method(method)
    options = {} if method is None else method_options(method, {}, option or [])
    scratch: dict[str, Any] = {"scratch": nearest_folder(out)} if entry is None or "rows" in entry.needs else {}
    use_threads(threads)
    with progress():
        loaded_run, absent = open_with_trace(run, data, images=images, device=device, loss_with=loss_with, trace=trace)
        if absent is not None:
            note(f"{absent} Planning with the trace alone: path-replay, depth head.")
        open_question = tell_outside(output, outside_report(loaded_run), accept_outside)
        labels = None if classes is None else parse_classes(classes, loaded_run.listed)
        sample_ids = None if requested_ids is None else requested_ids.resolve(loaded_run.listed)
        output.say(f"Planning for {run}: a calibration of a few seconds on this machine, nothing is written.")
        budgets = {**options, **places, **scratch}
        result = make_plan(loaded_run, classes=labels, ids=sample_ids, method=method, duplicates=duplicates, **budgets)  # type: ignore[arg-type]
    best = min(result.chosen.values(), key=lambda route: route.seconds)
    cheaper = result.retrain_seconds is not None and result.retrain_seconds < best.seconds
    name = "retrain" if cheaper else best.method
    output.say(str(result).replace(result.table(), table_with_one_mark(result, name)))
    # Ids and people are not repeated: what is printed may be kept.
    arguments: list[tuple[str, object]] = [
        ("--classes", classes),
        ("--ids", ids and "ID,ID"),
        ("--ids-file", ids_file),
        *(("--person", "NAME") for _ in person or ()),
        ("--persons-file", persons_file),
        ("--data", data),
        ("--accept-outside", accept_outside),
        ("--method", name),
        ("--device", None if device == "auto" else device),
    ]
    if not cheaper:
        arguments += [
            ("--loss-with", loss_with or ("MODULE:FUNCTION" if needs_loss(loaded_run) else None)),
            ("--rows", rows),
            ("--memory-budget", memory_budget),
            ("--disk-budget", disk_budget),
            *(("--option", text) for text in option or ()),
        ]
    words = (
        [str(word) for pair in arguments if pair[1] is not None for word in pair]
        + ([] if images else ["--no-images"])
        + ([] if trace else ["--no-trace"])
    )
    record = {"command": "plan", "run": str(run), **result.details()}
    output.finish(record, then=["fastntk", "unlearn", str(run), *words, "--out", str(out)])
    if open_question:
        raise typer.Exit(3)


def table_with_one_mark(plan: Plan, method: str) -> str:
    """The plan's table, which marks a route of every method, with the mark of this method alone.

    The lines below the head are those of ``plan.routes``, in their order; Retrain is the last where it is no route.
    """
    head, *lines = plan.table().splitlines()
    route = plan.chosen.get(method)
    row = len(lines) - 1 if route is None else next(i for i, other in enumerate(plan.routes) if other is route)
    marks = ("->" if i == row else "  " for i in range(len(lines)))
    return "\n".join([head, *(f"{mark}{line[2:]}" for mark, line in zip(marks, lines, strict=True))])
