"""Give batches the same memory layout, whether they come from this process or from a loader process.

Matrix products of MKL may round differently if a matrix does not start at a multiple of 64 bytes. PyTorch's
memory and the shared memory of loader processes do, but NumPy's memory does not.
"""

from __future__ import annotations

import copy
import copyreg
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.errors import UserError

_ALIGNMENT = 64


def aligned(batch: Any) -> Any:
    """Return the batch with all CPU tensors and NumPy arrays in memory that starts at a multiple of 64 bytes.

    The start is that of a tensor's storage: a view keeps its offset and strides, and views of one storage
    still share it, as after a transfer from a loader process. NumPy arrays become C-contiguous. A batch that
    needs no change is returned as it is, and a changed one is a copy.

    Raises:
        UserError: the batch needs a change and cannot be copied.
    """
    found = _Finder()
    found.dump(batch)
    storages: dict[int, list[Tensor]] = {}
    for tensor in found.tensors:
        if tensor.untyped_storage().data_ptr() % _ALIGNMENT:
            storages.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    arrays = [array for array in found.arrays if _address(array) % _ALIGNMENT or not array.flags.c_contiguous]
    if not storages and not arrays:
        return batch
    copies: dict[int, Any] = {id(value): value for value in (*found.tensors, *found.arrays)}
    copies |= {id(array): _copied(array) for array in arrays}
    for tensors in storages.values():
        copies |= zip(map(id, tensors), _moved(tensors), strict=True)
    try:
        return copy.deepcopy(batch, copies)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise UserError(
            f"collate() returned a value of type {type(batch).__name__} that contains memory of NumPy and "
            f"cannot be copied ({error}); use torch.tensor instead of torch.from_numpy"
        ) from error


class Nowhere:
    """A file for picklers whose output is not needed."""

    def write(self, data: Any) -> int:
        return len(data)


class _Finder(pickle.Pickler):
    """A pickler that collects tensors and arrays at any depth, and skips what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(Nowhere(), pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self.arrays: list[NDArray[Any]] = []

    def reducer_override(self, value: Any) -> Any:
        if value is str:
            return NotImplemented
        if isinstance(value, Tensor):
            if value.layout is torch.strided and value.device.type == "cpu" and value.numel():
                self.tensors.append(value)
        elif type(value) is np.ndarray and not value.dtype.hasobject:
            if value.size:
                self.arrays.append(value)
        elif not isinstance(value, type):
            try:
                reduce = copyreg.dispatch_table.get(type(value))
                return reduce(value) if reduce else value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            except Exception:  # in the user's code, or of objects such as locks
                return str, ()
        return str, ()


def _moved(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors that share a copy of the part of their storage that they use."""
    spans = []
    for tensor in tensors:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        first = tensor.storage_offset() * tensor.element_size()
        spans.append((first, first + (last + 1) * tensor.element_size()))
    start, end = min(first for first, _ in spans), max(end for _, end in spans)
    begin = start // _ALIGNMENT * _ALIGNMENT
    copied = torch.empty(end - begin, dtype=torch.uint8, device="cpu")
    used = torch.empty(0, dtype=torch.uint8, device="cpu")
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        copied[start - begin :] = used.set_(tensors[0].untyped_storage(), start, (end - start,), (1,))
        moved = []
        for tensor, (first, _) in zip(tensors, spans, strict=True):
            offset = (first - begin) // tensor.element_size()
            moved.append(copy.copy(tensor))  # keeps a subclass with its attributes
            moved[-1].set_(copied.untyped_storage(), offset, tensor.shape, tensor.stride())
    return moved


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    copied: NDArray[Any] = np.ndarray(
        array.shape, array.dtype, memory.data, offset=-_address(memory) % _ALIGNMENT
    )
    copied[...] = array
    return copied


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
