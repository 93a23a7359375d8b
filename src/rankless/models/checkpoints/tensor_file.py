"""safetensors files with checksums; damage is reported in a sentence.

A file with metadata contains a checksum of everything else, so it can be checked wherever it is copied to.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.errors import UserError
from rankless.files import checksums, reading

CHECKSUM = "sha256"
"""The key of the checksum in the metadata."""
_CHUNK = 1 << 20  # bytes read back at a time
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the library


def write(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file, wait until it is on the disk, and read it back.

    The library writes metadata in the order of a randomly seeded hash table, so equal weights would give
    different files, and it does not report a full disk as an OSError. So the header is written here: its keys
    are sorted, and the tensors are aligned because the widest come first.

    Args:
        path: the file, which is overwritten in place.
        state: tensors of any shape, device and layout; shared memory is written once per tensor.
        metadata: text to text; a checksum of everything in the file is added. None writes neither.

    Returns:
        The SHA-256 of the file.

    Raises:
        OSError: the disk is full, or the data read back differs.
    """
    widest_first = sorted(state, key=lambda name: (-state[name].element_size(), name))
    parts = [raw(state[name]) for name in widest_first]
    header: dict[str, Any] = {}
    ends = list(itertools.accumulate(part.nbytes for part in parts))
    for name, start, end in zip(widest_first, [0, *ends], ends, strict=False):
        dtype, shape = _dtype_name(state[name].dtype), list(state[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
        header["__metadata__"][CHECKSUM] = _checksum(header, parts)
    encoded = _encoded(header)
    encoded += b" " * (-len(encoded) % 8)  # the tensors stay aligned to 8 bytes
    head = np.frombuffer(struct.pack("<Q", len(encoded)) + encoded, np.uint8)
    sha = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for part in (head, *parts):
            sha.update(part.data)
            rest = part.data
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    with path.open("rb", buffering=0) as file:
        for part in (head, *parts):
            for at in range(0, part.nbytes, _CHUNK):
                wanted = part[at : at + _CHUNK].tobytes()
                if file.read(len(wanted)) != wanted:
                    raise OSError(f"{path}: the data read back differs from what was written")
    return sha.hexdigest()


def read(path: Path, *, checked: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a safetensors file, whoever wrote it.

    It is read completely: a mapped file that shrinks kills the process. The content is compared with the
    checksum in ``SHA256SUMS`` beside it, else with the one in its header.

    Args:
        path: the file.
        checked: the checksum has just been compared and is not compared again.

    Raises:
        UserError: no such file, it cannot be read, or its checksum is wrong.
    """
    try:
        content = reading.read_bytes(path)
        listed = None if checked else (checksums.read(path.parent) or {}).get(path.name)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if listed is not None and listed != hashlib.sha256(content).hexdigest():
        raise UserError(
            f"{path}: is damaged: its checksum is not the one in {checksums.NAME} beside it; take another "
            "checkpoint, or another copy of this one"
        )
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # SafetensorError, KeyError, TypeError …, depending on the damage
        raise UserError(f"{path}: is not a readable weights file: {_reason(path, content, error)}") from None
    # The library has checked the header: where there is metadata, it is text to text.
    header, data = _split(content)
    metadata: dict[str, str] = header.get("__metadata__") or {}
    ours = metadata.get("format", "").startswith("rankless ")
    recorded = metadata.pop(CHECKSUM, None) if ours else None
    unlisted = recorded is not None and not checked and listed is None
    if unlisted and recorded != _checksum(header, [np.frombuffer(data, np.uint8)]):
        raise UserError(
            f"{path}: is damaged, or was changed by another program: the checksum in its header does not "
            "match; take another copy of the file"
        )
    return state, metadata


def metadata_of(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file, from its header only.

    Raises:
        UserError: the file is missing, or its header cannot be read.
    """
    try:
        with reading.opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            most = min(length, _LONGEST_HEADER, os.fstat(file.fileno()).st_size)  # allocated at once
            metadata = json.loads(file.read(most)).get("__metadata__") or {}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, AttributeError, RecursionError, struct.error) as error:
        raise UserError(f"{path}: is not a readable weights file: its header is damaged ({error})") from None
    return {str(key): str(value) for key, value in dict(metadata).items()}


def _checksum(header: Mapping[str, Any], parts: Sequence[NDArray[np.uint8]]) -> str:
    """Compute the SHA-256 of a header without its checksum and of the tensors' bytes."""
    sha = hashlib.sha256(_encoded(header))
    for part in parts:
        sha.update(part.data)
    return sha.hexdigest()


def _encoded(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def raw(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a tensor's values as little-endian bytes in C order, of shape (N,); a view if possible."""
    plain = tensor.detach().cpu().contiguous()
    flat: NDArray[np.uint8] = plain.reshape(-1).view(torch.uint8).numpy()
    if sys.byteorder == "big":
        flat = flat.reshape(-1, tensor.element_size())[:, ::-1].copy().reshape(-1)
    return flat


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of ``dtype`` in safetensors."""
    header, _ = _split(safetensors.torch.save({"x": torch.empty(0, dtype=dtype)}))
    name: str = header["x"]["dtype"]
    return name


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split a valid safetensors file into the header and the tensors' bytes."""
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header, memoryview(content)[8 + length :]


def _reason(path: Path, content: bytes, error: Exception) -> str:
    if not content:
        return "it is empty"
    if content[:4] == b"PK\x03\x04" or content[:1] == b"\x80":
        return (
            "it looks like a pickle (.pt, .pth), which could run any code; expected safetensors, as made by: "
            f"rankless import {path} --model NAME --out {path.name.partition('.')[0]}.safetensors"
        )
    length = int.from_bytes(content[:8], "little")
    if content[8:9] != b"{":
        return "it does not start like a safetensors file"
    if 8 + length > len(content):
        error = ValueError(f"a header of {length} bytes in a file of {len(content)}")
    return f"it is truncated or damaged ({error}); take another copy"
