"""``fastntk reproduce`` end to end on tiny cells: killed and resumed, refused, planned, and the same figures in every format."""

from __future__ import annotations

import dataclasses
import html as html_module
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image
from tiny_cells import HERE, TINY, cut_down
from typer.testing import CliRunner

from fastntk import schemas
from fastntk.base.errors import InputError
from fastntk.cli.app import app
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.reproduce import cells as cells_module
from fastntk.reproduce.experiment import open_experiment
from fastntk.reproduce.render import tex
from fastntk.reproduce.selection import select_cells, settings_of
from fastntk.training.recipe import Recipe

FOLDER = Path(__file__).resolve().parent
COST = 14
"""The column of times, which no two runs share: after the method, the seeds, and three for each of the paper's four figures."""


def reproduce(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "CELLS", HERE)


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_module, "CELLS", HERE)
        return make(tmp_path_factory.mktemp("reproduce"))


@pytest.fixture
def finished(tiny: None, completed: Path) -> Path:
    return completed


def make(out: Path) -> Path:
    for table in ("table1", "table3"):
        result = reproduce(table, "--out", out, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["written"] == [
            str(out / f"{table}.{kind}") for kind in ("md", "tex", "html", "svg", "png")
        ]
    return out


def rows(text: str) -> list[list[str]]:
    """The body of the first Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:] if "---" not in line]


def test_killed_in_the_middle_and_started_again_gives_the_same_tables(finished: Path, tmp_path: Path) -> None:
    """kill -9 while a cell is worked on, twice, at different places; nothing is lost that was finished."""
    command = [sys.executable, str(FOLDER / "tiny_cells.py"), "reproduce", "table1", "--out", str(tmp_path), "--threads", "1"]
    for wanted in ("work/*/fit-seed0.safetensors", "records/tiny/class-0/max-loss-seed0.json"):
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=-3, stderr=-3)
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob(wanted)) and time.monotonic() < deadline:
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(tmp_path.glob(wanted))
    assert not (tmp_path / "table1.md").exists()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*-seed0.*") if not path.name.startswith(".")}
    assert reproduce("table1", "--out", tmp_path).exit_code == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (tmp_path / "table1.svg").read_bytes() == (finished / "table1.svg").read_bytes()
    ours, theirs = (rows((folder / "table1.md").read_text()) for folder in (tmp_path, finished))
    assert [row[:COST] + row[COST + 1 :] for row in ours] == [row[:COST] + row[COST + 1 :] for row in theirs]


def test_what_is_there_is_not_run_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "records").rglob("*.json")}
    result = reproduce("table1", "--out", finished, "--json")
    assert json.loads(result.stdout)["ran"] == 0
    assert {path: path.stat().st_mtime_ns for path in (finished / "records").rglob("*.json")} == before


def test_formats_agree_on_every_figure(finished: Path) -> None:
    for table, count in (("table1", 10), ("table3", 7)):
        figures = rows((finished / f"{table}.md").read_text())
        assert len(figures) == count
        page = (finished / f"{table}.html").read_text()
        cells = [html_module.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
        assert cells == [cell for row in figures for cell in row]
        source = (finished / f"{table}.tex").read_text()
        body = source[source.index(r"\midrule") : source.index(r"\bottomrule")].splitlines()[1:]
        assert [line.removesuffix(r" \\").split(" & ") for line in body] == [[tex(cell) for cell in row] for row in figures]


def test_the_table_holds_the_records_means_the_papers_figures_and_their_difference(finished: Path) -> None:
    record = json.loads((finished / "records/tiny/class-0/fast-ntk-seed0.json").read_text())
    row = next(row for row in rows((finished / "table1.md").read_text()) if row[0] == "fast-ntk")
    ours = 100 * record["audit"]["accuracy"]["retain"]["unlearned"]
    assert row[1:5] == ["1", f"{ours:.2f}", "65.60 ± 4.36", f"{ours - 65.60:+.2f}"]
    assert row[11:14] == [">2", "12.40 ± 0.80", "–"] if record["audit"]["relearn"]["unlearned"]["censored"] else row[11] != ">2"
    replay = next(row for row in rows((finished / "table1.md").read_text()) if row[0] == "tangent-replay")
    assert replay[3:5] == ["–", "–"]
    text = (finished / "table1.md").read_text()
    assert "Stand-in: ResNet-20 on digits for ResNet-110." in text
    assert text.count("ours (stand-in)") == 7
    assert float(row[COST]) > 0
    assert row[COST + 1 :] == ["–", "–"]  # one Retrain has no spread


def test_probes_have_both_readings_and_the_untrained_only_a_probe(finished: Path) -> None:
    table = {row[0]: row for row in rows((finished / "table3.md").read_text())}
    assert list(table) == ["pre-trained", "random-init", "full", "fast-ntk", "tangent-replay", "path-replay, head", "retrain"]
    audit = json.loads((finished / "records/tiny/class-0/retrain-seed0.json").read_text())["audit"]
    for name in ("retain", "forget", "holdout"):
        assert audit["probes"]["own_head"]["unlearned"][name] == audit["accuracy"][name]["unlearned"]
    assert table["pre-trained"][8] == table["random-init"][8] == "–"
    probes = json.loads((finished / "records/tiny/class-0/full-seed0.json").read_text())["audit"]["probes"]["linear_probe"]
    for label, probe in (("retrain", audit["probes"]["linear_probe"]["unlearned"]), ("random-init", probes["random"])):
        assert float(table[label][2]) == pytest.approx(100 * probe["retain"], abs=0.005)


def test_cells_that_were_not_run_are_marked(finished: Path, tmp_path: Path) -> None:
    result = reproduce("table1", "--out", tmp_path, "--methods", "full", "--work", finished / "work")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows((tmp_path / "table1.md").read_text())] == ["full"]
    (tmp_path / "records/tiny/class-0/full-seed0.json").unlink()
    from fastntk.reproduce.output import write_table

    write_table("table1", HERE[:1], out=tmp_path)
    text = (tmp_path / "table1.md").read_text()
    assert "Not run." in text
    assert all(row[1] == row[2] == "not run" and row[4] == "–" for row in rows(text))


def test_another_configuration_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = dataclasses.replace(HERE[0], setting=dataclasses.replace(TINY, recipe=Recipe(epochs=3, batch_size=4)))
    monkeypatch.setattr(cells_module, "CELLS", (longer,))
    result = reproduce("table1", "--out", finished)
    assert result.exit_code == 2
    assert "made by another configuration" in result.stderr


def test_what_is_made_again_is_said_with_kept_records_too(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = tuple(row._replace(options={"damping": 0.5}) if row.label == "fast-ntk" else row for row in TINY.methods)
    other = dataclasses.replace(HERE[0], setting=dataclasses.replace(TINY, methods=methods))
    monkeypatch.setattr(cells_module, "CELLS", (other,))
    for options in ([], ["--keep-stale"]):
        result = reproduce("table1", "--out", finished, "--plan", *options)
        assert "1 records are stale and made again: made with another method, options or request." in result.output
        assert ("0 steps are not done again" in result.output) == bool(options)


def test_plan_writes_nothing(tiny: None, tmp_path: Path) -> None:
    result = reproduce("table1", "--out", tmp_path / "new", "--plan", "--json")
    assert result.exit_code == 0, result.output
    jsonschema.validate(json.loads(result.stdout), schemas.load("reproduce"))
    (row,) = json.loads(result.stdout)["plan"]
    assert (row["trainings"], row["records"], row["seeds"]) == (2, 10, 1)
    assert row["seconds"] > 0
    assert "12 steps to do" in result.stderr
    assert not (tmp_path / "new").exists()


def test_plan_of_the_papers_own_settings_says_what_larger_machines_would_take(tmp_path: Path) -> None:
    result = reproduce("table1", "--real", "--models", "resnet110", "--out", tmp_path / "new", "--plan", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["expected"]
    assert [row["setting"] for row in rows] == [f"real-resnet110-{images}" for images in (100, 200, 500)]
    assert all(0 < row["gpu_seconds"] < row["cpu_seconds"] and row["memory_bytes"] > 0 for row in rows)


def test_interrupted_says_how_to_go_on(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastntk.reproduce.runner.run_steps", interrupted)
    result = reproduce("table1", "--out", tmp_path)
    assert result.exit_code == 130
    assert "To go on from here: fastntk" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9", "--out", "x"], "choose one of table1, table2, table3, table4"),
        (["table1", "--out", "x", "--models", "resnet999"], "resnet999 is not among"),
        (["table1", "--out", "x", "--models", ","], "nothing is not among"),
        (["table1", "--out", "x", "--methods", "absent"], "absent is not among full, max-loss"),
        (["table3", "--out", "x", "--methods", "max-loss"], "max-loss is not among pre-trained"),
        (["table1", "--out", "x", "--seeds", "0"], "At least one seed"),
        (["table1", "--out", "x", "--images-per-class", "many"], "whole numbers"),
        (["table1", "--out", "x", "--images-per-class", "7"], "7 is not among"),
        (["table2", "--out", "x", "--classes", "3"], "3 is not among"),
        (["table1", "--out", "x", "--threads", "0"], "threads"),
        (["table1"], "--out"),
        (["table1", "--out", "x", "--data-root", "nowhere"], "Not found: nowhere/data/cifar10-5k.npz, nowhere/weights/cifar100"),
        (["table1", "--real", "--out", "x", "--data-root", "none"], "none/data, none/weights/cifar100_resnet110.safetensors"),
        (["table1", "--out", __file__], "is a file"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = reproduce(*arguments)
    assert result.exit_code == 2
    assert message in re.sub(r"\x1b\[[0-9;]*m", "", result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_selection_by_options() -> None:
    names = lambda cells: [cell.setting.name for cell in cells]
    networks, sizes = ("resnet20", "mobilenetv2", "resnet110"), (100, 200, 500)
    assert names(select_cells("table1")) == [f"{network}-{images}" for network in networks for images in sizes]
    assert names(select_cells("table1", models=["mobilenetv2"], images_per_class=[200])) == ["mobilenetv2-200"]
    assert names(select_cells("table1", models=["resnet110"], images_per_class=[100])) == ["resnet110-100"]
    assert names(select_cells("table2", models=["vit_tiny"], classes=[20])) == ["real-vit_tiny-imagenet-r-20x50"]
    assert names(select_cells("table2", classes=[50])) == ["vit-caltech-50x20"]
    assert len(select_cells("table2", real=True)) == 6
    (cell,) = select_cells("table4", methods=["retrain", "path-replay-head", "full"])
    assert [method.label for method in cell.setting.methods] == ["full", "path-replay, head", "retrain"]
    with pytest.raises(InputError, match="not among"):
        select_cells("table2", classes=[20], images_per_class=[20])


def test_another_number_of_seeds_is_another_folder_unless_the_retrains_are_the_same() -> None:
    (default,) = select_cells("table4")
    (several,) = select_cells("table4", seeds=3)
    (single,) = select_cells("table4", seeds=1)
    assert (several.setting.digest, several.setting.name) == (default.setting.digest, default.setting.name)
    assert single.setting.name == "vit-cifar10-100-1seeds"
    assert single.setting.training_digest == default.setting.training_digest
    assert len(settings_of([default, default])) == 1


@pytest.fixture
def public_files(tmp_path: Path) -> Path:
    """CIFAR-10 and ImageNet-R in their publishers' layouts, a few tiny images of each."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [b"airplane", b"cat", b"truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = draw.integers(0, 256, (3, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({b"labels": [0, 1, 2], b"data": pixels}, protocol=2))
    for number in range(200):
        place = tmp_path / "data" / "imagenet-r" / f"n{number:08d}"
        place.mkdir(parents=True)
        for image in range(4):
            Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / f"art_{image}.jpg")
    return tmp_path


@pytest.mark.filterwarnings("ignore:the installed torchvision")
def test_the_papers_own_settings_run_on_files_in_the_public_layouts(public_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_operators()
    pytest.importorskip("timm")
    small = cut_down()
    monkeypatch.setattr(cells_module, "CELLS", small)
    for table in ("table1", "table2"):
        result = reproduce(table, "--real", "--out", public_files / "out", "--data-root", public_files)
        assert result.exit_code == 0, result.output
        assert "stand-in" not in (public_files / f"out/{table}-real.md").read_text()
        assert not (public_files / f"out/{table}.md").exists()
    vit = open_experiment(small[1].setting, shared=public_files, work=public_files / "work")
    classes = vit.samples.classes
    assert classes is not None
    assert list(classes) != sorted(classes)
    assert vit.holdout.classes == classes
    assert (len(vit.samples), len(vit.holdout)) == (6, 3)
    assert not set(vit.samples.ids) & set(vit.holdout.ids)
    other = dataclasses.replace(small[1].setting, class_draw=1)
    assert open_experiment(other, shared=public_files, work=public_files / "work").samples.classes != classes
    assert other.training_digest != small[1].setting.training_digest
