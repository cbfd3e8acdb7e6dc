"""``fastntk report``: the audit record of a result in, one self-contained HTML page out."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError
from fastntk.base.marks import AUDIT, REPORT, check_report
from fastntk.cli.options import Json, Overwrite
from fastntk.cli.output import Output, progress
from fastntk.cli.request import DataOverride, open_run

if TYPE_CHECKING:
    from fastntk.auditing.record import AuditRecord
    from fastntk.training.run import Run

SIDE = 96
"""Thumbnails are at most so many pixels wide and high."""


def report(
    result: Annotated[
        Path,
        typer.Argument(metavar="RESULT", help="A folder that `fastntk audit` looked at, or an audit record by its file name."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page to write (default: RESULT/report.html).")
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Show the forgotten pictures: the page must then be erased with them.")
    ] = False,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="With --thumbnails: the run the result was made from.")
    ] = None,
    data: DataOverride = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write what an audit found as one HTML page that anybody can read, from disk and without a network.

    The page holds figures over all forgotten samples and nothing of a single one, unless --thumbnails asks for their pictures.
    A record that was changed, or whose verdict does not follow from its figures, is refused.

    Examples:

    fastntk report results/without-0

    fastntk report results/without-0 --out for-the-dpo.html --overwrite
    """
    from fastntk.auditing.verdict import older_rules
    from fastntk.base.atomic import check_output
    from fastntk.report import check_record, read_content, record_digest, write_report

    output = Output(as_json=json)
    if thumbnails and not result.is_dir():
        raise InputError(f"--thumbnails needs the result's folder, which says which samples went; {result} is not one.")
    if thumbnails != (run is not None) or (data is not None and not thumbnails):
        raise InputError("--thumbnails needs --run RUN to find the pictures; --run and --data are for --thumbnails only.")
    if result.is_dir() and not (result / AUDIT).exists():
        from fastntk.storage.manifest import read_manifest
        from fastntk.storage.runs import RESULT

        read_manifest(result, kinds=(RESULT,))  # a run, or a folder of somebody else, needs no audit but another name
    content = read_content(result)
    record = check_record(content)
    page = out or (result / REPORT if result.is_dir() else result.with_suffix(".html"))
    output.replacing(page, check_output(page, overwrite=overwrite, replaceable=check_report))
    if result.is_dir():
        check_belongs(result, record)
    older = older_rules(record)
    output.say(f"Reporting on {result}: verdict “{record.verdict.level}”" + (f"; {older}" if older else ""))
    with progress():
        images = None if run is None else pictures(open_run(run, data), result)
        # The content, not the record: its digest counts the fields of later releases too.
        write_report(content, page, thumbnails=images, overwrite=overwrite)
    if images:
        output.say(f"This page holds {len(images)} pictures that were asked to be forgotten: erase it together with them.")
    output.finish(
        {
            "command": "report",
            "result": str(result),
            "out": str(page),
            "bytes": page.stat().st_size,
            "record_sha256": record_digest(content),
            "verdict": record.verdict.level,
            "thumbnails": len(images or ()),
        },
        wrote=str(page),
        then=f"open {page} in a browser",
    )


def check_belongs(folder: Path, record: AuditRecord) -> None:
    """Refuse a record that is about other weights than the folder's."""
    import torch

    from fastntk.base.digest import tensor_digest
    from fastntk.storage.manifest import read_bundle
    from fastntk.storage.runs import RESULT

    bundle = read_bundle(folder, kinds=(RESULT,))
    tuned = torch.cat([bundle.parts["tuned"][name].reshape(-1) for name in bundle.manifest["subset"]])
    if record.subject.result.tuned != tensor_digest(tuned):
        raise InputError(f"The audit record in {folder} is about another result: audit this one with `fastntk audit`.")


def pictures(run: Run, result: Path) -> list[bytes]:
    """PNG files of the samples that a result forgot, made from the run's own inputs."""
    from fastntk.base.progress import track
    from fastntk.models import input_spec
    from fastntk.storage.results import stored_split

    spec = input_spec(run.model)
    positions = stored_split(result, run).forget.tolist()
    return [as_png(run.data.inputs[row].cpu().numpy(), mean=spec.mean, std=spec.std) for row in track(positions, "pictures")]


def as_png(pixels: Any, *, mean: tuple[float, ...], std: tuple[float, ...]) -> bytes:
    """A normalised picture (3, H, W) as the bytes of a PNG file, shrunk where it is large."""
    import numpy as np
    from PIL import Image

    plain = pixels.transpose(1, 2, 0) * np.asarray(std) + np.asarray(mean)
    image = Image.fromarray(np.clip(np.round(255 * plain), 0, 255).astype(np.uint8))
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
