"""Several arrays and what is known about them in one file, which is mapped.

One file instead of one for each array: opening maps once, and making it durable waits for the disk once.
It holds a magic number, the length of a JSON header, the header, and the arrays, each on a 64-byte boundary.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MAGIC = b"rankless arrays\0"
_START = len(_MAGIC) + 8
_ALIGNMENT = 64


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: object) -> None:
    """Write ``arrays`` and ``about``, which is anything that JSON holds."""
    header = json.dumps(
        {"about": about, "arrays": {name: [each.dtype.str, each.shape] for name, each in arrays.items()}}
    ).encode()
    with path.open("wb") as file:
        file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        for each in arrays.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)


def load_arrays(path: Path, expected: Mapping[str, DTypeLike]) -> tuple[dict[str, NDArray[Any]], Any]:
    """The arrays of :func:`save_arrays`, mapped and not written to, and what was said about them.

    Args:
        path: the file.
        expected: the names and the types of its arrays, in order.

    Raises:
        OSError, ValueError, KeyError, TypeError: it is not there, not whole, or holds other arrays.
    """
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(whole[len(_MAGIC) : _START], "little")
    if whole[: len(_MAGIC)] != _MAGIC or length > len(whole) - _START:
        raise ValueError(f"{path} holds no arrays, or not all of its header")
    header = json.loads(whole[_START : _START + length])
    if list(header["arrays"]) != list(expected):
        raise ValueError(f"{path} holds other arrays")
    found: dict[str, NDArray[Any]] = {}
    end = _START + length
    for name, (kind, shape) in header["arrays"].items():
        if np.dtype(kind) != np.dtype(expected[name]):
            raise ValueError(f"{path}: {name} is of another type")
        start, count = end + -end % _ALIGNMENT, math.prod(shape)
        end = start + count * np.dtype(kind).itemsize
        found[name] = np.frombuffer(whole, kind, count, start).reshape(shape)  # refuses a file that is cut
    return found, header["about"]
