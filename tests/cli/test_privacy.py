"""What a stolen result, audit or report gives away: searched for, byte by byte, after a whole chain on the command line."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from invoking import command
from PIL import Image

import fastntk
from fastntk.auditing.predictions import observe
from fastntk.cli.request import open_run
from fastntk.data.digits import open_digits
from fastntk.storage.keys import key_file
from fastntk.storage.results import load_result

PEOPLE = ("Ada Lovelace", "Grace Hopper", "Mary Shelley")
GONE, EACH = PEOPLE[1], 9


def portraits(root: Path) -> Path:
    """Two splits of pictures in folders that are called like people: digits, one digit a person."""
    digits = open_digits("train")
    for label, person in enumerate(PEOPLE):
        rows = np.flatnonzero(digits.labels == label)
        for split, some in (("train", rows[:EACH]), ("holdout", rows[EACH : EACH + 4])):
            (root / split / person).mkdir(parents=True)
            for row in some.tolist():
                Image.fromarray(np.asarray(digits.read(row))).save(root / split / person / f"portrait-{row:05d}.png")
    return root


def chain(root: Path, *options: str) -> Path:
    data = portraits(root / "data")
    small = ["--epochs", "2", "--batch-size", "9", "--seed", "1", "--trace", *options]
    command("finetune", "resnet20", "--weights", "cifar100", "--data", f"{data}@train", *small, "--out", root / "run")
    command("unlearn", root / "run", "--classes", "1", "--method", "path-replay", "--depth", "head", "--out", root / "result")
    measured = ["--reference", "retrain", "--retrains", "0", "--relearn-cap", "2"]
    command("audit", root / "run", root / "result", "--holdout", f"{data}@holdout", *measured)
    command("report", root / "result")
    return root


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain(tmp_path_factory.mktemp("hidden"), "--class-names", "hidden", "--only-classes", ",".join(PEOPLE))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def found(needles: Iterator[bytes], content: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Where any of the needles is; a search that looks for nothing proves nothing."""
    wanted = list(needles)
    assert wanted
    assert all(len(needle) >= 4 for needle in wanted)
    return [(name, needle) for name, data in content.items() for needle in wanted if needle in data]


def words(text: str) -> Iterator[bytes]:
    for spelling in {text, text.lower(), text.replace(" ", "_"), text.replace(" ", "%20"), json.dumps(text)[1:-1]}:
        yield spelling.encode()
        yield spelling.encode("utf-16-le")


def numbers(rows: Any) -> Iterator[bytes]:
    """Rows of numbers as bytes: the four of each that differ most from their neighbours, in several types."""
    for row in np.asarray(rows, dtype=np.float64).reshape(len(rows), -1):
        start = max(range(len(row) - 3), key=lambda place: float(np.ptp(row[place : place + 4])))
        for kind in ("<f2", "<f4", "<f8", ">f4", ">f8"):
            yield row[start : start + 4].astype(kind).tobytes()


def test_neither_ids_nor_names_are_anywhere(hidden: Path) -> None:
    result = files(hidden / "result")
    assert {"manifest.json", "audit.json", "report.html", "trace/trace.json"} <= set(result)
    gone = sorted((hidden / "data" / "train" / GONE).iterdir())
    assert not found((word for path in gone for word in words(path.name)), result)
    assert not found((word for path in gone for word in words(path.stem)), result)
    assert not found(words(GONE), result)
    # The trace has the ids of retained samples, and these begin with the folder's name; nothing else has any.
    outside = {name: data for name, data in result.items() if not name.startswith("trace/")}
    run = {name: data for name, data in files(hidden / "run").items() if not name.startswith("trace/")}
    assert not found((word for person in PEOPLE for word in words(person)), outside | run)


def test_shown_names_are_found_by_the_same_search(tmp_path: Path) -> None:
    data = portraits(tmp_path / "data")
    command("finetune", "resnet20", "--data", f"{data}@train", "--epochs", "0", "--no-trace", "--out", tmp_path / "run")
    assert found(words(GONE), files(tmp_path / "run"))
    assert not key_file(tmp_path / "run").exists()


def test_pixels_features_and_losses_are_nowhere(hidden: Path) -> None:
    run = open_run(hidden / "run", None)
    result = load_result(hidden / "result", run)
    forgotten, content = result.forgotten, files(hidden / "result")
    assert len(forgotten) == EACH
    raw = [np.asarray(Image.open(path)) for path in sorted((hidden / "data" / "train" / GONE).iterdir())]
    rows = [picture[picture.shape[0] // 2].tobytes() for picture in raw]
    assert not found((row for row in rows if len(set(row)) > 4), content)
    assert not found((path.read_bytes()[-40:-16] for path in (hidden / "data" / "train" / GONE).iterdir()), content)
    assert not found(numbers(forgotten.inputs.numpy()), content)
    record = json.loads(content["audit.json"])
    written = {float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", content["audit.json"].decode())}
    for model in (run.model, result.model):
        outputs, features = observe(model, forgotten.inputs, title="search")
        assert features is not None
        assert not found(numbers(features.numpy()), content)
        losses = F.cross_entropy(outputs.double(), forgotten.labels, reduction="none").numpy()
        assert not found(numbers(losses[None]), content)
        assert not [loss for loss in losses for number in written if abs(number - loss) <= 2e-6 * loss]
        texts = [f"{loss:{form}}" for loss in losses for form in (".6g", ".8g", ".6f", ".17g", ".6e")]
        assert not found((text.encode() for text in texts), {name: content[name] for name in ("audit.json", "report.html")})
    assert run.trace is not None
    visits = torch.isin(run.trace.visited, result.split.forget)
    recorded = run.trace.features.to_memory()[visits].float().numpy()
    assert found(numbers(recorded), files(hidden / "run"))  # the run's own trace has them: the search would find them
    assert not found(numbers(recorded), content)
    assert "samples" not in record
    assert record["subject"]["classes"] == ["0", "1", "2"]


def test_guesses_cannot_be_tried_without_the_key(hidden: Path) -> None:
    content = files(hidden / "result")
    run = open_run(hidden / "run", None)
    gone = [name for name in run.data.ids if name.startswith(GONE)]
    kept = [name for name in run.data.ids if name not in gone]
    salts = {word for data in content.values() for word in re.findall(rb"\b[0-9a-f]{16,64}\b", data)}
    assert salts
    digests = {
        hashlib.sha256(text).hexdigest().encode()
        for name in (*gone, GONE, json.dumps(gone), json.dumps(sorted(gone)), json.dumps(kept))
        for text in (name.encode(), json.dumps(name).encode(), *(salt + b":" + name.encode() for salt in salts))
    }
    assert not found(iter(digests), content)
    key = key_file(hidden / "result").read_text().strip()
    assert not found(iter([key.encode(), bytes.fromhex(key)]), content | files(hidden / "run"))


def test_with_the_key_a_list_of_ids_can_be_verified(hidden: Path) -> None:
    record = json.loads((hidden / "result" / "audit.json").read_text())
    manifest = json.loads((hidden / "result" / "manifest.json").read_text())
    gone = [name for name in open_run(hidden / "run", None).data.ids if name.startswith(GONE)]
    for digest in (record["request"]["ids_digest"], manifest["extra"]["details"]["request"]["ids_digest"]):
        assert fastntk.verify_ids(reversed(gone), digest=digest, key=hidden / "result")
        assert not fastntk.verify_ids(gone[1:], digest=digest, key=key_file(hidden / "result"))
    with pytest.raises(fastntk.InputError, match="holds no key"):
        fastntk.verify_ids(gone, digest=record["request"]["ids_digest"], key=hidden / "data")


def test_the_key_is_its_owners_alone_and_the_result_lives_without_it(hidden: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE(key_file(hidden / "result").stat().st_mode) == 0o600
    shutil.copytree(hidden / "result", tmp_path / "moved")
    assert "not there" in command("info", tmp_path / "moved").output
    command("report", tmp_path / "moved", "--overwrite")
    run = open_run(hidden / "run", None)
    with pytest.raises(fastntk.InputError, match=r"moved\.request\.key: the file was moved or deleted"):
        load_result(tmp_path / "moved", run)
    again = ["--ids", fastntk.load_run(tmp_path / "moved").listed.ids[0], "--depth", "head", "--no-images"]
    command("unlearn", tmp_path / "moved", *again, "--out", tmp_path / "second")


def test_a_hidden_run_is_found_again_though_the_folder_of_a_class_is_gone(hidden: Path, tmp_path: Path) -> None:
    shutil.copytree(hidden / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "train" / GONE)
    again = open_run(hidden / "result", f"{tmp_path / 'data'}@train")
    assert set(again.data.labels.tolist()) == {0, 2}
    assert len(again.data) == 2 * EACH


def test_erasing_takes_the_key_along(hidden: Path, tmp_path: Path) -> None:
    shutil.copytree(hidden / "result", tmp_path / "result")
    shutil.copy(key_file(hidden / "result"), key_file(tmp_path / "result"))
    command("erase", tmp_path / "result", "--yes")
    assert not list(tmp_path.iterdir())
