"""Placeholders for the values in a checkpoint's pickle, and the few functions that a pickle may call.

The functions work on placeholders. They check the sizes in the file and refuse anything that could grow out
of proportion to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rankless.errors import printable

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
        """The size of the storage in bytes."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Global:
    """A placeholder for the class or function with this full name."""

    name: str


@dataclass(frozen=True)
class _Tensor:
    """A placeholder for a torch object whose values are not read."""


class Foreign:
    """A placeholder for an object of an unknown class."""


NAMESPACE = "argparse.Namespace"
"""The class of the options that torchvision's scripts save; it contains values but no code."""


class Options:
    """A placeholder for an ``argparse.Namespace`` whose values are not read."""


def size_of(value: Any) -> int:
    """Return ``value`` if it is a valid size or offset, otherwise raise an error."""
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise RefusedFileError(f"is damaged: a size of {printable(repr(value))}")
    return value


def key_of(value: Any) -> Any:
    """Return ``value`` if it is a dict key that can be hashed quickly, otherwise raise an error."""
    if isinstance(value, tuple) and len(value) > _LONGEST_KEY:
        raise TypeError("a long tuple as a key")
    for part in value if isinstance(value, tuple) else (value,):
        plain = isinstance(part, str | float | bool | bytes | Global) or part is None
        if not plain and not (isinstance(part, int) and abs(part) < _LARGEST):
            raise TypeError(f"a {type(part).__name__} as a key")
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
        raise TypeError("an invalid dtype")
    return _checked(storage, known, offset, size, stride, (grad, hooks, *rest))


def _checked(
    storage: Any, dtype: torch.dtype, offset: Any, size: Any, stride: Any, rest: tuple[Any, ...]
) -> _Tensor:
    if not isinstance(storage, Storage) or len(size) != len(stride) or len(rest) > 3 or any(rest[1:]):
        raise TypeError("an invalid tensor")
    sides, steps = [size_of(side) for side in size], [size_of(step) for step in stride]
    last = size_of(offset) + sum((side - 1) * step for side, step in zip(sides, steps, strict=True))
    if all(sides) and (last + 1) * dtype.itemsize > storage.nbytes:
        claimed = "×".join(map(str, sides)) or "one value"
        raise RefusedFileError(
            f"is damaged: a tensor of {claimed} does not fit into its storage of {storage.nbytes} bytes"
        )
    return _Tensor()


def _parameter(data: Any, _grad: Any, hooks: Any) -> _Tensor:
    if not isinstance(data, _Tensor) or hooks:
        raise TypeError("an invalid parameter")
    return data


def _dict(given: Any = ()) -> dict[Any, Any]:
    """Stand in for ``OrderedDict`` (called with pairs by Python 2) and ``Counter``."""
    if not isinstance(given, dict | list | tuple):
        raise TypeError("an invalid dict")
    pairs = given.items() if isinstance(given, dict) else given
    return {key_of(key): value for key, value in pairs}


def _set(members: Any = ()) -> set[Any]:
    return {key_of(member) for member in _listed(members)}


def _shape(sides: Any = ()) -> tuple[int, ...]:
    return tuple(size_of(side) for side in _listed(sides))


def _listed(members: Any) -> Any:
    if not isinstance(members, list | tuple):
        raise TypeError("invalid members")
    return members


def _encode(text: Any, encoding: Any) -> bytes:
    # Only the encoding that pickle uses for bytes: other codecs could expand the text repeatedly.
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("invalid bytes")
    return text.encode("latin1")


def _inert(*arguments: Any) -> _Tensor:
    if len(arguments) > 2 or not all(isinstance(argument, str | int) for argument in arguments):
        raise TypeError("an invalid device or layout")
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
