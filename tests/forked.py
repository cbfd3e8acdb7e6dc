"""The command line in forked children of one process that imported everything: a command costs no seconds of torch.

:class:`Server` starts that process; ``inside`` runs a command in it (which imports what the command needs), ``run`` in a child of
its own: with a limit on time and memory, and where wanted killed after some seconds or at the n-th change of a file. One thread
each, so that forking is safe. What a child printed is in a file, which may be huge or no text.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastntk.base.errors import InputError

TESTS = Path(__file__).resolve().parent
ADDRESSES = 8 << 30
"""Bytes of address space of a child: the machine stays usable whatever a case asks for."""
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate"}


@dataclass(frozen=True)
class Outcome:
    """How a child ended: exit code (minus the signal's number where one ended it), peak memory, what it printed and loaded."""

    code: int
    seconds: float
    worked: float
    """Seconds of the processor."""
    peak: int
    """Bytes of memory, those shared with the server included."""
    late: bool
    """It was ended because its time was over."""
    printed: str
    changes: int
    """Changes of files below ``watch``."""
    loaded: Any


class Server:
    """The process that forks. ``setup``: modules below tests/ that it imports first; ``loaded`` names functions in them."""

    def __init__(self, scratch: Path, *setup: str) -> None:
        places = [TESTS, *(path for path in TESTS.iterdir() if path.is_dir()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, places))}
        command = [sys.executable, __file__, *setup]
        self._process = subprocess.Popen(command, text=True, stdin=-1, stdout=-1, env=environment)
        self._scratch = scratch

    def run(
        self,
        *arguments: object,
        loaded: tuple[object, ...] = (),
        timeout: float = 600,
        processor: int = 600,
        kill_after: float | None = None,
        kill_at: int | None = None,
        watch: Path | None = None,
        inside: bool = False,
    ) -> Outcome:
        """Run ``fastntk …``; ``loaded``: a function's name and its arguments, called where the command ended with 0 or 3.

        ``timeout``: seconds by the clock; ``processor``: by the processor, which a busy machine does not spoil.
        """
        order = {
            "arguments": [str(argument) for argument in arguments],
            "loaded": [str(part) for part in loaded],
            "timeout": timeout,
            "processor": processor,
            "kill_after": kill_after,
            "kill_at": kill_at,
            "watch": None if watch is None else str(watch),
            "inside": inside,
            "file": str(self._scratch / "printed"),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def inside(self, *arguments: object) -> None:
        """Run a command in the server itself, where it has to succeed."""
        outcome = self.run(*arguments, inside=True)
        assert outcome.code in (0, 3), outcome.printed

    def close(self) -> None:
        self._process.communicate(timeout=60)


@contextlib.contextmanager
def server(scratch: Path, *setup: str) -> Iterator[Server]:
    """A server that is gone when the block ends."""
    process = Server(scratch, *setup)
    try:
        yield process
    finally:
        process.close()


# In the server.


def _serve(setup: list[str]) -> None:
    modules = [importlib.import_module(name) for name in setup]
    functions = {name: value for module in modules for name, value in vars(module).items() if callable(value)}
    answers = os.fdopen(os.dup(1), "w")
    _print_to(os.devnull)
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(_inside(order) if order["inside"] else _forked(order, functions)) + "\n")
        answers.flush()


def _inside(order: dict[str, Any]) -> dict[str, Any]:
    _print_to(order["file"])
    started = time.perf_counter()
    code = _command(order["arguments"])
    ended = {"code": code, "seconds": time.perf_counter() - started, "printed": _read(order["file"])}
    return ended | {"worked": 0.0, "peak": 0, "late": False, "changes": 0, "loaded": None}


def _forked(order: dict[str, Any], functions: dict[str, Any]) -> dict[str, Any]:
    extra = Path(order["file"] + ".json")
    extra.unlink(missing_ok=True)
    started, late = time.perf_counter(), False
    child = os.fork()
    if not child:
        code = 1
        try:
            code = _child(order, functions, extra)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        seconds = time.perf_counter() - started
        if done:
            break
        late = seconds > order["timeout"]
        if late or (order["kill_after"] is not None and seconds > order["kill_after"]):
            os.kill(child, signal.SIGKILL)  # its own child, not waited for yet: the id is nobody else's
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.001)
    known = json.loads(extra.read_text()) if extra.exists() else {"changes": 0, "loaded": None}
    code = os.waitstatus_to_exitcode(status)
    worked = usage.ru_utime + usage.ru_stime
    late |= code == -signal.SIGXCPU
    ended = {"code": code, "seconds": seconds, "worked": worked, "peak": 1024 * usage.ru_maxrss, "late": late}
    return ended | known | {"printed": _read(order["file"])}


def _child(order: dict[str, Any], functions: dict[str, Any], extra: Path) -> int:
    _print_to(order["file"])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (order["processor"], order["processor"] + 1))
    count = _count_changes(order["watch"], order["kill_at"])
    code = _command(order["arguments"])
    changes = count[0]
    loaded = None
    if code in (0, 3) and order["loaded"]:
        name, *arguments = order["loaded"]
        try:
            loaded = functions[name](*arguments)
        except InputError as error:  # the command read less of it than the function does
            loaded = {"refused": str(error)}
    extra.write_text(json.dumps({"changes": changes, "loaded": loaded}))
    return code


def _count_changes(watch: str | None, kill_at: int | None) -> list[int]:
    """Count changes of files below a folder from now on; just before the one of this number the process kills itself."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if (writes or event in CHANGES) and watch is not None and str(arguments[0]).startswith(watch):
            count[0] += 1
            if count[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if watch is not None:
        sys.addaudithook(hook)
    return count


def _command(arguments: list[str]) -> int:
    from fastntk.cli import main

    sys.argv = ["fastntk", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _print_to(file: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def _read(file: str) -> str:
    with open(file, errors="replace") as stream:
        return stream.read(1 << 16)


if __name__ == "__main__":
    _serve(sys.argv[1:])
