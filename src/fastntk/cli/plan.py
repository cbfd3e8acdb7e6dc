"""``fastntk plan``: what unlearning would cost, before any of it is done."""

from __future__ import annotations

from typing import Annotated

import typer

from fastntk.cli.options import Json, RunFolder, Threads, use_threads
from fastntk.cli.output import Output, progress
from fastntk.cli.request import Classes, DataOverride, Ids, IdsFile, check_request, open_run, parse_bytes, resolve

Memory = Annotated[
    str | None, typer.Option("--memory-budget", metavar="SIZE", help="Like 4GB; default 70 % of what is available.")
]
Disk = Annotated[str | None, typer.Option("--disk-budget", metavar="SIZE", help="Like 20GB; default 90 % of what is free.")]


def plan(
    run: RunFolder,
    classes: Classes = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    data: DataOverride = None,
    memory_budget: Memory = None,
    disk_budget: Disk = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Estimate time and memory of every way to forget, and of retraining, from a calibration of a few seconds.

    Nothing is written.

    Examples:

    fastntk plan runs/digits --classes 0

    fastntk plan runs/digits --ids-file deletions.txt --memory-budget 4GB
    """
    output = Output(as_json=json)
    named = check_request(classes, ids, ids_file)
    memory = None if memory_budget is None else parse_bytes(memory_budget)
    disk = None if disk_budget is None else parse_bytes(disk_budget)

    from fastntk.planning.plan import plan as make_plan

    use_threads(threads)
    with progress():
        loaded = open_run(run, data)
        request = resolve(classes, named, loaded.data)
        output.say(f"Planning for {run}: a calibration of a few seconds on this machine, nothing is written.")
        made = make_plan(loaded, classes=request.classes, ids=request.ids, memory_budget=memory, disk_budget=disk)
    output.say(str(made))
    chosen = min(made.chosen.values(), key=lambda route: route.seconds).method
    if made.retrain_seconds < made.chosen[chosen].seconds:
        chosen = "retrain"
    asked = f"--classes {classes}" if classes is not None else "--ids-file FILE" if ids_file else "--ids ID,ID"
    record = {"command": "plan", "run": str(run), **made.details()}
    output.finish(record, then=f"fastntk unlearn {run} {asked} --method {chosen} --out RESULT")
