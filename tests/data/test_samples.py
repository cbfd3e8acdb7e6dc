from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Samples


def make(n: int = 4, **options: object) -> Samples:
    return Samples(torch.arange(n * 2.0).reshape(n, 2), [i % 3 for i in range(n)], **options)  # type: ignore[arg-type]


def test_defaults() -> None:
    samples = make()
    assert samples.ids == ("0", "1", "2", "3")
    assert samples.labels.dtype == torch.int64
    assert samples.classes is None
    assert samples.num_classes == 3
    assert len(samples) == 4


def test_inputs_are_used_as_they_are() -> None:
    inputs = torch.randint(0, 255, (3, 2), dtype=torch.uint8)
    assert Samples(inputs, [0, 0, 1]).inputs is inputs


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_kind(dtype: type) -> None:
    ids = np.array([2, 0, 1], dtype=dtype)
    samples = Samples(torch.zeros(3, 1), ids)
    ids[0] = 0  # the samples keep their own copy
    assert samples.labels.tolist() == [2, 0, 1]


def test_ids_int_and_str_are_one() -> None:
    by_int = make(ids=[7, 8, 9, 10])
    assert by_int.ids == make(ids=["7", "8", "9", "10"]).ids == make(ids=np.arange(7, 11)).ids
    assert by_int.index_of([10, "7"]).tolist() == [3, 0]


def test_subset_keeps_ids_names_and_class_count() -> None:
    samples = make(6, classes=["a", "b", "c"])
    part = samples.subset(torch.tensor([4, 0]))
    assert part.ids == ("4", "0")
    assert part.labels.tolist() == [1, 0]
    assert torch.equal(part.inputs, samples.inputs[[4, 0]])
    assert part.classes == samples.classes
    assert make(3).subset([0]).num_classes == 3
    assert len(samples.subset([])) == 0


def test_subset_refuses_wrong_positions() -> None:
    with pytest.raises(InputError, match="positions outside 0…3: 4, -1"):
        make().subset([0, 4, -1])
    with pytest.raises(InputError, match="more than once: 1"):
        make().subset([1, 1])
    with pytest.raises(InputError, match="integers"):
        make().subset(torch.tensor([True, False, True, False]))


def test_digest_sees_every_part() -> None:
    base = make(classes=["a", "b", "c"])
    assert base.digest() == make(classes=["a", "b", "c"]).digest() == base.subset(range(4)).digest()
    others = [
        make(classes=["a", "b", "x"]),
        make(ids=[1, 2, 3, 4], classes=["a", "b", "c"]),
        Samples(base.inputs + 1e-6, base.labels, classes=["a", "b", "c"]),
        Samples(base.inputs.double(), base.labels, classes=["a", "b", "c"]),
        Samples(base.inputs.reshape(4, 1, 2), base.labels, classes=["a", "b", "c"]),
        Samples(base.inputs, [0, 0, 0, 0], classes=["a", "b", "c"]),
    ]
    assert len({base.digest(), *(other.digest() for other in others)}) == 7
    assert base.ids_digest() == make().ids_digest() != others[1].ids_digest()


def test_digest_ignores_memory_layout() -> None:
    inputs = torch.randn(2, 3, 4, 4)
    last = inputs.to(memory_format=torch.channels_last)
    assert Samples(inputs, [0, 1]).digest() == Samples(last, [0, 1]).digest()


def test_travels() -> None:
    samples = make(classes=["a", "b", "c"])
    for other in (copy.deepcopy(samples), pickle.loads(pickle.dumps(samples))):
        assert other.digest() == samples.digest()
    with pytest.raises(AttributeError):
        samples.labels = samples.labels  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"labels": [0, 1, 5], "classes": ["a", "b"], "ids": ["p", "q", "r"]},
            r"0…1 for the 2 classes; found 5 at ids r",
        ),
        ({"labels": [0, -1, -2]}, "labels must be 0 or more; found -2, -1 at ids 1, 2"),
        ({"labels": [0, 1]}, "2 labels for 3 inputs"),
        ({"labels": [[0], [1], [0]]}, r"shape \(n,\), not \(3, 1\)"),
        ({"labels": [0.0, 1.0, 2.0]}, "labels must be integers, not torch.float64"),
        ({"labels": ["a", "b", "c"]}, r"labels must be integers \(n,\)"),
        ({"ids": ["a", "b"]}, "2 ids for 3 samples"),
        ({"ids": [1, "1", 2]}, "ids given more than once: 1;"),
        ({"ids": [1.5, 2, 3]}, r"ids must be int or str, not 1.5 \(float\)"),
        ({"classes": ["a", "a", "b"]}, "class names given more than once: a"),
        ({"classes": "abc"}, "sequence of names"),
        ({"inputs": np.zeros((3, 1))}, "model-ready tensor.*ndarray"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    arguments = {"inputs": torch.zeros(3, 1), "labels": [0, 1, 0], **options}
    with pytest.raises(InputError, match=message):
        Samples(**arguments)  # type: ignore[arg-type]


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


def test_from_dataset() -> None:
    images = torch.randn(3, 3, 2, 2)
    dataset = Pairs([(images[0], 1), (images[1], torch.tensor(0)), (images[2], np.int64(1))])
    dataset.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    samples = Samples.from_dataset(dataset, ids=["a", "b", "c"])
    assert torch.equal(samples.inputs, images)
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.classes == ("cat", "dog")
    assert samples.ids == ("a", "b", "c")
    assert Samples.from_dataset(dataset, classes=["x", "y"]).classes == ("x", "y")
    dataset.classes = {"dog": 1, "cat": 0}  # type: ignore[attr-defined]
    assert Samples.from_dataset(dataset).classes == ("cat", "dog")
    dataset.classes = {"cat", "dog"}  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="give classes= as a list"):
        Samples.from_dataset(dataset)
    assert Samples.from_dataset(dataset, classes=["x", "y"]).classes == ("x", "y")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Pairs([(torch.zeros(3, 2, 2), 0), (torch.zeros(3, 2, 3), 0)]),
            r"item 1 has shape \(3, 2, 3\), item 0 \(3, 2, 2\)",
        ),
        (Pairs([(np.zeros((2, 2)), 0)]), "image of item 0 is ndarray, not a tensor.*transform"),
        (Pairs([(torch.zeros(1), 0.5)]), "label of item 0 must be an integer, not 0.5"),
        (Pairs([torch.zeros(1)]), "item 0 must be a pair"),
        (Pairs([]), "empty"),
        (iter([]), "map-style"),
    ],
)
def test_from_dataset_refuses(dataset: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Samples.from_dataset(dataset)


def test_the_digest_is_computed_once_and_follows_writes() -> None:
    samples = Samples(torch.zeros(3, 2), [0, 1, 1])
    first = samples.digest()
    assert samples.digest() is first
    samples.inputs[0, 0] = 1.0
    assert samples.digest() not in ("", first)
    samples.inputs[0, 0] = 0.0
    assert samples.digest() == first
    samples.labels[0] = 1
    assert samples.digest() != first


def test_classes_may_outnumber_the_labels() -> None:
    samples = Samples(torch.zeros(2, 1), [0, 1])
    assert samples.num_classes == 2
    assert samples.counting(3).num_classes == 3
    assert samples.counting(3).digest() == samples.digest()
    with pytest.raises(InputError, match="not 1 classes"):
        samples.counting(1)
    named = Samples(torch.zeros(1, 1), [2], classes=["a", "b", "c"])
    assert named.classes_without_samples == ("a", "b")
    with pytest.raises(InputError, match="not 4 classes"):
        named.counting(4)


@pytest.mark.parametrize(
    "classes",
    [
        {0: "cat", 1: "dog", 2: "emu"},
        {2: "emu", 0: "cat", 1: "dog"},
        {"emu": 2, "cat": 0, "dog": 1},
        {"emu": np.int64(2), "cat": np.int64(0), "dog": np.int64(1)},
    ],
)
def test_class_names_as_a_mapping_go_by_its_labels(classes: object) -> None:
    samples = make(classes=classes)
    assert samples.classes == ("cat", "dog", "emu")
    assert samples.num_classes == 3


@pytest.mark.parametrize(
    "classes",
    [
        {"cat": 0, "dog": 1, "emu": 3},
        {"cat": 1, "dog": 2, "emu": 3},
        {"cat": 0, "dog": 1, "emu": 1},
        {"0": "cat", "1": "dog", "2": "emu"},
        {0: 2, 1: 0, 2: 1},
        {"cat": False, "dog": True, "emu": 2},
        {"cat": 0.0, "dog": 1.0, "emu": 2.0},
    ],
)
def test_other_mappings_of_class_names_are_refused(classes: object) -> None:
    with pytest.raises(InputError, match=r"\{name: label\} or \{label: name\} with each label of 0…2 once.* as a list"):
        make(classes=classes)


@pytest.mark.parametrize("names", [{"cat", "dog", "emu"}, frozenset(["cat", "dog", "emu"])])
def test_class_names_without_an_order_are_refused(names: object) -> None:
    with pytest.raises(
        InputError, match=f"order of their labels, and a {type(names).__name__} has none: give classes= as a list"
    ):
        make(classes=names)


@pytest.mark.parametrize("ids", [{"a", "b", "c", "d"}, frozenset("abcd"), dict.fromkeys("abcd", 0)])
def test_ids_without_an_order_are_refused_and_fine_in_a_request(ids: object) -> None:
    with pytest.raises(InputError, match=f"order of the samples, and a {type(ids).__name__} has none: give a list"):
        make(ids=ids)
    assert set(ForgetRequest(ids=ids).ids or ()) == set("abcd")


def test_ids_may_be_a_list_of_numbers_in_tensors() -> None:
    assert make(ids=list(torch.arange(3, 7))).ids == ("3", "4", "5", "6")
    assert make(ids=list(np.array(["p", "q", "r", "s"]))).index_of([np.array("r")]).tolist() == [2]
    with pytest.raises(InputError, match=r"not True \(bool\)"):
        make(ids=list(torch.ones(4, dtype=torch.bool)))


def test_inputs_made_in_inference_mode() -> None:
    with torch.inference_mode():
        inputs = torch.ones(4, 2)
        within = make()
        part = make().subset([1, 0])
    samples = Samples(inputs, [0, 1, 0, 1])
    assert samples.digest() == Samples(torch.ones(4, 2), [0, 1, 0, 1]).digest()
    assert within.digest() == make().digest()
    assert part.digest() == make().subset([1, 0]).digest()
    for each in (samples, within, part):
        before = each.digest()
        each.inputs[0] += 1
        assert each.digest() != before


def test_inputs_that_require_gradients_are_detached_where_they_are() -> None:
    leaf = torch.ones(4, 2, requires_grad=True)
    for inputs in (leaf, leaf * 2):
        samples = Samples(inputs, [0, 1, 0, 1])
        assert not samples.inputs.requires_grad
        assert samples.inputs.data_ptr() == inputs.data_ptr()


def test_the_digest_of_a_copy_is_its_own() -> None:
    samples = Samples(torch.zeros(3, 2), [0, 1, 1])
    before = samples.digest()
    samples.inputs[0, 0] = 1.0
    for other in (copy.deepcopy(samples), pickle.loads(pickle.dumps(samples))):
        assert other.digest() == samples.digest() != before
