"""The pictures of a data set one by one: their bytes and their pixels."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from rankless.data import pictures
from rankless.data.annotations import Annotations


def content(annotations: Annotations, index: int) -> bytes:
    """The bytes of picture ``index``, as a file of its own would have them."""
    path = Path(annotations.path(index))
    if not len(annotations.spans):
        return path.read_bytes()
    offset, length = annotations.spans[index].tolist()
    with path.open("rb") as shard:
        shard.seek(offset)
        return shard.read(length)


def decoded(annotations: Annotations, index: int) -> Tensor:
    """Picture ``index`` upright, uint8 RGB, (3, H, W).

    Raises:
        UnreadablePicture: missing, damaged, cut short, or no picture.
    """
    return pictures.read(annotations.path(index))
