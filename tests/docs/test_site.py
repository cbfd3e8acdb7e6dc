"""The site: its strict build passes, stops at what is broken, shows the whole API, and loads nothing from other hosts."""

from __future__ import annotations

import html
import inspect
import logging
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import fastntk

ROOT = Path(__file__).parents[2]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; any warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def targets(text: str) -> list[str]:
    """Where the links of a Markdown text lead, code left out."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)
    return re.findall(r"\]\(([^()\s]*)\)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M)


def test_every_page_is_built(site: Path) -> None:
    assert {page.stem for page in site.glob("*.html")} == {page.stem for page in (ROOT / "docs").glob("*.md")} | {"404"}


@pytest.mark.parametrize("name", OUTSIDE)
def test_links_of_the_files_beside_docs_resolve(name: str, site: Path) -> None:
    for target in targets((ROOT / name).read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (ROOT / place).resolve()
        assert target, f"{name}: a link with an empty target"
        assert path.is_relative_to(ROOT), f"{name}: {target} leads out of the repository"
        assert path.exists(), f"{name}: {target} does not exist"
        if anchor:  # sections are linked to in docs/ only, where the site knows the anchors
            assert path.parent == ROOT / "docs", f"{name}: {target}"
            assert f'id="{anchor}"' in (site / f"{path.stem}.html").read_text("utf-8"), f"{name}: {target} has no such heading"


def test_paths_that_pages_name_exist() -> None:
    """Files outside docs/ are named as code instead of linked to."""
    for page in [*(ROOT / name for name in OUTSIDE), *(ROOT / "docs").glob("*.md")]:
        for path in re.findall(r"`((?:examples|src|tests)/[\w./-]*)`", page.read_text("utf-8")):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page in [*site.glob("*.html"), site / "site.css", *site.glob("assets/stylesheets/*.css")]:
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", text), page.name
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", text), page.name


def test_the_api_page_names_what_is_public() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: (.*)$", page, re.M)) == sorted(f"fastntk.{name}" for name in fastntk.__all__)


def test_the_api_page_shows_every_docstring(site: Path) -> None:
    page = (site / "api.html").read_text("utf-8")
    for name in fastntk.__all__:
        assert f'id="fastntk.{name}"' in page
        entry = page.split(f'id="fastntk.{name}"', 1)[1].split("<h3", 1)[0]
        first = (inspect.getdoc(getattr(fastntk, name)) or "").split("\n\n")[0].replace("`", "").split()
        assert first, f"{name} has no docstring"
        assert " ".join(first) in " ".join(plain(entry).split()), name
    assert "digest() -> str" in plain(page)
    assert "prompt_length: int = 10" in plain(page)
    assert not re.findall(r":(?:func|class|meth|mod):", page), "Sphinx roles are not Markdown: use double backticks"


def plain(page: str) -> str:
    """The text of a piece of HTML."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))


SMALL = {
    "index.md": "# Top\n\n[a](a.md) [b](a.md#more--of-it) [web](https://nowhere.invalid/x) `[no](link)`\n\n::: fastntk.fit\n",
    "a.md": "# A\n\n## More – of `it`!\n\n[up](index.md#top) ![picture](p.svg)\n\n```python\n[not](a-link)\n```\n",
    "p.svg": "<svg/>",
}


def small_site(folder: Path, **pages: str) -> None:
    """Build two pages, some replaced, with the repository's own settings."""
    (folder / "docs").mkdir()
    for name, text in {**SMALL, "site.css": "", **{f"{stem}.md": text for stem, text in pages.items()}}.items():
        (folder / "docs" / name).write_text(text, "utf-8")
    config = folder / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [index.md, a.md]\n", "utf-8")
    (folder / "src").symlink_to(ROOT / "src")
    build(load_config(str(config)))


def test_a_small_site_builds(tmp_path: Path) -> None:
    small_site(tmp_path)
    assert (tmp_path / "site" / "a.html").is_file()


BROKEN = {
    "[x](nowhere.md)": "'nowhere.md', but the target is not found",
    "[x](#nothing)": "'#nothing', but there is no such anchor",
    "[x](index.md#tip)": "does not contain an anchor '#tip'",
    "[x](../README.md)": "'../README.md', but the target is not found",
    "[x](../examples)": "unrecognized relative link '../examples'",
    "[x](/a.md)": "absolute link '/a.md'",
    "[x][y]\n\n[y]: gone.md": "'gone.md', but the target is not found",
    "![x](gone.svg)": "'gone.svg', but the target is not found",
}


def test_every_kind_of_broken_link_stops_the_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Abort, match=f"Aborted with {len(BROKEN)} warnings in strict mode"):
        small_site(tmp_path, a="\n\n".join([SMALL["a.md"], *BROKEN]))
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for link, problem in BROKEN.items():
        assert sum(problem in warning for warning in warnings) == 1, link


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("a", SMALL["a.md"] + "\n[x](nowhere.md)\n", "'nowhere.md', but the target is not found"),
        ("a", SMALL["a.md"] + "\n::: fastntk.nothing\n", "fastntk.nothing could not be found"),
        ("lonely", "# Alone\n", 'not included in the "nav" configuration'),
    ],
    ids=["link", "unknown name", "page that the navigation leaves out"],
)
def test_one_problem_stops_the_build(
    page: str, text: str, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Abort):
        small_site(tmp_path, **{page: text})
    assert problem in caplog.text
