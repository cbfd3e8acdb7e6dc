"""Read pickles of plain data (numbers, strings, lists, dicts, numpy arrays) without letting them run anything.

A pickle may name any importable function and have it called. Here only the four names that numpy arrays and bytes
need are known; every other one is refused. Not for pickles with objects of any class.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fastntk.base.errors import InputError


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, with which Python 3 writes bytes in old pickle protocols."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


# numpy's own rebuilding function, by its public route; its module was renamed in numpy 2.
_reconstruct = np.empty(0).__reduce__()[0]

_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _latin1,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise InputError(
                f"it asks for {module}.{name}, which plain data never needs: it could run code. Get the file anew "
                "from its publisher"
            )
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise InputError("it refers to objects outside the file")


def load_plain(content: bytes, *, origin: str) -> Any:
    """Return what the pickle holds, Python 2 strings as bytes; ``origin`` names it in errors."""
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except InputError as error:
        raise InputError(f"{origin} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(f"{origin} is not a readable pickle: {type(error).__name__}: {error}") from error
