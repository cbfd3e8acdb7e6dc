"""The records that are under version control: experiments may be adding others while the tests run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def committed(folder: Path) -> Path:
    """Copy the tracked records to ``folder``/results and return that; all records where there is no git."""
    target = folder / "results"
    try:
        process = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
        names = [name for name in process.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [path.relative_to(ROOT).as_posix() for path in (ROOT / "results").rglob("*.json")]
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return target
