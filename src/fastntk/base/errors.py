"""The errors a user can cause, and the one thing they share: on the command line they end with exit code 2.

A message says what was expected, what came, and what to do. Anything else that escapes is our fault.
"""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Something the caller gave cannot be used; nothing was written or changed."""


class BudgetError(InputError):
    """No route fits the memory (or disk) that was allowed."""


class DivergedError(InputError):
    """A training's loss is no longer finite."""


def listing(items: Iterable[object], *, most: int = 8) -> str:
    """Join the first few items for an error message and count the rest: ``a, b, c (+5 more)``."""
    texts = [str(item) for item in items]
    more = f" (+{len(texts) - most} more)" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def said(error: BaseException) -> str:
    """The first line of what another library's error says, as a sentence; its type where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.')}."
