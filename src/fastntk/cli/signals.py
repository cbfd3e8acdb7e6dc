"""Signals that end a command: it leaves through the usual clean-up, so that no unfinished folder stays, and says what it wrote.

Ctrl-C, a polite kill and the end of the terminal are treated alike. SIGKILL cannot be caught: what it leaves is swept by the
next command that writes to the same place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType

_SAME = 5.0
"""Seconds within which a further signal is the same farewell: shell and system both announce the end of a terminal."""
_first: list[float] = []


class Ended(KeyboardInterrupt):
    """A signal asked this process to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def catch_signals() -> None:
    """Raise :class:`Ended` on SIGTERM and SIGHUP; one that is ignored (nohup) stays so."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _first and now - _first[-1] < _SAME:
        return  # the clean-up is not to be interrupted
    _first.append(now)
    raise Ended(number)


def exit_code(interrupt: BaseException) -> int:
    """128 and the number of the signal; Ctrl-C is 2."""
    return 128 + (interrupt.number if isinstance(interrupt, Ended) else int(signal.SIGINT))


def say_interrupted(interrupt: BaseException) -> int:
    """Say on standard error what was written or removed until now; return the exit code."""
    code = exit_code(interrupt)
    _say({130: "interrupted", 143: "terminated", 129: "the terminal went"}.get(code, "ended"))
    return code


def say_unread() -> int:
    """The same where nobody reads standard output any more (``| head -1``): as SIGPIPE would end it, but not in silence."""
    _say("ended, for nobody reads the output any more")
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would complain again at the end
    return 128 + int(getattr(signal, "SIGPIPE", 13))


def _say(word: str) -> None:
    from fastntk.base.atomic import changes

    actions = changes()
    what = "nothing was changed" if not actions else f"but not before this was complete: {'; '.join(actions[:5])}"
    if len(actions) > 5:
        what += f" (+{len(actions) - 5} more)"
    with contextlib.suppress(OSError, ValueError):  # there may be no terminal any more
        print(f"{word}, {what}", file=sys.stderr, flush=True)
