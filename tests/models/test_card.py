"""Cards travel with the model, fingerprints notice every change, logits are logits."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.models import build_model, card_of, input_spec, logits
from fastntk.models.card import fingerprint_of


def test_card_survives_deepcopy_and_is_not_in_the_state():
    model = build_model("resnet20", num_classes=10, weights="cifar100")
    twin = copy.deepcopy(model)
    assert card_of(twin) == card_of(model)
    assert card_of(twin).fingerprint == fingerprint_of(twin)
    assert pickle.loads(pickle.dumps(card_of(model))) == card_of(model)
    assert not any("card" in name for name in model.state_dict())
    assert len(card_of(model).weights_sha256) == 64


def test_fingerprint_names_exactly_what_changed():
    model = build_model("resnet20", num_classes=10)
    with torch.no_grad():
        model.layer2[0].conv1.weight[0, 0, 0, 0] += 1e-3
    now = fingerprint_of(model)
    before = card_of(model).fingerprint
    assert [name for name in now if now[name] != before[name]] == ["layer2.0.conv1.weight"]


def test_digest_sees_dtype_shape_and_bytes_but_not_layout():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert tensor_digest(tensor) == tensor_digest(tensor.clone())
    assert tensor_digest(tensor.t()) == tensor_digest(tensor.t().contiguous())
    others = [tensor.reshape(3, 2), tensor.double(), tensor + 1, tensor.int()]
    assert len({tensor_digest(other) for other in (tensor, *others)}) == 5
    assert tensor_digest(torch.tensor(3)) != tensor_digest(torch.tensor([3]))
    assert tensor_digest(torch.zeros(0, 2)) != tensor_digest(torch.zeros(2, 0))


def test_models_made_elsewhere_have_no_card():
    model = nn.Linear(2, 2)
    assert card_of(model) is None
    with pytest.raises(InputError, match=r"Linear are unknown.*already resized and normalised"):
        input_spec(model)


class Returns(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, inputs):
        return self.output


def test_logits_unwrap_hugging_face_outputs():
    values = torch.zeros(2, 5)
    assert logits(Returns(SimpleNamespace(logits=values)), torch.zeros(2, 3)) is values
    assert logits(Returns(values), torch.zeros(2, 3)) is values


@pytest.mark.parametrize("output", [(torch.zeros(2, 5),), {"logits": torch.zeros(2, 5)}, None])
def test_logits_refuse_what_is_no_tensor(output):
    with pytest.raises(InputError, match="expected a tensor of logits"):
        logits(Returns(output), torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(2, 5, 4), (10,), (3, 5)])
def test_logits_refuse_other_shapes(shape):
    with pytest.raises(InputError, match=r"for 2 inputs: expected logits of shape \(2, classes\)"):
        logits(Returns(torch.zeros(shape)), torch.zeros(2, 3))
