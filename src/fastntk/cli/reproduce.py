"""``fastntk reproduce``: one of the paper's tables, run where records are missing and written beside the published figures."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastntk.base.text import duration
from fastntk.cli.options import Json, Threads, use_threads
from fastntk.cli.output import Output, note, progress
from fastntk.cli.signals import exit_code

if TYPE_CHECKING:
    from fastntk.reproduce.cells import Cell
    from fastntk.reproduce.runner import Step

SHARED = "FASTNTK_SHARED"


def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="table1, table2, table3 or table4.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of records and tables; goes on where it stopped.")],
    models: Annotated[str | None, typer.Option("--models", help="Only these, joined by commas; --plan lists them.")] = None,
    images_per_class: Annotated[
        str | None, typer.Option("--images-per-class", help="Only these sizes, joined by commas; names optional cells too.")
    ] = None,
    classes: Annotated[str | None, typer.Option("--classes", help="Only cells with so many classes, joined by commas.")] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Only these rows, joined by commas.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="How many seeds (default: each cell's own number).")] = None,
    real: Annotated[bool, typer.Option("--real", help="The paper's own settings, on the public data and weights.")] = False,
    data_root: Annotated[
        Path, typer.Option("--data-root", "--shared", envvar=SHARED, help="Folder with data/ and weights/.")
    ] = Path("../shared"),
    work: Annotated[Path | None, typer.Option("--work", help="Folder of trained weights (default: DIR/work).")] = None,
    keep_stale: Annotated[
        bool, typer.Option("--keep-stale", help="Keep records and weights that another state of the code made.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would run and how long, and stop.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Reproduce one of the paper's tables: run the cells that are missing, then write them beside the paper's figures.

    One record a cell, method and seed, what unlearn and then audit give, is kept in DIR/records; a run that was stopped, even
    killed, goes on from there. Nothing is written outside DIR and --work. Records made by other code are made again.
    DIR/TABLE.md and its other formats (DIR/TABLE-real.md with --real) hold the cells and rows of this call alone: a narrower
    choice replaces a fuller table, and the same command without it writes that again from the records.
    Without --real the cells are those that two CPU cores can do; what replaces the paper's network or data is labelled.

    Examples:

    fastntk reproduce table1 --out results --plan

    fastntk reproduce table1 --models resnet20 --images-per-class 100 --seeds 3 --out results

    fastntk reproduce table2 --real --models vit_small --data-root /data/public --out results
    """
    from fastntk.base.errors import InputError
    from fastntk.reproduce.loading import check_files
    from fastntk.reproduce.output import write_table
    from fastntk.reproduce.runner import plan as plan_steps
    from fastntk.reproduce.runner import run_steps, stale_text
    from fastntk.reproduce.selection import select_cells, settings_of

    output = Output(as_json=json)
    cells = select_cells(
        table,
        models=_words(models),
        images_per_class=_numbers("--images-per-class", images_per_class),
        classes=_numbers("--classes", classes),
        methods=_words(methods),
        seeds=seeds,
        real=real,
    )
    use_threads(threads)
    work = work or out / "work"
    for folder in (out, work):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: expected a folder, or a name that is free.")
    steps = plan_steps(settings_of(cells), out=out, work=work, keep_stale=keep_stale)
    record = _announce(output, cells, steps)
    if keep_stale:
        stale_count = len(plan_steps(settings_of(cells), out=out, work=work)) - len(steps)
        output.say(f"{stale_count} steps are not done again, though other code made their files (--keep-stale).")
    if stale_text(steps):
        output.say(stale_text(steps) + ".")
    if plan:
        output.finish({"command": "reproduce", "table": table, "plan": record, "expected": _expect(output, cells)})
        return
    check_files([step.setting for step in steps], data_root)
    try:
        with progress():
            run_steps(steps, shared=data_root, work=work, keep_stale=keep_stale)
            files = write_table(table, cells, out=out, suffix="-real" if real else "")
    except KeyboardInterrupt as interrupt:
        # What is finished is kept as records; nothing half-done remains.
        with contextlib.suppress(OSError, ValueError):  # there may be no terminal any more
            note(f"Interrupted. To go on from here: {shlex.join(['fastntk', *sys.argv[1:]])}")
        raise typer.Exit(exit_code(interrupt)) from None
    output.finish(
        {"command": "reproduce", "table": table, "ran": len(steps), "written": [str(path) for path in files]},
        wrote=", ".join(map(str, files)),
    )


def _announce(output: Output, cells: tuple[Cell, ...], steps: list[Step]) -> list[dict[str, object]]:
    """Print a row a cell: what is missing and about how long it takes."""
    rows: list[dict[str, object]] = []
    for cell in cells:
        cell_steps = [step for step in steps if step.setting.name == cell.setting.name]
        rows.append(
            {
                "model": cell.model,
                "setting": cell.setting.name,
                "stand_in": cell.stand_in,
                "seeds": len(cell.setting.seeds),
                "trainings": sum(step.kind in ("fit", "retrain") for step in cell_steps),
                "records": sum(step.kind == "record" for step in cell_steps),
                "seconds": sum(step.seconds for step in cell_steps),
            }
        )
    columns = ("setting", "model", "seeds", "trainings", "records", "about")
    lines = [[*(row[name] for name in columns[:-1]), duration(float(str(row["seconds"])))] for row in rows]
    output.table(columns, lines)
    seconds = sum(step.seconds for step in steps)
    output.say(f"{len(steps)} steps to do, about {duration(seconds)} on two CPU cores (rough; corrected as it runs).")
    return rows


def _expect(output: Output, cells: tuple[Cell, ...]) -> list[dict[str, object]]:
    """Print what the paper's own settings would take on larger machines; nothing for the cells made for this one."""
    real = [cell for cell in cells if cell.real]
    if not real:
        return []
    from fastntk.base.text import byte_size
    from fastntk.reproduce.expect import CPU, GPU, expected

    rows: list[dict[str, object]] = []
    lines = []
    for cell in real:
        fast, slow = expected(cell, GPU), expected(cell, CPU)
        rows.append({"setting": cell.setting.name, "gpu_seconds": fast.seconds, "cpu_seconds": slow.seconds})
        rows[-1]["memory_bytes"] = fast.memory
        lines.append([cell.setting.name, duration(fast.seconds), duration(slow.seconds), byte_size(fast.memory)])
    output.table(("expected, all seeds", "GPU", "16 cores", "memory"), lines)
    output.say(f"Counted operations over assumed speeds: {GPU}, {CPU}.")
    return rows


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str | None) -> list[int] | None:
    from fastntk.base.errors import InputError

    words = _words(text)
    if words is None:
        return None
    wrong = [word for word in words if not word.isdecimal()]
    if wrong:
        raise InputError(f"{option}: expected whole numbers joined by commas, got {', '.join(wrong)}.")
    return [int(word) for word in words]
