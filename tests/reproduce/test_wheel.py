"""From a wheel, in an empty folder: ``fastntk reproduce`` works with the package alone and writes nowhere but its ``--out``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy of the sources: building writes beside them."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "lab", "benchmarks"):
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, sources / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", str(folder), str(sources)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_the_wheel_has_the_paper_and_not_the_lab(installed: Path) -> None:
    top = {name.partition("/")[0] for name in files(installed)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"fastntk"}
    assert (installed / "fastntk/reproduce/data/paper.json").is_file()
    assert not (installed / "fastntk/experiments").exists()


def test_reproduce_works_from_the_wheel_and_writes_nothing_but_below_out(installed: Path, tmp_path: Path) -> None:
    """Planned, then run on tiny cells: current folder, home and the package stay as they were."""
    cwd, out = tmp_path / "cwd", tmp_path / "out"
    cwd.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed), "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    environment |= {"MPLCONFIGDIR": str(tmp_path / "matplotlib")}  # matplotlib keeps its own cache of fonts
    before = files(installed)

    def run(*command: str) -> str:
        process = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    where = run("-c", "import fastntk; print(fastntk.__file__)").strip()
    assert Path(where).is_relative_to(installed)
    planned = json.loads(run("-m", "fastntk.cli", "reproduce", "table1", "--plan", "--json", "--out", str(out)))
    assert [row["setting"] for row in planned["plan"]][:2] == ["resnet20-100", "resnet20-200"]
    assert not out.exists()
    tiny = str(Path(__file__).with_name("tiny_cells.py"))
    run(tiny, "reproduce", "table1", "--methods", "full", "--out", str(out), "--threads", "1")
    assert {path.name for path in out.iterdir()} >= {"records", "work", "table1.md", "table1.svg"}
    assert files(cwd) == set()
    assert files(installed) == before
