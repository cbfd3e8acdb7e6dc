"""Signals: a command that is asked to end cleans up, says what is true, and leaves with 128 + the signal's number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fastntk.cli import signals
from fastntk.cli.app import app

HOLD = """
import sys, time
from pathlib import Path
from fastntk.base.atomic import new_folder, remove_folder
from fastntk.cli import main
from fastntk.cli.app import app

def wait():
    print("ready", flush=True)
    for _ in range(600):  # short sleeps: a signal that comes just before one begins is only seen after it
        time.sleep(0.1)

@app.command()
def hold(target: Path, stage: str) -> None:
    with new_folder(target) as work:
        (work / "weights").write_text("w")
        if stage == "before":
            wait()
    if stage == "erased":
        remove_folder(target)
    wait()

main()
"""
TALK = """
import sys
from pathlib import Path
from fastntk.base.atomic import new_folder
from fastntk.cli import main
from fastntk.cli.app import app
from fastntk.cli.output import Output

@app.command()
def talk(target: Path, as_json: bool = False) -> None:
    output = Output(as_json=as_json)
    with new_folder(target) as work:
        (work / "weights").write_text("w")
    output.say("ready")
    sys.stdin.readline()
    output.say("more")
    output.finish({"command": "talk"})

main()
"""
NUMBERS = {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM, "the terminal went": signal.SIGHUP}


def _dispose(hangup: signal.Handlers) -> None:
    """In the child: signals as at a terminal, also where the tests were started by nohup or in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, hangup)


def held(target: Path, stage: str, *, ignoring: bool = False) -> subprocess.Popen[str]:
    """A command that waits with its output unfinished, written or removed again."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, "hold", str(target), stage],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(_dispose, signal.SIG_IGN if ignoring else signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("word", NUMBERS)
@pytest.mark.parametrize("stage", ["before", "after", "erased"])
def test_a_signal_cleans_up_and_says_what_is_true(word: str, stage: str, tmp_path: Path) -> None:
    child = held(tmp_path / "out", stage)
    child.send_signal(NUMBERS[word])
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 128 + NUMBERS[word], errors
    done = {"before": "nothing was changed", "after": "out was written", "erased": "out was removed"}
    assert errors.startswith(f"{word}, ")
    assert errors.rstrip().endswith(done[stage])
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if stage == "after" else [])


def test_nohup_is_respected(tmp_path: Path) -> None:
    child = held(tmp_path / "out", "before", ignoring=True)
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM


def test_a_terminal_that_is_gone_does_not_hinder_the_clean_up(tmp_path: Path) -> None:
    child = held(tmp_path / "out", "before")
    assert child.stderr is not None
    assert child.stdout is not None
    child.stderr.close()
    child.stdout.close()
    child.send_signal(signal.SIGHUP)
    assert child.wait(timeout=60) == 128 + signal.SIGHUP
    assert list(tmp_path.iterdir()) == []


def test_a_second_farewell_does_not_interrupt_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_first", [])
    with pytest.raises(signals.Ended) as ended:
        signals._end(signal.SIGHUP, None)
    signals._end(signal.SIGHUP, None)
    signals._end(signal.SIGTERM, None)
    assert signals.exit_code(ended.value) == 129


def test_leaving_a_question_by_ctrl_c_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(folder: Path) -> None:
        raise typer.Abort

    monkeypatch.setattr("fastntk.cli.erase._confirm", asked)
    monkeypatch.setattr("fastntk.cli.erase._check_ours", lambda folder: "run")
    assert CliRunner().invoke(app, ["erase", str(tmp_path)]).exit_code == 130
    assert os.path.isdir(tmp_path)


def test_output_that_nobody_reads_any_more_ends_it_with_a_word(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", TALK, "talk", str(tmp_path / "out")], text=True, **pipes)  # type: ignore[call-overload]
    assert child.stdout.readline() == "ready\n"
    child.stdout.close()
    child.stdin.write("\n")
    child.stdin.close()
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    assert errors.startswith("ended, for nobody reads the output any more, ")
    assert errors.endswith("out was written\n")


def test_closed_streams_are_no_failure(tmp_path: Path) -> None:
    line = [sys.executable, "-c", TALK, "talk", str(tmp_path / "out"), "--as-json"]
    ran = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&- </dev/null', "sh", *line], check=False)
    assert ran.returncode == 0
    assert (tmp_path / "out" / "weights").is_file()


def test_a_full_disk_is_told_with_what_was_complete(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-c", TALK, "talk", str(tmp_path / "out"), "--as-json"]
        ran = subprocess.run(line, check=False, text=True, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("Error: the system refuses: No space left on device. Complete all the same: ")
    assert ran.stderr.endswith("out was written.\n")
