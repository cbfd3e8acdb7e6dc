"""Hugging Face datasets from disk; the hub itself is never asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastntk.base.errors import InputError
from fastntk.data import load_source
from fastntk.models.card import InputSpec

datasets = pytest.importorskip("datasets", reason="needs the extra hf")

PLAIN = InputSpec(8, (0.0,) * 3, (1.0,) * 3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def pictures(n: int) -> list[Image.Image]:
    rng = np.random.default_rng(n)
    return [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(n)]


def table(n: int, **extra: Any) -> Any:
    features = {"picture": datasets.Image(), "animal": datasets.ClassLabel(names=["cat", "dog"])}
    columns: dict[str, Any] = {"picture": pictures(n), "animal": [row % 2 for row in range(n)]}
    for name, (kind, values) in extra.items():
        features[name], columns[name] = kind, values
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_saved_to_disk(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": table(4), "test": table(3)}).save_to_disk(str(tmp_path / "d"))
    train = load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN)
    assert train.ids == ("0", "1", "2", "3")
    assert train.labels.tolist() == [0, 1, 0, 1]
    assert train.classes == ("cat", "dog")
    expected = torch.from_numpy(np.array(pictures(4)[2])).permute(2, 0, 1) / 255
    torch.testing.assert_close(train.inputs[2], expected)
    test = load_source(f"hf:{tmp_path / 'd'}@test", spec=PLAIN, only_classes=["dog"])
    assert test.ids == ("test/1",)
    with pytest.raises(InputError, match=r"has no split 'validation'; say which one: hf:.*@train, hf:.*@test"):
        load_source(f"hf:{tmp_path / 'd'}@validation", spec=PLAIN)


def test_single_table(tmp_path: Path) -> None:
    table(2).save_to_disk(str(tmp_path / "d"))
    assert load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN).ids == ("0", "1")
    with pytest.raises(InputError, match="is a single table and has no split 'test'"):
        load_source(f"hf:{tmp_path / 'd'}@test", spec=PLAIN)


def test_parquet(tmp_path: Path) -> None:
    table(4).to_parquet(str(tmp_path / "a.parquet"))
    samples = load_source(f"hf:{tmp_path / 'a.parquet'}", spec=PLAIN)
    assert samples.labels.tolist() == [0, 1, 0, 1]
    assert samples.classes == ("cat", "dog")


def test_image_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "d" / split / name).mkdir(parents=True)
            pictures(1)[0].save(tmp_path / "d" / split / name / "0.png")
    samples = load_source(f"hf:{tmp_path / 'd'}@test", spec=PLAIN)
    assert samples.ids == ("test/0", "test/1")
    assert samples.classes == ("cat", "dog")


def test_fine_labels_come_before_coarse_ones(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["a", "b", "c"])
    data = table(3, fine_label=(names, [2, 1, 0]), coarse_label=(names, [0, 0, 0])).remove_columns("animal")
    data.save_to_disk(str(tmp_path / "d"))
    assert load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN).labels.tolist() == [2, 1, 0]


def test_integer_labels_without_names(tmp_path: Path) -> None:
    data = table(3, label=(datasets.Value("int64"), [0, 2, 1])).remove_columns("animal")
    data.save_to_disk(str(tmp_path / "d"))
    samples = load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN)
    assert samples.labels.tolist() == [0, 2, 1]
    assert samples.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("extra", "dropped", "message"),
    [
        ({}, "picture", "needs one image column and one label column"),
        ({}, "animal", r"it has picture: Image. Cast or drop"),
        (
            {"other": (datasets.ClassLabel(names=["x"]), [0, 0])},
            None,
            "picture: Image, animal: ClassLabel, other: ClassLabel",
        ),
        ({"label": (datasets.ClassLabel(names=["x"]), [-1, 0])}, "animal", "found -1 at ids 0"),
    ],
)
def test_undecided_columns(tmp_path: Path, extra: dict[str, Any], dropped: str | None, message: str) -> None:
    data = table(2, **extra)
    (data.remove_columns(dropped) if dropped else data).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(InputError, match=message):
        load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN)


def test_broken_picture_is_named(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
    content = {"image": [{"bytes": b"junk", "path": None}], "label": [0]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(InputError, match="row 0 cannot be decoded as an image"):
        load_source(f"hf:{tmp_path / 'd'}", spec=PLAIN)


def test_unknown_dataset() -> None:
    with pytest.raises(InputError, match="hf:fastntk/there-is-no-such-thing cannot be loaded"):
        load_source("hf:fastntk/there-is-no-such-thing", spec=PLAIN)
