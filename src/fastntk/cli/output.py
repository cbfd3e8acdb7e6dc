"""What commands print: sentences and tables for people, or with ``--json`` one object on standard output.

Ids, class names and paths are chosen by others, so all text goes through :func:`~fastntk.base.text.printable`.
With ``--json`` everything meant for people goes to standard error; without it, to standard output. Progress bars are on
standard error always.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastntk.base.progress import show_progress
from fastntk.base.text import printable, printable_json


class PlainConsole(Console):
    """rich's, which ends the command in silence where nobody reads any more (``| head -1``); here that is an error as usual."""

    def on_broken_pipe(self) -> None:
        """Let the group of commands say what was complete by then."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Output:
    """Where one command talks to; ``as_json`` chooses the form."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = PlainConsole(stderr=as_json, highlight=False)

    def say(self, text: str = "") -> None:
        """Print a sentence for people; not parsed as markup, for paths may have brackets."""
        self.console.print(_text(text), soft_wrap=True)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Print a list of name and value, aligned."""
        width = max(len(name) for name in facts)
        for name, value in facts.items():
            self.say(f"  {name:<{width}}  {value}")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None, whole_names: bool = False
    ) -> None:
        """Print a table; the first column is text, the others are numbers. ``whole_names``: the others wrap first."""
        table = Table(title=None if title is None else _text(title), title_justify="left")
        for number, name in enumerate(columns):
            table.add_column(_text(name), justify="left" if number == 0 else "right", no_wrap=whole_names and number == 0)
        for row in rows:
            table.add_row(*(_text(value) for value in row))
        self.console.print(table)

    def replacing(self, target: Path, going: Sequence[str]) -> None:
        """Say what will go when the new output is complete; nothing where nothing does."""
        if going:
            self.say(f"Replacing {target}, once the new one is complete: {', '.join(going)}")

    def finish(self, record: Mapping[str, Any], *, wrote: str | None = None, then: str | Sequence[str] | None = None) -> None:
        """End a command: the record as JSON, or what was written and the next sensible command, as text or its words."""
        if self.as_json:
            plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
            sys.stdout.write(printable_json(json.dumps(record, indent=1, ensure_ascii=plain, allow_nan=False)) + "\n")
            sys.stdout.flush()
            return
        if wrote is not None:
            self.say(f"Wrote {wrote}")
        if then is not None:
            self.say(f"Next: {then if isinstance(then, str) else shlex.join(then)}")


def note(text: str) -> None:
    """Print a sentence to standard error: what went wrong, or what is done otherwise than asked."""
    print(printable(text), file=sys.stderr)


def _text(value: object) -> Text:
    """What a table or sentence shows: no markup, and nothing in it that commands the terminal."""
    return Text(printable(str(value)))


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Bars on standard error, if somebody watches it."""
    with show_progress(enabled=sys.stderr.isatty()):
        yield
