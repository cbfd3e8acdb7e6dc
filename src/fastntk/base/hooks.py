"""Hooks on somebody else's objects that do not come along when those are copied or saved."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class PassiveHook:
    """A hook by a method, with some arguments before those of the call. It does not keep the method's object alive, and a copy of
    the model, or a file of it, has an empty one."""

    def __init__(self, method: Callable[..., Any] | None = None, *before: Any) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)
        self._before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method says; None once its object is gone."""
        method = None if self._method is None else self._method()
        return None if method is None else method(*self._before, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return PassiveHook, ()
