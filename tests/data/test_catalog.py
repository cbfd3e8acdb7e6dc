from __future__ import annotations

import numpy as np
import pytest

from fastntk.base.errors import InputError
from fastntk.data.catalog import Catalog, select, select_ids


def catalog(labels: list[int], classes: tuple[str, ...] | None = ("a", "b", "c")) -> Catalog:
    ids = tuple(f"id{row}" for row in range(len(labels)))
    return Catalog("toy", ids, np.array(labels, np.int64), classes, lambda row: np.zeros((1, 1), np.uint8))


def chosen(source: Catalog, **options: object) -> tuple[list[int], list[int], tuple[str, ...]]:
    part = select(source, **options)  # type: ignore[arg-type]
    return part.rows.tolist(), part.labels.tolist(), part.classes


TOY = catalog([0, 1, 2, 0, 1, 2, 0])


def test_everything_by_default() -> None:
    assert chosen(TOY) == (list(range(7)), [0, 1, 2, 0, 1, 2, 0], ("a", "b", "c"))


@pytest.mark.parametrize("only", [2, "2", [0, 1], ["a", "b"], "a,b", ["0", "b"]])
def test_first_classes(only: object) -> None:
    assert chosen(TOY, only_classes=only) == ([0, 1, 3, 4, 6], [0, 1, 0, 1, 0], ("a", "b"))


def test_labels_are_numbered_in_the_order_given_and_rows_stay_in_source_order() -> None:
    assert chosen(TOY, only_classes=["c", "a"]) == ([0, 2, 3, 5, 6], [1, 0, 1, 0, 1], ("c", "a"))


def test_first_images_of_each_class() -> None:
    assert chosen(TOY, images_per_class=1) == ([0, 1, 2], [0, 1, 2], ("a", "b", "c"))


def test_alignment_by_name_drops_other_classes() -> None:
    assert chosen(TOY, classes=("c", "a")) == ([0, 2, 3, 5, 6], [1, 0, 1, 0, 1], ("c", "a"))


def test_sources_without_names_are_named_by_label() -> None:
    bare = catalog([3, 0, 3], classes=None)
    assert chosen(bare)[2] == ("0", "1", "2", "3")
    assert chosen(bare, only_classes=[3]) == ([0, 2], [0, 0], ("3",))
    # A hold-out may lack images of some of the run's classes.
    assert chosen(bare, classes=("3", "9")) == ([0, 2], [0, 0], ("3", "9"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only_classes": 4}, "toy has 3 classes: choose 1 to 3, not 4"),
        ({"only_classes": 0}, "choose 1 to 3, not 0"),
        ({"only_classes": ["a", "zebra", 7]}, "toy has no class 'zebra', 7; its classes are a, b, c"),
        ({"only_classes": ["a", 0]}, "chosen more than once: a"),
        ({"only_classes": []}, "none was asked for"),
        ({"images_per_class": 3}, r"toy has fewer than 3 images of b \(2\), c \(2\)"),
        ({"images_per_class": 0}, "at least 1, not 0"),
        ({"classes": ("a", "zebra")}, "toy lacks the classes zebra; it has a, b, c"),
        ({"classes": ("a",), "only_classes": 1}, "not both"),
    ],
)
def test_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(TOY, **options)


def test_refused_without_names() -> None:
    with pytest.raises(InputError, match="toy has no class names, so its labels cannot be matched with cat"):
        chosen(catalog([0, 1], classes=None), classes=("cat", "1"))
    with pytest.raises(InputError, match="no images of the classes 5"):
        chosen(catalog([0, 1], classes=None), classes=("5",))


def test_labels_outside_the_classes() -> None:
    with pytest.raises(InputError, match="toy: labels must be 0…2 for its 3 classes; found 3, 9 at ids id1, id2"):
        catalog([0, 9, 3])
    with pytest.raises(InputError, match="0 or more; found -1 at ids id0"):
        catalog([-1], classes=None)
    with pytest.raises(InputError, match="holds no images"):
        catalog([])


def test_samples_are_chosen_by_id_and_labelled_by_name_when_a_class_is_gone() -> None:
    names, labels = ("ape", "cat"), np.array([0, 0, 1, 1])  # "bee", once label 1, is gone: "cat" is 1 in the source, 2 to the run
    source = Catalog("somewhere", ("a0", "a1", "c0", "c1"), labels, names, lambda row: np.zeros((2, 2), np.uint8))
    part, lacking = select_ids(source, ["c1", "b0", "a0"], ["ape", "bee", "cat"])
    assert part.rows.tolist() == [3, 0]
    assert part.labels.tolist() == [2, 0]
    assert part.classes == ("ape", "bee", "cat")
    assert lacking == ("b0",)
    with pytest.raises(InputError, match="lacks the classes bee"):
        select(source, classes=["ape", "bee", "cat"])
    aligned = select(source, classes=["ape", "bee", "cat"], vanished=["bee"])
    assert aligned.labels.tolist() == [0, 0, 2, 2]
