"""Options that several commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastntk.base.schema import MAX_GIVEN

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads to use (default: all that torch finds).")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|mps",
        help="Where the network runs; auto: cuda where there is one, else cpu (never mps).",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="INT", min=0, max=MAX_GIVEN, help="Decides batch order and every other draw.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output of the same kind once the new one is complete.")]
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A folder written by `fastntk finetune`; or by `fastntk unlearn`, for a further request on it."
    ),
]

DATA_HELP = (
    "digits, cifar10[:PATH], cifar100[:PATH], an .npz file, an image folder with one sub-folder a class, or "
    "hf:DATASET; any of them with @train or @test."
)


def use_threads(threads: int | None) -> None:
    """Tell torch how many threads it may use."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
