"""What a batch is announced with."""

from __future__ import annotations

import pytest
import torch

from fastntk.base.errors import InputError
from fastntk.training.visitors import names_and_targets


@pytest.mark.parametrize("ids", [{0, 1, 2}, frozenset(["a", "b", "c"]), {"a": 0, "b": 1, "c": 2}])
def test_ids_of_a_batch_that_have_no_order_are_refused(ids: object) -> None:
    with pytest.raises(InputError, match=f"order of the samples, and a {type(ids).__name__} has none"):
        names_and_targets(ids, torch.arange(3))


def test_ids_of_a_batch_may_be_numbers_in_tensors() -> None:
    names, targets = names_and_targets(list(torch.tensor([7, 8])), [1, 0])
    assert names == ("7", "8")
    assert targets.tolist() == [1, 0]
