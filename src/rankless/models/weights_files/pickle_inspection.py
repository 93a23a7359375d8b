"""Inspect a checkpoint's pickle without unpickling it.

``torch.load(weights_only=True)`` runs no foreign code, but it trusts the file: it allocates the sizes stated
there, and calls a few functions whose results can grow without bound. Therefore, this module interprets the
pickle first, with placeholders for everything except plain values. It imports nothing named in the pickle,
and does not call torch. The memory and time it needs are proportional to the size of the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

import torch

from rankless.errors import printable
from rankless.files.pickle_machine import Machine

_LARGEST = 2**60  # below this, integers have distinct hashes in Python, and sizes fit into 64 bits
_LONGEST_KEY = 16
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
UNSUPPORTED = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on the meta device, without values",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor of a subclass",
    "torch._utils._rebuild_parameter_with_state": "a parameter with additional attributes",
}
SAVE_WEIGHTS = "save only its weights: torch.save(model.state_dict(), 'weights.pt')"


class RefusedFileError(ValueError):
    """Raised when a file is refused. The message continues a sentence that starts with the file's path."""


@dataclass(frozen=True)
class Storage:
    """A placeholder for a storage: its key in the file, and the dtype and number of its values."""

    key: str
    dtype: torch.dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Global:
    """A placeholder for a class or function, identified by its full name."""

    name: str


@dataclass(frozen=True)
class _Tensor:
    """A placeholder for a torch object whose values are not read."""


class Foreign:
    """A placeholder for an object of an unknown class."""


NAMESPACE = "argparse.Namespace"
"""The class in which torchvision's scripts save their options. It contains only values."""


class Options:
    """A placeholder for an ``argparse.Namespace`` whose values are not read."""


def size_of(value: Any) -> int:
    """Return ``value`` if it is a valid size or offset, otherwise raise an error."""
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise RefusedFileError(f"is damaged: it contains an invalid size, {printable(repr(value))}")
    return value


def key_of(value: Any) -> Any:
    """Return ``value`` if it is a dict key that can be hashed quickly, otherwise raise an error."""
    if isinstance(value, tuple) and len(value) > _LONGEST_KEY:
        raise TypeError("a tuple is too long to be a key")
    for part in value if isinstance(value, tuple) else (value,):
        plain = isinstance(part, str | float | bool | bytes | Global) or part is None
        if not plain and not (isinstance(part, int) and abs(part) < _LARGEST):
            raise TypeError(f"an object of type {type(part).__name__} cannot be a key")
    return value


def dtype_of(name: str) -> torch.dtype | None:
    """Return the dtype with the given name, such as ``torch.float32``, or None."""
    return _DTYPES.get(name)


def storage_dtype(name: str) -> torch.dtype | None:
    """Return the dtype of the storage class with the given name, or None if the class is unknown."""
    module, _, attribute = name.rpartition(".")
    return _STORAGES.get(attribute) if module in ("torch", "torch.cuda", "torch.storage") else None


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> _Tensor:
    """Stand in for ``_rebuild_tensor`` and ``_rebuild_tensor_v2``."""
    return _checked(storage, storage.dtype, offset, size, stride, rest)


def _tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> _Tensor:
    """Stand in for ``_rebuild_tensor_v3``, which PyTorch uses for dtypes without a storage class."""
    known = dtype_of(dtype.name)
    if known is None:
        raise TypeError("a dtype is invalid")
    return _checked(storage, known, offset, size, stride, (grad, hooks, *rest))


def _checked(
    storage: Any, dtype: torch.dtype, offset: Any, size: Any, stride: Any, rest: tuple[Any, ...]
) -> _Tensor:
    if not isinstance(storage, Storage) or len(size) != len(stride) or len(rest) > 3 or any(rest[1:]):
        raise TypeError("a tensor is invalid")
    sides, steps = [size_of(side) for side in size], [size_of(step) for step in stride]
    last = size_of(offset) + sum((side - 1) * step for side, step in zip(sides, steps, strict=True))
    if all(sides) and (last + 1) * dtype.itemsize > storage.nbytes:
        shape = "×".join(map(str, sides)) or "()"
        raise RefusedFileError(
            f"is damaged: a tensor of shape {shape} does not fit into its storage of {storage.nbytes:,} bytes"
        )
    return _Tensor()


def _parameter(data: Any, _grad: Any, hooks: Any) -> _Tensor:
    if not isinstance(data, _Tensor) or hooks:
        raise TypeError("a parameter is invalid")
    return data


def _dict(given: Any = ()) -> dict[Any, Any]:
    """Stand in for ``OrderedDict`` (which pickles from Python 2 call with pairs) and ``Counter``."""
    if not isinstance(given, dict | list | tuple):
        raise TypeError("a dict is invalid")
    pairs = given.items() if isinstance(given, dict) else given
    return {key_of(key): value for key, value in pairs}


def _set(members: Any = ()) -> set[Any]:
    return {key_of(member) for member in _listed(members)}


def _shape(sides: Any = ()) -> tuple[int, ...]:
    return tuple(size_of(side) for side in _listed(sides))


def _listed(members: Any) -> Any:
    if not isinstance(members, list | tuple):
        raise TypeError("a list of members is invalid")
    return members


def _encode(text: Any, encoding: Any) -> bytes:
    # Only the encoding that pickle uses for bytes: other codecs could expand the text repeatedly.
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("a byte string is invalid")
    return text.encode("latin1")


def _inert(*arguments: Any) -> _Tensor:
    if len(arguments) > 2 or not all(isinstance(argument, str | int) for argument in arguments):
        raise TypeError("a device or layout is invalid")
    return _Tensor()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "builtins.set": _set,
    "torch.Size": _shape,
    "torch.device": _inert,
    "_codecs.encode": _encode,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _parameter,
}


_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


@dataclass
class Inspection:
    """The storages, and the unknown classes and functions, that the pickles in one file refer to."""

    storages: dict[str, Storage] = field(default_factory=dict)
    wanted: dict[str, None] = field(default_factory=dict)

    def walk(self, file: IO[bytes]) -> Any:
        """Read one pickle, and return its value with placeholders for tensors and storages."""
        machine = _Machine(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about odd escapes in names
                machine.run(file)
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
            f"contains more than tensors: loading {', '.join(names[:3])}{more} could run arbitrary code; "
            f"{SAVE_WEIGHTS}"
        )


class _Machine(Machine):
    """A machine for the operations that ``torch.load(weights_only=True)`` supports."""

    literals = Machine.literals | {"SHORT_BINSTRING"}

    def __init__(self, inspection: Inspection) -> None:
        super().__init__()
        self.inspection = inspection
        self.copied = 0  # number of members that calls have copied

    def refuse(self, name: str) -> NoReturn:
        raise RefusedFileError(
            f"contains a pickle operation ({name}) that torch.load(weights_only=True) does not support; save "
            "it again with torch.save and its default protocol"
        )

    def append_all(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Foreign):
            raise TypeError(f"items cannot be added to an object of type {type(target).__name__}")

    def set_all(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise IndexError("a value is missing")
        if isinstance(target, dict):
            target.update(zip(map(key_of, items[::2]), items[1::2], strict=True))
        elif not isinstance(target, Foreign):
            raise TypeError(f"entries cannot be added to an object of type {type(target).__name__}")

    def find(self, text: str) -> None:
        module, _, attribute = text.partition(" ")
        name = f"{_OLD_MODULES.get(module, module)}.{attribute}"
        if name in UNSUPPORTED:
            raise RefusedFileError(f"contains {UNSUPPORTED[name]}; convert it to an ordinary dense tensor")
        if module in ("torch", "torch.cuda") and attribute.startswith("Q") and attribute.endswith("Storage"):
            raise RefusedFileError("contains a quantized tensor; convert it to an ordinary dense tensor")
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
            raise TypeError("only functions can be called")
        if function.name not in FUNCTIONS:
            raise TypeError(f"{function.name} cannot be called")
        # Without this limit, a small file could request endless copies of a long list.
        self.copied += sum(len(one) for one in arguments if isinstance(one, str | list | tuple | dict))
        if self.copied > self.read:
            raise RefusedFileError("is damaged or malicious: it copies more values than it contains")
        self.stack.append(FUNCTIONS[function.name](*arguments))

    def make(self, _: Any) -> None:
        arguments, made = self.pop(), self.pop()
        if isinstance(made, Global) and made.name == NAMESPACE and arguments == ():
            self.stack.append(Options())
            return
        if isinstance(made, Global):
            self.inspection.wanted[made.name] = None
        elif not isinstance(made, Foreign):
            raise TypeError("an object has no class")
        self.stack.append(Foreign())

    def build(self, _: Any) -> None:
        state = self.pop()
        target = self.stack[-1]
        if isinstance(target, Foreign):
            return
        if isinstance(target, Options) and isinstance(state, dict):
            if any(not isinstance(key, str) or key.startswith("__") for key in state):
                raise TypeError("a namespace has special attributes")
            return
        # A state_dict stores the versions of its modules in _metadata. Any other attribute could hide a
        # method.
        if not isinstance(target, dict) or not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise TypeError(f"attributes cannot be set on an object of type {type(target).__name__}")

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
                    raise RefusedFileError("is damaged: two sizes are given for the same storage")
                self.stack.append(made if view in ([], [None]) else self.view(made, *view[0]))
                return
        raise TypeError("a storage is invalid")

    @staticmethod
    def view(root: Storage, key: Any, offset: Any, numel: Any) -> Storage:
        """Return a view of part of another storage, as written by PyTorch before 0.4."""
        if not isinstance(key, str) or size_of(offset) + size_of(numel) > root.numel:
            raise RefusedFileError("is damaged: a view extends beyond its storage")
        return Storage(key, root.dtype, numel)


_Machine.operations = {
    **Machine.operations,
    "GLOBAL": _Machine.find,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.storage,
}
