"""Imports work whether torchvision is healthy, built for another torch, or absent."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from fastntk.base.errors import InputError
from fastntk.models import torchvision_ops

SCRIPT = """
import warnings
from fastntk.models.torchvision_ops import ensure_operators, import_optional
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    declared = [ensure_operators(), ensure_operators()]
    import_optional("timm", extra="timm")
    import_optional("transformers.models.vit.modeling_vit", extra="hf")
    import torchvision
said = [w for w in seen if "built for another torch" in str(w.message)]
assert declared[0] == declared[1], declared
assert len(said) == int(declared[0]), said
print("fine")
"""


def test_timm_transformers_and_torchvision_import_in_a_fresh_process():
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert process.stdout.endswith("fine\n"), process.stderr


BROKEN = """
import sys, types, pathlib
package = pathlib.Path(sys.argv[1]) / "torchvision"
package.mkdir()
(package / "__init__.py").write_text('''
import torch
@torch.library.register_fake("torchvision::nms")
def shape(dets, scores, iou_threshold):
    return dets
loaded = True
''')
sys.path.insert(0, sys.argv[1])
import torch
from fastntk.models.torchvision_ops import ensure_operators
assert ensure_operators() is True
import torchvision
assert torchvision.loaded and hasattr(torch.ops.torchvision, "qnms")
print("fine")
"""

HEALTHY = BROKEN.replace("import torch\n@", 'import torch\nlib = torch.library.Library("torchvision", "DEF")\n'
                         'lib.define("nms(Tensor a, Tensor b, float c) -> Tensor")\n@', 1).replace(
    'is True', 'is False').replace(' and hasattr(torch.ops.torchvision, "qnms")', '')  # fmt: skip


@pytest.mark.parametrize("script", [BROKEN, HEALTHY], ids=["broken", "healthy"])
def test_operators_are_declared_only_where_they_are_missing(tmp_path, script):
    """A stand-in torchvision, so that both cases are met whatever is installed."""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stdout.endswith("fine\n"), process.stderr


def test_without_torchvision_there_is_nothing_to_do(monkeypatch):
    monkeypatch.setattr(torchvision_ops, "_libraries", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torchvision_ops.ensure_operators() is False


@pytest.mark.parametrize(("package", "extra"), [("timm", "timm"), ("transformers", "hf")])
def test_missing_packages_name_the_extra(monkeypatch, package, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"{package} is not installed.*pip install 'fastntk\[{extra}\]'"):
        torchvision_ops.import_optional(package, extra=extra)
