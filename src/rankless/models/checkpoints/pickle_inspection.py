"""Inspect a checkpoint's pickle without unpickling it.

``torch.load(weights_only=True)`` runs no foreign code, but it trusts the file: it allocates the sizes stated
there, and calls a few functions whose results can grow without bound. Therefore, this module interprets the
pickle first, with placeholders for everything except plain values. It imports nothing that the pickle names
and does not call torch. Its memory and time are proportional to the size of the file.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from rankless.errors import printable
from rankless.models.checkpoints.pickle_values import (
    FUNCTIONS,
    NAMESPACE,
    UNSUPPORTED,
    Foreign,
    Global,
    Options,
    RefusedFileError,
    Storage,
    dtype_of,
    key_of,
    size_of,
    storage_dtype,
)

_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MARK = object()


@dataclass
class Inspection:
    """The storages and foreign objects in the pickles of one file.

    Attributes:
        storages: storages by key.
        wanted: names of the foreign classes and functions that the pickles need; none of them is called.
    """

    storages: dict[str, Storage] = field(default_factory=dict)
    wanted: dict[str, None] = field(default_factory=dict)

    def walk(self, file: IO[bytes]) -> Any:
        """Read one pickle, and return its value with placeholders for tensors and storages.

        Raises:
            RefusedFileError: the pickle is damaged, or needs foreign classes or functions.
        """
        machine = _Machine(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about odd escapes in names
                for opcode, argument, position in pickletools.genops(file):
                    machine.read = position or 0
                    machine.step(opcode.name, argument)
        except RefusedFileError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = printable(str(error)) or type(error).__name__
            raise RefusedFileError(
                f"is damaged or not a PyTorch checkpoint (pickle error: {reason})"
            ) from None
        if self.wanted:
            raise RefusedFileError(self._foreign())
        return machine.result

    def _foreign(self) -> str:
        names = [printable(name) for name in self.wanted]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return (
            f"contains more than tensors: it needs {', '.join(names[:3])}{more}, which could run any "
            "code and are never loaded; save only the weights in the software that made it: "
            "torch.save(model.state_dict(), 'weights.pt')"
        )


class _Machine:
    """A stack machine for the pickle operations that ``torch.load(weights_only=True)`` supports."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None
        self.read = 0  # bytes of the file read so far
        self.copied = 0  # number of members that calls have copied

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        else:
            raise RefusedFileError(
                f"is a pickle that torch.load(weights_only=True) does not support (operation {name}), saved "
                "with another protocol or by another program; save it again with torch.save's defaults"
            )

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError("a value is missing")
        return value

    def pop_mark(self) -> list[Any]:
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
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Foreign):
            raise TypeError(f"items for a {type(target).__name__}")

    def set_all(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise IndexError("a value is missing")
        if isinstance(target, dict):
            target.update(zip(map(key_of, items[::2]), items[1::2], strict=True))
        elif not isinstance(target, Foreign):
            raise TypeError(f"entries for a {type(target).__name__}")

    def find(self, text: str) -> None:
        module, _, attribute = text.partition(" ")
        name = f"{_OLD_MODULES.get(module, module)}.{attribute}"
        if name in UNSUPPORTED:
            raise RefusedFileError(f"contains {UNSUPPORTED[name]}; expected dense tensors; convert it first")
        if module in ("torch", "torch.cuda") and attribute.startswith("Q") and attribute.endswith("Storage"):
            raise RefusedFileError("contains a quantized tensor; expected dense tensors; convert it first")
        if name not in (*FUNCTIONS, NAMESPACE) and dtype_of(name) is None and storage_dtype(name) is None:
            self.inspection.wanted[name] = None
        self.stack.append(Global(name))

    def call(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        # A foreign object often contains others; continue, so that all of them are reported.
        if isinstance(function, Foreign) or (
            isinstance(function, Global)
            and isinstance(arguments, tuple)
            and (
                function.name in self.inspection.wanted or any(isinstance(one, Foreign) for one in arguments)
            )
        ):
            self.stack.append(Foreign())
            return
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise TypeError("a call to something that is not a function")
        if function.name not in FUNCTIONS:
            raise TypeError(f"a call to {function.name}")
        # Without this limit, a small file could request endless copies of a long list.
        self.copied += sum(len(one) for one in arguments if isinstance(one, str | list | tuple | dict))
        if self.copied > self.read:
            raise RefusedFileError("is damaged or malicious: it copies more values than it contains")
        self.stack.append(FUNCTIONS[function.name](*arguments))

    def make(self, _: Any) -> None:
        """Handle the opcode NEWOBJ with a placeholder for the new object."""
        arguments, made = self.pop(), self.pop()
        if isinstance(made, Global) and made.name == NAMESPACE and arguments == ():
            self.stack.append(Options())
            return
        if isinstance(made, Global):
            self.inspection.wanted[made.name] = None
        elif not isinstance(made, Foreign):
            raise TypeError("an object without a class")
        self.stack.append(Foreign())

    def build(self, _: Any) -> None:
        state = self.pop()
        target = self.stack[-1]
        if isinstance(target, Foreign):
            return
        if isinstance(target, Options) and isinstance(state, dict):
            if any(not isinstance(key, str) or key.startswith("__") for key in state):
                raise TypeError("special attributes for options")
            return
        # A state_dict stores the versions of its modules in _metadata. Any other attribute could hide a
        # method.
        if not isinstance(target, dict) or not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise TypeError(f"attributes for a {type(target).__name__}")

    def storage(self, _: Any) -> None:
        pid = self.pop()
        if isinstance(pid, tuple) and pid[:1] == ("module",):  # a class with its source, before PyTorch 1.6
            self.inspection.wanted[pid[1].name] = None
            self.stack.append(Foreign())
            return
        if isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage":
            _, kind, key, _location, numel, *view = pid
            dtype = storage_dtype(kind.name)
            if dtype is not None and isinstance(key, str):
                made = Storage(key, dtype, size_of(numel))
                known = self.inspection.storages.setdefault(key, made)
                if known.nbytes != made.nbytes:
                    raise RefusedFileError("is damaged: it gives one storage two sizes")
                self.stack.append(made if view in ([], [None]) else self.view(made, *view[0]))
                return
        raise TypeError("an invalid storage")

    @staticmethod
    def view(root: Storage, key: Any, offset: Any, numel: Any) -> Storage:
        """Return a part of another storage, as PyTorch before 0.4 wrote it."""
        if not isinstance(key, str) or size_of(offset) + size_of(numel) > root.numel:
            raise RefusedFileError("is damaged: a part of a storage is larger than the storage")
        return Storage(key, root.dtype, numel)

    def stop(self, _: Any) -> None:
        self.result = self.pop()


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"}
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
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
    "GLOBAL": _Machine.find,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.storage,
    "STOP": _Machine.stop,
}
