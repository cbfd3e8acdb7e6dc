"""Progress bars on standard error, silent where nobody watches.

Library calls are quiet unless the caller, usually the command line, switches bars on with :func:`show_progress`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fastntk.base.text import printable

T = TypeVar("T")

_active: ContextVar[Progress | None] = ContextVar("fastntk_progress", default=None)


@contextlib.contextmanager
def show_progress(*, enabled: bool = True) -> Iterator[None]:
    """Show a bar for every :func:`track` inside this block (nested blocks share one display)."""
    if not enabled or _active.get() is not None:
        yield
        return
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bars:
        token = _active.set(bars)
        try:
            yield
        finally:
            _active.reset(token)


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items, moving a bar if one is shown."""
    bars = _active.get()
    if bars is None:
        yield from items
        return
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    task = bars.add_task(printable(description), total=total)
    try:
        for item in items:
            yield item
            bars.advance(task)
    finally:
        bars.remove_task(task)
