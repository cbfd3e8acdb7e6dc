"""The package in numbers: what one command passes through, lines by room, what the wheel holds, how long imports take.

python tools/architecture.py --src DIR --out FILE.json     DIR: a source folder (default: this tree's src)

Commands are run in-process by ``fastntk.cli.app`` on a tiny run (resnet20, digits, 5 images a class, 1 epoch), in a process of
its own with DIR on the path. Python's profile hook sees every call; this is how it is counted:

- a *room* is a top-level package of fastntk, or a top-level module, which is a room of its own;
- *modules passed*: those of fastntk in which at least one function is called during the command. Code that runs because a module
  is being imported does not count, nor does ``fastntk.cli.app``, which only dispatches: counting begins with the command itself;
- *edges between packages*: pairs of different rooms, the second of which is called with the first as the nearest caller that is
  fastntk's own (torch, typer and the standard library may lie between: a hook of a module, a ``map``);
- *resolutions*, *guards*, *digest_calls*: calls of ``ForgetRequest.resolve``, ``checked_engine`` and ``Samples.digest``, by the
  names of their code, wherever they are defined; *digests*: how often samples' data were really hashed (a digest that is
  remembered is called, but not computed), and *distinct_digests*, of how many different sets of samples: a result's manifest
  holds a digest of the retained samples beside that of all.

For the commit before the rooms were rebuilt this gives, for ``unlearn --method tangent-replay``, 52 modules, 58 edges,
4 resolutions, 3 guards and 6 digests: the figures of the issue. Not a benchmark: the profile hook makes everything slow.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from regression import commit

ROOT = Path(__file__).resolve().parents[1]
DISPATCH = "fastntk.cli.app"
RUN = "finetune resnet20 --weights cifar100 --data digits --images-per-class 5 --epochs 1 --out run"
COMMANDS = {
    "unlearn": "unlearn run --classes 0 --method tangent-replay --out result",
    "unlearn (fast-ntk)": "unlearn run --classes 0 --method fast-ntk --out result-fast-ntk",
    "audit": "audit run result --holdout digits@test --reference retrain --relearn-cap 3",
}
WRITTEN = (0, 3)
"""Exit codes of a command that did its work; 3: a tiny run's step may fail its own check."""
COUNTED = {"resolutions": "ForgetRequest.resolve", "guards": "checked_engine", "digest_calls": "Samples.digest"}


def main() -> int:
    """Measure a source folder; print a table and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--src", type=Path, default=ROOT / "src")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-wheel", action="store_true", help="do not build the wheel")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        print(json.dumps(traced(options.src.resolve())))
        return 0
    source = options.src.resolve()
    record = {
        "commit": commit(source),
        "environment": {"python": platform.python_version(), "machine": platform.machine()},
        "commands": _child(source),
        "lines": lines_by_room(source / "fastntk"),
        "wheel": None if options.no_wheel else wheel(source.parent),
        "seconds": {
            "import fastntk": best_time(source, "import fastntk"),
            "fastntk --help": best_time(source, "from fastntk.cli import main; main()", "--help"),
            "python alone": best_time(source, "pass"),
        },
    }
    show(record)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


class Trace:
    """A profile hook that notes calls of fastntk's functions: modules, callers, and how often each function ran."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.calls: collections.Counter[str] = collections.Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; Python calls this for every event."""
        module = str(frame.f_globals.get("__name__", ""))
        if event != "call" or not own(module) or module == DISPATCH or importing(frame):
            return
        self.modules.add(module)
        self.calls[frame.f_code.co_qualname] += 1
        caller = nearest(frame.f_back)
        if caller is not None and caller not in (module, DISPATCH):
            self.pairs.add((caller, module))

    def summary(self) -> dict[str, Any]:
        """JSON-able."""
        edges = sorted(
            {(room(importer), room(imported)) for importer, imported in self.pairs if room(importer) != room(imported)}
        )
        counts = {name: self.calls[function] for name, function in COUNTED.items()}
        return {
            "modules": len(self.modules),
            "edges": len(edges),
            **counts,
            "rooms": len({room(name) for name in self.modules}),
            "module_names": sorted(self.modules),
            "edge_names": [f"{importer} -> {imported}" for importer, imported in edges],
        }


def own(module: str) -> bool:
    """Whether a module is fastntk's."""
    return module == "fastntk" or module.startswith("fastntk.")


def room(module: str) -> str:
    """The top-level package or module that a module belongs to."""
    return ".".join(module.split(".")[1:2]) or "fastntk"


def nearest(frame: FrameType | None) -> str | None:
    """The module of the nearest frame that is fastntk's, from this one outwards."""
    while frame is not None:
        if own(module := str(frame.f_globals.get("__name__", ""))):
            return module
        frame = frame.f_back
    return None


def importing(frame: FrameType | None) -> bool:
    """Whether this frame runs because one of fastntk's modules is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and own(str(frame.f_globals.get("__name__", ""))):
            return True
        frame = frame.f_back
    return False


def traced(source: Path) -> dict[str, Any]:
    """Run the commands in a temporary folder, each under a hook of its own."""
    import torch

    import fastntk

    if Path(fastntk.__file__).parent != source / "fastntk":
        raise SystemExit(f"fastntk was to come from {source}, but came from {fastntk.__file__}.")
    torch.set_num_threads(1)
    folder_before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            call(RUN.split())
            return {name: _traced(command) for name, command in COMMANDS.items()}
        finally:
            os.chdir(folder_before)


def _traced(command: str) -> dict[str, Any]:
    trace, words = Trace(), command.split()
    with hashing() as digests:
        sys.setprofile(trace)
        try:
            call(words)
        finally:
            sys.setprofile(None)
    summary = trace.summary()
    if summary["digest_calls"] and not digests:
        raise SystemExit("Samples.digest was called but no hashing of tensors was seen: adapt `hashing` to how it is done now.")
    return {"command": f"fastntk {command}", "digests": len(digests), "distinct_digests": len(set(digests))} | summary


@contextlib.contextmanager
def hashing() -> Iterator[list[str]]:
    """The digests computed from samples' tensors inside, in order: one entry a computation, however often it is asked for."""
    from fastntk.data import Samples

    home = vars(sys.modules[Samples.__module__])
    if home.get("hashlib") is not hashlib:
        raise SystemExit(f"{Samples.__module__} does not use hashlib: adapt `hashing` to where samples are hashed now.")
    digests: list[str] = []
    home["hashlib"] = _Hashlib(digests)
    try:
        yield digests
    finally:
        home["hashlib"] = hashlib


class _Hashlib:
    """Stands for hashlib in the module of Samples."""

    def __init__(self, digests: list[str]) -> None:
        self.digests = digests

    def __getattr__(self, name: str) -> Any:
        return getattr(hashlib, name)

    def sha256(self, *data: Any) -> Any:
        """A SHA-256 that notes its digest, if it was given tensors."""
        return _Hash(hashlib.sha256(*data), self.digests)


class _Hash:
    """A SHA-256 that notes its digest where something else than plain bytes went in: the buffer of a tensor."""

    def __init__(self, inner: Any, digests: list[str]) -> None:
        self.inner, self.digests, self.tensors = inner, digests, False

    def update(self, data: Any) -> None:
        """Hash more."""
        self.tensors = self.tensors or not isinstance(data, bytes)
        self.inner.update(data)

    def hexdigest(self) -> str:
        """The digest so far."""
        digest = str(self.inner.hexdigest())
        if self.tensors:
            self.digests.append(digest)
        return digest


def call(words: Sequence[str]) -> None:
    """Run a command of fastntk in this process, quietly; fail loudly where it fails."""
    from fastntk.cli.app import app

    text = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            app(list(words), prog_name="fastntk")
        except SystemExit as left:
            code = left.code or 0
    if code not in WRITTEN:
        sys.setprofile(None)
        raise SystemExit(f"fastntk {' '.join(words)} ended with {code}:\n{text.getvalue()}")


def _environment(source: Path) -> dict[str, str]:
    settings = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
    return dict(os.environ) | settings


def _child(source: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--trace", "--src", str(source)]
    process = subprocess.run(command, env=_environment(source), stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return record


def lines_by_room(package: Path) -> dict[str, Any]:
    """Lines of Python in each top-level package and module, and how many top-level modules there are."""
    counts: dict[str, int] = collections.Counter()
    files: dict[str, int] = collections.Counter()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).parts[0]
        counts[name] += len(path.read_text("utf-8").splitlines())
        files[name] += 1
    by_size = sorted(counts, key=lambda name: -counts[name])
    hallway = [name for name in counts if name.endswith(".py") and name != "__init__.py"]
    return {
        "total": sum(counts.values()),
        "files": sum(files.values()),
        "top_level_modules": len(hallway),
        "rooms": {name: {"lines": counts[name], "files": files[name]} for name in by_size},
    }


def wheel(project: Path) -> dict[str, Any]:
    """Build the wheel from a copy of the project; its size, and its unpacked bytes by room."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"  # a build writes beside its sources
        copy.mkdir()
        wanted = [name for name in ("pyproject.toml", "README.md", "LICENSE", "src") if (project / name).exists()]
        subprocess.run(["cp", "-r", *(str(project / name) for name in wanted), str(copy)], check=True)
        for stale in copy.glob("src/*.egg-info"):
            subprocess.run(["rm", "-r", str(stale)], check=True)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, str(copy)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options], check=True)
        (built,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(built) as archive:
            entries = archive.infolist()
        sizes: dict[str, int] = collections.Counter()
        for entry in entries:
            parts = entry.filename.split("/")
            sizes["/".join(parts[:2]) if len(parts) > 2 else parts[0] if len(parts) == 1 else entry.filename] += entry.file_size
        return {
            "bytes": built.stat().st_size,
            "files": len(entries),
            "unpacked_bytes": sum(sizes.values()),
            "by_room": {name: sizes[name] for name in sorted(sizes, key=lambda name: -sizes[name])},
        }


def best_time(source: Path, code: str, *words: str, repeats: int = 5) -> float:
    """Least wall time of a Python process that runs this code."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        command = [sys.executable, "-c", code, *words]
        subprocess.run(command, env=_environment(source), stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return round(min(times), 4)


def show(record: dict[str, Any]) -> None:
    """Print the record as tables."""
    print(f"commit {record['commit']}\n")
    columns = ("modules", "edges", "resolutions", "guards", "digests", "distinct_digests")
    print(f"{'command':<20}" + "".join(f"{name:>18}" for name in columns))
    for name, figures in record["commands"].items():
        print(f"{name:<20}" + "".join(f"{figures[column]:>18}" for column in columns))
    lines = record["lines"]
    print(f"\n{lines['total']:,} lines in {lines['files']} files; {lines['top_level_modules']} top-level modules")
    for name, size in lines["rooms"].items():
        share = 100 * size["lines"] / lines["total"]
        print(f"  {name:<20}{size['lines']:>8,} lines {share:5.1f} % {size['files']:>4} files")
    if record["wheel"]:
        print(f"\nwheel: {record['wheel']['bytes'] / 1e3:,.0f} kB, {record['wheel']['files']} files, unpacked")
        for name, size in list(record["wheel"]["by_room"].items())[:12]:
            print(f"  {name:<32}{size / 1e3:>10,.1f} kB")
    print()
    for name, seconds in record["seconds"].items():
        print(f"{name:<20}{seconds:>8.3f} s")


if __name__ == "__main__":
    sys.exit(main())
