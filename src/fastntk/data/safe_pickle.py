"""Read pickles of the CIFAR batches' kind without unpickling: dicts, lists, numbers, strings and arrays of unsigned bytes.

A pickle is a program for a machine with a stack. Python's own machine calls what the program names, and even numpy's types can be
told to take raw bytes for pointers. The machine here knows the few instructions that plain data need; of names it knows five,
calls none of them, and makes an array only from ``u1``, a shape and as many bytes. Whatever else a program says is refused.

Pickle protocols 2 to 4, as Python 2 (the published files) and Python 3 write them. Not for objects, nor other arrays.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastntk.base.errors import InputError

_NAMES = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("_codecs", "encode"): "encode",
}

# What numpy writes of the type u1; another state of it is no plain byte.
_BYTE_STATES = ((3, b"|", None, None, None, -1, -1, 0), (3, "|", None, None, None, -1, -1, 0))


class _RefusedError(Exception):
    """Why a pickle is refused."""


@dataclass(frozen=True)
class _Name:
    """One of the known names, in place of what it stands for."""

    name: str


class _ByteType:
    """The type of unsigned bytes."""


@dataclass
class _Array:
    """An array, empty until its contents are read."""

    content: npt.NDArray[np.uint8] | None = None


@dataclass(repr=False)
class _Machine:
    """The stack, where lists on it began, and what the program set aside."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        """Take what was put on the stack since the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def take(self, count: int) -> list[Any]:
        """Take the last ``count`` things off the stack."""
        if len(self.stack) < count:
            raise _RefusedError("it takes more than there is")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items


def load_plain(content: bytes, *, origin: str) -> Any:
    """Return what the pickle holds, Python 2 strings as bytes; ``origin`` names it in errors."""
    try:
        return _run(content)
    except _RefusedError as error:
        raise InputError(f"{origin} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(f"{origin} is not a readable pickle: {type(error).__name__}: {error}") from error


def _run(content: bytes) -> Any:
    machine = _Machine()
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name == "STOP":
            break
        step = _STEPS.get(opcode.name)
        if step is None:
            raise _RefusedError(
                f"instruction {opcode.name} at byte {position} is not one that plain data of pickle protocols 2 to 4 need"
            )
        step(machine, argument)
    if machine.marks:
        raise _RefusedError("it ends within a list")
    (value,) = machine.stack
    return {key: _array(item) for key, item in value.items()} if isinstance(value, dict) else _array(value)


def _array(value: Any) -> Any:
    return value.content if isinstance(value, _Array) else value


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _mark(machine: _Machine, _: Any) -> None:
    machine.marks.append(len(machine.stack))


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _get(machine: _Machine, index: int) -> None:
    machine.stack.append(machine.memo[index])


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(tuple(machine.take(count)))


def _append(machine: _Machine, items: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise _RefusedError(f"it appends to a {type(machine.stack[-1]).__name__}")
    machine.stack[-1].extend(items)


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, (bytes, str)) for key in items[::2]):
        raise _RefusedError("expected entries of a dict, named by strings")
    target.update(zip(items[::2], items[1::2]))


def _name(machine: _Machine, module: str, name: str) -> None:
    if (module, name) not in _NAMES:
        raise _RefusedError(
            f"it asks for {module}.{name}, which plain data never needs: it could run code. Get the file anew from its publisher"
        )
    machine.stack.append(_Name(_NAMES[module, name]))


def _stack_name(machine: _Machine, _: Any) -> None:
    module, name = machine.take(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _RefusedError("it asks for a name that is no text")
    _name(machine, module, name)


def _call(machine: _Machine, _: Any) -> None:
    """The three calls there are: text to bytes, an array to be filled, the type of unsigned bytes."""
    name, arguments = machine.take(2)
    match name, arguments:
        case _Name("encode"), (str(text), "latin1" | b"latin1"):
            machine.stack.append(text.encode("latin1"))
        case _Name("array"), (_Name("ndarray"), (0,), "b" | b"b"):
            machine.stack.append(_Array())
        case _Name("dtype"), ("u1" | b"u1", 0, 1):
            machine.stack.append(_ByteType())
        case _:
            raise _RefusedError("it calls what is no array of unsigned bytes (u1)")


def _fill(machine: _Machine, _: Any) -> None:
    """What follows a call: the state of the type, or the contents of an array."""
    subject, state = machine.take(2)
    if isinstance(subject, _ByteType) and state in _BYTE_STATES:
        machine.stack.append(subject)
        return
    match state:
        case (1, tuple(shape), _ByteType(), bool(by_columns), bytes(content)) if isinstance(subject, _Array):
            whole = all(type(side) is int and side >= 0 for side in shape) and math.prod(shape) == len(content)
            if not whole or subject.content is not None:
                raise _RefusedError(f"an array whose {len(content)} bytes do not fill its shape")
            subject.content = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")
            machine.stack.append(subject)
        case _:
            raise _RefusedError("it holds an array of something else than unsigned bytes (u1)")


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda machine, text: machine.stack.append(text.encode("latin1"))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _get),
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": _tuple(0),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "MARK": _mark,
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "APPEND": lambda machine, _: _append(machine, machine.take(1)),
    "APPENDS": lambda machine, _: _append(machine, machine.since_mark()),
    "SETITEM": lambda machine, _: _set_items(machine, machine.take(2)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    "GLOBAL": lambda machine, argument: _name(machine, *argument.split(" ", 1)),
    "STACK_GLOBAL": _stack_name,
    "REDUCE": _call,
    "BUILD": _fill,
}
