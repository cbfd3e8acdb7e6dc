"""The command line: one small file a command, heavy imports inside the commands, every failure a plain sentence.

Exit codes: 0 success, 1 our fault, 2 wrong usage or input, 3 a stated threshold is not met, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from fastntk.base.text import is_utf8


def main() -> None:
    """Run the command line; the entry point of ``fastntk``."""
    # Read once, when torch loads: threads that spin while they wait ruin each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminated)
    _refuse_no_text(sys.argv[1:])
    try:
        from fastntk.cli.app import app
    except KeyboardInterrupt:
        print("interrupted, nothing was changed", file=sys.stderr)
        sys.exit(130)
    app(prog_name="fastntk")


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leave through the usual clean-up, so that a polite kill leaves no unfinished folder behind."""
    raise SystemExit(128 + number)


def _refuse_no_text(arguments: list[str]) -> None:
    """End with code 2 where a path or name is not UTF-8: no manifest could hold it, which would be found only after the work."""
    odd = [ascii(argument) for argument in arguments if not is_utf8(argument)]
    if odd:
        print(f"Error: not UTF-8: {', '.join(odd)}. Rename what it names, or change to its folder.", file=sys.stderr)
        sys.exit(2)
