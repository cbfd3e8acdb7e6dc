"""Which code a record was made by: digests of the source that decides figures, room by room.

A digest is over the modules' syntax trees without docstrings, comments, formatting, annotations of arguments and results, and the
words of errors: rewording changes nothing, another constant or default does, and so does another annotation of a variable, as of
a module's constant or a dataclass's field. ``baselines`` are apart from ``unlearning``, so that a new baseline leaves the records
of other methods as they are; the registry is in neither. Rooms that decide no figure (command line, reports, storage,
integrations, base) are not here.

    TRAINING      what decides trained weights             data, models, tuning, training
    UNLEARNING    and what an unlearned model is           linalg, tangent, planning, unlearning (and Retrain)
    AUDITING      and the figures of a record              auditing

A record is *fresh* where its digests are those of the code that runs, *stale* where they are others or absent.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastntk.base.errors import InputError
from fastntk.unlearning.registry import METHODS

TRAINING = ("data", "models", "tuning", "training")
UNLEARNING = (*TRAINING, "linalg", "tangent", "planning", "unlearning")
AUDITING = (*UNLEARNING, "auditing")
BASELINES = "baselines"
PACKAGE = Path(__file__).resolve().parents[1]
DIGITS = 12
_BASELINES_FOLDER = ("unlearning", "baselines")
_SHARED = ("retrain.py", "own_training.py")
"""Of the baselines' folder: every record is beside a Retrain."""
_NEVER = ("registry.py",)
_JUDGING = ("verdict.py", "evidence.py", "calibration.py", "requirements.py", "limits.py")
"""Of the auditing room: they judge figures and decide none. Whoever reads a record judges it by the rules of then."""


def code_of(*methods: str, rooms: Iterable[str] = AUDITING) -> dict[str, str]:
    """The digests of these rooms as they are now, by name; and of the baselines, where one of the methods is among them."""
    apart = (BASELINES,) if any(_is_baseline(name) for name in methods) else ()
    return {room: _room_digest(PACKAGE, room) for room in (*rooms, *apart)}


def changed_rooms(known: Any, now: Mapping[str, str]) -> tuple[str, ...]:
    """Rooms whose code is another one than a record's ``code`` says; all of them where it says nothing."""
    recorded: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    return tuple(room for room, digest in now.items() if recorded.get(room) != digest)


def vouched(code: Any, *, keep_stale: bool) -> dict[str, Any]:
    """The part of a record that names its code; none where what it was made from may be of other code (``keep_stale``)."""
    return {} if keep_stale else {"code": code}


def source_digest(text: str) -> str:
    """Of a module's syntax tree, without words."""
    tree = _Wordless().visit(ast.parse(text))
    return hashlib.sha256(_dump(tree).encode()).hexdigest()


def _dump(node: object) -> str:
    """A syntax tree as text, the same for every version of Python: empty fields, as those that came later, are left out."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        inside = ", ".join(f"{name}={_dump(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def _is_baseline(name: str) -> bool:
    room, _, module = METHODS[name].run.__module__.rpartition(".") if name in METHODS else ("", "", "")
    return room.startswith("fastntk.unlearning.baselines") and f"{module}.py" not in _SHARED


@cache
def _room_digest(package: Path, room: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(_modules(package, room)):
        digest.update(f"{path.relative_to(package).as_posix()} {source_digest(path.read_text('utf-8'))}\n".encode())
    return digest.hexdigest()[:DIGITS]


def _modules(package: Path, room: str) -> list[Path]:
    folder = package.joinpath(*_BASELINES_FOLDER) if room == BASELINES else package / room
    if not folder.is_dir():
        raise InputError(f"{folder} is no room of the package.")
    inside = package.joinpath(*_BASELINES_FOLDER)
    modules = [path for path in folder.rglob("*.py") if path.name not in _NEVER]
    if room == BASELINES:
        return [path for path in modules if path.name not in _SHARED]
    judging = [package / "auditing" / name for name in _JUDGING]
    return [path for path in modules if path not in judging and (inside not in path.parents or path.name in _SHARED)]


class _Wordless(ast.NodeTransformer):
    """Takes out what decides no figure: bare strings, annotations of arguments and results, what an error says."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Docstrings of modules, functions, classes and attributes."""
        bare = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if bare else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """The kind of the error stays."""
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=kind, cause=None)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Without its annotation."""
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Without the annotation of what it returns."""
        node.returns = None
        return self.generic_visit(node)
