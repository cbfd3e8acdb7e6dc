"""What every benchmark needs: the environment, fair timing, peak memory of a child process, Markdown tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastntk.reproduce.environment import commit

SHARED = Path(os.environ.get("FASTNTK_SHARED", Path(__file__).resolve().parents[2] / "shared"))
PACKAGES = ("torch", "numpy", "scipy", "timm", "opacus", "curvlinops-for-pytorch", "nngeometry", "fastntk")


def environment() -> dict[str, Any]:
    """Machine, threads, versions, and how busy the machine was."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "load_average": list(os.getloadavg()),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if os.name == "posix" else None
    return match.group(1) if match else platform.processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(work: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Median seconds of each; round after round, so that a busy moment of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, job in work.items():
            times[name].append(timed(job))
    return {name: statistics.median(values) for name, values in times.items()}


def child(module: str, *arguments: object) -> dict[str, Any]:
    """Run ``python -m <module> <arguments>`` with this process's threads; its last line is JSON."""
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments), str(torch.get_num_threads())]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


class PeakMemory:
    """Growth of the resident set inside a block: ``growth`` is peak less what was resident at its start."""

    def __enter__(self) -> PeakMemory:
        # Writing 5 resets the peak to the present size, so that building the model does not count.
        Path("/proc/self/clear_refs").write_text("5")
        self.before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = _status("VmHWM")
        self.growth = self.peak - self.before


def _status(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if match is None:
        raise RuntimeError(f"{field} is not in /proc/self/status: this benchmark needs Linux")
    return int(match.group(1)) * 1024


def markdown(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def number(value: float | None, form: str = ".3g") -> str:
    return "—" if value is None else format(value, form)
