"""The pages themselves: code fences, quoted errors that exist, and the walk-through, which runs. Links: see test_site.py."""

from __future__ import annotations

import ast
import importlib.util
import json
import operator
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import fastntk
import fastntk.schemas
from fastntk.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
LANGUAGES = ("python", "sh", "diff", "json", "text", "html", "toml", "latex")


DEVELOPERS = {"test", "docs", "bench"}  # extras for work on the package itself


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


digit_folder = module_of(ROOT / "examples" / "digit_folder.py").digit_folder


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_fences_are_closed_and_name_their_language(path: Path) -> None:
    opened: str | None = None
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        fence = re.match(r"\s*(```+|~~~+)\s*(\S*)", line)
        if opened is not None:
            opened = None if fence and not fence[2] and fence[1].startswith(opened) else opened
        elif fence:
            opened = fence[1]
            assert fence[2] in LANGUAGES, f"{path.name}:{number}: a code fence needs one of the languages {LANGUAGES}"
    assert opened is None, f"{path.name}: a code fence is not closed"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_are_markdown(path: Path) -> None:
    """The build of the site checks those only, and only where they lead somewhere."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.M | re.S)
    assert not re.findall(r"<(?:a|img)\b[^>]*>", text)
    assert "]()" not in text


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=lambda path: path.name)
def test_every_name_of_the_package_exists(path: Path) -> None:
    """Integrations apart: they import other frameworks, and have tests of their own."""
    for name, call in re.findall(r"`(fastntk(?!\.integrations)(?:\.\w+)+)(\(?)", path.read_text("utf-8")):
        try:
            value = operator.attrgetter(name.partition(".")[2])(fastntk)
        except AttributeError:
            value = importlib.import_module(name)
        assert callable(value) or not call, f"{name} is no function"


def message_templates() -> list[str]:
    """Every text in the source, … for what is filled in."""
    lines = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                lines.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
    return lines


def test_every_error_of_the_faq_is_one_of_ours() -> None:
    quotes = re.findall(r"^> (.*)$", (ROOT / "docs" / "faq.md").read_text("utf-8"), re.M)
    assert len(quotes) >= 25
    templates = message_templates()
    for quote in quotes:
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"\s*…\s*", quote) if part), re.S)
        assert any(pattern.search(text) for text in templates), quote


def test_every_schema_is_listed() -> None:
    page = (ROOT / "docs" / "json.md").read_text("utf-8")
    for name in fastntk.schemas.names():
        assert re.search(rf"^\| `\w+` \| `{name}` \|", page, re.M), name


def test_the_readme_starts_with_the_two_commands_and_stays_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert any(line.startswith("make demo") for line in lines[:12])
    assert any(line.startswith("make test") for line in lines[:12])
    assert len(lines) < 130


WALK = (ROOT / "docs" / "deletion-request.md").read_text("utf-8")


def walk(page: str, *, codes: tuple[int, ...]) -> None:
    """Run the blocks of a page in order, in the present folder; ``codes``: the exit codes that ``unlearn`` may end with."""
    names: dict[str, object] = {}
    for language, block in re.findall(r"^```(python|sh)\n(.*?)^```", page, re.M | re.S):
        if language == "python":
            exec(compile(block, "docs/deletion-request.md", "exec"), names)
            continue
        for line in block.splitlines():
            outcome = CliRunner().invoke(app, line.split()[1:])
            assert outcome.exit_code in (codes if " unlearn " in line else (0,)), f"{line}\n{outcome.output}"


@pytest.mark.slow
def test_the_deletion_request_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (request,) = (block for block in re.findall(r"^```text\n(.*?)^```", WALK, re.M | re.S) if block.startswith("# request 17"))
    (tmp_path / "request.txt").write_text(request)
    (tmp_path / "next.txt").write_text(re.findall(r"With `(\S+)` in `next.txt`", WALK)[0] + "\n")
    walk(WALK, codes=(0,))
    record = json.loads((tmp_path / "results" / "request-17" / "audit.json").read_text("utf-8"))
    assert record["verdict"]["level"] == "like retrain"
    assert f"{record['request']['forget']} of which" in WALK


def test_the_deletion_request_runs_with_a_folder_of_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = digit_folder(tmp_path / "whole", per_class=7)
    for number, part in enumerate(sorted(whole.rglob("*.png"))):
        target = tmp_path / "photos" / ("train" if number % 7 < 5 else "holdout") / part.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, target)
    request = ["digit-3/001.png", "digit-7/004.png"]
    (tmp_path / "request.txt").write_text("\n".join(request) + "\n")
    (tmp_path / "next.txt").write_text("digit-5/000.png\n")
    sizes = "--data digits@train --images-per-class 60 --epochs 10"
    assert sizes in WALK
    page = WALK.replace(sizes, "--data photos@train --epochs 4").replace("digits@test", "photos@holdout")
    kept = page.replace("fastntk erase runs/digits --yes", "fastntk info runs/digits")
    assert kept != page
    kept = kept.replace(" --reference retrain\n", " --reference retrain --relearn-cap 5 --no-probes\n")  # that take most time
    walk(kept, codes=(0, 3))  # 3: written, though fifty digits may not pass the step's own check
    assert (tmp_path / "results" / "request-17" / "report.html").is_file()
    served = fastntk.build_model("resnet20", num_classes=10)
    served.load_state_dict(torch.load("unlearned.pt", weights_only=True))
    # The photos go; the results find their data, the old run no longer does.
    for name in request:
        (tmp_path / "photos" / "train" / name).unlink()
    for result in ("results/request-17", "results/request-18"):
        assert CliRunner().invoke(app, ["info", result]).exit_code == 0
        assert CliRunner().invoke(app, ["plan", result, "--classes", "digit-1", "--method", "path-replay"]).exit_code == 0
    old = CliRunner().invoke(app, ["plan", "runs/digits", "--classes", "digit-1"])
    assert "Planning with the trace alone" in old.stderr
    audited = ["audit", "runs/digits", "results/request-17", "--holdout", "photos@holdout", "--out", "again.json"]
    refused = CliRunner().invoke(app, audited)
    assert refused.exit_code == 2
    assert "2 of the 50 samples of this run are not in" in refused.stderr
    assert CliRunner().invoke(app, ["erase", "runs/digits", "--yes"]).exit_code == 0
    assert not (tmp_path / "runs" / "digits").exists()


def test_the_extras_of_the_how_to_are_those_of_the_project() -> None:
    """An extra is for users, and then in the table with what it brings, or for work on the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    section = (ROOT / "docs" / "howto.md").read_text("utf-8").split("\n## Install\n")[1].split("\n## ")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.M))
    brought = {name: ", ".join(re.split(r"[<>=\[]", package)[0] for package in extras[name]) for name in set(extras) - DEVELOPERS}
    assert table == brought


def test_concepts_show_their_pictures_and_give_no_figures() -> None:
    """The pictures are those that the tool draws, readable on a phone, with words for whoever does not see them."""
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    pictures = module_of(ROOT / "tools" / "concept_pictures.py").PICTURES
    shown = {name: words for words, name in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page)}
    assert set(shown) == set(pictures)
    assert min(len(words) for words in shown.values()) > 100
    for name, draw in pictures.items():
        text = (ROOT / "docs" / name).read_text("utf-8")
        assert text == draw(), f"{name}: run python tools/concept_pictures.py"
        svg = ElementTree.fromstring(text)
        assert svg.attrib["viewBox"].split()[2] == "440"
        assert min(int(size) for size in re.findall(r'font-size="(\d+)"', text)) >= 14
        assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.findall(r"\d\s*(?:%|×)|\d\.\d", page), "measured figures belong on the pages of results"
