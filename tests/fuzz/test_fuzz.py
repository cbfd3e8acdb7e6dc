"""Damaged and hostile files, 500 of them: no traceback, no hang, no memory without bounds, no wrong exit code, and nothing that
matters changed in silence.

A case has a name, like ``trace-17``, and is the same for a seed. To run some again: ``FUZZ_CASES=trace-17,run-3`` and, where it
was another, ``FUZZ_SEED``, then ``pytest -m slow tests/fuzz``. What a failed case was made of stays in pytest's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzz_cases import ALL, KINDS, TUNE, Attempt
from fuzz_material import make

from forked import Outcome, Server, server

SEED = int(os.environ.get("FUZZ_SEED", "0"))
NAMES = [f"{kind}-{number}" for kind, (_, count) in KINDS.items() for number in range(count)]
SMOKE = [f"{kind}-{number}" for kind in KINDS for number in range(1 if kind in ("record", "picture", "npz") else 2)]
SECONDS, MEMORY = 20, 2 << 30


class Bench:
    """The material, what is loaded from it undamaged, and the server that runs cases on it."""

    def __init__(self, place: Path, process: Server) -> None:
        self.material, self.cases, self._server = place / "material", place / "cases", process
        self.cases.mkdir()
        self._originals: dict[tuple[object, ...], Any] = {}

    def original(self, attempt: Attempt) -> Any:
        """What the same function loads from what was damaged."""
        call = (attempt.loaded[0], *attempt.original)
        if call not in self._originals:
            outcome = self._server.run("info", self.material / "run", loaded=call)
            assert outcome.loaded is not None, outcome.printed
            self._originals[call] = outcome.loaded
        return self._originals[call]

    def run(self, case: str) -> tuple[str, Outcome, list[str]]:
        """One case: what was done, how it ended, what is wrong with that."""
        kind, _ = case.split("-")
        place = self.cases / case
        place.mkdir()
        attempt = KINDS[kind][0](place, self.material, Random(f"{SEED}-{case}"))
        outcome = self._server.run(*attempt.command, loaded=attempt.loaded, timeout=10 * SECONDS, processor=SECONDS)
        faults = self._faults(attempt, outcome)
        if not faults:
            shutil.rmtree(place)
        return f"{attempt.what} | fastntk {attempt.command[0]}", outcome, faults

    def undamaged(self, command: list[Any]) -> Outcome:
        """How a command ends that reads what is whole."""
        return self._server.run(*command)

    def _faults(self, attempt: Attempt, outcome: Outcome) -> list[str]:
        faults = []
        if outcome.late:
            faults.append(f"still at it after {outcome.seconds:.0f} s")
        elif outcome.code not in (0, 2, 3):
            faults.append(f"exit code {outcome.code}")
        if "Traceback" in outcome.printed:
            faults.append("a traceback")
        if outcome.peak > MEMORY:
            faults.append(f"{outcome.peak / 1e9:.1f} GB of memory")
        if outcome.code in (0, 3) and not outcome.late:
            faults += self._silently(attempt, outcome.loaded)
        return faults

    def _silently(self, attempt: Attempt, loaded: Any) -> list[str]:
        """What was accepted although it is not what it was."""
        if "refused" in loaded:  # `info` builds no model, `report` reads no trace: whoever uses the rest refuses it
            return []
        if attempt.check is not None:
            complaint = attempt.check(loaded)
            return [] if complaint is None else [complaint]
        if not attempt.same:
            return []
        original = self.original(attempt)
        names = list(original) if attempt.same == (ALL,) else attempt.same
        differs = [name for name in names if name in original and loaded.get(name) != original[name]]
        if attempt.same != (ALL,):
            differs = [name for name in differs if loaded.get(name) is not None]
        return [f"accepted, with other {', '.join(differs)}"] if differs else []


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    place = tmp_path_factory.mktemp("fuzz")
    (place / "material").mkdir()
    with server(place, "fuzz_loaded") as process:
        make(place / "material", process)
        yield Bench(place, process)


def judge(bench: Bench, cases: list[str]) -> None:
    """Run cases; fail with those that failed, print the figures of all, and write them where FUZZ_FIGURES says."""
    failed, counts, worked, peak, longest, started = [], dict[str, Counter[str]](), 0.0, 0, 0.0, time.perf_counter()
    for case in cases:
        what, outcome, faults = bench.run(case)
        ended = "refused" if outcome.code == 2 else "accepted" if outcome.code in (0, 3) else "failed"
        counts.setdefault(case.split("-")[0], Counter())[ended] += 1
        worked, peak, longest = worked + outcome.worked, max(peak, outcome.peak), max(longest, outcome.worked)
        if faults:
            lines = [line for line in outcome.printed.splitlines() if line.strip()]
            failed.append(f"seed {SEED}, {case}: {what}: {'; '.join(faults)}\n    {' / '.join(lines[-3:])[-400:]}")
    figures: dict[str, Any] = {"cases": {kind: dict(count) for kind, count in counts.items()}, "processor_seconds": worked}
    figures |= {"seconds": time.perf_counter() - started, "longest_case": longest, "peak_bytes": peak, "seed": SEED}
    print(json.dumps(figures))
    if "FUZZ_FIGURES" in os.environ:
        Path(os.environ["FUZZ_FIGURES"]).write_text(json.dumps(figures, indent=1) + "\n")
    assert not failed, f"{len(failed)} of {len(cases)} cases failed:\n" + "\n".join(failed)


@pytest.mark.slow
def test_every_case_is_refused_or_harmless(bench: Bench) -> None:
    chosen = os.environ.get("FUZZ_CASES")
    judge(bench, NAMES if chosen is None else chosen.split(","))


def test_a_few_cases(bench: Bench) -> None:
    judge(bench, SMOKE)


@pytest.mark.parametrize("name", ["a.npz", "cifar.tar.gz", "cifar", "photos"])
def test_what_is_undamaged_is_accepted(name: str, bench: Bench, tmp_path: Path) -> None:
    source = f"cifar100:{bench.material / name}" if "cifar" in name else bench.material / name
    outcome = bench.undamaged([*TUNE, "--data", source, "--out", tmp_path / "out"])
    assert outcome.code == 0, outcome.printed
