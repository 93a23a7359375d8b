"""Read and write safetensors files with checksums.

A file with metadata contains a checksum of all its other content, so every copy can be verified. The checksum
is a CRC-32, which detects damage at a fraction of the cost of SHA-256. The SHA-256 for ``SHA256SUMS`` is
computed only once, from the data read back.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.errors import UserError
from rankless.files import checksums, reading
from rankless.runs.trained_weights import not_safetensors

CHECKSUM = "crc32"
"""Metadata key of the checksum."""
_CHUNK = 1 << 20  # bytes read back at a time
_LONGEST_HEADER = 100_000_000  # bytes; the library's limit


def write(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file, sync it to disk, read it back, and return its SHA-256.

    The safetensors library writes metadata in random order, so equal weights would give different files, and
    it does not report a full disk as an ``OSError``. Therefore, this function writes the header itself, with
    sorted keys. Tensors with wider dtypes come first, so all tensors are aligned. A tensor is copied only if
    its memory layout differs from the file's. Memory shared by several tensors is written once for each of
    them.

    If there is ``metadata``, a checksum is added to it. An ``OSError`` is raised if the file cannot be
    written or the data read back differs.
    """
    widest_first = sorted(state, key=lambda name: (-state[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in widest_first:
        start, end = end, end + state[name].numel() * state[name].element_size()
        dtype, shape = _dtype_name(state[name].dtype), list(state[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    check = of_header = zlib.crc32(_encoded(header))
    with path.open("wb", buffering=0) as file:
        _write_all(file, _head(header, check))  # a placeholder with the right length
        for name in widest_first:
            part = raw(state[name]).data
            check = zlib.crc32(part, check)
            _write_all(file, part)
        file.seek(0)
        head = _head(header, check)
        _write_all(file, head)
        os.fsync(file.fileno())
    return _read_back(path, head, of_header, check)


def _head(header: Mapping[str, Any], check: int) -> bytes:
    if (metadata := header.get("__metadata__")) is not None:
        header = {**header, "__metadata__": {**metadata, CHECKSUM: f"{check:08x}"}}
    encoded = _encoded(header)
    encoded += b" " * (-len(encoded) % 8)  # the tensors stay aligned to 8 bytes
    return struct.pack("<Q", len(encoded)) + encoded


def _write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _read_back(path: Path, head: bytes, before: int, check: int) -> str:
    """Compare the file with the data that was written, and return its SHA-256."""
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        found = file.read(len(head))
        sha = hashlib.sha256(found)
        while count := file.readinto(buffer):
            sha.update(buffer[:count])
            before = zlib.crc32(buffer[:count], before)
    if (found, before) != (head, check):
        raise OSError(f"{path}: the data read back differs from what was written")
    return sha.hexdigest()


def read(path: Path, *, checked: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata in any safetensors file.

    The whole file is read instead of mapped, because the process is killed if a mapped file shrinks. Unless
    the caller has already ``checked`` the file, its contents are verified against ``SHA256SUMS`` in the same
    folder or, if the file is not listed there, against the checksum in the header.
    """
    try:
        content = reading.read_bytes(path)
        listed = None if checked else (checksums.read(path.parent) or {}).get(path.name)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if listed is not None and listed != hashlib.sha256(content).hexdigest():
        raise UserError(
            f"{path}: is damaged: its checksum differs from the one in {checksums.NAME} in the same folder; "
            "use another checkpoint, or another copy of this one"
        )
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # SafetensorError, KeyError, TypeError …, depending on the damage
        raise UserError(f"{path}: is not a readable weights file: {_reason(path, content, error)}") from None
    # The library has validated the header, so the metadata, if any, maps text to text.
    header, data = _split(content)
    metadata: dict[str, str] = header.get("__metadata__") or {}
    ours = metadata.get("format", "").startswith("rankless ")
    recorded = metadata.pop(CHECKSUM, None) if ours else None
    unlisted = not checked and listed is None
    if unlisted and recorded is not None and recorded != _checksum(header, data):
        raise UserError(
            f"{path}: is damaged, or was changed by another program: the checksum in its header does not "
            "match; use another copy of the file"
        )
    return state, metadata


def metadata_of(path: Path) -> dict[str, str]:
    """Read the metadata in the header of a safetensors file, without the tensors."""
    try:
        with reading.opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            most = min(length, _LONGEST_HEADER, os.fstat(file.fileno()).st_size)  # read() allocates this much
            metadata = json.loads(file.read(most)).get("__metadata__") or {}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, AttributeError, RecursionError, struct.error) as error:
        raise UserError(f"{path}: is not a readable weights file: its header is damaged ({error})") from None
    return {str(key): str(value) for key, value in dict(metadata).items()}


def _checksum(header: Mapping[str, Any], data: memoryview) -> str:
    """Compute the checksum of the tensors' bytes and of the header without its checksum."""
    return f"{zlib.crc32(data, zlib.crc32(_encoded(header))):08x}"


def _encoded(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def raw(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a tensor's values as little-endian bytes (N,) in C order, without copying if possible."""
    plain = tensor.detach().cpu().contiguous()
    flat: NDArray[np.uint8] = plain.reshape(-1).view(torch.uint8).numpy()
    if sys.byteorder == "big":
        flat = flat.reshape(-1, tensor.element_size())[:, ::-1].copy().reshape(-1)
    return flat


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    header, _ = _split(safetensors.torch.save({"x": torch.empty(0, dtype=dtype)}))
    name: str = header["x"]["dtype"]
    return name


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header, memoryview(content)[8 + length :]


def _reason(path: Path, content: bytes, error: Exception) -> str:
    if what := not_safetensors(path, content[:9]):
        return what
    length = int.from_bytes(content[:8], "little")
    if 8 + length > len(content):
        error = ValueError(f"a header of {length:,} bytes in a file of {len(content):,} bytes")
    return f"it is truncated or damaged ({error}); use another copy"
