"""``overwrite`` replaces only what the same kind of command made, with nothing of the user's in it, and says what goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.atomic import new_folder
from fastntk.base.errors import InputError
from fastntk.base.marks import check_audit, check_report
from fastntk.cli.demo import check_demo
from fastntk.storage.replacing import replaceable
from fastntk.storage.results import save_result
from fastntk.storage.runs import save_run

PAGE = '<html>\n<head>\n<meta name="generator" content="fastntk 1">\n<title>Unlearning report: …</title>'
RECORD = '{\n "schema": "fastntk-audit/1",'


def tiny_run() -> fastntk.Run:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    samples = fastntk.Samples(torch.eye(4), [0, 1, 0, 1])
    return fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=1), trace=True)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def note(folder: Path) -> None:
    (folder / "my notes.txt").write_text("three weeks of work")


def deep_note(folder: Path) -> None:
    (folder / "trace" / "notes.txt").write_text("three weeks of work")


def rows(folder: Path) -> None:
    (folder / "rows").mkdir()
    (folder / "rows" / "body.bin").write_bytes(b"0")


def own_page(folder: Path) -> None:
    (folder / "report.html").write_text("<html><title>My own page</title>")


def own_audit(folder: Path) -> None:
    (folder / "audit.json").write_text('{"mine": true}')


def link(folder: Path) -> None:
    (folder / "data").symlink_to("/")


def broken_seal(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"created": "2020-01-01T00:00:00+00:00"}))


ADDED = {
    note: r"manifest does not list: my notes\.txt",
    deep_note: r"manifest does not list: trace/notes\.txt",
    rows: r"manifest does not list: rows/body\.bin",
    link: r"manifest does not list: data",
    own_page: r"report\.html does not start as a report of fastntk",
    own_audit: r"audit\.json does not start as an audit record",
    broken_seal: r"its own digest does not match",
}


@pytest.mark.parametrize("add", ADDED, ids=lambda add: add.__name__)
def test_a_run_with_anything_else_in_it_is_not_replaced(add: Callable[[Path], None], tmp_path: Path) -> None:
    run = tiny_run()
    run.save(tmp_path / "run")
    add(tmp_path / "run")
    before = content(tmp_path / "run")
    with pytest.raises(InputError, match=ADDED[add]):
        save_run(run, tmp_path / "run", overwrite=True)
    assert content(tmp_path / "run") == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_does_not_replace_a_result_nor_a_result_a_run(tmp_path: Path) -> None:
    run = tiny_run()
    result = fastntk.unlearn(run, ids=[1])
    save_result(result, tmp_path / "result")
    run.save(tmp_path / "run")
    with pytest.raises(InputError, match="holds a 'result'; expected 'run'"):
        save_run(run, tmp_path / "result", overwrite=True)
    with pytest.raises(InputError, match="holds a 'run'; expected 'result'"):
        save_result(result, tmp_path / "run", overwrite=True)


def test_what_goes_with_a_result_is_said(tmp_path: Path) -> None:
    result = fastntk.unlearn(tiny_run(), ids=[1])
    folder = save_result(result, tmp_path / "result")
    (folder / "audit.json").write_text(RECORD)
    (folder / "report.html").write_text(PAGE)
    first, *others = replaceable("result")(folder)
    assert first.startswith("a result of 20")
    assert others == ["its trace", "its audit.json", "its report.html"]
    save_result(result, folder, overwrite=True)
    assert not (folder / "audit.json").exists()


def test_files_that_came_while_it_worked_are_kept(tmp_path: Path) -> None:
    folder = tiny_run().save(tmp_path / "run")
    with pytest.raises(InputError, match=r"my notes\.txt"), new_folder(folder, overwrite=True, replaceable=replaceable("run")):
        note(folder)
    assert (folder / "my notes.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("check", [check_report, check_audit])
def test_single_files_are_known_by_their_head(check: Callable[[Path], tuple[str, ...]], tmp_path: Path) -> None:
    weights = tmp_path / "tuned.safetensors"
    weights.write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(InputError, match="does not start as"):
        check(weights)
    (tmp_path / "link").symlink_to(weights)
    with pytest.raises(InputError, match="no plain file"):
        check(tmp_path / "link")
    (tmp_path / "ours").write_text(PAGE if check is check_report else RECORD)
    assert check(tmp_path / "ours")


def test_tuned_files_replace_tuned_files_only(tmp_path: Path) -> None:
    subset = tiny_run().subset
    fastntk.save_tuned(subset, tmp_path / "tuned.safetensors")
    fastntk.save_tuned(subset, tmp_path / "tuned.safetensors", overwrite=True)
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="does not look like something this command wrote"):
        fastntk.save_tuned(subset, tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_demo_with_notes_in_it_is_not_replaced(tmp_path: Path) -> None:
    run = tiny_run()
    run.save(tmp_path / "run")
    for name in ("result", "result-images"):
        save_result(fastntk.unlearn(run, ids=[1]), tmp_path / name)
    (tmp_path / "demo.json").write_text('{"format": "fastntk-demo"}')
    assert check_demo(tmp_path) == ("an earlier demo", "run/", "result/", "result-images/")
    note(tmp_path)
    with pytest.raises(InputError, match="my notes"):
        check_demo(tmp_path)
    (tmp_path / "my notes.txt").rename(tmp_path / "run" / "my notes.txt")
    with pytest.raises(InputError, match="my notes"):
        check_demo(tmp_path)
