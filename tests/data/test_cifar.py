"""Tiny files in the publisher's layout: protocol 2, Python 2 strings, planes of 1 024 bytes."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import fastntk.data.cifar as cifar
from fastntk.base.errors import InputError
from fastntk.data import load_source
from fastntk.data.safe_pickle import load_plain
from fastntk.models.card import InputSpec

PLAIN = InputSpec(32, (0.0,) * 3, (1.0,) * 3)


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Write bytes the way Python 2 wrote str, which is what the published files hold."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, content: bytes) -> None:
        short = len(content) < 256
        self.write((b"U" + bytes([len(content)])) if short else (b"T" + struct.pack("<i", len(content))))
        self.write(content)

    dispatch[bytes] = save_bytes


def python2(content: object) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(content)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def python3(content: object) -> bytes:
    return pickle.dumps(content, protocol=2)


def pixels(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def files10(dump=python2) -> dict[str, bytes]:  # type: ignore[no-untyped-def]
    names = [b"airplane", b"cat", b"truck"]
    files = {"batches.meta": dump({b"label_names": names, b"num_vis": 3072})}
    for number in range(1, 6):
        files[f"data_batch_{number}"] = dump(
            {b"batch_label": b"x", b"labels": [0, number % 3], b"data": pixels(2, number), b"filenames": [b"a", b"b"]}
        )
    files["test_batch"] = dump({b"labels": [2, 1, 0], b"data": pixels(3, 9)})
    return files


def files100() -> dict[str, bytes]:
    batch = {b"fine_labels": [1, 0], b"coarse_labels": [0, 0], b"data": pixels(2, 1)}
    names = {b"fine_label_names": [b"apple", b"bear"], b"coarse_label_names": [b"thing"]}
    return {"train": python2(batch), "test": python2(batch), "meta": python2(names)}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def archive(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("dump", [python2, python3])
def test_cifar10_folder(tmp_path: Path, dump) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / "cifar-10-batches-py", files10(dump))
    train = load_source(f"cifar10:{tmp_path}", spec=PLAIN)
    assert train.ids == tuple(str(index) for index in range(10))
    assert train.labels.tolist() == [0, 1, 0, 2, 0, 0, 0, 1, 0, 2]
    assert train.classes == ("airplane", "cat", "truck")
    expected = torch.from_numpy(pixels(2, 4)[1]).reshape(3, 32, 32) / 255
    torch.testing.assert_close(train.inputs[7], expected)
    test = load_source(f"cifar10:{tmp_path / 'cifar-10-batches-py'}@test", spec=PLAIN)
    assert test.ids == ("test/0", "test/1", "test/2")
    assert test.labels.tolist() == [2, 1, 0]


def test_cifar100_archive_equals_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "cifar-100-python", files100())
    tar = archive(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", files100())
    ours = load_source(f"cifar100:{tar}", spec=PLAIN)
    assert ours.classes == ("apple", "bear")
    assert ours.labels.tolist() == [1, 0]
    assert ours.digest() == load_source(f"cifar100:{folder}@train", spec=PLAIN).digest()


def test_download_asks_for_the_published_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[tuple[str, dict[str, str]]] = []

    def fetch(url: str, **options: str) -> Path:
        downloads.append((url, options))
        return archive(tmp_path / "x.tar.gz", "cifar-10-batches-py", files10())

    monkeypatch.setattr(cifar, "download", fetch)
    assert len(load_source("cifar10@test", spec=PLAIN)) == 3
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert downloads == [(url, {"md5": "c58f30108f718f92721af3b95e74349a"})]


def test_archive_is_never_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {**files100(), "../../escaped": b"out"}
    tar = archive(tmp_path / "a.tar.gz", "cifar-100-python", files)
    load_source(f"cifar100:{tar}", spec=PLAIN)
    assert {item.name for item in tmp_path.rglob("*")} == {"a.tar.gz"}
    with tarfile.open(tar, "w:gz") as linked:
        link = tarfile.TarInfo("cifar-100-python/meta")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        linked.addfile(link)
    with pytest.raises(InputError, match="lacks train, meta of cifar-100-python"):
        load_source(f"cifar100:{tar}", spec=PLAIN)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "owned"
    files = files100()
    files["train"] = pickle.dumps({b"data": Evil(mark), b"fine_labels": [0]}, protocol=protocol)
    folder = write(tmp_path / "cifar-100-python", files)
    reason = r"it asks for (posix|os|nt).system.*could run code" if protocol else "instruction DICT at byte 1"
    with pytest.raises(InputError, match=f"train is refused: {reason}"):
        load_source(f"cifar100:{folder}", spec=PLAIN)
    assert not mark.exists()
    pickle.loads(files["train"])  # the attack is real: an ordinary reader falls for it
    assert mark.exists()


@pytest.mark.parametrize("name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nscalar", "copyreg\n_reconstructor"])
def test_no_other_name_is_known(name: str) -> None:
    with pytest.raises(InputError, match="it asks for " + name.replace("\n", ".")):
        load_plain(f"c{name}\n.".encode(), origin="x")


def test_numbers_and_arrays_pass() -> None:
    content = {b"a": [1, 2.5, None, "text"], b"b": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    for dump in (python2, python3):
        read = load_plain(dump(content), origin="x")
        assert read[b"a"] == content[b"a"]
        assert np.array_equal(read[b"b"], content[b"b"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train", b"", "train is not a readable pickle"),
        ("train", b"\x80\x02}q\x00(U\x04da", "train is not a readable pickle"),
        ("train", python2([1, 2]), "expected a dict with 'data'"),
        ("train", python2({b"data": pixels(2, 0)}), "expected a dict with 'fine_labels'"),
        ("train", python2({b"data": pixels(2, 0), b"fine_labels": [0]}), "expected 2 integer labels"),
        ("train", python2({b"data": pixels(2, 0)[:, :9], b"fine_labels": [0, 1]}), r"\(n, 3072\), not uint8 \(2, 9\)"),
        ("train", python2({b"data": [1], b"fine_labels": [0]}), r"\(n, 3072\), not list"),
        ("train", python2({b"data": pixels(2, 0), b"fine_labels": [0, 7]}), "0…1 for its 2 classes; found 7 at ids 1"),
        ("meta", python2({}), "expected a dict with 'fine_label_names'"),
        ("meta", None, "lacks meta of cifar-100-python; get https://www.cs.toronto.edu"),
    ],
)
def test_damaged(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    files = files100()
    del files[name]
    folder = write(tmp_path / "cifar-100-python", files if content is None else {**files, name: content})
    with pytest.raises(InputError, match=message):
        load_source(f"cifar100:{folder}", spec=PLAIN)


def test_damaged_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", "cifar-100-python", files100())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"cannot be read as a \.tar\.gz"):
        load_source(f"cifar100:{path}", spec=PLAIN)
