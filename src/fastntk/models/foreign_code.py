"""Configurations that ask for code of their own: refused, wherever they lie.

Hugging Face configurations may name Python files to run (``auto_map``) or kernels of the hub to load (an attention implementation
with a slash in it), peft's a module to import (``megatron_config``). Nothing here runs such code, and nobody is asked whether to.
timm's configurations name architectures and arguments only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastntk.base.errors import InputError, listing

_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")


def refuse_code(settings: Any, *, where: str) -> None:
    """Refuse a configuration (plain JSON) that asks for code anywhere in it, nested parts too."""
    wishes = sorted(set(_wishes(settings, "")))
    if wishes:
        raise InputError(
            f"{where} asks for code of its own to be run ({listing(wishes)}), and fastntk runs no code that comes with a model. "
            "Use a model of transformers itself; or build this one in Python, having read its code, and give it to Run or record."
        )


def _wishes(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            inner = f"{place}.{name}" if place else str(name)
            if (name in ("auto_map", "megatron_config") and item) or (name in _ATTENTION and "/" in str(item)):
                yield inner
            else:
                yield from _wishes(item, inner)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _wishes(item, f"{place}[{number}]")
