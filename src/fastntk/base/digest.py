"""SHA-256 of what decides a result: tensors, JSON-able values, files. Equal exactly where the bytes are equal.

Digests of what can be guessed (ids, names of persons) are keyed: without the key, a guess cannot be tried.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def tensor_digest(tensor: Tensor) -> str:
    """Over dtype, shape and bytes of a tensor."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype}{tuple(plain.shape)}".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def json_digest(value: Any) -> str:
    """Over a JSON-able value; the order of keys plays no part."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def new_key() -> bytes:
    """A random key for keyed digests."""
    return secrets.token_bytes(32)


def key_name(key: bytes) -> str:
    """What a key is called in public: tells two keys apart and nothing of either."""
    return hashlib.sha256(b"fastntk key" + key).hexdigest()[:16]


def keyed_digest(value: Any, key: bytes) -> str:
    """HMAC-SHA-256 over a JSON-able value."""
    return hmac.digest(key, json.dumps(value, sort_keys=True).encode(), "sha256").hex()


def file_digest(path: Path, *, algorithm: str = "sha256") -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
