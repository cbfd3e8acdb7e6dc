"""Data sets of others: which ids and class names they give, and which are refused because they draw at random."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

from fastntk.base.errors import InputError
from fastntk.data import Samples, load_source
from fastntk.models.card import InputSpec
from fastntk.models.torchvision_ops import import_optional

SPEC = InputSpec(8, (0.5,) * 3, (0.5,) * 3)


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


class Items(Dataset):  # type: ignore[type-arg]
    def __init__(self, items: list[Any], change: Any = None) -> None:
        self.items, self.change = items, change

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index] if self.change is None else self.change(self.items[index])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat/b.png", "cat/a.png", "dog/a.png", "dog/old/c.png")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return tmp_path / "photos"


def image_folder(root: Path | str, transform: Any = as_tensor) -> Any:
    return import_optional("torchvision.datasets", extra="timm").ImageFolder(str(root), transform)


def test_image_folders_have_paths_as_ids(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples.from_dataset(image_folder(photos))
    assert samples.ids == ("cat/a.png", "cat/b.png", "dog/a.png", "dog/old/c.png")
    assert samples.classes == ("cat", "dog")
    assert samples.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(samples.inputs[samples.index_of("dog/a.png")[0]], as_tensor(picture(2)))
    monkeypatch.chdir(photos.parent)
    assert Samples.from_dataset(image_folder("./photos/")).ids == samples.ids
    assert Samples.from_dataset(image_folder(photos), ids=[4, 5, 6, 7]).ids == ("4", "5", "6", "7")


def test_pictures_are_prepared_where_a_spec_is_given(photos: Path) -> None:
    """Then the data set and the source of the same folder are the same samples, to the byte."""
    samples = Samples.from_dataset(image_folder(photos, transform=None), spec=SPEC)
    assert samples.digest() == load_source(photos, spec=SPEC).digest()


def test_pictures_that_cannot_be_decoded_are_named(photos: Path) -> None:
    whole = (photos / "cat/b.png").read_bytes()
    (photos / "cat/b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"item 1 of the data set cannot be read: .*; repair or remove it"):
        Samples.from_dataset(image_folder(photos))
    lazy = [(Image.open(photos / "cat/b.png"), 0)]
    with pytest.raises(InputError, match=r"item 0: the picture cannot be decoded: .*; repair or remove it"):
        Samples.from_dataset(Items(lazy), spec=SPEC)


def test_what_is_no_picture_and_what_is_no_spec(photos: Path) -> None:
    with pytest.raises(InputError, match="item 0: a picture must be a PIL image or a uint8 array, not str: open files first"):
        Samples.from_dataset(Items([(str(photos / "cat/a.png"), 0)]), spec=SPEC)
    with pytest.raises(InputError, match=r"spec must be a fastntk.InputSpec: .*; got '16'"):
        Samples.from_dataset(Items([(picture(0), 0)]), spec="16")  # type: ignore[arg-type]


def test_ids_outlive_new_files(photos: Path) -> None:
    before = Samples.from_dataset(image_folder(photos))
    picture(9).save(photos / "cat" / "0.png")
    after = Samples.from_dataset(image_folder(photos))
    for name in before.ids:
        assert torch.equal(after.inputs[after.index_of(name)], before.inputs[before.index_of(name)])


def test_a_subset_keeps_the_ids_of_its_parent(photos: Path) -> None:
    folder = image_folder(photos)
    part = Samples.from_dataset(Subset(Subset(folder, [3, 1, 0]), [0, 2]))
    assert (part.ids, part.classes) == (("dog/old/c.png", "cat/a.png"), ("cat", "dog"))
    rows = Items([(torch.full((1,), float(i)), i % 2) for i in range(6)])
    assert Samples.from_dataset(Subset(rows, torch.tensor([5, 2]))).ids == ("5", "2")
    assert Samples.from_dataset(Subset(rows, [-1, 0])).ids == ("5", "0")
    with pytest.raises(InputError, match="ids given more than once: 2"):
        Samples.from_dataset(Subset(rows, [2, 2]))


def test_what_only_looks_like_an_image_folder() -> None:
    rows = Items([(torch.zeros(1), 0), (torch.ones(1), 1)])
    rows.root, rows.samples = "data", [{"path": "x"}, {"path": "y"}]  # type: ignore[attr-defined]
    assert Samples.from_dataset(rows).ids == ("0", "1")
    rows.samples = [("elsewhere/x.png", 0), ("data/y.png", 1)]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"outside the data set's root data: elsewhere/x.png; give ids="):
        Samples.from_dataset(rows)
    assert Samples.from_dataset(rows, ids=["x", "y"]).ids == ("x", "y")


@pytest.mark.parametrize("image", ["image", "pixel_values", "img"])
@pytest.mark.parametrize("label", ["label", "labels", "target"])
def test_dicts(image: str, label: str) -> None:
    rows = [{image: torch.full((2,), float(i)), label: torch.tensor(i % 2), "key": f"k{i}", "other": None} for i in range(3)]
    samples = Samples.from_dataset(Items(rows), id_column="key")
    assert (samples.ids, samples.labels.tolist()) == (("k0", "k1", "k2"), [0, 1, 0])
    assert torch.equal(samples.inputs[:, 0], torch.tensor([0.0, 1.0, 2.0]))
    assert Samples.from_dataset(Items(rows)).ids == ("0", "1", "2")
    assert Samples.from_dataset(Subset(Items(rows), [2, 0]), id_column="key").ids == ("k2", "k0")


def test_dicts_with_other_names() -> None:
    rows = [{"scan": torch.zeros(2), "finding": 1, "number": torch.tensor(7)}]
    samples = Samples.from_dataset(Items(rows), image_column="scan", label_column="finding", id_column="number")
    assert (samples.ids, samples.labels.tolist()) == (("7",), [1])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"scan": torch.zeros(2), "label": 1}],
            {},
            r"item 0 has no image called pixel_values or image or img; it has scan",
        ),
        ([{"image": torch.zeros(2), "y": 1}], {}, r"no label called label or .*: say label_column="),
        ([{"image": torch.zeros(2), "label": 1}], {"id_column": "key"}, "no id called key; it has image, label"),
        ([{"image": torch.zeros(2), "label": 1, "key": None}], {"id_column": "key"}, "ids must be int or str, not None"),
        ([(torch.zeros(2), 1)], {"id_column": "key"}, "id_column='key' is for items that are dicts: item 0 is tuple"),
        ([(torch.zeros(2), 1)], {"id_column": "key", "ids": [1]}, "give ids or id_column, not both"),
        ([{"image": picture(0), "label": 1}], {}, r"image of item 0 is Image, not a tensor.*spec=fastntk.input_spec"),
        ([(np.zeros((4, 4)), 1)], {"spec": SPEC}, "item 0: a picture must be uint8"),
    ],
)
def test_wrong_items(rows: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Samples.from_dataset(Items(rows), **options)


@pytest.mark.parametrize("count", [1, 5, 40, 300])
def test_random_flips_are_noticed(count: int) -> None:
    """A flip of probability 1/2, for ten seeds: each one is seen."""
    images = torch.rand(count, 3, 4, 4)

    def flip(item: Any) -> Any:
        return (item[0].flip(-1) if torch.rand(()) < 0.5 else item[0]), item[1]

    rows = Items([(image, 0) for image in images], flip)
    for seed in range(10):
        torch.manual_seed(seed)
        with pytest.raises(InputError, match=r"read twice and came out differently.*evaluate with.*allow_random=True"):
            Samples.from_dataset(rows)
    kept = Samples.from_dataset(rows, allow_random=True)
    assert all(torch.equal(kept.inputs[i], images[i]) or torch.equal(kept.inputs[i], images[i].flip(-1)) for i in range(count))


def test_random_shapes_and_labels_are_noticed() -> None:
    with pytest.raises(InputError, match="in another shape"):
        Samples.from_dataset(Items([None] * 3, lambda _: (torch.zeros(3, 4, int(torch.randint(1, 1000, ()))), 0)))
    with pytest.raises(InputError, match="came out differently"):
        Samples.from_dataset(Items([None] * 3, lambda _: (torch.zeros(3), int(torch.randint(1000, ())))))


def test_not_a_number_is_no_randomness() -> None:
    assert len(Samples.from_dataset(Items([(torch.tensor([float("nan"), 1.0]), 0)]))) == 1


@pytest.fixture
def table() -> Any:
    datasets = import_optional("datasets", extra="hf")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "file": datasets.Value("string"),
        }
    )
    rows = {"image": [picture(i) for i in range(4)], "label": [0, 1, 1, 0], "file": [f"img-{i}" for i in range(4)]}
    return datasets.Dataset.from_dict(rows, features=features)


def renamed(batch: Any) -> Any:
    """What users give to with_transform: other columns come out than went in."""
    return {"pixel_values": [as_tensor(image) for image in batch["image"]], "labels": batch["label"]}


def test_hugging_face_tables(table: Any) -> None:
    samples = Samples.from_dataset(table.with_transform(renamed), id_column="file")
    assert (samples.ids, samples.classes) == (("img-0", "img-1", "img-2", "img-3"), ("cat", "dog"))
    assert samples.labels.tolist() == [0, 1, 1, 0]
    assert torch.equal(samples.inputs[2], as_tensor(picture(2)))
    assert Samples.from_dataset(table, id_column="file", spec=SPEC).ids == samples.ids
    with_torch = Samples.from_dataset(table.with_format("torch"), id_column="file")
    assert torch.equal(with_torch.inputs[1], (255 * as_tensor(picture(1))).round().to(torch.uint8))
    with pytest.raises(InputError, match="id_column='name': the table has the columns image, label, file"):
        Samples.from_dataset(table, id_column="name")
    with pytest.raises(InputError, match=r"image of item 0 is PngImageFile"):
        Samples.from_dataset(table)


def test_shuffled_tables_keep_their_ids_or_say_so(table: Any) -> None:
    shuffled = table.with_transform(renamed).shuffle(seed=0)
    samples = Samples.from_dataset(shuffled, id_column="file")
    assert sorted(samples.ids) == [f"img-{i}" for i in range(4)]
    assert samples.ids != ("img-0", "img-1", "img-2", "img-3")
    assert torch.equal(samples.inputs[samples.index_of("img-2")[0]], as_tensor(picture(2)))
    with pytest.warns(UserWarning, match=r"row numbers as it is now: give id_column=") as caught:
        assert Samples.from_dataset(shuffled).ids == ("0", "1", "2", "3")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Samples.from_dataset(table, spec=SPEC)
        Samples.from_dataset(shuffled, ids=list("abcd"))
    part = Samples.from_dataset(Subset(shuffled, [1, 3]), id_column="file")
    assert part.ids == (samples.ids[1], samples.ids[3])


def test_several_splits_are_refused(table: Any) -> None:
    datasets = import_optional("datasets", extra="hf")
    with pytest.raises(InputError, match=r"a dict of data sets \(train, test\): from_dataset takes one of them"):
        Samples.from_dataset(datasets.DatasetDict({"train": table, "test": table}))
