"""A deletion request under odd circumstances: files that will not go, links, keys that are away, pictures that are gone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from invoking import command
from PIL import Image

import fastntk
from fastntk.base.atomic import leftovers
from fastntk.cli.request import RequestedIds, open_run
from fastntk.data.digits import open_digits
from fastntk.storage.keys import key_file

NAMES = ("Ada L.", "Bob", "çé")
EACH = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with spaces and accents: digits, one a person; and beside them a run."""
    digits, root = open_digits("train"), tmp_path_factory.mktemp("made") / "photos ü"
    for label, name in enumerate(NAMES):
        rows = np.flatnonzero(digits.labels == label).tolist()
        for split, some in (("train", rows[:EACH]), ("holdout", rows[EACH : EACH + 2])):
            (root / split / name).mkdir(parents=True)
            for number, row in enumerate(some):
                Image.fromarray(np.asarray(digits.read(row))).save(root / split / name / f"im {number}.png")
    fine_tuned(root)
    return root


@pytest.fixture
def photos(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / made.name))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """The run that all tests share, in a folder of the test's own."""
    return Path(shutil.copytree(made.parent / "fotos ä", tmp_path / "fotos ä"))


def fine_tuned(photos: Path, *options: object) -> Path:
    run = photos.parent / "fotos ä"
    small = ("--weights", "cifar100", "--epochs", "1", "--batch-size", "9")
    command("finetune", "resnet20", "--data", f"{photos}@train", *small, *options, "--out", run)
    return run


def test_files_that_will_not_go_are_named_and_never_called_removed(
    photos: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def stubborn(path: Any, **options: Any) -> None:
        if str(path).endswith("samples.bin"):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", stubborn)
        said = command("erase", run, "--yes", code=2).output
        assert "is gone under its name, but not all of its files" in said
        (hidden,) = leftovers(run)
        assert hidden.name in said
        assert (hidden / "trace" / "samples.bin").exists()
        assert "refuses to remove" in command("erase", run, "--yes", code=2).output
    assert "the remainder of an interrupted command beside it is removed" in command("erase", run, "--yes").output
    assert leftovers(run) == []


def test_folders_without_permission_go_all_the_same(photos: Path, run: Path) -> None:
    (run / "trace").chmod(0o555)
    command("erase", run, "--yes")
    assert list(run.parent.iterdir()) == [photos]


def test_a_damaged_file_of_keys_is_said_before_anything_is_removed(photos: Path, run: Path) -> None:
    result = photos.parent / "result"
    command("unlearn", run, "--classes", "0", "--depth", "head", "--out", result)
    kept = key_file(result).read_bytes()
    key_file(result).write_text("no key\n")
    assert "is no file of keys" in command("erase", result, "--yes", code=2).output
    assert result.exists()
    key_file(result).write_bytes(kept)
    command("erase", result, "--yes")
    assert not key_file(result).exists()


@pytest.mark.parametrize("more", ["--data|{photos}@train", "--no-images"])
def test_the_planned_command_asks_for_all_that_was_asked(photos: Path, run: Path, more: str) -> None:
    ids = photos.parent / "gone.txt"
    ids.write_text("Ada L./im 0.png\nAda L./im 1.png\n")
    asked = ["--classes", "Bob", "--ids-file", str(ids), *more.format(photos=photos).split("|")]
    (line,) = (each for each in command("plan", run, *asked).output.splitlines() if each.startswith("Next: "))
    words = shlex.split(line.removeprefix("Next: "))
    assert words[:3] == ["fastntk", "unlearn", str(run)]
    assert set(asked) <= set(words)
    result = photos.parent / "the result"
    command(*words[1 : words.index("--out")], *words[words.index("--out") + 2 :], "--out", result)
    assert json.loads((result / "manifest.json").read_text())["extra"]["request"]["forget"] == EACH + 2
    named = command("plan", run, "--classes", "Bob", "--ids", "Ada L./im 0.png", "--no-images").output
    assert "--classes Bob --ids ID,ID --method" in named  # ids are not repeated, nor left out


def test_an_id_with_a_comma_belongs_on_a_line_of_its_own(photos: Path) -> None:
    (photos / "train" / "Bob" / "im 0.png").rename(photos / "train" / "Bob" / "a, b.png")
    (photos / "train" / "Bob" / "im 1.png").rename(photos / "train" / "Bob" / "#1.png")
    run = fine_tuned(photos)
    refused = command("unlearn", run, "--ids", "Bob/a, b.png", "--out", photos.parent / "x", code=2)
    assert "'Bob/a, b.png' has one itself. Put it on a line of --ids-file" in " ".join(refused.stderr.split())
    both = fastntk.Samples(torch.zeros(3, 1), [0, 0, 0], ids=("a", "b", "a,b"))
    assert RequestedIds(("a", "b"), None, (), None).resolve(both) == ("a", "b")  # the parts are ids themselves
    lines = photos.parent / "ids.txt"
    lines.write_text("# a comment\nBob/a, b.png\nBob/#1.png  # another\n")
    result = photos.parent / "result"
    command("unlearn", run, "--ids-file", lines, "--depth", "head", "--out", result)
    assert json.loads((result / "manifest.json").read_text())["extra"]["request"]["forget"] == 2


def test_hidden_names_need_their_key(photos: Path) -> None:
    run = fine_tuned(photos, "--class-names", "hidden")
    key, link = key_file(run), photos.parent / "current"
    link.symlink_to(run)
    command("unlearn", link, "--classes", "1", "--depth", "head", "--out", photos.parent / "by-link")  # the key is beside the run
    away = key.rename(key.with_suffix(".away"))
    said = command("unlearn", run, "--classes", "1", "--out", photos.parent / "result", code=2).output
    assert "class names of this run are hidden" in said
    assert "do without images: --no-images" in " ".join(said.split())
    assert not (photos.parent / "result").exists()
    blind = photos.parent / "blind"  # by another key than its names, so it knows no source
    command("unlearn", run, "--classes", "1", "--no-images", "--out", blind)
    assert json.loads((blind / "manifest.json").read_text())["source"] is None
    assert (
        "does not say where its data came from" in command("unlearn", blind, "--ids", "çé/im 0.png", "--out", f"{blind}2").output
    )
    away.rename(key)
    command("unlearn", run, "--classes", "1", "--depth", "head", "--out", photos.parent / "result")
    command("unlearn", photos.parent / "result", "--ids", "çé/im 0.png", "--depth", "head", "--out", photos.parent / "next")


def test_a_linked_archive_stays_linked(tmp_path: Path) -> None:
    digits = open_digits("train")
    pictures = np.stack([np.asarray(digits.read(row)) for row in range(20)])
    np.savez(tmp_path / "blob.npz", x=pictures, y=digits.labels[:20])
    blob = (tmp_path / "blob.npz").rename(tmp_path / "abc123")
    (tmp_path / "data.npz").symlink_to(blob)
    command("finetune", "resnet20", "--data", tmp_path / "data.npz", "--epochs", "0", "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["source"]["data"] == str(tmp_path / "data.npz")


def test_pictures_that_are_gone_do_not_change_the_selection(photos: Path) -> None:
    """The first five of each class, without a trace: deleting a forgotten one moves the sixth up, which was never seen."""
    run, results = fine_tuned(photos, "--images-per-class", 5, "--no-trace"), photos.parent / "results"
    command("unlearn", run, "--ids", "Bob/im 0.png", "--method", "fast-ntk", "--out", results / "first")
    (photos / "train" / "Bob" / "im 0.png").unlink()
    command("unlearn", results / "first", "--ids", "Bob/im 1.png", "--method", "fast-ntk", "--out", results / "second")
    (photos / "train" / "Bob" / "im 1.png").unlink()
    command("unlearn", results / "second", "--ids", "çé/im 4.png", "--method", "fast-ntk", "--out", results / "third")
    assert json.loads((results / "third" / "manifest.json").read_text())["data"]["per_class"] == [5, 3, 4]


def test_requests_in_a_row_in_python_know_what_the_first_one_removed(photos: Path) -> None:
    run = open_run(fine_tuned(photos, "--no-trace"), None)
    first = fastntk.unlearn(run, ids=["Bob/im 0.png"], method="fast-ntk")
    second = fastntk.unlearn(first.as_run(), ids=["Bob/im 1.png"], method="fast-ntk")
    fastntk.save_result(second, photos.parent / "second")
    second.as_run().save(photos.parent / "as-run")
    again = [open_run(photos.parent / folder, None) for folder in ("second", "as-run")]
    assert [list(each.data.ids) for each in again] == [list(second.retained.ids)] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes=--5"], "unknown classes"),
        (["--classes", "0", "--memory-budget", "1e400"], "is no amount of memory"),
        (["--classes", "0", "--option", "budget=inf"], "budget must be a share of a Retrain"),
        (["--classes", "0", "--method", "retrain", "--seed", str(2**62 + 1)], "--seed"),
    ],
)
def test_odd_values_are_refused_as_wrong_usage(photos: Path, run: Path, arguments: list[str], message: str) -> None:
    said = command("unlearn", run, *arguments, "--out", photos.parent / "result", code=2).output
    assert message in said.replace("\n", " ")


def test_numbers_that_no_record_holds_are_refused_before_the_work(photos: Path, run: Path) -> None:
    command("finetune", "resnet20", "--data", f"{photos}@train", "--seed", 10**22, "--out", photos.parent / "run", code=2)
    with pytest.raises(fastntk.InputError, match=r"Recipe\.seed must be at most"):
        fastntk.Recipe(seed=10**22)
    result = photos.parent / "result"
    command("unlearn", run, "--classes", "0", "--depth", "head", "--out", result)
    odd = ("--relearn-threshold", "inf", "--reference", "retrain")
    said = command("audit", run, result, "--holdout", f"{photos}@holdout", *odd, code=2).output
    assert "relearn_threshold must be finite" in said
    assert not (result / "audit.json").exists()


def test_a_loop_of_links_is_no_fault_of_ours(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "is a link" in command("erase", tmp_path / "loop", "--yes", code=2).output


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_streams_that_are_not_utf8_end_no_command(run: Path, encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
    for more in ([], ["--json"]):
        words = [sys.executable, "-m", "fastntk", "info", str(run), *more]
        done = subprocess.run(words, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode(encoding)
    assert json.loads(done.stdout.decode(encoding))["folder"] == str(run)
