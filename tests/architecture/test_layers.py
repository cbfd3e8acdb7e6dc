"""The rooms: the layer contract holds, and a forbidden import breaks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml on the package in ``folder``."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src" / "fastntk", tmp_path / "fastntk", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return tmp_path


def test_the_rooms_use_what_is_below_them(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("linalg/solvers.py", "from fastntk.tangent import jacobian"),
        ("planning/plan.py", "from fastntk.unlearning.registry import METHODS"),
        ("auditing/verdict.py", "import fastntk.cli.app"),
        ("unlearning/baselines/ssd.py", "from fastntk.unlearning.api import unlearn"),
        ("report/page.py", "import lab"),
        ("base/errors.py", "from fastntk.data import Samples"),
    ],
)
def test_a_forbidden_import_breaks_the_contract(copy: Path, module: str, statement: str) -> None:
    path = copy / "fastntk" / module
    path.write_text(
        f"{path.read_text('utf-8')}\n\ndef _late() -> None:\n    {statement}  # inside a function counts too\n", "utf-8"
    )
    done = lint(copy)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout


def test_a_room_that_is_in_no_layer_is_noticed(copy: Path) -> None:
    (copy / "fastntk" / "hallway.py").write_text('"""A module without a room."""\n')
    done = lint(copy)
    assert done.returncode != 0
    assert "hallway" in done.stdout + done.stderr
