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
from fastntk.reproduce.code import PACKAGE

CHANGES = "+changes"
"""After a commit: the source differed from it."""
SHORT = 10


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
        "commit": commit(),
    }


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def commit(package: Path = PACKAGE) -> str | None:
    """The commit of the repository whose ``src/`` this package is in, with :data:`CHANGES` where ``src`` is not as committed.

    None for an installed package, also where its environment lies inside some other repository.
    """
    root = package.parent.parent
    if package.parent.name != "src" or not (root / ".git").exists():
        return None
    try:
        head, status = (_git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "src")))
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + (CHANGES if status else "")


def short_commit(known: str | None) -> str | None:
    """The first digits of a record's commit, with its mark."""
    if known is None:
        return None
    digits, mark, _ = known.partition(CHANGES)
    return digits[:SHORT] + mark


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
