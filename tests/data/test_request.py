from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Samples, parse_classes


@pytest.fixture
def samples() -> Samples:
    return Samples(torch.zeros(6, 1), [0, 1, 2, 0, 1, 2], ids=list("uvwxyz"), classes=["cat", "dog", "7"])


def test_by_label_name_and_id(samples: Samples) -> None:
    for request in (ForgetRequest(classes=[1]), ForgetRequest(classes=["dog"]), ForgetRequest(classes=np.array([1]))):
        split = request.resolve(samples)
        assert split.forget.tolist() == [1, 4]
        assert split.retain.tolist() == [0, 2, 3, 5]
        assert split.whole_classes == (1,)
    split = ForgetRequest(ids=["z", "u"]).resolve(samples)
    assert split.forget.tolist() == [0, 5]
    assert split.whole_classes == ()


def test_the_mask_of_what_stays(samples: Samples) -> None:
    for request in (ForgetRequest(classes=[1]), ForgetRequest(ids=["z", "u"]), ForgetRequest(ids=[])):
        split = request.resolve(samples, allow_empty=True)
        assert split.keep.dtype == torch.bool
        assert split.keep.nonzero().flatten().tolist() == split.retain.tolist()
        assert (~split.keep).nonzero().flatten().tolist() == split.forget.tolist()


def test_union_and_ids_that_cover_a_class(samples: Samples) -> None:
    split = ForgetRequest(classes=["cat"], ids=["v", "y", "u"]).resolve(samples)
    assert split.forget.tolist() == [0, 1, 3, 4]
    assert split.whole_classes == (0, 1)


def test_integer_ids() -> None:
    samples = Samples(torch.zeros(3, 1), [0, 1, 1])
    assert ForgetRequest(ids=[2]).resolve(samples).forget.tolist() == [2]


def test_a_name_that_looks_like_a_number_is_a_name(samples: Samples) -> None:
    assert ForgetRequest(classes=["7"]).resolve(samples).whole_classes == (2,)


def test_empty_only_when_asked(samples: Samples) -> None:
    for request in (ForgetRequest(classes=[]), ForgetRequest(ids=[])):
        with pytest.raises(InputError, match="the request is empty"):
            request.resolve(samples)
        split = request.resolve(samples, allow_empty=True)
        assert split.forget.tolist() == []
        assert split.retain.tolist() == list(range(6))
    with pytest.raises(InputError, match=r"give classes=\[...\], ids=\[...\]"):
        ForgetRequest().resolve(samples, allow_empty=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["bird"]}, "unknown classes: 'bird'. Labels are 0…2, named cat, dog, 7"),
        ({"classes": [3, -1]}, "unknown classes: 3, -1"),
        ({"classes": ["0"]}, r"no class is named '0'; labels are given as int: classes=\[0\]"),
        ({"classes": [1.5]}, r"classes are int \(labels\) or str \(names\), not 1.5"),
        ({"classes": [True]}, "not True"),
        ({"ids": ["u", "nobody", 99]}, "unknown ids: nobody, 99; the data has 6 ids"),
        ({"ids": ["u", "v", "u"]}, "names ids more than once: u"),
        ({"classes": [0, 1, 2]}, "nothing would be left to retain: class 0, class 1, class 2 cover all 6"),
        ({"classes": [0], "ids": list("vwyz")}, "left to retain: class 0, id v"),
    ],
)
def test_refused(samples: Samples, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ForgetRequest(**options).resolve(samples)


def test_class_without_samples(samples: Samples) -> None:
    with pytest.raises(InputError, match=r"class 1 \(dog\) has no samples"):
        ForgetRequest(classes=["dog"]).resolve(samples.subset([0, 2]))


def test_command_line_classes(samples: Samples) -> None:
    assert parse_classes("dog, 0", samples) == (1, 0)
    assert parse_classes("7", samples) == (2,)
    named = Samples(torch.zeros(2, 1), [0, 1], classes=["tench, Tinca", "goldfish"])
    assert parse_classes("tench, Tinca", named) == (0,)
    for text, message in (("bird", "unknown classes: 'bird'"), ("5", "unknown classes: 5"), (" , ", "no class in")):
        with pytest.raises(InputError, match=message):
            parse_classes(text, samples)


@given(data=st.data(), labels=st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_resolve_partitions_exactly(data: st.DataObject, labels: list[int]) -> None:
    samples = Samples(torch.zeros(len(labels), 1), labels)
    classes = data.draw(st.lists(st.sampled_from(labels), max_size=3))
    ids = data.draw(st.lists(st.sampled_from(samples.ids), unique=True, max_size=10))
    expected = {i for i, label in enumerate(labels) if label in classes or str(i) in ids}
    request = ForgetRequest(classes=classes, ids=ids)
    if len(expected) == len(labels):
        with pytest.raises(InputError, match="nothing would be left"):
            request.resolve(samples, allow_empty=True)
        return
    split = request.resolve(samples, allow_empty=True)
    assert split.forget.tolist() == sorted(expected)
    assert split.retain.tolist() == [i for i in range(len(labels)) if i not in expected]
    retained = {labels[i] for i in split.retain.tolist()}
    assert set(split.whole_classes) == set(labels) - retained
