"""What ``unlearn`` and ``plan`` share: opening a run with its data, and reading a request from the command line."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError

if TYPE_CHECKING:
    from fastntk.cli.output import Output
    from fastntk.data import Samples
    from fastntk.training.run import Run

Classes = Annotated[
    str | None, typer.Option("--classes", metavar="A,B", help="Classes to forget: labels or names, joined by commas.")
]
Ids = Annotated[
    str | None,
    typer.Option("--ids", metavar="A,B", help="Sample ids to forget, joined by commas; quoted patterns too: 'cats/*.png'."),
]
IdsFile = Annotated[
    Path | None, typer.Option("--ids-file", metavar="F", help="A text file, one id or pattern a line; # begins a comment.")
]
Person = Annotated[
    list[str] | None,
    typer.Option("--person", metavar="NAME", help="Forget all samples of this person, by --persons-file; may be repeated."),
]
PersonsFile = Annotated[
    Path | None, typer.Option("--persons-file", metavar="CSV", help="Which sample is of whom: a CSV with columns id and person.")
]
DataOverride = Annotated[
    str | None,
    typer.Option("--data", metavar="SRC", help="Where the run's data is now; its digest has to match the run's."),
]

RowsPlace = Annotated[
    str | None, typer.Option("--rows", help="Where Jacobian rows are kept: memory, disk or stream (default: what fits).")
]
MemoryBudget = Annotated[
    str | None, typer.Option("--memory-budget", metavar="SIZE", help="Like 4GB; default 70 % of what is available.")
]
DiskBudget = Annotated[str | None, typer.Option("--disk-budget", metavar="SIZE", help="Like 20GB; default 90 % of what is free.")]

Images = Annotated[
    bool,
    typer.Option(
        "--images/--no-images", help="--no-images: work on the trace alone (path-replay, depth head); no image is read."
    ),
]

TraceRead = Annotated[
    bool,
    typer.Option("--trace/--no-trace", help="--no-trace: leave the run's trace unread, as where it is damaged; no path-replay."),
]

RetrainWith = Annotated[
    str | None,
    typer.Option(
        "--retrain-with",
        metavar="MODULE:FUNCTION",
        help="Retrain by your own training: FUNCTION(keep_ids, seed) of a Python module on the path or in this folder, which is "
        "then imported and run.",
    ),
]

LossWith = Annotated[
    str | None,
    typer.Option(
        "--loss-with",
        metavar="MODULE:FUNCTION",
        help="Of a run recorded with a loss of one's own, which no file holds: that FUNCTION(logits, targets) again, found as "
        "for --retrain-with.",
    ),
]

AcceptOutside = Annotated[
    str | None,
    typer.Option(
        "--accept-outside",
        metavar="REASON",
        help="Go on (exit code 0) although weights outside the tuned ones may remember the data; the reason is recorded.",
    ),
]

_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclasses.dataclass(frozen=True)
class RequestedIds:
    """The part of a request that names samples, as given on the command line."""

    words: tuple[str, ...]
    ids_file: Path | None
    persons: tuple[str, ...]
    persons_file: Path | None

    def resolve(self, samples: Samples) -> tuple[str, ...]:
        """The ids it names in the data at hand: patterns and persons are looked up."""
        from fastntk.data.id_files import ids_of_persons, matching_ids, words_in_file

        lines = [] if self.ids_file is None else words_in_file(self.ids_file, samples)
        self._check_commas(samples)
        ids = matching_ids([*self.words, *lines], samples)
        if self.persons_file is None:
            return ids
        id_set = frozenset(ids)
        return (*ids, *(name for name in ids_of_persons(self.persons_file, self.persons, samples) if name not in id_set))

    def _check_commas(self, samples: Samples) -> None:
        """Refuse an id with a comma in it that was taken apart: the parts in an error would look like the id itself."""
        missing = set(self.words) - set(samples.ids)
        whole = [
            name for name in samples.ids if "," in name and missing & set(_parts(name)) and set(_parts(name)) <= set(self.words)
        ]
        if whole:
            raise InputError(
                f"--ids takes ids joined by commas, and {whole[0]!r} has one itself. Put it on a line of --ids-file."
            )


def _parts(ids: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in ids.split(",") if part.strip())


def check_request(
    classes: str | None, ids: str | None, ids_file: Path | None, person: list[str] | None, persons_file: Path | None
) -> RequestedIds | None:
    """Refuse an empty request, and files that cannot be read, before anything is loaded; None where it names no samples."""
    if classes is None and ids is None and ids_file is None and not person and persons_file is None:
        raise InputError("Nothing to forget: give --classes, --ids, --ids-file or --person.")
    words = _parts(ids or "")
    if ids is not None and not words:
        raise InputError(f"--ids {ids!r} names no id: give ids joined by commas.")
    if bool(person) != (persons_file is not None):
        raise InputError("--person and --persons-file go together: who is to be forgotten, and the CSV that says what is theirs.")
    if ids is None and ids_file is None and not person:
        return None

    from fastntk.data.id_files import id_lines, ids_of_persons

    if ids_file is not None:
        id_lines(ids_file)
    if person and persons_file is not None:
        ids_of_persons(persons_file, person)
    return RequestedIds(words, ids_file, tuple(person or ()), persons_file)


def tell_outside(output: Output, report: Mapping[str, Any], accepted: str | None) -> bool:
    """Say, before anything else, that weights outside the tuned ones may remember; True where that was not accepted."""
    from fastntk.unlearning.residue import cannot_be_told

    if not cannot_be_told(report):
        return False
    output.say(f"Whether the data will be forgotten cannot be told. {report['message']}")
    if accepted is not None:
        output.say(f"Accepted: {accepted}")
        return False
    output.say("--accept-outside REASON goes on all the same and records why; a Retrain of your own (--retrain-with) would tell.")
    return True


def row_options(*, rows: str | None, memory_budget: str | None, disk_budget: str | None) -> dict[str, Any]:
    """The options of plans and methods that say where rows may be; none of what was not given."""
    options = {
        "rows": rows,
        "memory_budget": None if memory_budget is None else parse_bytes(memory_budget),
        "disk_budget": None if disk_budget is None else parse_bytes(disk_budget),
    }
    return {name: value for name, value in options.items() if value is not None}


def nearest_folder(out: Path) -> Path:
    """The nearest folder above the output that exists: rows that do not fit in memory are written there, and removed."""
    target = out.absolute()
    return next(parent for parent in target.parents if parent.is_dir())


def open_run(folder: Path, data: str | None, *, device: str = "cpu", loss_with: str | None = None, trace: bool = True) -> Run:
    """Load and verify a run, or a result as the run of the next request, with its data: from the recorded source or ``data``."""
    run, manifest = _verified(folder, device, loss_with, trace=trace)
    return dataclasses.replace(run, samples=_samples(run, manifest, data))


def open_with_trace(
    folder: Path, data: str | None, *, images: bool, device: str, loss_with: str | None, trace: bool = True
) -> tuple[Run, str | None]:
    """The same where a trace can stand in for images: without them if they are not wanted, or not there any more.

    The second value is None, or says why the run has no images. Images that are there but changed are refused.
    """
    from fastntk.storage.data import DataGoneError

    if not images and data is not None:
        raise InputError("--no-images and --data contradict each other: give --data to have the images read, or --no-images.")
    if not images and not trace:
        raise InputError("--no-images and --no-trace contradict each other: without images only the trace can serve a request.")
    run, manifest = _verified(folder, device, loss_with, trace=trace)
    if not images:
        if run.trace is None:
            raise InputError(f"--no-images: {folder} has no trace, and nothing else stands in for images.")
        return run, "The images are left out, as asked (--no-images)."
    try:
        return dataclasses.replace(run, samples=_samples(run, manifest, data)), None
    except DataGoneError as error:
        if data is not None or run.trace is None:
            raise
        return run, str(error)


def _verified(folder: Path, device: str, loss_with: str | None, *, trace: bool) -> tuple[Run, dict[str, Any]]:
    from fastntk.storage.manifest import read_manifest
    from fastntk.storage.runs import RESULT, RUN, load_run

    kinds = (RUN, RESULT)
    loss = None if loss_with is None else load_function(loss_with, option="--loss-with")
    run = load_run(folder, kinds=kinds, device=device, loss=loss, trace=trace)
    if loss is not None and not needs_loss(run):
        reason = "has no trace" if run.trace is None else f"was recorded with the loss {run.trace.facts.loss}, which is known"
        raise InputError(f"--loss-with: {folder} {reason}, so a function is not needed. Leave it out.")
    return run, read_manifest(folder, kinds=kinds)


def needs_loss(run: Run) -> bool:
    """Whether it was recorded with a loss that no file holds."""
    from fastntk.training.losses import OWN

    return run.trace is not None and run.trace.facts.loss == OWN


def _samples(run: Run, manifest: dict[str, Any], data: str | None) -> Samples:
    from fastntk.storage.data import source_samples

    if data is not None:
        manifest = {**manifest, "source": {**(manifest["source"] or {}), "data": data}}
    return source_samples(manifest, ids=None if run.trace is None else run.trace.listed.ids, key=run.key)


def load_function(text: str, *, option: str) -> Callable[..., Any]:
    """A function of the user's own, ``module:function``; the module is imported, from the present folder too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name.isidentifier():
        example = option.removeprefix("--").removesuffix("-with")
        raise InputError(f"{option} {text!r}: expected MODULE:FUNCTION, as in mytraining:{example}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(f"{option} {text}: importing {module_name} failed: {type(error).__name__}: {error}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{option} {text}: {module_name} has no function {name!r}.")

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{text} failed: {type(error).__name__}: {error}. `fastntk --debug ...` shows where.") from error

    return guarded


def parse_bytes(text: str) -> int:
    """Bytes in ``4GB``, ``500 MB`` or ``1e9``."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKmMgGtT]?[bB]?)\s*", text)
    unit = match[2].upper() if match else "?"
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    factor = _SIZES.get(unit if unit in _SIZES else f"{unit}B")
    if factor is None or not 1 <= size * factor < math.inf:
        raise InputError(f"{text!r} is no amount of memory: write it like 500MB or 4GB.")
    return int(size * factor)
