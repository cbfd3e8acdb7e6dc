"""Commands and snippets of the how-to pages are run as written, page after page, in one folder."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastntk.cli.app import app
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.unlearning.registry import METHODS, unregister

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("howto-forget", "howto-data", "howto-models", "howto-record", "howto-operate")
"""In the order of the index: later pages use names of earlier ones, and say so."""


def blocks(language: str) -> list[str]:
    text = "\n".join((DOCS / f"{name}.md").read_text("utf-8") for name in PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_the_index_links_to_every_section_of_every_page() -> None:
    assert {path.stem for path in DOCS.glob("howto-*.md")} == set(PAGES)
    index = (DOCS / "howto.md").read_text("utf-8")
    titles = re.findall(r"^## (.*)$", index, re.M)
    assert titles == ["Install", *((DOCS / f"{name}.md").read_text("utf-8").splitlines()[0].removeprefix("# ") for name in PAGES)]
    for name in PAGES:
        text = re.sub(r"^```.*?^```", "", (DOCS / f"{name}.md").read_text("utf-8"), flags=re.M | re.S)
        for section in re.findall(r"^## (.*)$", text, re.M):
            anchor = re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")
            assert f"({name}.md#{anchor})" in index, f"{name}.md: {section}"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line]
    assert len(lines) == 12
    for name, text in zip(("deletions.txt", "people.csv"), blocks("text"), strict=True):
        (tmp_path / name).write_text(text)
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "fastntk"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.fixture
def _own_methods() -> Iterator[None]:
    """What a page registers is taken back: other tests count the methods."""
    before = set(METHODS)
    yield
    for name in set(METHODS) - before:
        unregister(name)


@pytest.mark.usefixtures("_own_methods")
def test_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    missing = [name for name in ("peft", "timm") if importlib.util.find_spec(name) is None]
    ensure_operators()
    for block in blocks("python"):
        if "import peft" in block and missing:
            continue
        exec(compile(block, "docs/howto-*.md", "exec"), names)
    assert names["again"].split.forget.tolist() == names["result"].split.forget.tolist()
    assert len(names["second"].forgotten) == 8 + 2
    assert names["unlearned"].forgotten.ids == ("img-3", "img-17")
    assert names["without_ada"].forgotten.ids == names["of_ada"] == ("11", "25")
    assert (names["listed"], names["series"]) == (("11", "20", "21", "22", "23", "24"), ("25", "10", "11", "12", "13"))
    assert names["keyed"].ids == ("a", "b")
    assert names["rows"].shape == (80, 10, names["run"].subset.numel)
