"""The lab's own experiments on a few digits: documents from records, single removals, settings that stay apart, options."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.__main__ import main
from lab.development_page import development_page
from lab.path_page import path_page
from lab.settings import DEVELOPMENT, UNLEARNING
from lab.unlearning_page import page
from tiny_cells import TINY as BASE

from fastntk.reproduce import MethodRow, Request, plan, run_steps
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.records import without
from lab import ROOT, at_once, single

TINY = replace(
    BASE,
    requests=(Request("class", 0), Request("random", 0.2, draw_seed=100)),
    seeds=(100,),
    extra_retrain_seeds=(101, 102),
    methods=(MethodRow("fast-ntk", "fast-ntk"), MethodRow("retrain", "retrain")),
    probes=False,
)
VARYING = ("environment", "wall", "cpu", "rows_wall", "record_sha256")


def document(out: Path) -> str:
    return page([TINY], single=[], out=out)


def records(out: Path) -> dict[str, Any]:
    paths = sorted(out.rglob("*.json"))
    return {str(path.relative_to(out)): without(json.loads(path.read_text()), *VARYING) for path in paths}


def test_trials_without_accuracies_and_plain_tables_have_their_place(tmp_path: Path) -> None:
    folder = tmp_path / "development"
    folder.mkdir()
    trial = {"setting": "s", "request": "r", "variant": "v", "recovered": 1.0, "same": {"forget": 0.5, "holdout": 0.25}}
    accuracy = {"accuracy": {"retain": 70.0, "forget": 0.0, "holdout": 60.0}}
    (folder / "a.json").write_text(json.dumps({"schema": 1, "what": "one", "notes": ["Why."], "rows": [trial]}))
    (folder / "b.json").write_text(json.dumps({"schema": 1, "what": "two", "rows": [trial | accuracy]}))
    table = {"columns": ["epoch", "size"], "rows": [[1, "0.19"]]}
    (folder / "c.json").write_text(json.dumps({"schema": 1, "what": "three", "table": table}))
    text = development_page([], out=tmp_path)
    assert "## One\n\nWhy.\n\n| setting |" in text
    assert "| s | r | v | 1 | – | – | – | 1.00 | 0.50× / 0.25× | – |" in text
    assert "| s | r | v | 1 | 70.0 | 0.0 | 60.0 | 1.00 | 0.50× / 0.25× | – |" in text
    assert text.endswith("## Three\n\n| epoch | size |\n| --- | --- |\n| 1 | 0.19 |\n")


def test_the_document_is_the_same_bytes_and_marks_what_was_not_run(tmp_path: Path) -> None:
    out = tmp_path / "all"
    run_steps(plan([TINY], out=out, work=out / "work"), shared=Path("nowhere"), work=out / "work", say=lambda text: None)
    text = document(out)
    assert text == document(out)
    developed = development_page([TINY], out=out)
    assert "### tiny: forget class 0" in developed
    shutil.copyfile(out / "records/tiny/class-0/fast-ntk-seed100.json", out / "records/tiny/class-0/other-seed100.json")
    assert (document(out), development_page([TINY], out=out)) == (text, developed), "a record on no row is not counted"
    rows = [line for line in text.splitlines() if line.startswith("| retrain |")]
    assert len(rows) == 2
    assert all("[1.00×]" in row for row in rows)
    assert "not run" not in text
    shutil.copytree(out / "records", tmp_path / "records")
    (tmp_path / "records/tiny/class-0/fast-ntk-seed100.json").unlink()
    lines = [line for line in document(tmp_path).splitlines() if line.startswith("| fast-ntk |")]
    assert lines[0] == "| fast-ntk |" + " not run |" * 14
    assert "not run" not in lines[1]


def test_single_removals_resume_and_correlate(tmp_path: Path) -> None:
    setting = dataclasses.replace(
        TINY,
        requests=(),
        extra_retrain_seeds=(),
        methods=(MethodRow("tangent-replay", "tangent-replay", {"validate": False}),),
    )
    folders = {"whole": tmp_path / "whole", "resumed": tmp_path / "resumed"}
    for out in folders.values():
        single.run(setting, out=out, work=out / "work", shared=Path("x"), removals=3, say=lambda text: None)
    lost = folders["resumed"] / "single/tiny/removal-001.json"
    lost.unlink()
    single.run(setting, out=lost.parents[2], work=tmp_path / "new", shared=Path("x"), removals=3, say=lambda text: None)
    assert records(folders["whole"]) == records(folders["resumed"])
    ids = [record["id"] for name, record in records(folders["whole"]).items() if "removal" in name]
    assert len(set(ids)) == 3
    text = page([], single=[setting], out=folders["whole"])
    assert "| tangent-replay | 3 |" in text


def test_single_removals_of_a_recorded_run_share_what_was_computed(tmp_path: Path) -> None:
    head = MethodRow("head", "path-replay", {"depth": "head", "validate": False})
    rows = MethodRow("all", "path-replay", {"depth": "all", "checkpoints": 1, "validate": False})
    setting = dataclasses.replace(TINY, requests=(), extra_retrain_seeds=(), methods=(head, rows))
    single.run(setting, out=tmp_path, work=tmp_path / "work", shared=Path("x"), removals=3, say=lambda text: None)
    found = [
        record["methods"]["all"]["details"]["rows_reused"] for name, record in records(tmp_path).items() if "removal" in name
    ]
    assert found == [False, True, True]
    text = path_page([], single=[setting], out=tmp_path)
    assert "| head | 3 |" in text
    samples = open_experiment(setting, shared=Path("x"), work=tmp_path / "work").samples
    for count in (3, len(samples)):
        assert f"| `removals`, all, 1 checkpoint | {count} in one call |" in text


def test_removals_in_one_call_are_those_one_by_one(tmp_path: Path) -> None:
    """From rows alone, as ``removals`` does it; the images' features are those of their last visit there."""
    options = {"depth": "all", "checkpoints": 1, "exact": 0, "validate": False}
    setting = dataclasses.replace(TINY, requests=(), extra_retrain_seeds=(), methods=(MethodRow("all", "path-replay", options),))
    single.run(setting, out=tmp_path, work=tmp_path / "work", shared=Path("x"), removals=3, say=lambda text: None)
    found = records(tmp_path)
    together = next(record for name, record in found.items() if name.endswith(at_once.FILE))
    for call in together["calls"]:
        assert len(call["changes"]) == 3
    for record in (record for name, record in found.items() if "removal-" in name):
        alone = record["methods"]["all"]["loss"] - record["full"]["loss"]
        for call in together["calls"][2:]:
            assert call["changes"][record["id"]]["loss"] == pytest.approx(alone, rel=0.2)


def test_reported_settings_and_development_settings_do_not_meet() -> None:
    reported = {(s.model, request.name) for s in UNLEARNING for request in s.requests}
    tried = {(s.model, request.name) for s in DEVELOPMENT for request in s.requests}
    assert not reported & tried
    assert min(seed for s in DEVELOPMENT for seed in s.seeds) >= 100
    assert max(seed for s in UNLEARNING for seed in s.retrain_seeds) < 100
    assert all(len(s.retrain_seeds) >= 3 for s in UNLEARNING)
    assert {request.value for s in DEVELOPMENT for request in s.requests if request.kind == "class"} <= {7, 8, 9}


def test_pages_go_where_the_options_say_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder: what is read and written is the repository's own, or what was named."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "docs").mkdir(parents=True)
    shutil.copyfile(ROOT / "README.md", elsewhere / "README.md")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    page_options = ["--docs", str(elsewhere / "docs"), "--readme", str(elsewhere / "README.md")]
    assert main(["pages", "unlearning", "development", *page_options]) == 0
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in (elsewhere / "docs").iterdir()) == ["results-development.md", "results-unlearning.md"]
    assert main(["pages", "absent", *page_options]) == 2
    assert main(["run", "unlearning", "--settings", "absent", "--out", str(tmp_path / "new")]) == 2


def test_the_package_does_not_know_the_lab() -> None:
    """Every module of the package imports with the package alone on the path."""
    code = "import pkgutil, fastntk as f; [__import__(m.name) for m in pkgutil.walk_packages(f.__path__, 'fastntk.')]"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd="/")
