"""docs/api.md from the docstrings of everything in ``fastntk.__all__``: signatures, texts, methods. Deterministic.

python tools/api_reference.py           write docs/api.md
python tools/api_reference.py --check   exit code 1 where docs/api.md is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastntk

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
WIDTH = 110
HEAD = """# API reference

Everything that `import fastntk` offers. Made by `make docs` from the docstrings: edit those, not this page. Commands are
explained by `fastntk COMMAND --help`, their JSON in [json.md](json.md), methods and their options in [method.md](method.md).
"""


def page() -> str:
    """The whole page as Markdown."""
    names = sorted(fastntk.__all__, key=lambda name: (name[0].islower(), name.lower()))
    seen: Counter[str] = Counter()
    anchors = []
    for slug in (name.lower() for name in names):  # Plan and plan share a slug; the second gets a number
        anchors.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    index = " · ".join(f"[{name}](#{anchor})" for name, anchor in zip(names, anchors))
    return "\n".join([HEAD, index, *(_entry(name, getattr(fastntk, name)) for name in names)])


def _entry(name: str, thing: Any) -> str:
    lines = [f"\n## {name}\n"]
    if not inspect.isclass(thing):
        return "\n".join([*lines, _fence(signature(name, thing)), "", text_of(thing, name)])
    if issubclass(thing, Exception):
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        return "\n".join([*lines, _fence(f"class {name}({bases})"), "", text_of(thing, name)])
    lines += [_fence(signature(f"class {name}", thing)), "", text_of(thing, name)]
    for member, kind in _members(thing):
        shown = f"`.{member}`" if kind is None else f"`.{signature(member, kind, skip_self=True, width=10**6)}`"
        lines += ["", f"- {shown}  ", "  " + text_of(getattr(thing, member), f"{name}.{member}").replace("\n", "\n  ")]
    return "\n".join(lines)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the class itself defines, in the order of its source; None for a property."""
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            yield name, None
        elif isinstance(value, classmethod | staticmethod):
            yield name, value.__func__
        elif inspect.isfunction(value):
            yield name, value


def signature(name: str, thing: Any, *, skip_self: bool = False, width: int = WIDTH) -> str:
    """A signature as one writes it in Python; broken into lines where it is long."""
    made = inspect.signature(thing)
    parameters = list(made.parameters.values())[1 if skip_self else 0 :]
    parts: list[str] = []
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter))
    back = (
        "" if name.startswith("class ") or made.return_annotation is made.empty else f" -> {_annotation(made.return_annotation)}"
    )
    line = f"{name}({', '.join(parts)}){back}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){back}"])


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    note = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}{note}"
    default = "..." if re.search(r" at 0x|<factory>|^<", repr(parameter.default)) else repr(parameter.default)
    return f"{star}{parameter.name}{note}{' = ' if note else '='}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def text_of(thing: Any, name: str) -> str:
    """The docstring as Markdown; a public name without one stops the build."""
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{name} has no docstring: write one, the API reference is made of them")
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"


def main() -> None:
    """Write the page, or compare it."""
    made = page().rstrip() + "\n"
    if sys.argv[1:] == ["--check"]:
        if not PAGE.is_file() or PAGE.read_text("utf-8") != made:
            raise SystemExit("docs/api.md is not what the docstrings say now: run make docs and commit it")
        return
    PAGE.write_text(made, "utf-8")


if __name__ == "__main__":
    main()
