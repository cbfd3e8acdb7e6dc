"""The command line: one small file a command, heavy imports inside the commands, every failure a plain sentence.

Exit codes: 0 success, 1 our fault, 2 wrong usage or input, 3 a stated threshold is not met; 128 + n where signal n ended it: 130
interrupted (Ctrl-C), 143 terminated, 129 the terminal went.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; the entry point of ``fastntk``."""
    from fastntk.cli.signals import catch_signals, say_interrupted

    # Read once, when torch loads: threads that spin while they wait ruin each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    catch_signals()
    try:
        from fastntk.cli.app import app

        app(prog_name="fastntk")
    except KeyboardInterrupt as interrupt:
        sys.exit(say_interrupted(interrupt))
