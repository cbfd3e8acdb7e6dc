"""Names that others chose reach the terminal as text, never as commands to it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fastntk.base.progress import show_progress, track
from fastntk.base.text import printable, printable_json
from fastntk.cli.app import app
from fastntk.cli.output import Output, note

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202egnp.\udce9z"
SHOWN = "a\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\r\\x08\\u202egnp.\\udce9z"


def test_printable() -> None:
    assert printable(HOSTILE) == SHOWN
    plain = "日本語\tcafé — 3 × 4 …\nnext line 👩\u200d🔬"
    assert printable(plain) == plain


def test_json_stays_what_it_was() -> None:
    text = printable_json(json.dumps({HOSTILE: [HOSTILE, "é"]}, indent=1, ensure_ascii=False))
    assert json.loads(text) == {HOSTILE: [HOSTILE, "é"]}
    assert text.isprintable() or set(text) & {"\n"}
    assert not set(text) & set("\x1b\x9b\u202e\udce9")


def test_all_that_a_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        output = Output(as_json=as_json)
        output.say(HOSTILE)
        output.facts({HOSTILE: HOSTILE})
        output.table([HOSTILE, "b"], [[HOSTILE, 1]], title=HOSTILE)
        output.finish({HOSTILE: HOSTILE}, wrote=HOSTILE, then=HOSTILE)
    note(HOSTILE)
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert SHOWN in err
    assert not set(out + err) & set("\x1b\x07\x9b\r\x08\u202e\udce9")


def test_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("fastntk.base.progress.Console", lambda **_: Console(file=stream, force_terminal=True, width=200))
    with show_progress():
        assert list(track([1, 2], f"reading [/nothing] {HOSTILE}")) == [1, 2]  # brackets are no markup either
    assert "[/nothing]" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()


def test_errors(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("x\x1b[2Jy")
    outcome = CliRunner().invoke(app, ["plan", str(tmp_path / "gone\x1b[2J"), "--ids-file", str(tmp_path / "ids.txt")])
    assert outcome.exit_code == 2
    assert "\x1b[2J" not in outcome.output
    assert "gone\\x1b[2J" in outcome.output


def test_arguments_that_are_no_text_are_refused_before_any_work(tmp_path: Path) -> None:
    command = [os.fsencode(sys.executable), b"-m", b"fastntk.cli", b"finetune", b"resnet20", b"--data", b"digits"]
    ran = subprocess.run([*command, b"--out", os.fsencode(tmp_path) + b"/caf\xe9"], capture_output=True, check=False)
    assert ran.returncode == 2
    assert rb"not UTF-8: '" in ran.stderr
    assert rb"caf\udce9" in ran.stderr
    assert ran.stdout == b""
    assert not list(tmp_path.iterdir())


def test_data_in_a_folder_that_cannot_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    (folder / "photos" / "cat").mkdir(parents=True)
    monkeypatch.chdir(folder)
    outcome = CliRunner().invoke(app, ["finetune", "resnet20", "--data", "photos", "--out", str(tmp_path / "run")])
    assert outcome.exit_code == 2
    assert "the path of the data is not UTF-8" in outcome.output
