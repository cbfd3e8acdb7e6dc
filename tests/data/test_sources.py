"""Every source through the public door, on tiny files in the real formats; real data where it is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import fastntk.data.folder
from fastntk.base.errors import InputError
from fastntk.data import load_source
from fastntk.data.sources import SourceName, parse_source
from fastntk.data.transforms import prepare
from fastntk.models.card import InputSpec

PLAIN = InputSpec(8, (0.0,) * 3, (1.0,) * 3)
RNG = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


# --- the word ---------------------------------------------------------------------------------------------------


def test_words(tmp_path: Path) -> None:
    assert parse_source("digits@test") == SourceName("digits", "", "test")
    assert parse_source("cifar10") == SourceName("cifar10", "", None)
    assert parse_source("cifar100:/x/y.tar.gz@train") == SourceName("cifar100", "/x/y.tar.gz", "train")
    assert parse_source("a/b.npz@test") == SourceName("npz", "a/b.npz", "test")
    assert parse_source("hf:org/name@validation") == SourceName("hf", "org/name", "validation")
    odd = tmp_path / "me@home"
    odd.mkdir()
    assert parse_source(str(odd)) == SourceName("folder", str(odd), None)
    assert parse_source(f"{odd}@holdout") == SourceName("folder", str(odd), "holdout")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mnist", "unknown data source 'mnist': as a path it is not there; expected digits, cifar10"),
        ("", "unknown data source ''"),
        ("hf:", "unknown data source 'hf:'"),
        ("digits@holdout", "unknown split @holdout; digits takes @train, @test"),
        ("nowhere.npz", "no file nowhere.npz"),
        ("cifar10:nowhere", "no file or folder nowhere; give the extracted cifar-10-batches-py"),
        (__file__, "is a file of a kind not known here"),
    ],
)
def test_bad_words(word: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_source(word, spec=PLAIN)


# --- digits -----------------------------------------------------------------------------------------------------


def test_digits_are_split_for_good() -> None:
    train = load_source("digits", spec=PLAIN)
    test = load_source("digits@test", spec=PLAIN)
    assert train.digest() == load_source("digits@train", spec=PLAIN).digest()
    assert len(train) + len(test) == 1797
    assert not set(train.ids) & set(test.ids)
    assert train.classes == tuple("0123456789")
    target = load_digits().target
    for samples in (train, test):
        assert samples.labels.tolist() == [target[int(name)] for name in samples.ids]
    counts = np.bincount(target)
    assert torch.bincount(test.labels).tolist() == [int(0.2 * count) for count in counts]


def test_digits_pictures() -> None:
    samples = load_source("digits", spec=InputSpec(32, (0.0,) * 3, (1.0,) * 3), images_per_class=2)
    assert samples.inputs.shape == (20, 3, 32, 32)
    assert torch.equal(samples.inputs[:, 0], samples.inputs[:, 2])
    raw = load_digits().images[int(samples.ids[0])] / 16
    small = samples.inputs[0, 0].reshape(8, 4, 8, 4).mean((1, 3)).numpy()
    assert np.corrcoef(raw.ravel(), small.ravel())[0, 1] > 0.95


# --- npz --------------------------------------------------------------------------------------------------------


def write_npz(path: Path, **arrays: object) -> str:
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})  # type: ignore[arg-type]
    return str(path)


def test_npz_plain(tmp_path: Path) -> None:
    x = noise(4, 8, 8, 3)
    samples = load_source(write_npz(tmp_path / "a.npz", x=x, y=[1, 0, 1, 0]), spec=PLAIN)
    assert samples.ids == ("0", "1", "2", "3")
    assert samples.classes == ("0", "1")
    torch.testing.assert_close(samples.inputs, torch.from_numpy(x).permute(0, 3, 1, 2) / 255)


def test_npz_splits_ids_classes_and_gray(tmp_path: Path) -> None:
    src = write_npz(
        tmp_path / "a.npz",
        x_train=noise(3, 8, 8),
        y_train=np.array([0, 1, 0], np.uint8),
        id_train=["p", "q", "r"],
        x_test=noise(2, 8, 8, 3),
        y_test=[1, 1],
        id_test=np.array([70, 71]),
        classes=np.array([b"cat", b"dog"]),
    )
    train = load_source(src, spec=PLAIN)
    assert train.ids == ("p", "q", "r")
    assert train.classes == ("cat", "dog")
    assert torch.equal(train.inputs[:, 0], train.inputs[:, 1])
    assert load_source(f"{src}@test", spec=PLAIN).ids == ("70", "71")


def test_ids_survive_any_selection(tmp_path: Path) -> None:
    src = write_npz(tmp_path / "a.npz", x=noise(6, 4, 4, 3), y=[0, 1, 2, 0, 1, 2])
    everything = load_source(src, spec=PLAIN)
    part = load_source(src, spec=PLAIN, only_classes=[2, 1], images_per_class=1)
    assert part.ids == ("1", "2")
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ("2", "1")
    assert torch.equal(part.inputs, everything.inputs[everything.index_of(part.ids)])
    hold = load_source(src, spec=PLAIN, classes=part.classes)
    assert hold.ids == ("1", "2", "4", "5")
    assert hold.labels.tolist() == [1, 0, 1, 0]


X = np.zeros((2, 4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "suffix", "message"),
    [
        ({"x": X / 255.0, "y": [0, 1]}, "", r"x is float64 \(2, 4, 4, 3\), expected uint8 pixels.*fastntk.Samples"),
        ({"x": X.transpose(0, 3, 1, 2), "y": [0, 1]}, "", r"expected \(n, H, W, 3\).*channels come last"),
        ({"x": X[..., :1], "y": [0, 1]}, "", "drop the last axis"),
        ({"x": X, "y": [0.5, 1.0]}, "", "labels must be integers"),
        ({"x": X, "y": [0]}, "", "1 labels for 2 inputs"),
        ({"x": X, "y": [0, 2], "classes": ["a", "b"]}, "", "labels must be 0…1 for its 2 classes; found 2 at ids 1"),
        ({"x": X, "y": [0, 1], "id": [5, 5]}, "", "ids given more than once: 5"),
        ({"x": X, "y": [0, 1], "classes": ["a", "a"]}, "", "class names given more than once: a"),
        ({"x": X, "y": [0, 1]}, "@test", "one set of arrays, x and y, and no split 'test': leave out @test"),
        ({"x_train": X, "y_train": [0, 1]}, "@test", "needs an array x_test; it has x_train, y_train"),
        ({"images": X}, "", "needs an array x or x_train; it has images"),
        ({"x": X}, "", "has x but no y"),
        ({"x": X, "y": np.array([{}, {}], dtype=object)}, "", "cannot be read as .npz"),
    ],
)
def test_npz_refused(tmp_path: Path, arrays: dict[str, object], suffix: str, message: str) -> None:
    src = write_npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        load_source(src + suffix, spec=PLAIN)
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_npz_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_npz(path, x=X, y=[0, 1])
    whole = path.read_bytes()
    for content in (whole[:-40], whole.replace(b"NUMPY", b"MUMPY"), b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as \.npz"):
            load_source(path, spec=PLAIN)
    np.save(tmp_path / "b.npy", X)
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"single array, not an \.npz archive"):
        load_source(tmp_path / "b.npz", spec=PLAIN)


# --- image folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for split, count in (("train", 3), ("holdout", 1)):
        for name in ("n02", "n01"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(noise(10, 12, 3)).save(root / split / name / f"{number}.png")
    return root


def test_folder(photos: Path) -> None:
    (photos / "train" / "n01" / "deeper").mkdir()
    Image.new("L", (20, 9), 100).save(photos / "train" / "n01" / "deeper" / "gray.JPG", "jpeg")
    (photos / "train" / "n01" / "notes.txt").write_text("not a picture")
    (photos / "train" / ".cache").mkdir()
    samples = load_source(f"{photos}@train", spec=PLAIN)
    assert samples.classes == ("n01", "n02")
    assert samples.ids == (
        *("n01/0.png", "n01/1.png", "n01/2.png", "n01/deeper/gray.JPG"),
        *("n02/0.png", "n02/1.png", "n02/2.png"),
    )
    assert samples.labels.tolist() == [0, 0, 0, 0, 1, 1, 1]
    with Image.open(photos / "train" / "n02" / "1.png") as image:
        assert torch.equal(samples.inputs[5], prepare(image, PLAIN))
    assert samples.digest() == load_source(photos / "train", spec=PLAIN).digest()


def test_folder_holdout_is_aligned(photos: Path) -> None:
    run = load_source(f"{photos}@train", spec=PLAIN, only_classes=["n02"])
    hold = load_source(f"{photos}@holdout", spec=PLAIN, classes=run.classes)
    assert hold.ids == ("n02/0.png",)
    assert hold.labels.tolist() == [0]


def test_only_selected_images_are_decoded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    read = fastntk.data.folder.read_image

    def spy(path: Path) -> Image.Image:
        paths.append(path.name)
        return read(path)

    monkeypatch.setattr(fastntk.data.folder, "read_image", spy)
    load_source(f"{photos}@train", spec=PLAIN, only_classes=1, images_per_class=2)
    assert paths == ["0.png", "1.png"]


def test_hidden_folders_are_not_read_and_linked_ones_are(photos: Path, tmp_path: Path) -> None:
    before = load_source(f"{photos}@train", spec=PLAIN).ids
    name = before[0].split("/")[0]
    picture = (photos / "train" / before[0]).read_bytes()
    hidden, linked = photos / "train" / name / ".thumbnails", tmp_path / "elsewhere"
    for folder in (hidden, linked):
        folder.mkdir()
        (folder / "9.png").write_bytes(picture)
    (photos / "train" / name / "more").symlink_to(linked)
    (linked / "back").symlink_to(photos / "train" / name)  # a circle ends
    assert set(load_source(f"{photos}@train", spec=PLAIN).ids) - set(before) == {f"{name}/more/9.png"}
    (photos / "train" / name / "own").mkdir()
    (photos / "train" / name / "own" / "8.png").write_bytes(picture)
    (photos / "train" / name / "alias").symlink_to(photos / "train" / name / "own")
    added = {f"{name}/more/9.png", f"{name}/own/8.png"}  # once, under the name of the folder itself
    assert set(load_source(f"{photos}@train", spec=PLAIN).ids) - set(before) == added


def test_ids_of_an_npz_under_another_name_are_not_passed_over(tmp_path: Path) -> None:
    arrays = {"x": noise(4, 8, 8, 3), "y": np.array([0, 1, 0, 1])}
    for name in ("ids", "image_id"):
        np.savez(tmp_path / "own.npz", **arrays, **{name: np.arange(4)[::-1]})
        with pytest.raises(InputError, match=rf"has {name}, which looks like ids and is not read: call the array id, or"):
            load_source(tmp_path / "own.npz", spec=PLAIN)
    split = {f"{name}_train": value for name, value in arrays.items()}
    np.savez(tmp_path / "own.npz", **split, id=np.arange(4))
    with pytest.raises(InputError, match="has id, which looks like ids and is not read: call the array id_train"):
        load_source(tmp_path / "own.npz", spec=PLAIN)
    np.savez(tmp_path / "own.npz", **arrays, id=np.arange(4)[::-1], ids=np.arange(4))
    assert load_source(tmp_path / "own.npz", spec=PLAIN).ids == ("3", "2", "1", "0")


def test_folder_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds splits \(holdout, train\), not classes.*photos@holdout, .*photos@train"):
        load_source(photos, spec=PLAIN)
    with pytest.raises(InputError, match=r"no sub-folder 'test' for @test; it has holdout, train"):
        load_source(f"{photos}@test", spec=PLAIN)
    (photos / "valid").mkdir()
    (photos / "meta").mkdir()
    with pytest.raises(InputError, match=r"holds splits \(holdout, train, valid\), not classes"):
        load_source(photos, spec=PLAIN)
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match="has no sub-folders; an image folder holds one sub-folder a class"):
        load_source(tmp_path / "bare", spec=PLAIN)
    (photos / "train" / "zero").mkdir()
    with pytest.raises(InputError, match=r"class folders without images in .*train: zero; add images"):
        load_source(f"{photos}@train", spec=PLAIN)


@pytest.mark.parametrize("content", [b"", b"no picture at all", "half"])
def test_corrupt_image_is_named(photos: Path, content: bytes | str) -> None:
    path = photos / "train" / "n02" / "1.png"
    path.write_bytes(path.read_bytes()[:150] if isinstance(content, str) else content)
    with pytest.raises(InputError, match=r"n02/1.png cannot be decoded as an image"):
        load_source(f"{photos}@train", spec=PLAIN)
    assert len(load_source(f"{photos}@train", spec=PLAIN, only_classes=["n01"])) == 3


def test_deep_image_is_named(photos: Path) -> None:
    Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(photos / "train" / "n01" / "0.png")
    with pytest.raises(InputError, match=r"image n01/0.png of .*more than 8 bits"):
        load_source(f"{photos}@train", spec=PLAIN)


# --- real data --------------------------------------------------------------------------------------------------


def test_real_cifar(shared: Callable[[str], Path]) -> None:
    path = shared("data/cifar10-5k.npz")
    spec = InputSpec(32, (0.5,) * 3, (0.5,) * 3)
    train = load_source(path, spec=spec, images_per_class=3)
    assert train.classes == (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
    assert train.inputs.shape == (30, 3, 32, 32)
    assert torch.bincount(train.labels).tolist() == [3] * 10
    with np.load(path) as arrays:
        official = {str(name): row for row, name in enumerate(arrays["id_train"])}
        row = official[train.ids[7]]
        assert arrays["y_train"][row] == train.labels[7]
        pixels = torch.from_numpy(arrays["x_train"][row]).permute(2, 0, 1) / 255
    torch.testing.assert_close(train.inputs[7], pixels * 2 - 1)
    hold = load_source(f"{path}@test", spec=spec, classes=("cat", "bird"), images_per_class=200)
    assert torch.bincount(hold.labels).tolist() == [200, 200]


def test_real_caltech(shared: Callable[[str], Path]) -> None:
    path = shared("data/caltech50")
    train = load_source(f"{path}@train", spec=InputSpec(28, (0.5,) * 3, (0.5,) * 3), only_classes=2, images_per_class=3)
    assert train.classes == ("Faces", "Leopards")
    assert train.inputs.shape == (6, 3, 28, 28)
    assert all((path / "train" / name).is_file() for name in train.ids)
    hold = load_source(f"{path}@holdout", spec=PLAIN, classes=train.classes, images_per_class=2)
    assert [name.split("/")[0] for name in hold.ids] == ["Faces", "Faces", "Leopards", "Leopards"]
