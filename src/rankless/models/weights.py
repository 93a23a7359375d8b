"""Weights files: safetensors that carry their recipe and their class names.

A weights file is all that prediction needs. Its keys are the bare model's own. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.fit import compare, mismatch
from rankless.recipe import Recipe
from rankless.recipe_file import from_json, to_json

FORMAT = "rankless 1"
_OWN_KEYS = frozenset({"format", "recipe", "class_names"})


@dataclass(frozen=True)
class Weights:
    """What a weights file holds.

    Attributes:
        state: parameters and buffers under the bare model's names, on the CPU.
        recipe: the recipe they were trained with.
        class_names: a name per class id; empty where the task has none.
        extra: whatever else was written, text to text.
    """

    state: dict[str, Tensor]
    recipe: Recipe
    class_names: tuple[str, ...]
    extra: dict[str, str] = field(default_factory=dict)


def save(
    path: Path,
    state: Mapping[str, Tensor],
    *,
    recipe: Recipe,
    class_names: Sequence[str],
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write a weights file and wait until it is on the disk. Equal arguments give equal bytes.

    Args:
        path: where to; an existing file is overwritten in place, so write beside and rename what must never
            be seen half written.
        state: tensors of any device, layout in memory or sharing; each is written whole.
        recipe: what made the weights.
        class_names: a name per class id.
        extra: more text to keep, under keys other than ``format``, ``recipe`` and ``class_names``.
    """
    taken = _OWN_KEYS & set(extra or {})
    if taken:
        raise ValueError(f"extra holds the reserved keys {sorted(taken)}")
    metadata = {
        "format": FORMAT,
        "recipe": to_json(recipe),
        "class_names": json.dumps(list(class_names), ensure_ascii=False),
        **(extra or {}),
    }
    header, data = _split(safetensors.torch.save({name: _plain(tensor) for name, tensor in state.items()}))
    # The library writes metadata in the order of a randomly seeded hash table: equal weights would give
    # unequal files. So it writes the tensors, and the header is written anew with sorted keys.
    header["__metadata__"] = metadata
    encoded = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)  # the tensors stay aligned to 8 bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> Weights:
    """Read a weights file.

    Raises:
        UserError: the file is missing, cut, damaged, a pickle, or was not written by :func:`save`.
    """
    state, metadata = read(path)
    written = metadata.get("format")
    if written is None or not written.startswith("rankless "):
        raise UserError(
            f"{path}: holds tensors but no recipe; expected a weights file that Rankless wrote "
            "(checkpoints/best/ema.safetensors of a run)"
        )
    if written != FORMAT:
        raise UserError(
            f"{path}: is of the format '{written}', this version reads '{FORMAT}'; update Rankless"
        )
    missing = sorted(_OWN_KEYS - set(metadata))
    if missing:
        raise UserError(
            f"{path}: the header lacks {', '.join(missing)}; the file was altered, take another copy"
        )
    try:
        recipe = from_json(metadata["recipe"])
    except UserError as error:
        raise UserError([f"{path}: the recipe inside: {fault}" for fault in error.faults]) from None
    extra = {name: text for name, text in metadata.items() if name not in _OWN_KEYS}
    return Weights(state, recipe, _names(path, metadata["class_names"]), extra)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors of any safetensors file, and its class names: none where another program wrote it.

    Raises:
        UserError: the file is missing, cut, damaged or a pickle.
    """
    state, metadata = read(path)
    if not metadata.get("format", "").startswith("rankless "):
        return state, ()
    return state, _names(path, metadata.get("class_names", "[]"))


def load_into(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put ``state`` into ``model``, every tensor in its place.

    Args:
        model: the bare model.
        state: one tensor per parameter and buffer.
        source: where the state came from, for the message.

    Raises:
        UserError: names or shapes differ; the model is unchanged then.
    """
    if misfits := compare(model.state_dict(), state):
        raise mismatch(source, misfits)
    model.load_state_dict(dict(state), strict=True)


def digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and little-endian values, in the order of the names.

    Independent of device, of layout in memory and of how a file was written; one flipped bit changes it.
    """
    sha = hashlib.sha256()
    for name in sorted(state):
        tensor = _plain(state[name])
        head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        sha.update(json.dumps(head).encode() + b"\n")
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        if sys.byteorder == "big":
            raw = raw.reshape(-1, tensor.element_size())[:, ::-1].copy()
        sha.update(raw.data)
    return sha.hexdigest()


def digest_file(path: Path) -> str:
    """:func:`digest` of the tensors in a safetensors file, whoever wrote it.

    Raises:
        UserError: no such file, or none that can be read.
    """
    return digest(read(path)[0])


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, whoever wrote it.

    It is read whole: a mapped file that shrinks kills the process.

    Raises:
        UserError: no such file, or none that can be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        state = safetensors.torch.load(content)
    except Exception as error:  # the library's own error, or KeyError, TypeError … by how the file is broken
        raise UserError(f"{path}: is no readable weights file: {_reason(content, error)}") from None
    # The library has checked the header: where there is metadata, it is text to text.
    return state, _split(content)[0].get("__metadata__") or {}


def _plain(tensor: Tensor) -> Tensor:
    """A copy on the CPU, contiguous in the order of its dimensions, in memory of its own."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header and the tensors' bytes of a valid safetensors file."""
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header, memoryview(content)[8 + length :]


def _names(path: Path, text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{path}: class_names in the header is no list of names; take another copy of the file"
        )
    return tuple(names)


def _reason(content: bytes, error: Exception) -> str:
    if not content:
        return "it is empty"
    if content[:4] == b"PK\x03\x04" or content[:1] == b"\x80":
        return (
            "it looks like a pickle (.pt, .pth), which could run any code; expected safetensors, which "
            "rankless import makes of it"
        )
    length = int.from_bytes(content[:8], "little")
    if content[8:9] != b"{":
        return "it does not begin like a safetensors file"
    if 8 + length > len(content):
        error = ValueError(f"a header of {length} bytes in a file of {len(content)}")
    return f"it is cut or damaged ({error}); take another copy"
