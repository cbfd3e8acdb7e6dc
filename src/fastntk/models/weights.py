"""Where weights come from: files, the package itself, and a few public addresses.

``KNOWN`` has the weights that CIFAR networks can be given by name, ``weights_file`` finds a file, ``read_weights`` turns it into
named tensors. Only checkpoints that fit our architectures are registered. That excludes the CIFAR-100 ResNets of
chenyaofo/pytorch-cifar-models (their shortcuts are 1×1 convolutions): make such weights with ``fastntk pretrain``.

The embedded ResNet-20 keeps convolutions and the head in half precision, the rest in single. On the 2 000 test images
of cifar10-5k its 100-class argmax agrees with the original's on every image (logits differ by at most 0.013 in a range
of ±21; with everything in half precision one image flips).
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from fastntk.base.download import download
from fastntk.base.errors import InputError, listing
from fastntk.base.files import regular_file

SAFE_SUFFIXES = (".safetensors",)
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".th", ".ckpt")
WEIGHT_SUFFIXES = SAFE_SUFFIXES + PICKLE_SUFFIXES

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "state_dict_ema")
PREFIXES = ("module.", "model.", "_orig_mod.")
"""What wrappers put before every name: DataParallel, Lightning, torch.compile."""

CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


@dataclass(frozen=True)
class KnownWeights:
    """Weights the package knows by name: embedded (``file``) or public (``url``), and the inputs they expect.

    ``sha256`` is None where the publisher gives none: the first download records it (see ``fastntk.base.download``).
    """

    file: str | None = None
    url: str | None = None
    sha256: str | None = None
    mean: tuple[float, ...] = CIFAR100_MEAN
    std: tuple[float, ...] = CIFAR100_STD
    note: str = ""

    def fetch(self) -> Path:
        """Return the local file, downloading it on first use."""
        if self.file is not None:
            return Path(__file__).parent / "data" / self.file
        assert self.url is not None
        return download(self.url, sha256=self.sha256)


# (model, weights option) -> where. Only addresses somebody has fetched from belong here.
KNOWN: Mapping[tuple[str, str], KnownWeights] = MappingProxyType(
    {
        ("resnet20", "cifar100"): KnownWeights(file="cifar100_resnet20.safetensors"),
        ("mobilenetv2_x0_5", "cifar100"): KnownWeights(
            url="https://github.com/chenyaofo/pytorch-cifar-models/releases/download/mobilenetv2/"
            "cifar100_mobilenetv2_x0_5-9f915757.pt"
        ),
    }
)


def known_weights(model: str) -> list[str]:
    """Names that ``weights`` accepts for a CIFAR network."""
    return sorted(option for name, option in KNOWN if name == model)


def weights_file(weights: str | Path, *, model: str, known: list[str]) -> Path:
    """Return the path of a weights file; refuse what is neither a file nor, in the message, a known name."""
    path = Path(weights).expanduser()
    if not path.is_file():
        names = f"one of: {listing(known)}" if known else "none by name"
        raise InputError(
            f"weights={str(weights)!r} is neither a name known for {model} ({names}) nor an existing file "
            f"({listing(WEIGHT_SUFFIXES)})"
            + ("" if ":" in model else "; `fastntk pretrain` makes weights for the CIFAR networks")
        )
    return path


def read_weights(path: Path, *, prefixes: Sequence[str] = PREFIXES) -> dict[str, Tensor]:
    """Read named tensors from a ``.safetensors`` file or a pickle of tensors; code in a pickle is never run.

    Wrappers (``{"state_dict": …}``) and ``prefixes`` that all names have (``module.`` of DataParallel) are removed.
    """
    suffix = path.suffix.lower()
    if suffix not in WEIGHT_SUFFIXES:
        raise InputError(f"{path} is not a weights file by its name: expected one of {listing(WEIGHT_SUFFIXES)}")
    regular_file(path, expected="a weights file")
    content = _read_safetensors(path) if suffix in SAFE_SUFFIXES else _read_pickle(path)
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds a {type(content).__name__}: expected named tensors, such as a state_dict")
    wrong = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if wrong:
        raise InputError(f"{path} should map names to tensors, but these are not tensors: {listing(wrong)}")
    tensors = {str(name): value for name, value in content.items() if str(name) != "n_averaged"}  # a count of AveragedModel
    while prefix := next((each for each in prefixes if tensors and all(name.startswith(each) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}): download or save it again") from error


def _read_pickle(path: Path) -> object:
    try:
        _refuse_packed(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is not a plain file of tensors (or it contains code, which is never run): "
            "save it with torch.save(model.state_dict(), path) or as safetensors"
        ) from error
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is not a readable torch file ({reason}): download or save it again") from error


def _refuse_packed(path: Path) -> None:
    """Refuse an archive whose members are larger than itself: torch.save packs nothing, so that is no file of its making."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > path.stat().st_size:
        raise InputError(
            f"{path} unpacks to {size:,} bytes, more than it has: torch.save does not pack, so it is refused; save it again"
        )
