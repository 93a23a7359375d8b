"""Compute the digest of a weights file without PyTorch, so that listing runs is fast."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO

from rankless.errors import UserError
from rankless.files import checksums, reading
from rankless.runs.directory import weights_of

_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LONGEST = 1 << 24  # maximum bytes of a header
_CHUNK = 1 << 20


def of_weights(path: Path) -> str | None:
    """Return the digest that ``rankless digest`` prints, or None if the file is unreadable or damaged."""
    try:
        listed = (checksums.read(path.parent) or {}).get(path.name)
        if listed not in (None, checksums.of_file(path)):
            return None
        with reading.opened(path) as file:
            return _of_file(file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def of_run(run: Path) -> str | None:
    """Return the digest of a run's best weights or, if there are none, of its last weights.

    The result is None if the run has no weights yet.
    """
    try:
        return of_weights(weights_of(run, warn=lambda _: None))
    except UserError:  # no weights are saved yet
        return None


def _of_file(file: IO[bytes]) -> str:
    length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST:
        raise ValueError("the header is too long")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    sha = hashlib.sha256()
    for name in sorted(header):
        tensor = header[name]
        sha.update(json.dumps([name, _NAMES[tensor["dtype"]], tensor["shape"]]).encode() + b"\n")
        start, end = tensor["data_offsets"]
        file.seek(8 + length + start)
        for at in range(start, end, _CHUNK):
            size = min(_CHUNK, end - at)
            if len(chunk := file.read(size)) != size:
                raise ValueError("the file is truncated")
            sha.update(chunk)
    return sha.hexdigest()
