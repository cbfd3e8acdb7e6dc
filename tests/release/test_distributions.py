"""Wheel and sdist, built without a network; the wheel in a fresh virtual environment works by itself and is typed.

The environment knows nothing of the repository: no ``PYTHONPATH``, another current folder. A ``.pth`` file makes the dependencies
of the tests' own environment visible. Python does not read the ``.pth`` files it finds there, so an editable installation of the
repository stays out, and every test is about the files of the wheel.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import fastntk

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCES = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "SECURITY.md",
    "constraints.txt",
)
SDIST = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
OFFLINE = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")


@dataclass(frozen=True)
class Distributions:
    """What a release consists of, and the wheel that is built from the sdist alone."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def built_wheel(project: Path, out: Path) -> Path:
    subprocess.run([sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", str(out), str(project)], check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built from a copy of the sources, for building writes beside them. The lab is there, and has to stay out."""
    folder = tmp_path_factory.mktemp("distributions")
    project, unpacked = folder / "project", folder / "unpacked"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "lab", "benchmarks"):
        shutil.copytree(ROOT / name, project / name, ignore=ignored)
    for name in SOURCES:
        shutil.copyfile(ROOT / name, project / name)
    wheel = built_wheel(project, folder / "wheel")
    shutil.rmtree(project / "build", ignore_errors=True)
    subprocess.run([sys.executable, "-c", SDIST, str(folder)], cwd=project, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return Distributions(wheel, sdist, built_wheel(source, folder / "again"))


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (folder,) = self.folder.glob("lib/python*/site-packages")
        return folder

    def run(self, *command: str, cwd: Path, **variables: str) -> str:
        """The standard output of a program of this environment, called elsewhere."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        kept |= {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1", "HOME": str(cwd), "COLUMNS": "100"} | variables
        program, *arguments = command
        full = [str(self.folder / "bin" / program), *arguments]
        process = subprocess.run(full, cwd=cwd, env=kept, capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout


@pytest.fixture(scope="module")
def environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    fresh = Environment(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(fresh.python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(distributions.wheel)], check=True, cwd=folder)
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (fresh.site / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return fresh


def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(distributions: Distributions) -> None:
    held = {name for name in wheel_files(distributions.wheel) if ".dist-info/" not in name}
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "fastntk").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == expected
    suffixes = {Path(name).suffix for name in held}
    assert suffixes == {".py", ".typed", ".safetensors", ".json", ".html", ".css"}
    assert {"fastntk/py.typed", "fastntk/reproduce/data/paper.json", "fastntk/schemas/unlearn.json"} <= held


def test_the_sdist_builds_the_same_wheel(distributions: Distributions) -> None:
    assert distributions.wheel.name == distributions.wheel_of_sdist.name
    with zipfile.ZipFile(distributions.wheel) as first, zipfile.ZipFile(distributions.wheel_of_sdist) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert [name for name in first.namelist() if first.read(name) != second.read(name) and not name.endswith("RECORD")] == []


def test_the_sdist_has_what_a_reader_of_the_sources_wants(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= set(SOURCES)
    assert not {name.partition("/")[0] for name in names} & {"lab", "benchmarks", "results", "tests"}


def test_the_metadata_are_those_of_the_project(distributions: Distributions) -> None:
    assert PROJECT["version"] == fastntk.__version__
    with zipfile.ZipFile(distributions.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert (metadata["Name"], metadata["Version"]) == ("fastntk", PROJECT["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert set(metadata.get_all("Classifier")) == set(PROJECT["classifiers"])


def test_the_installed_package_is_the_wheels(environment: Environment, tmp_path: Path) -> None:
    """Every public name can be imported, from the files of the environment."""
    code = """
import importlib.metadata, json, sys, fastntk
for name in fastntk.__all__:
    getattr(fastntk, name)
modules = [vars(module).get("__file__") for name, module in sys.modules.items() if name.partition(".")[0] == "fastntk"]
print(json.dumps({"file": fastntk.__file__, "modules": modules, "names": fastntk.__all__, "path": sys.path,
                  "version": importlib.metadata.version("fastntk")}))
"""
    seen = json.loads(environment.run("python", "-c", code, cwd=tmp_path))
    package = environment.site / "fastntk"
    assert Path(seen["file"]) == package / "__init__.py"
    assert len(seen["modules"]) > 50
    assert all(Path(file).is_relative_to(package) for file in seen["modules"])
    assert not [folder for folder in seen["path"] if (Path(folder) / "fastntk").is_dir() and Path(folder) != environment.site]
    assert seen["names"] == fastntk.__all__
    assert seen["version"] == PROJECT["version"]


def test_the_commands_answer(environment: Environment, tmp_path: Path) -> None:
    assert environment.run("fastntk", "--version", cwd=tmp_path).split()[-1] == PROJECT["version"]
    listed = environment.run("fastntk", "--help", cwd=tmp_path)
    for command in ("finetune", "plan", "unlearn", "audit", "report", "info", "erase", "demo", "reproduce", "pretrain"):
        assert re.search(rf"\b{command}\b", listed), command
    assert "table1" in environment.run("fastntk", "reproduce", "--help", cwd=tmp_path)
    assert files(tmp_path) == set()


def test_type_checkers_see_the_types(environment: Environment, tmp_path: Path) -> None:
    """mypy says import-untyped of an installed package without py.typed. It analyses nothing of it here: that takes long."""
    pytest.importorskip("mypy")
    (tmp_path / "mine.py").write_text("import fastntk\n")
    options = ["--strict", "--follow-imports=skip", "--python-executable", str(environment.python), "--cache-dir", os.devnull]
    command = [sys.executable, "-m", "mypy", *options, "mine.py"]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}

    def checked() -> str:
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True).stdout

    assert "Success" in checked()
    marker = environment.site / "fastntk" / "py.typed"
    marker.rename(tmp_path / "py.typed")
    try:
        assert "import-untyped" in checked()
    finally:
        (tmp_path / "py.typed").rename(marker)


def test_reproduce_writes_nothing_but_below_out(environment: Environment, tmp_path: Path) -> None:
    """Planned, then run on tiny cells: current folder, home and the package stay as they were."""
    cwd, out = tmp_path / "cwd", tmp_path / "out"
    cwd.mkdir()
    variables = {"MPLCONFIGDIR": str(tmp_path / "matplotlib")}  # matplotlib keeps its own cache of fonts
    before = files(environment.site)
    options = ["reproduce", "table1", "--plan", "--json", "--out", str(out)]
    planned = json.loads(environment.run("fastntk", *options, cwd=cwd, **variables))
    assert [row["setting"] for row in planned["plan"]][:2] == ["resnet20-100", "resnet20-200"]
    assert not out.exists()
    tiny = str(ROOT / "tests" / "reproduce" / "tiny_cells.py")
    options = ["reproduce", "table1", "--methods", "full", "--out", str(out), "--threads", "1"]
    environment.run("python", tiny, *options, cwd=cwd, **variables)
    assert {path.name for path in out.iterdir()} >= {"records", "work", "table1.md", "table1.svg"}
    assert files(cwd) == set()
    assert files(environment.site) == before
