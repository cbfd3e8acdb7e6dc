"""Data that somebody made to do harm, or that was damaged on its way: refused with a reason, and cheaply."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

import fastntk
import fastntk.data.cifar as cifar
import fastntk.data.npz
import fastntk.data.pictures as pictures
from fastntk.base.errors import InputError
from fastntk.base.files import read_text
from fastntk.data import Samples, ids_in_file, ids_of_persons, load_source, matching_ids
from fastntk.data.catalog import Catalog
from fastntk.data.safe_pickle import load_plain
from fastntk.models.card import InputSpec
from fastntk.models.weights import read_weights

PLAIN = InputSpec(8, (0.0,) * 3, (1.0,) * 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)

# --- pickles ----------------------------------------------------------------------------------------------------


def batch(**changes: Any) -> dict[bytes, Any]:
    return {b"data": PIXELS, b"fine_labels": [0, 1, 1, 0]} | {key.encode(): value for key, value in changes.items()}


class Forged:
    """An array of pointers whose type says that it holds none: its flags are cleared by the state of the type."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            np.empty(0).__reduce__()[0],
            (np.ndarray, (0,), b"b"),
            (1, (2,), ForgedType(), False, struct.pack("<QQ", 4096, 4096)),
        )


class ForgedType:
    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_type_with_cleared_object_flags_is_refused(protocol: int) -> None:
    content = pickle.dumps({b"data": Forged(), b"fine_labels": [0, 1]}, protocol=protocol)
    with pytest.raises(InputError, match=r"x is refused: it calls what is no array of unsigned bytes"):
        load_plain(content, origin="x")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_type_of_bytes_with_another_state_is_refused(protocol: int) -> None:
    content = pickle.dumps(batch(), protocol=protocol)
    assert np.array_equal(load_plain(content, origin="x")[b"data"], PIXELS)
    flags = content.index(b"NNN") + 3 + 5 + 5  # -1, -1, then the flags
    assert content[flags : flags + 2] == b"K\x00"
    with pytest.raises(InputError, match="something else than unsigned bytes"):
        load_plain(content[:flags] + b"K\x3f" + content[flags + 2 :], origin="x")


@pytest.mark.parametrize("kind", [np.int64, np.float32, "O", "V4", "S3", [("a", "u1")]])
def test_only_unsigned_bytes_are_arrays(kind: Any) -> None:
    with pytest.raises(InputError, match="is refused"):
        load_plain(pickle.dumps(batch(data=np.zeros(3, kind)), protocol=2), origin="x")


def test_an_array_has_as_many_bytes_as_its_shape_says() -> None:
    content = pickle.dumps(batch(), protocol=4)
    assert content.count(b"M\x00\x0c") == 1  # 3072
    for side in (b"M\x01\x0c", b"M\xff\xff", b"J\x00\x00\x00\x80"):
        with pytest.raises(InputError, match="do not fill its shape"):
            load_plain(content.replace(b"M\x00\x0c", side), origin="x")


def test_references_do_not_grow_into_memory() -> None:
    nested: list[Any] = []
    for _ in range(22):  # a pickle of 200 bytes, a list of 4 million when it is written out
        nested = [nested, nested]
    read = load_plain(pickle.dumps({b"fine_labels": nested}, protocol=2), origin="x")
    with pytest.raises(InputError, match=r"expected 4 integer labels"):
        cifar._batch(batch() | read, cifar.LAYOUTS["cifar100"], Path("x"))
    with pytest.raises(InputError, match="expected a list of names"):
        cifar._names({b"fine_label_names": [read[b"fine_labels"]]}, cifar.LAYOUTS["cifar100"], Path("x"))


def test_no_damaged_pickle_escapes_as_another_error() -> None:
    whole, random = pickle.dumps(batch(data=PIXELS[:1, :40]), protocol=2), np.random.default_rng(1)
    for _ in range(1500):
        content = bytearray(whole)
        content[random.integers(len(content))] = random.integers(256)
        try:
            load_plain(bytes(content[: random.integers(1, 2 * len(content))]), origin="x")
        except InputError as error:
            assert str(error).startswith("x is ")  # noqa: PT017  # many of them are fine


# --- archives ---------------------------------------------------------------------------------------------------


def cifar100(**changes: Any) -> dict[str, bytes]:
    content = pickle.dumps(batch(**changes), protocol=2)
    return {"train": content, "test": content, "meta": pickle.dumps({b"fine_label_names": [b"ape", b"bee"]}, protocol=2)}


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_no_flipped_bit_of_an_archive_changes_a_pixel_or_label(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.tar.gz", packed(cifar100())
    path.write_bytes(whole)
    expected, random = load_source(f"cifar100:{path}", spec=PLAIN).digest(), np.random.default_rng(0)
    refused = 0
    for bit in random.integers(8 * len(whole), size=150).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            digest = load_source(f"cifar100:{path}", spec=PLAIN).digest()
        except InputError:
            refused += 1
        else:
            assert digest == expected, f"bit {bit} changed the data and was accepted"
    assert refused > 140  # the rest is in fields that say nothing of the data, like the time of packing


def test_an_archive_without_a_checksum_or_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    for content in (gzip.decompress(packed(cifar100())), packed(cifar100())[:-8], packed(cifar100()) + b"more"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as a \.tar\.gz"):
            load_source(f"cifar100:{path}", spec=PLAIN)


def test_archives_that_unpack_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "MOST_BYTES", 1 << 20)
    path = tmp_path / "a.tar.gz"
    for name in ("train", "other"):
        path.write_bytes(packed(cifar100() | {name: bytes(2 << 20)}))
        with pytest.raises(InputError, match=r"unpacks to more than 1\.05 MB"):
            load_source(f"cifar100:{path}", spec=PLAIN)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, content in (cifar100() | {"train": bytes(2 << 20)}).items():
        (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=r"train has 2\.1 MB: expected a file of CIFAR, of at most 1\.05 MB"):
        load_source(f"cifar100:{folder}", spec=PLAIN)


def test_a_sparse_member_does_not_grow(tmp_path: Path) -> None:
    member = tarfile.TarInfo("cifar-100-python/train")
    member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50)}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO())
    (tmp_path / "a.tar.gz").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="lacks train"):
        load_source(f"cifar100:{tmp_path / 'a.tar.gz'}", spec=PLAIN)


# --- npz --------------------------------------------------------------------------------------------------------


def npz_with(path: Path, name: str, member: bytes, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", member)
    return path


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", ["(1000000000000, 8, 8, 3)", "(-1, 8, 8, 3)", "(1, 8, 8, 3)"])
def test_an_npz_array_is_as_large_as_it_says(tmp_path: Path, shape: str) -> None:
    path = npz_with(tmp_path / "a.npz", "x", header(shape) + bytes(10), y=[0])
    with pytest.raises(InputError, match=r"x says it is uint8 .* and has 10"):
        load_source(path, spec=PLAIN)


def test_npz_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastntk.data.npz, "BOMB_BYTES", 1 << 16)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((2, 200, 200, 3), np.uint8), y=[0, 1])
    with pytest.raises(InputError, match=r"x unpacks from \d+ B to 240 kB, as no pictures do: a zip bomb"):
        load_source(tmp_path / "a.npz", spec=PLAIN)
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 200, 200, 3), np.uint8), y=[0, 1])
    assert len(load_source(tmp_path / "b.npz", spec=PLAIN)) == 2
    monkeypatch.setattr(fastntk.data.npz, "available_memory", lambda: 1000)
    with pytest.raises(InputError, match="x has 240 kB, more than the memory that is available"):
        load_source(tmp_path / "b.npz", spec=PLAIN)


def test_no_damaged_npz_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=PIXELS[:2].reshape(2, 32, 32, 3), y=[0, 1], id=["a", "b"], classes=["ape", "bee"])
    whole, expected = path.read_bytes(), load_source(path, spec=PLAIN).digest()
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=150).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            digest = load_source(path, spec=PLAIN).digest()
        except InputError:
            continue
        assert digest == expected, f"bit {bit} changed the data and was accepted"


def test_a_huge_label_is_one_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 8, 8, 3), np.uint8), y=[5_000_000_000, 7, 5_000_000_000])
    samples = load_source(tmp_path / "a.npz", spec=PLAIN)
    assert samples.classes == ("7", "5000000000")
    assert samples.labels.tolist() == [1, 0, 1]
    assert load_source(tmp_path / "a.npz", spec=PLAIN, only_classes=[5_000_000_000]).ids == ("0", "2")
    assert load_source(tmp_path / "a.npz", spec=PLAIN, classes=["5000000000", "8"]).labels.tolist() == [0, 0]


def test_a_huge_label_in_memory_is_refused_by_the_model() -> None:
    model = fastntk.build_model("resnet20", num_classes=2)
    samples = Samples(torch.zeros(2, 3, 32, 32), [0, 5_000_000_000])
    with pytest.raises(InputError, match="the model has 2 outputs"):
        fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=1))


# --- pictures ---------------------------------------------------------------------------------------------------

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.fixture
def photo(tmp_path: Path) -> Callable[[bytes], str]:
    def write(content: bytes) -> str:
        (tmp_path / "photos" / "cat").mkdir(parents=True)
        (tmp_path / "photos" / "cat" / "x.png").write_bytes(content)
        return str(tmp_path / "photos")

    return write


@pytest.fixture
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object, **options: object) -> None:
        pytest.fail(f"a program was started: {arguments}")

    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: True)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", started)
    monkeypatch.setattr(subprocess, "Popen", started)


@pytest.mark.usefixtures("_no_programs")
def test_eps_starts_no_program(photo: Callable[[bytes], str]) -> None:
    with pytest.raises(
        InputError, match=r"x\.png cannot be decoded as an image: .*JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM are read"
    ):
        load_source(photo(EPS), spec=PLAIN)
    for cell in (EPS, {"bytes": EPS, "path": None}):
        with pytest.raises(InputError, match="item 0: it cannot be decoded as an image"):
            Samples.from_dataset([(cell, 0)], spec=PLAIN)


@pytest.mark.usefixtures("_no_programs")
def test_eps_in_a_table_starts_no_program(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
    for content in ({"bytes": EPS, "path": None}, {"bytes": None, "path": "https://127.0.0.1:9/x.png"}):
        table = datasets.Dataset.from_dict({"image": [content], "label": [0]}, features=features)
        with pytest.raises(InputError, match="row 0 cannot be decoded as an image"):
            Samples.from_dataset(table, spec=PLAIN)
        with pytest.raises(InputError, match="row 0 cannot be decoded as an image"):
            Samples.from_dataset(torch.utils.data.Subset(table, [0]), spec=PLAIN)
        if content["bytes"] is not None:
            table.save_to_disk(str(tmp_path / "d"))
            with pytest.raises(InputError, match="row 0 cannot be decoded as an image"):
                load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN)


def test_tables_are_read_as_their_library_does(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    image, stream = Image.fromarray(PIXELS[0, :1536].reshape(16, 32, 3)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6  # taken with the camera on its side
    image.save(stream, "JPEG", exif=exif)
    (tmp_path / "x.jpg").write_bytes(stream.getvalue())
    features = datasets.Features({"image": datasets.Image(mode="L"), "label": datasets.ClassLabel(names=["a"])})
    cells = [{"bytes": stream.getvalue(), "path": None}, {"bytes": None, "path": str(tmp_path / "x.jpg")}]
    table = datasets.Dataset.from_dict({"image": cells, "label": [0, 0]}, features=features)
    theirs = torch.stack([fastntk.data.transforms.prepare(row["image"], PLAIN) for row in table])
    table.save_to_disk(str(tmp_path / "d"))
    assert torch.equal(load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN).inputs, theirs)
    # A table read in Python keeps its mode and direction too.
    assert torch.equal(Samples.from_dataset(table, spec=PLAIN).inputs, theirs)


def test_a_strip_is_not_blown_up(photo: Callable[[bytes], str]) -> None:
    stream = io.BytesIO()
    Image.new("L", (20_000, 1)).save(stream, "PNG")
    src = photo(stream.getvalue())
    with pytest.raises(
        InputError, match=r"image cat/x\.png of .*20000 × 1 would have more than 134,217,728 pixels when its shorter"
    ):
        load_source(src, spec=InputSpec(224, (0.0,) * 3, (1.0,) * 3))
    assert len(load_source(src, spec=PLAIN)) == 1  # 8 × 160 000 is no harm


def test_pixels_are_counted_before_they_are_decoded(photo: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    Image.new("1", (50, 41)).save(stream, "PNG")
    monkeypatch.setattr(pictures, "MOST_PIXELS", 2000)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    with pytest.raises(InputError, match="50 × 41 pixels, more than 2,000"):
        load_source(photo(stream.getvalue()), spec=PLAIN)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about damaged tags
def test_no_damaged_picture_escapes_as_another_error() -> None:
    random = np.random.default_rng(0)
    for kind in pictures.FORMATS:
        stream = io.BytesIO()
        Image.fromarray(PIXELS[0].reshape(32, 32, 3)).save(stream, kind)
        for _ in range(60):
            content = bytearray(stream.getvalue())
            for place in random.integers(min(len(content), 400), size=4):
                content[place] = random.integers(256)
            try:
                pictures.decode(bytes(content), name="x")
            except InputError as error:
                assert "x cannot be decoded as an image" in str(error)  # noqa: PT017


# --- files that are none ----------------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "device", "socket"])
def odd_file(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            with socket.socket(socket.AF_UNIX) as server:
                here = Path.cwd()
                os.chdir(path.parent)  # the path of a socket may have 100 characters
                try:
                    server.bind(path.name)
                finally:
                    os.chdir(here)
        return path

    return make


def test_only_regular_files_are_opened(odd_file: Callable[[str], Path], tmp_path: Path) -> None:
    samples = Samples(torch.zeros(1, 1), [0])
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, content in cifar100().items():
        if name != "train":
            (folder / name).write_bytes(content)
    model = fastntk.build_model("resnet20", num_classes=2)
    attempts: dict[str, Callable[[Path], object]] = {
        "photos/cat/x.png": lambda path: load_source(path.parents[1], spec=PLAIN),
        "x.npz": lambda path: load_source(path, spec=PLAIN),
        "x.tar.gz": lambda path: load_source(f"cifar10:{path}", spec=PLAIN),
        "cifar-100-python/train": lambda path: load_source(f"cifar100:{path.parent}", spec=PLAIN),
        "ids.txt": lambda path: ids_in_file(path, samples),
        "persons.csv": lambda path: ids_of_persons(path, "Ada"),
        "x.pt": read_weights,
        "x.safetensors": read_weights,
        "tuned.safetensors": lambda path: fastntk.load_tuned(model, path),
    }
    for name, attempt in attempts.items():
        with pytest.raises(InputError, match=r"is a (pipe|device|socket), not a regular file: expected a"):
            attempt(odd_file(name))


def test_text_files_have_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "ids.txt").open("wb") as stream:
        stream.truncate(1 << 40)  # takes no room
    with pytest.raises(InputError, match=r"has 1\.1 TB: expected a text file \(UTF-8\) with one id a line, of at most 268 MB"):
        ids_in_file(tmp_path / "ids.txt", Samples(torch.zeros(1, 1), [0]))
    assert read_text(Path(__file__), expected="this").startswith('"""Data')


def test_weights_that_unpack_to_more_than_they_are(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1000, 1000)}, tmp_path / "a.pt")
    assert read_weights(tmp_path / "a.pt")["weight"].shape == (1000, 1000)
    with zipfile.ZipFile(tmp_path / "a.pt") as plain, zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    with pytest.raises(InputError, match=r"torch.save does not pack"):
        read_weights(tmp_path / "b.pt")


# --- names ------------------------------------------------------------------------------------------------------

ODD = ["a\nb", "a\tb", "a\x1b[31mb", "a\x9bb", "a\x00b", "a\u2028b", os.fsdecode(b"caf\xe9")]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_refused_before_anything_is_trained(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ids with line ends, control characters or bytes that are no UTF-8: '"):
        Samples(torch.zeros(2, 1), [0, 1], ids=["plain", name])
    with pytest.raises(InputError, match="class names with line ends"):
        Samples(torch.zeros(2, 1), [0, 1], classes=["plain", name])
    if "\x00" in name:
        return
    (tmp_path / "class").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "class" / f"{name}.png")
    with pytest.raises(InputError, match=r"ids with line ends") as caught:
        load_source(tmp_path, spec=PLAIN)
    str(caught.value).encode()  # can be printed
    (tmp_path / "class").rename(tmp_path / name)
    with pytest.raises(InputError, match="with line ends"):
        load_source(tmp_path, spec=PLAIN)


def test_names_in_all_scripts_are_fine() -> None:
    names = ("日本語.png", "café", "cafe\u0301", "می\u200cخواهم", "👩\u200d🔬", "a b", "non\u00a0breaking", "#1", "a,b")
    samples = Samples(torch.zeros(len(names), 1), [0] * len(names), ids=names)
    assert samples.ids == names


def test_marks_in_the_middle_of_joined_files(tmp_path: Path) -> None:
    samples = Samples(torch.zeros(3, 1), [0, 0, 0], ids=["a", "b", "c"])
    (tmp_path / "ids.txt").write_bytes("\ufeffa\r\n\ufeffb\r\n\ufeff# said\n".encode())
    assert ids_in_file(tmp_path / "ids.txt", samples) == ("a", "b")
    (tmp_path / "ids.txt").write_bytes("a\nb".encode("utf-16-le"))  # without its mark this is UTF-8 with null characters
    with pytest.raises(InputError, match="control characters"):
        ids_in_file(tmp_path / "ids.txt", samples)


def test_patterns_take_no_exponential_time() -> None:
    samples = Samples(torch.zeros(1, 1), [0], ids=["/".join("a" * 60)])
    with pytest.raises(InputError, match="no id matches"):
        matching_ids("/".join(["**", "a"] * 25 + ["b"]), samples)


def test_a_source_with_odd_ids_is_named() -> None:
    with pytest.raises(InputError, match=r"^toy: ids with line ends"):
        Catalog("toy", ("a\nb",), np.zeros(1, np.int64), None, lambda row: np.zeros((1, 1), np.uint8))
