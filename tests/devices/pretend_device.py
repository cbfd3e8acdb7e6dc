"""A second device without a GPU: real numbers, and an error wherever they meet those of the CPU.

``Elsewhere`` is a tensor that says its device is :data:`DEVICE` and holds an ordinary CPU tensor inside. Every operation is done
on what is inside, after a check by the rules of CUDA:

- tensors of both devices in one operation raise, unless the CPU's has no dimensions (a number) or is an index into the other's;
- ``copy_`` and ``to`` go from one device to the other, in either direction;
- ``numpy()`` and a random generator of the CPU are refused for a tensor elsewhere.

``lazy`` gives its name: torch knows that device type everywhere, autograd included, and needs no driver for it (``meta`` would
not do: forward-mode derivatives use it themselves). Within ``with pretending():`` tensors made with ``device=DEVICE`` or moved
there are such tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("lazy", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}


class MixedDevices(RuntimeError):
    """What a GPU would raise, too."""


class Elsewhere(Tensor):
    """A tensor on the pretended device; ``inside``: its numbers."""

    inside: Tensor
    has_float64 = True

    @staticmethod
    def __new__(cls, inside: Tensor) -> Elsewhere:
        assert type(inside) is Tensor, type(inside)
        if inside.dtype == torch.float64 and not cls.has_float64:
            raise TypeError("this device has no float64")
        out = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            layout=inside.layout,
            device=DEVICE,
            requires_grad=False,
        )
        out.inside = inside
        return out

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Elsewhere({self.inside!r})"

    def tolist(self) -> Any:
        return self.inside.tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError("can't convert a tensor of another device to numpy. Use Tensor.cpu() to copy it to host memory first.")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _Pretend():
            return func(*args, **(kwargs or {}))


class _Pretend(TorchDispatchMode):
    """Carries operations out; the only place that looks inside."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        elsewhere = any(isinstance(leaf, Elsewhere) for leaf in leaves)
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        if not elsewhere and asked != DEVICE:
            return func(*args, **kwargs)
        _check(func, args, kwargs, leaves)
        target = asked or (leaves[0].device if func in MOVES else DEVICE)
        generator = kwargs.get("generator")
        if generator is not None and generator.device != target:
            raise MixedDevices(f"{func}: expected a generator of {target}, found one of {generator.device}")
        if asked is not None:
            kwargs["device"] = CPU
        if func is aten._efficientzerotensor.default:  # of forward mode: it has no memory, which nothing outside of torch sees
            func = aten.zeros.default
        plain_args, plain_kwargs = tree_map(_inside, (args, kwargs))
        out = func(*plain_args, **plain_kwargs)
        if target != DEVICE:
            return args[0] if func is aten.copy_.default else out
        if asked is None and func is not aten._to_copy.default:
            return return_and_correct_aliasing(func, args, kwargs, tree_map(_outside, out))
        return tree_map(_outside, out)


def _check(func: Any, args: Any, kwargs: dict[str, Any], leaves: list[Tensor]) -> None:
    if func in MOVES:
        return
    if func in INDEXED:  # indices may be of the CPU where what they point into is not
        leaves = [args[0], *(leaf for leaf in args[2:] if isinstance(leaf, Tensor))]
        indices = [leaf for leaf in args[1] if isinstance(leaf, Tensor)]
        if not isinstance(args[0], Elsewhere) and any(isinstance(index, Elsewhere) for index in indices):
            raise MixedDevices(f"{func}: indices should be on the CPU or on the device of what is indexed (cpu)")
    here = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere) and leaf.dim() > 0]
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    numbers = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere) and leaf.dim() == 0]
    written = numbers and func._schema.is_mutable and not isinstance(args[0], Elsewhere)
    if there and (here or written):
        shapes = [tuple(leaf.shape) for leaf in here or numbers], [tuple(leaf.shape) for leaf in there]
        raise MixedDevices(f"{func}: expected all tensors to be on the same device; shapes on cpu and elsewhere: {shapes}")


def _inside(leaf: Any) -> Any:
    return leaf.inside if isinstance(leaf, Elsewhere) else leaf


def _outside(leaf: Any) -> Any:
    return Elsewhere(leaf) if type(leaf) is Tensor else leaf


@contextlib.contextmanager
def pretending(*, float64: bool = True) -> Iterator[None]:
    """Inside, ``DEVICE`` is a device like any other; ``float64=False``: one that has no such numbers, as mps."""
    before = Elsewhere.has_float64
    Elsewhere.has_float64 = float64
    try:
        with _Pretend():
            yield
    finally:
        Elsewhere.has_float64 = before


def move(model: nn.Module) -> nn.Module:
    """The model with its parameters and buffers elsewhere, in place; as ``model.to("cuda")``."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Elsewhere(parameter.detach().clone()), parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer.detach().clone())
    return model
