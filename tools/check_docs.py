"""Check the Markdown pages of a repository: links and anchors that lead nowhere, fences, pages that nobody links to.

    python tools/check_docs.py [ROOT]    exit code 1, and one line a problem

Looked at are README.md, CONTRIBUTING.md, CHANGELOG.md and docs/. Addresses of the web are not visited: the check works
offline and says the same every day.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

START = "README.md"
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md")
LANGUAGES = ("python", "sh", "json", "text", "html", "toml", "latex")

_FENCE = re.compile(r"^\s*(```+|~~~+)\s*([\w+-]*)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]*(?:\([^()\s]*\)[^()\s]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*(\S+)")
_HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]*)\"", re.I)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_HTML_ANCHOR = re.compile(r"<[^>]+\b(?:id|name)=\"([^\"]+)\"")


@dataclass
class Page:
    """What one file links to and offers: (line, target) pairs, anchors, and problems of its fences."""

    links: list[tuple[int, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    problems: list[tuple[int, str]] = field(default_factory=list)


def read(path: Path) -> Page:
    """Take one page apart."""
    page, seen = Page(), Counter[str]()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and not fence[2] and fence[1].startswith(opened[1]):
                opened = None
            continue
        if fence:
            opened = (number, fence[1])
            if fence[2] not in LANGUAGES:
                came = fence[2] or "none"
                page.problems.append((number, f"a code fence needs one of the languages {', '.join(LANGUAGES)}; it has {came}"))
            continue
        _read_line(page, number, line, seen)
    if opened is not None:
        page.problems.append((opened[0], "a code fence is not closed"))
    return page


def _read_line(page: Page, number: int, line: str, seen: Counter[str]) -> None:
    heading = _HEADING.match(line)
    if heading:
        slug = slug_of(heading[2])
        page.anchors.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    if line.startswith(("    ", "\t")):
        return  # indented code, or the continuation of a list, in which we put no links
    page.anchors.update(_HTML_ANCHOR.findall(line))
    bare = re.sub(r"`[^`]*`", lambda match: "x" * len(match[0]), line)
    targets = [*_LINK.findall(bare), *_DEFINITION.findall(bare), *_HTML.findall(bare)]
    page.links += [(number, target) for target in targets]


def slug_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def problems(root: Path) -> Iterator[str]:
    """One line a problem, with file and line number."""
    paths = [root / START, *(root / name for name in OTHERS if (root / name).is_file()), *sorted((root / "docs").rglob("*.md"))]
    pages = {path.resolve(): read(path) for path in paths if path.is_file()}
    if (root / START).resolve() not in pages:
        yield f"{START}: is missing"
        return
    linked: dict[Path, set[Path]] = {path: set() for path in pages}
    for path, page in pages.items():
        shown = path.relative_to(root.resolve())
        for number, problem in page.problems:
            yield f"{shown}:{number}: {problem}"
        for number, target in page.links:
            if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.I):
                continue
            place, _, anchor = target.partition("#")
            found = path if not place else (path.parent / unquote(place)).resolve()
            linked[path].add(found)
            broken = _broken(found, anchor, target, pages, root=root.resolve())
            if broken:
                yield f"{shown}:{number}: {broken}"
    for orphan in sorted(set(pages) - reached((root / START).resolve(), linked)):
        yield f"{orphan.relative_to(root.resolve())}: no page that README.md leads to links to it"


def _broken(found: Path, anchor: str, target: str, pages: dict[Path, Page], *, root: Path) -> str | None:
    if not target:
        return "a link leads nowhere: its target is empty"
    if not found.is_relative_to(root):
        return f"link {target} leads out of the repository"
    if not found.exists():
        return f"link {target} is broken: there is no {found.relative_to(root)}"
    if anchor and found in pages and anchor not in pages[found].anchors:
        return f"link {target} is broken: {found.relative_to(root)} has no heading for #{anchor}"
    return None


def reached(start: Path, linked: dict[Path, set[Path]]) -> set[Path]:
    """The pages that links lead to from a first one."""
    seen, waiting = {start}, [start]
    while waiting:
        for page in linked[waiting.pop()] & linked.keys() - seen:
            seen.add(page)
            waiting.append(page)
    return seen


def main() -> None:
    """Print the problems; exit code 1 where there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = list(problems(root))
    for problem in found:
        print(problem)
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
