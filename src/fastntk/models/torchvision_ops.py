"""Import timm and transformers where torchvision's compiled operators do not fit the installed torch.

torchvision registers shapes for its operator ``torchvision::nms`` while it is imported. A torchvision built for
another torch (common with CPU wheels) cannot load its compiled library, the operator does not exist, and with it
fails every import of timm or of transformers' models, although no classifier ever calls it. :func:`ensure_operators`
declares the operators' signatures in that case. They still have no implementation: object detection stays
impossible, image classification works. Where the operators exist, or torchvision is absent, nothing is done.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from types import ModuleType

import torch

from fastntk.base.errors import InputError

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")

# Torch drops a library's definitions when the object is collected, so it is kept for the life of the process.
_libraries: list[torch.library.Library] = []


def _operator_missing(error: Exception) -> bool:
    return "torchvision::" in str(error) and "does not exist" in str(error)


def ensure_operators() -> bool:
    """Make ``import torchvision`` work; return whether operators had to be declared (now or earlier)."""
    if _libraries:
        return True
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        # Asking first and declaring only after a failure: a healthy torchvision would refuse a second definition.
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not _operator_missing(error):
            raise
    else:
        return False
    declare_operators()
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
    importlib.import_module("torchvision")
    warnings.warn(
        "the installed torchvision was built for another torch: its compiled operators (nms) are missing; "
        "classifiers do not use them, so fastntk goes on. To be rid of this, install the torchvision that belongs "
        f"to torch {torch.__version__}",
        stacklevel=2,
    )
    return True


def declare_operators() -> None:
    """Declare the signatures of ``torchvision::nms`` and ``torchvision::qnms``, without any implementation."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(operator + _SIGNATURE)
    _libraries.append(library)


def import_optional(module: str, *, extra: str) -> ModuleType:
    """Import timm or transformers (or a module of theirs); say which extra to install where it is missing."""
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{package} is not installed, and models of this kind come from it: pip install 'fastntk[{extra}]'")
    ensure_operators()
    return importlib.import_module(module)
