"""The regression check: small fixed cases give the same vectors and figures before and after a change of the package.

python tools/regression.py compare --base REV        this tree against a commit, case by case; exit code 1 where one differs
python tools/regression.py compare --base-src DIR    the same against a src folder that is there already
python tools/regression.py cases --out FILE.json     run the cases with whatever ``fastntk`` is importable
python tools/regression.py expected --src DIR --out tests/regression/expected.json    the values that the default tests use

Cases are in ``tools/regression_cases.py``. Each runs in one thread; base and present tree run one after the other as processes of
their own. Of a case, vectors are compared to the bit first, then by max |a − b| / max |b|; numbers, flags and digests in its
figures likewise; texts are only reported, for words may change. A figure that the base has and the present tree has not is a
difference; one that is new is not. What is meant to differ is named, with the reason, in :data:`EXPECTED`.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 1e-5
"""Relative difference up to which values are equal to rounding."""
FLOOR = 1e-3
"""Figures smaller than this are compared absolutely, at this scale: a residual of 1e-9 has no digits to agree on."""
LISTED = 300
"""Vectors up to this length are stored whole (12 digits), longer ones by their norm and some entries."""
COMMITTED = ("history", "accuracy", "loss", "distances", "relearn", "same_after_loading", "recipe")
VECTORS = ("tuned", "first", "second", "run", "anchor", "result", "more", "whole")
WHOLE = ("/fit", "/bn update/")
"""Figures and vectors that the committed file holds, and the cases of which it holds all vectors. Details of methods are compared
between commits, where their names can be followed."""
DIGEST = re.compile(r"[0-9a-f]{64}")
FOLLOWS = ("tuned", "anchor", "iterations", "newton_steps")
"""Figures that any rounding may change: digests of weights, and steps of a solver. Where they differ a case is not identical, but
whether it differs is for the vectors to say."""
TRACE = 1e-17
"""The gap of values whose bytes differ while nothing stored or judged of them does."""


@dataclass(frozen=True)
class Expected:
    """A difference that is meant: globs for the case and for the part (``vectors/delta``, ``figures/verdict/*``), and why."""

    case: str
    part: str
    reason: str


EXPECTED: tuple[Expected, ...] = ()
"""Differences that are meant, for the change under way; empty when a release is made."""


def main() -> int:
    """Run the command named; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    cases = commands.add_parser("cases", help="run the cases with the importable fastntk")
    cases.add_argument("--out", type=Path, required=True)
    cases.add_argument("--only", default="*", help="glob of case names")
    cases.add_argument("--quick", action="store_true", help="only the cases whose values are committed")
    cases.add_argument("--vectors", type=Path, help="also write the whole vectors, as .npz")
    compare = commands.add_parser("compare", help="this tree against a commit or another src folder")
    base = compare.add_mutually_exclusive_group(required=True)
    base.add_argument("--base", metavar="REV")
    base.add_argument("--base-src", type=Path, metavar="DIR")
    compare.add_argument("--src", type=Path, default=ROOT / "src", help="the source judged (default: this tree's)")
    compare.add_argument("--only", default="*", help="glob of case names")
    compare.add_argument("--out", type=Path, help="for example results/house/regression.json")
    expected = commands.add_parser("expected", help="the values for the default tests")
    expected.add_argument("--src", type=Path, required=True)
    expected.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "cases":
        return run_cases(options.out, only=options.only, quick=options.quick, vectors=options.vectors)
    if options.command == "expected":
        return write_expected(options.src, options.out)
    with _base_source(options.base, options.base_src) as source:
        return compare_sources(source, options.src, only=options.only, out=options.out)


def run_cases(out: Path, *, only: str, quick: bool, vectors: Path | None) -> int:
    """Run the cases in this process and write what they gave; a case that fails is written with its error."""
    import numpy as np
    import torch
    from regression_cases import all_cases, quick_cases

    import fastntk

    torch.set_num_threads(1)
    records: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for name, case in (quick_cases() if quick else all_cases()).items():
        if not fnmatch.fnmatchcase(name, only):
            continue
        started = time.perf_counter()
        try:
            outcome = case()
        except Exception as error:  # any: one broken case must not hide the others
            records[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        records[name] = recorded(outcome) | {"seconds": round(time.perf_counter() - started, 3)}
        whole |= {f"{name}::{title}": vector.detach().cpu().numpy() for title, vector in outcome.vectors.items()}
    head = {"fastntk": str(Path(fastntk.__file__).parent), "environment": environment(torch.__version__)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(head | {"cases": records}, indent=1) + "\n", "utf-8")
    if vectors is not None:
        np.savez(vectors, **whole)
    return 0


def recorded(outcome: Any) -> dict[str, Any]:
    """An outcome of a case for JSON."""
    vectors = {title: encode(vector.detach().cpu().contiguous().numpy()) for title, vector in outcome.vectors.items()}
    return {"vectors": vectors, "figures": outcome.figures}


def encode(array: Any) -> dict[str, Any]:
    """A vector for JSON: the digest of its bytes, its norm, and its values or some of them."""
    short = len(array) <= LISTED
    entries = array if short else array[:: max(1, len(array) // 16)]
    return {
        "dtype": str(array.dtype),
        "numel": len(array),
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        "norm": float(f"{(array.astype('float64') ** 2).sum() ** 0.5:.12g}"),
        "values" if short else "entries": [float(f"{value:.12g}") for value in entries.tolist()],
    }


def environment(torch_version: str) -> dict[str, str]:
    """What the values may depend on besides the code."""
    return {"python": platform.python_version(), "torch": torch_version, "machine": platform.machine(), "threads": "1"}


def compare_sources(base: Path, present: Path, *, only: str, out: Path | None) -> int:
    """Run both, compare, print a table, write the record; 1 where something differs."""
    with tempfile.TemporaryDirectory() as folder:
        before = _run(base, Path(folder) / "before", only=only)
        after = _run(present, Path(folder) / "after", only=only)
    cases = {name: judge(name, before["cases"].get(name), after["cases"].get(name)) for name in _names(before, after)}
    _print(cases)
    counts = Counter(case["status"] for case in cases.values())
    bad = [name for name, case in cases.items() if case["status"] in ("different", "missing", "fails")]
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + f"; {len(cases)} cases")
    if out is not None:
        record = {
            "tolerance": TOLERANCE,
            "base": {"commit": commit(base), "seconds": before["seconds"]},
            "present": {"commit": commit(present), "seconds": after["seconds"]},
            "environment": after["environment"],
            "counts": dict(counts),
            "cases": cases,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if bad else 0


def judge(
    name: str, before: dict[str, Any] | None, after: dict[str, Any] | None, *, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """The status of a case, its largest relative difference, and the parts that made it so.

    identical (to the bit), rounding (within the tolerance), different, expected (different, and meant), fails (in either),
    missing (only in the base), new.
    """
    if before is None or after is None:
        return {"status": "new" if before is None else "missing", "gap": None}
    if "error" in before or "error" in after:
        return {"status": "fails", "gap": None, "base": before.get("error"), "present": after.get("error")}
    gaps = {f"vectors/{part}": gap for part, gap in _vector_gaps(before["vectors"], after["vectors"]).items()}
    figures, texts, added = _figure_gaps(before["figures"], after["figures"])
    gaps |= {f"figures/{part}": gap for part, gap in figures.items()}
    meant = {part: reason for part in gaps if gaps[part] != 0 and (reason := _reason(name, part)) is not None}
    judged = {part: gap for part, gap in gaps.items() if part not in meant}
    worst = max(judged.values(), default=0.0)
    status = "identical" if worst == 0 else "rounding" if worst <= tolerance else "different"
    record: dict[str, Any] = {"status": status, "gap": worst if worst != float("inf") else "inf"}
    parts = sorted((part for part, gap in judged.items() if gap > 0), key=lambda part: -judged[part])
    if parts:
        record["parts"] = {part: judged[part] if judged[part] != float("inf") else "inf" for part in parts[:12]}
    if meant:
        record |= {"status": "expected" if status == "identical" else status, "meant": meant}
    return record | ({"texts": texts} if texts else {}) | ({"new_figures": added} if added else {})


def _vector_gaps(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Per vector 0 where the bytes are equal, infinity where it is missing or has another shape, else the relative difference."""
    return {title: _vector_gap(vector, after[title]) if title in after else float("inf") for title, vector in before.items()}


def _vector_gap(before: dict[str, Any], after: dict[str, Any]) -> float:
    if before["sha256"] == after["sha256"]:
        return 0.0
    if (before["numel"], before["dtype"]) != (after["numel"], after["dtype"]):
        return float("inf")
    key = "whole" if "whole" in before and "whole" in after else "values" if "values" in before else "entries"
    scale = max((abs(value) for value in before[key]), default=0.0)
    gaps = [abs(a - b) for a, b in zip(before[key], after[key])]
    if not all(map(math.isfinite, gaps)):  # before max, which loses a NaN
        return float("inf")
    gap = max(gaps, default=0.0)
    # Other bytes are never called identical, though what is stored of them may agree to its last digit.
    return max(gap / scale if scale else float("inf"), TRACE) if gap else TRACE


def _figure_gaps(before: Any, after: Any) -> tuple[dict[str, float], dict[str, list[Any]], list[str]]:
    """Gaps of the base's figures, the texts that changed, and the figures that are new."""
    base, current = dict(leaves(before)), dict(leaves(after))
    gaps: dict[str, float] = {}
    texts: dict[str, list[Any]] = {}
    for part, value in base.items():
        other: Any = current.get(part)
        if part in current and part.rsplit("/", 1)[-1] in FOLLOWS and type(value) is type(other):
            gaps[part] = 0.0 if value == other else TRACE
        elif part in current and _number(value) and _number(other):
            gaps[part] = 0.0 if value == other else abs(value - other) / max(abs(value), abs(other), FLOOR)
        elif isinstance(value, str) and not DIGEST.fullmatch(value):
            if value != other:
                texts[part] = [value, other]
        else:  # flags, digests, None, and figures that are missing or are no numbers any more
            gaps[part] = 0.0 if part in current and type(value) is type(other) and value == other else float("inf")
    return gaps, texts, sorted(set(current) - set(base))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a nested record, with the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from leaves(item, f"{path}/{position}")
    else:
        yield path, value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reason(case: str, part: str) -> str | None:
    matches = (item for item in EXPECTED if fnmatch.fnmatchcase(case, item.case) and fnmatch.fnmatchcase(part, item.part))
    return next((item.reason for item in matches), None)


def _names(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return list(before["cases"]) + [name for name in after["cases"] if name not in before["cases"]]


def _run(source: Path, stem: Path, *, only: str, quick: bool = False) -> dict[str, Any]:
    """The cases with the package of ``source``, in a process of its own; vectors whole, under ``whole``."""
    import numpy as np

    source = source.resolve()
    out, vectors = stem.with_suffix(".json"), stem.with_suffix(".npz")
    settings = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "cases", "--out", str(out), "--vectors", str(vectors), "--only", only]
    command += ["--quick"] if quick else []
    started = time.perf_counter()
    subprocess.run(command, env=os.environ | settings, check=True)
    record: dict[str, Any] = json.loads(out.read_text("utf-8"))
    if Path(record["fastntk"]) != source / "fastntk":
        raise SystemExit(f"The cases were to run with {source / 'fastntk'}, but {record['fastntk']} was imported.")
    with np.load(vectors) as arrays:
        for key in arrays.files:
            name, title = key.split("::")
            record["cases"][name]["vectors"][title]["whole"] = arrays[key].astype("float64").tolist()
    return record | {"seconds": round(time.perf_counter() - started, 1)}


@contextlib.contextmanager
def _base_source(revision: str | None, source: Path | None) -> Iterator[Path]:
    """A src folder: the one given, or that of a temporary work tree of the commit."""
    if source is not None:
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), str(revision)], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def commit(source: Path) -> str:
    """The commit of a source folder, with a mark where its files differ from it."""
    git = ["git", "-C", str(source)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return f"no commit ({source})"
    changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True).stdout.strip()
    return head.stdout.strip() + (" with changes" if changed else "")


def write_expected(source: Path, out: Path) -> int:
    """The values of the quick float64 cases, from the package in ``source``."""
    with tempfile.TemporaryDirectory() as folder:
        record = _run(source, Path(folder) / "expected", only="tiny64/*", quick=True)
    for name, case in record["cases"].items():
        if "error" in case:
            raise SystemExit(f"{name} fails: {case['error']}")
        case["vectors"] = {
            title: vector for title, vector in case["vectors"].items() if title in VECTORS or any(part in name for part in WHOLE)
        }
        for vector in case["vectors"].values():
            del vector["whole"]
        del case["seconds"]
        case["figures"] = committed(case["figures"])
    head = {"made_by": "python tools/regression.py expected", "commit": commit(source), "environment": record["environment"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(head | {"cases": record["cases"]}, separators=(",", ":")).replace('},"tiny', '},\n"tiny') + "\n", "utf-8"
    )
    return 0


def committed(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that the committed file holds."""
    return {name: figures[name] for name in COMMITTED if name in figures}


def _print(cases: Mapping[str, dict[str, Any]]) -> None:
    width = max((len(name) for name in cases), default=0)
    for name, case in cases.items():
        gap = (
            ""
            if case["gap"] in (None, 0.0)
            else f"  {case['gap'] if isinstance(case['gap'], str) else format(case['gap'], '.1e')}"
        )
        first = next(iter(case.get("parts", {})), "")
        notes = [first, *dict.fromkeys(case.get("meant", {}).values()), case.get("present") or case.get("base") or ""]
        counts = [f"{len(case[key])} {key.replace('_', ' ')}" for key in ("texts", "new_figures") if key in case]
        print(f"{name:<{width}}  {case['status']}{gap}  {'; '.join(note for note in [*notes, *counts] if note)}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
