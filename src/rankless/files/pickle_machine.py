"""Interpret a pickle without unpickling it.

Only operations that create and combine plain values are interpreted, and nothing is imported or called.
Subclasses define what takes the place of other objects.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar, NoReturn, Self

_MARK = object()
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}


class Machine:
    """A stack machine for the operations of a pickle.

    Attributes:
        operations: functions of the machine and of the operation's argument, by the operation's name.
        literals: names of the operations that push their argument.
        read: number of bytes before the current operation.
    """

    operations: ClassVar[Mapping[str, Callable[[Any, Any], None]]]
    literals = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"})

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None
        self.read = 0

    def run(self, content: IO[bytes] | bytes) -> Self:
        """Interpret one pickle; its value is ``result``. A damaged one raises one of the usual errors."""
        for opcode, argument, position in pickletools.genops(content):
            self.read = position or 0
            self.step(opcode.name, argument)
        return self

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in self.literals:
            self.stack.append(argument)
        elif name in self.operations:
            self.operations[name](self, argument)
        else:
            self.refuse(name)

    def refuse(self, name: str) -> NoReturn:
        raise ValueError(f"operation {name}")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError("a value is missing")
        return value

    def pop_mark(self) -> list[Any]:
        """Pop the last mark and all objects above it, and return the objects."""
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise IndexError("a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def put(self, index: int) -> None:
        value = self.pop()
        self.stack.append(value)
        self.memo[index] = value

    def tuple_of(self, count: int) -> None:
        self.stack.append(tuple(reversed([self.pop() for _ in range(count)])))

    def append_all(self, items: list[Any]) -> None:
        """Add items to the list on top of the stack."""
        self.stack[-1].extend(items)

    def set_all(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dict on top of the stack."""
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def stop(self, _: Any) -> None:
        self.result = self.pop()


Machine.operations = {
    "PROTO": lambda machine, _: None,
    "BINPUT": Machine.put,
    "LONG_BINPUT": Machine.put,
    "BINGET": lambda machine, index: machine.stack.append(machine.memo[index]),
    "LONG_BINGET": lambda machine, index: machine.stack.append(machine.memo[index]),
    "APPEND": lambda machine, _: machine.append_all([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append_all(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.set_all([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_all(machine.pop_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "STOP": Machine.stop,
}
