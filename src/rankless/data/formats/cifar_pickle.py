"""What a file of CIFAR holds, without unpickling it: the operations are followed as far as plain values go.

The files are pickles of Python 2: a dict with lists of numbers and texts, and one NumPy array of the pixels,
whose bytes lie in the file as one run. Names that a pickle would import and call stay names here, so nothing
in a file is run, whatever it says.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rankless.errors import UserError
from rankless.files import reading

MOST_BYTES = 1 << 28
_IGNORED = {"PROTO", "FRAME"}
_PLAIN = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "NONE", "NEWTRUE", "NEWFALSE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TEXTS = {"SHORT_BINSTRING": 2, "BINSTRING": 5, "SHORT_BINBYTES": 2, "BINBYTES": 5, "BINUNICODE": 5}
"""Operations to the bytes from them to their text; so the pixels are found in the file."""
_PUT = {"BINPUT", "LONG_BINPUT", "PUT"}
_GET = {"BINGET", "LONG_BINGET", "GET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


_LONG = 1024
"""Bytes; longer texts are runs, and those of a class name or a file are shorter."""


class Run(NamedTuple):
    """A long run of bytes in the file, such as an array's."""

    offset: int
    length: int


class Named:
    """What stands in place of something that a pickle would import, or make by calling it.

    Attributes:
        state: what it would be set to; an array's ends with its bytes.
    """

    state: Any = None


_FRESH: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
    "GLOBAL": Named,
}
"""Operations that put something new on the stack."""


def contents(file: Path) -> dict[str, Any]:
    """The dict in a file: keys to numbers, texts, lists of them, :class:`Run` or :class:`Named`."""
    try:
        data = reading.read_bytes(file, MOST_BYTES)
        found = _followed(data)
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read: {reading.reason(error)}; expected a file of CIFAR"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        found = f"{error or type(error).__name__}"
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError(
            f"{file}: not a file of CIFAR's Python version, or damaged; expected a pickled dict of plain "
            "values; get it again"
        )
    return found


def _followed(data: bytes) -> Any:
    """What the pickle would leave, of plain values alone."""
    stack: list[Any] = []
    memory: dict[Any, Any] = {}

    for operation, argument, at in pickletools.genops(data):
        name = operation.name
        if name in _TEXTS:
            text: Any = argument
            start = (at or 0) + _TEXTS[name]
            stack.append(Run(start, len(text)) if len(text) > _LONG else _text(text))
        elif name in _PLAIN:
            stack.append(_CONSTANTS.get(name, argument))
        elif name in _FRESH:
            stack.append(_FRESH[name]())
        elif name in _PUT:
            memory[argument] = stack[-1]
        elif name in _GET:
            stack.append(memory[argument])
        elif name in ("APPEND", "APPENDS"):
            values = [stack.pop()] if name == "APPEND" else _taken(stack)
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _taken(stack)
            stack[-1].update(zip(values[::2], values[1::2], strict=True))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "TUPLE":
            stack.append(tuple(_taken(stack)))
        elif name == "REDUCE":
            stack[-2:] = [Named()]
        elif name == "BUILD":
            stack[-1].state = stack.pop()  # what lies on top once it is taken
        elif name == "STOP":
            return stack.pop()
        elif name not in _IGNORED:
            raise ValueError(f"operation {name}")
    raise ValueError("no end")


def _taken(stack: list[Any]) -> list[Any]:
    """Take what lies above the last mark."""
    at = len(stack) - 1 - stack[::-1].index(_MARK)
    values = stack[at + 1 :]
    del stack[at:]
    return values


def _text(argument: str | bytes) -> str:
    return argument.decode("latin-1") if isinstance(argument, bytes) else argument
