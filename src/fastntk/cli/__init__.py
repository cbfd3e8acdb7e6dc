"""The command line: one small file a command, heavy imports inside the commands, every failure a plain sentence.

Exit codes: 0 success, 1 our fault, 2 wrong usage or input, 3 a stated threshold is not met; 128 + n where signal n ended it: 130
interrupted (Ctrl-C), 143 terminated, 129 the terminal went, 141 nobody reads the output any more (``| head -1``).
"""

from __future__ import annotations

import io
import os
import sys

from fastntk.base.text import is_utf8


def main() -> None:
    """Run the command line; the entry point of ``fastntk``."""
    from fastntk.cli.signals import catch_signals, say_interrupted

    # Read once, when torch loads: threads that spin while they wait ruin each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # closed by whoever started it (`>&-`)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # where it is not UTF-8, an arrow must not end a command after its work
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    catch_signals()
    _refuse_no_text(sys.argv[1:])
    try:
        from fastntk.cli.app import app

        app(prog_name="fastntk")
    except KeyboardInterrupt as interrupt:
        sys.exit(say_interrupted(interrupt))


def _refuse_no_text(arguments: list[str]) -> None:
    """End with code 2 where a path or name is not UTF-8: no manifest could hold it, which would be found only after the work."""
    odd = [ascii(argument) for argument in arguments if not is_utf8(argument)]
    if odd:
        print(f"Error: not UTF-8: {', '.join(odd)}. Rename what it names, or change to its folder.", file=sys.stderr)
        sys.exit(2)
