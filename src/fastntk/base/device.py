"""Devices by name, and what they can do. The network runs on the device it is on; what leaves it is on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastntk.base.errors import InputError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
NUMBERED = ("cuda", "mps")
"""Those that may not be there, and of which there may be several."""
WITHOUT_FLOAT64 = {"mps"}


def find_device(device: str | torch.device) -> torch.device:
    """The device of this name; one that is not there is refused. ``auto``: CUDA where there is one, else the CPU, never mps.

    ``cuda:1`` names one of several.
    """
    import torch

    if isinstance(device, torch.device) and device.type not in NUMBERED:
        return device
    name = str(device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (number and not (kind in NUMBERED and number.isdecimal())):
        raise InputError(f"device must be one of {', '.join(DEVICES)} (or cuda:0, cuda:1, …), not {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        has = f"there are {count} CUDA devices" if count else f"torch {torch.__version__} sees no CUDA device"
        raise InputError(f"device {name!r} is not there: {has}; use --device cpu, or auto, which takes what there is")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device 'mps' is not there: torch {torch.__version__} sees no Apple GPU; use --device cpu or auto")
    return torch.device(name)


def with_float64(device: torch.device) -> torch.device:
    """Where sums in float64 are made of numbers on this device: there, or on the CPU where the device has none."""
    import torch

    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device
