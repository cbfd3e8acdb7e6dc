"""Where a record was made: processor, threads, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fastntk


def environment() -> dict[str, Any]:
    """JSON-able."""
    versions = {"python": platform.python_version(), "fastntk": fastntk.__version__}
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions | {name: metadata.version(name) for name in ("torch", "numpy", "scipy")},
        "commit": _commit(),
    }


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def _commit() -> str | None:
    """The commit of the source tree this runs from, None for an installed package."""
    folder = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return None
    try:
        process = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
