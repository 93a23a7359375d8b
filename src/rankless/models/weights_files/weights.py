"""Read and write weights files: safetensors files that contain the recipe and the class names.

Prediction needs nothing else. Tensors are named as in the bare model's state dict. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from rankless.arguments import Text
from rankless.errors import UserError
from rankless.models.weights_files.matching import compare, mismatch
from rankless.models.weights_files.tensor_file import CHECKSUM, metadata_of, raw, read, write
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Recipe

FORMAT = "rankless 1"
_NEEDED = frozenset({"format", "recipe", "class_names"})
_RESERVED = _NEEDED | {CHECKSUM}


@dataclass(frozen=True)
class Weights:
    """The contents of a weights file.

    Attributes:
        state: parameters and buffers by their names in the bare model, on the CPU.
        class_names: one name per class id; empty if the task has no classes.
        extra: all other metadata, as text by key.
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
) -> str:
    """Write a weights file, sync it to disk, and return its SHA-256. Equal arguments give equal bytes.

    The file is overwritten in place. For an atomic write, pass a temporary path and rename it. ``extra`` is
    additional metadata, which must not contain reserved keys.
    """
    taken = _RESERVED & set(extra or {})
    if taken:
        raise ValueError(f"extra contains the reserved keys {sorted(taken)}")
    metadata = {
        "format": FORMAT,
        "recipe": to_json(recipe),
        "class_names": json.dumps(list(class_names), ensure_ascii=False),
        **(extra or {}),
    }
    return write(path, state, metadata)


def load(path: Path, *, checked: bool = False) -> Weights:
    """Read a weights file, and verify its checksum unless the caller has already ``checked`` it."""
    state, metadata = read(path, checked=checked)
    written = metadata.get("format")
    if written is None or not written.startswith("rankless "):
        raise UserError(
            f"{path}: contains tensors but no recipe; expected a weights file written by Rankless, such as "
            "checkpoints/best/ema.safetensors in a run"
        )
    if written != FORMAT:
        raise UserError(
            f"{path}: has the format '{written}', but this version reads only '{FORMAT}'; update Rankless"
        )
    missing = sorted(_NEEDED - set(metadata))
    if missing:
        raise UserError(
            f"{path}: the header lacks {', '.join(missing)}, because another program changed the file; use "
            "another copy"
        )
    recipe = from_json(metadata["recipe"], f"{path}: the recipe inside")
    extra = {name: text for name, text in metadata.items() if name not in _RESERVED}
    return Weights(state, recipe, _names(path, metadata["class_names"]), extra)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read the tensors in any safetensors file, and the class names if Rankless wrote it."""
    state, metadata = read(path)
    if not metadata.get("format", "").startswith("rankless "):
        return state, ()
    return state, _names(path, metadata.get("class_names", "[]"))


def load_into(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict into a model, or raise an error that lists the tensors that do not fit."""
    if misfits := compare(model.state_dict(), state):
        raise mismatch(source, misfits)
    model.load_state_dict(dict(state), strict=True)


def digest(state: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of a state dict: names, dtypes, shapes and little-endian values, sorted by name.

    The digest depends on every bit of every tensor, but not on the device, memory layout or file format.

    Raises:
        UserError: ``state`` is not a state dict.
    """
    if not isinstance(state, Mapping):
        raise UserError(f"{state!r}: expected a state dict; for a file, use rankless.digest_file(path)")
    sha = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        sha.update(json.dumps(head).encode() + b"\n")
        sha.update(raw(tensor).data)
    return sha.hexdigest()


def digest_file(path: Text) -> str:
    """Compute the :func:`digest` of the tensors in any safetensors file.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a weights file, such as {path / 'best.safetensors'}")
    return digest(read(path)[0])


def recipe_in(path: Path) -> Recipe:
    """Read the recipe in the header of a weights file, without the tensors."""
    return from_json(metadata_of(path).get("recipe", ""), f"{path}: the recipe inside")


def class_names_in(path: Path) -> tuple[str, ...]:
    """Read the class names in the header of a weights file, without the tensors."""
    return _names(path, metadata_of(path).get("class_names", "[]"))


def _names(path: Path, text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{path}: class_names in the header is not a list of names; use another copy of the file"
        )
    return tuple(names)
