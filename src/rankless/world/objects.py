"""Serialization of the values that ranks send to each other, as JSON followed by raw bytes for arrays.

Nothing is unpickled. Received bytes can only create plain values, arrays, and instances of data classes that
this process has already loaded, without calling any of their methods. Packing refuses all other types. The
layout is the length of the JSON (8 bytes), the JSON, and the arrays in the order of the JSON. Each array
starts at a multiple of 16 bytes, because it is used without a copy.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SENDABLE = (
    "None, bool, int, float, str, bytes, tensors on the CPU, NumPy arrays, and lists, tuples, sets, dicts, "
    "dataclasses and named tuples of these (their classes must be defined at the top level of a module)"
)

_ALIGNED = 16
_PLAIN = 2**63  # integers below this are JSON numbers
_KINDS = "biufcmMSU"  # NumPy's types without references and fields
_SCALARS = _KINDS.rstrip("SU")  # because NumPy strips trailing zeros of text scalars
_BITS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool")
_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (*_BITS, *_FLOATS)}
_COLLECTIONS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_NAMES = {made: name for name, made in _COLLECTIONS.items()}


class UnsendableError(TypeError):
    """Raised for a value of a type that cannot be sent.

    ``position`` is the value's position in the outermost value, such as ``[3].mask``.
    """

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description, self.position = description, ""

    def __str__(self) -> str:
        return f"{self.position or 'it'} is {self.description}"


def pack(value: Any) -> Tensor:
    """Return ``value`` as bytes, uint8 (N,). Raise :class:`UnsendableError` for an unsupported type."""
    writer = _Writer()
    node = writer.checked(value)
    classes = [(made.__module__, made.__qualname__, *names) for made, names in writer.classes]
    head = json.dumps([classes, node], separators=(",", ":")).encode()
    places, end = [], 8 + len(head)
    for blob in writer.blobs:
        begin = _aligned(end)
        end = begin + blob.nbytes
        places.append((begin, end))
    packed = torch.zeros(end, dtype=torch.uint8)
    out = packed.numpy()
    out[:8] = np.frombuffer(struct.pack("<Q", len(head)), np.uint8)
    out[8 : 8 + len(head)] = np.frombuffer(head, np.uint8)
    for (begin, end), blob in zip(places, writer.blobs, strict=True):
        out[begin:end] = blob
    return packed


def unpack(packed: Tensor) -> Any:
    """Return the value packed in uint8 (N,), bit for bit. Its arrays share memory with ``packed``."""
    data = packed.numpy()
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    classes, node = json.loads(data[8 : 8 + length].tobytes())
    return _Reader(data, 8 + length, [_known(*names) for names in classes]).value(node)


def check(value: Any) -> None:
    """Raise :class:`UnsendableError` if ``value`` cannot be packed."""
    _Writer().checked(value)


class _Writer:
    """Converts values to JSON nodes, in which every list starts with the name of its type.

    ``blobs`` contains the bytes of the arrays that follow the JSON, and ``classes`` contains the numbers of
    the objects' classes, by class and attribute names.
    """

    def __init__(self) -> None:
        self.blobs: list[NDArray[np.uint8]] = []
        self.classes: dict[tuple[type, tuple[str, ...]], int] = {}

    def checked(self, value: Any) -> Any:
        try:
            return self.node(value)
        except RecursionError:
            raise UnsendableError("a value that is nested too deeply or contains itself") from None

    def node(self, value: Any) -> Any:
        """Return the node of ``value``. Subclasses are refused, because unpacking would lose their type."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -_PLAIN <= value < _PLAIN else ["int", hex(value)]
        if kind is float:  # keeps the payload of a NaN
            return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]
        if kind is str:
            try:
                value.encode()
            except UnicodeEncodeError:  # JSON would merge a pair of surrogates into one character
                return ["str", value.encode("utf-8", "surrogatepass").hex()]
            return value
        if kind in _NAMES:
            return [_NAMES[kind], *self.each(enumerate(value))]
        if kind is dict:
            return ["dict", *self.each((key, part) for key, item in value.items() for part in (key, item))]
        if kind is bytes or kind is bytearray:
            return self.blob(np.frombuffer(value, np.uint8), kind.__name__, len(value))
        if kind is Tensor:
            return self.tensor(value)
        if kind is np.ndarray or isinstance(value, np.generic):
            return self.array(np.asarray(value), "array" if kind is np.ndarray else "scalar")
        return self.object(value)

    def each(self, parts: Iterable[tuple[Any, Any]], of: str = "[{!r:.40}]") -> Iterator[Any]:
        """Yield the nodes of a value's parts. ``of`` formats the position of a part for errors."""
        for position, part in parts:
            try:
                yield self.node(part)
            except UnsendableError as error:
                error.position = of.format(position) + error.position
                raise

    def blob(self, data: NDArray[np.uint8], *words: Any) -> list[Any]:
        self.blobs.append(data)
        return list(words)

    def tensor(self, value: Tensor) -> list[Any]:
        dtype = str(value.dtype).removeprefix("torch.")
        if value.device.type != "cpu":
            raise UnsendableError(f"a tensor on {value.device}")
        if value.layout != torch.strided or dtype not in _DTYPES:
            raise UnsendableError(f"a tensor of {value.dtype}, {value.layout}")
        plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return self.blob(plain.numpy(), "tensor", dtype, value.requires_grad, *value.shape)

    def array(self, value: NDArray[Any], name: str) -> list[Any]:
        if value.dtype.kind not in (_KINDS if name == "array" else _SCALARS):
            raise UnsendableError(f"a NumPy {name} of {value.dtype}")
        plain = np.empty(0, np.uint8)
        if value.nbytes:
            plain = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return self.blob(plain, name, value.dtype.str, *value.shape)

    def object(self, value: Any) -> list[Any]:
        made = type(value)
        if not _is_data(made):
            module = "" if made.__module__ == "builtins" else f"{made.__module__}."
            raise UnsendableError(f"a value of type {module}{made.__qualname__}")
        if _loaded(made.__module__, made.__qualname__) is not made:
            raise UnsendableError(
                f"an object of class {made.__qualname__}, which is not defined at the top level of a module"
            )
        if issubclass(made, tuple):
            names: tuple[str, ...] = made._fields
            parts = list(zip(names, value, strict=True))
        else:
            fields = [field.name for field in dataclasses.fields(made)]
            known = dict.fromkeys([*fields, *getattr(value, "__dict__", ())])
            names = tuple(name for name in known if hasattr(value, name))
            parts = [(name, getattr(value, name)) for name in names]
        number = self.classes.setdefault((made, names), len(self.classes))
        return ["object", number, *self.each(parts, ".{}")]


class _Reader:
    """Converts JSON nodes to values. They must be read in the order of writing.

    ``at`` is the offset of the end of the JSON.
    """

    def __init__(self, data: NDArray[np.uint8], at: int, classes: list[tuple[type, list[str]]]) -> None:
        self.data, self.at, self.classes = data, at, classes

    def value(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        name, *parts = node
        if name in _COLLECTIONS:
            return _COLLECTIONS[name]([self.value(part) for part in parts])
        if name == "dict":
            values = [self.value(part) for part in parts]
            return dict(zip(values[::2], values[1::2], strict=True))
        if name == "object":
            return self.object(parts)
        if name == "tensor":
            return self.tensor(*parts)
        if name in ("array", "scalar"):
            array = self.array(*parts)
            return array if name == "array" else array[()]
        if name in ("bytes", "bytearray"):
            data = self.blob(parts[0]).tobytes()
            return data if name == "bytes" else bytearray(data)
        if name == "int":
            return int(parts[0], 16)
        if name == "float":
            return struct.unpack("<d", bytes.fromhex(parts[0]))[0]
        if name == "str":
            return bytes.fromhex(parts[0]).decode("utf-8", "surrogatepass")
        raise ValueError(f"{name!r:.40} is not the name of a type that can be sent")

    def blob(self, length: int) -> NDArray[np.uint8]:
        begin = _aligned(self.at)
        self.at = begin + length
        if length < 0 or self.at > len(self.data):
            raise ValueError("the bytes of a value are truncated")
        return self.data[begin : self.at]

    def tensor(self, name: str, gradient: bool, *shape: int) -> Tensor:
        dtype = _DTYPES[name]
        tensor = torch.from_numpy(self.blob(math.prod(shape) * dtype.itemsize)).view(dtype).reshape(shape)
        return tensor.requires_grad_() if gradient else tensor

    def array(self, name: str, *shape: int) -> NDArray[Any]:
        dtype = np.dtype(name)
        if dtype.kind not in _KINDS:
            raise ValueError(f"arrays of {dtype} cannot be sent")
        data = self.blob(math.prod(shape) * dtype.itemsize)
        return np.ndarray(shape, dtype, data) if data.size else np.empty(shape, dtype)

    def object(self, parts: list[Any]) -> Any:
        number, *rest = parts
        made, names = self.classes[number]
        values = [self.value(part) for part in rest]
        if issubclass(made, tuple):
            return tuple.__new__(made, values)
        whole = object.__new__(made)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(whole, name, value)  # runs no method of the class
        return whole


def _known(module: str, qualname: str, *names: str) -> tuple[type, list[str]]:
    """Return a data class that this process has already loaded, and the attribute names as a list."""
    made = _loaded(module, qualname)
    if not isinstance(made, type) or not _is_data(made):
        raise ValueError(
            f"{module}.{qualname} is not a data class that this process has loaded; import it in the "
            "task's module"
        )
    if any(name.startswith("__") for name in names):
        raise ValueError(f"{module}.{qualname}: names that start with __ cannot be sent")
    return made, list(names)


def _loaded(module: str, qualname: str) -> Any:
    member: Any = sys.modules.get(module)
    for name in qualname.split("."):
        member = getattr(member, "__dict__", {}).get(name)  # runs no __getattr__
    return member


def _is_data(made: type) -> bool:
    """Check whether a class is a named tuple, or a dataclass without a custom ``__new__``."""
    if issubclass(made, tuple):
        return isinstance(getattr(made, "_fields", None), tuple)
    return dataclasses.is_dataclass(made) and made.__new__ is object.__new__


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
