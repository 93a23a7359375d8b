"""Decoded images cached on the disk or in memory, once for all ranks and loader processes of a machine.

One file per image: decoded it takes a hundred kilobytes or more, so nothing is lost by it; a rename makes it
appear whole or not at all, with any number of runs and none of them waiting; and one changed source drops one
file. Processes map the files, so the kernel holds one copy for all. In memory the same files lie in
``/dev/shm`` and go with the last process that uses them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import simplejpeg
import torch

from rankless.data.images.image_file import Decoded, Shown
from rankless.data.images.sources import Cache, FileImages
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import file_of
from rankless.errors import UserError, counted, in_gib
from rankless.files.cache_folder import cache_folder, hold, make_private, remove_unheld, remove_unused
from rankless.files.remote import is_remote
from rankless.files.writing import beside

MEMORY = Path("/dev/shm")
"""A file system that lives in memory."""

_KINDS = f"v1-{PIL.__version__}-{simplejpeg.__version__}"  # other decoders may decode otherwise
# Magic; modified, bytes of the source; its H, W; the factor; H, W cached; index.
_HEADER = struct.Struct("<8s8q")
_MAGIC = b"RANKPIC1"
_SPARE = 0.02  # of a disk's size stays free


@dataclass
class CachedImages:
    """The images of one split, decoded once. Pickles as its folder's name.

    Attributes:
        images: decodes them.
        folder: where the decoded ones lie.
        durable: whether an image is flushed to the disk before it counts as cached; not needed in memory.
    """

    images: FileImages
    folder: Path
    durable: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.durable:  # finalizers run last made first: after the hold
            weakref.finalize(self, remove_unheld, self.folder)
        hold(self.folder, self)

    def __reduce__(self) -> Any:
        return CachedImages, (self.images, self.folder, self.durable)  # a loader process holds the folder too

    def read(self, index: int) -> Decoded:
        """Return image ``index``: the cached copy, if its source is unchanged.

        The copy's pages are the machine's; what is written into the tensor stays in this process. Where an
        image cannot be cached (no room), it is decoded without a message: no number depends on it. It is
        cached once for every factor by which it is reduced.
        """
        annotations, shown = self.images.annotations, self.images.shown
        try:
            key = (*_state(annotations.path(index)), index)
        except OSError:
            return self.images.read(index)  # its error says what is wrong
        height, width = annotations.sizes[index].tolist()
        factor = shown.reduction(max(1, height), max(1, width)) if shown else 1
        # Of the million files of a large split no folder should hold more than some thousands.
        path = self.folder / f"{index % 256:02x}" / f"{index}-{factor}"
        if (cached := _load(path, key)) is not None:
            return cached
        decoded = self.images.read(index)
        with contextlib.suppress(OSError):
            self._save(path, decoded, key)
        return decoded

    def _save(self, path: Path, decoded: Decoded, key: tuple[int, int, int]) -> None:
        path.parent.mkdir(exist_ok=True)
        rows = np.ascontiguousarray(decoded.image.permute(1, 2, 0).numpy())
        header = _HEADER.pack(_MAGIC, *key[:2], *decoded.source, decoded.reduced, *rows.shape[:2], key[2])
        with beside(path, durable=self.durable) as part:
            part.write_bytes(header + rows.tobytes())


def open_images(
    annotations: Annotations, shown: Shown, kind: Cache
) -> tuple[FileImages | CachedImages, tuple[str, ...]]:
    """Return the images of a split, through the cache that ``data.cache`` asks for, and notes on it.

    Args:
        annotations: of the split.
        shown: how large the images will be shown.
        kind: the recipe's ``data.cache``.

    Returns:
        The images, and sentences: how large the cache gets, or why there is none.
    """
    files = FileImages(annotations, shown)
    if kind == "none" or not len(annotations):
        return files, ()
    need = needed(annotations, shown)
    size = f"{in_gib(need)} for {counted(len(annotations), 'image')}"
    if kind == "disk":
        images = _on_disk(files, cache_folder() / "images" / _digest(annotations), need, size)
        return images, (f"decoded images are cached in {images.folder}: {size}",)
    home = MEMORY / f"rankless-{os.geteuid()}"
    folder = home / f"{_digest(annotations)}-{_KINDS}"
    try:
        make_private(home)
        for left in home.iterdir():  # by runs that were killed
            if left != folder:
                remove_unheld(left)
        _check_room(home, folder, need)
        images = CachedImages(files, folder, durable=False)
    except (OSError, UserError) as error:
        reason = "; ".join(error.problems) if isinstance(error, UserError) else (error.strerror or str(error))
        return files, (f"decoded images are not cached in memory ({size}): {reason}",)
    return images, (f"decoded images are cached in memory: {size}, shared by all processes of a machine",)


def needed(annotations: Annotations, shown: Shown) -> int:
    """Return the bytes of all decoded, reduced images of a split."""
    total = 0
    sizes, counts = np.unique(annotations.sizes, axis=0, return_counts=True)
    for (height, width), count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if height and width:
            factor = shown.reduction(height, width)
            total += count * (_HEADER.size + 3 * -(-height // factor) * -(-width // factor))
    return total


def _on_disk(files: FileImages, folder: Path, need: int, size: str) -> CachedImages:
    try:
        images = CachedImages(files, folder / _KINDS)
        for old in folder.iterdir():
            if old.is_dir() and old != images.folder:
                remove_unheld(old)
        (folder / "used").touch()
        remove_unused(folder.parent, "used")
        _check_room(folder, images.folder, need)
    except OSError as error:
        raise UserError(
            f"data.cache is disk, but {folder} cannot be written to ({error.strerror or error}); set "
            "RANKLESS_CACHE to another folder, or data.cache to none"
        ) from None
    except UserError as error:
        raise UserError(
            f"data.cache is disk and needs {size}, but {'; '.join(error.problems)}: free some space, set "
            "RANKLESS_CACHE to a folder on another disk, or data.cache to none"
        ) from None
    return images


def _check_room(disk: Path, folder: Path, need: int) -> None:
    """Raise a UserError if ``folder``, once complete, does not fit on ``disk``."""
    state = os.statvfs(disk)
    free = state.f_bavail * state.f_frsize - int(_SPARE * state.f_blocks * state.f_frsize)
    if need <= free:
        return  # what lies there already need not be counted
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if need - there > free:
        raise UserError(f"{disk} has {in_gib(max(0, free))} to spare")


def _digest(annotations: Annotations) -> str:
    """Return a hash of a split's paths and byte ranges, in order: what an image's index stands for."""
    digest = hashlib.blake2b(annotations.path_bytes.tobytes(), digest_size=12)
    first = annotations.path(0)
    if not is_remote(first):
        first = os.path.abspath(first)  # noqa: PTH100 - names links
    digest.update(first.encode(errors="surrogateescape"))
    digest.update(annotations.path_ends.tobytes())
    digest.update(annotations.byte_ranges.tobytes())
    return digest.hexdigest()


def _state(path: str) -> tuple[int, int]:
    """Return when a file, or an image's shard, was changed in nanoseconds, and its size in bytes."""
    if is_remote(path):  # the tag of its content is a part of its address
        return int(file_of(path).rpartition("#")[2], 16) >> 1, 0
    state = os.stat(file_of(path))  # noqa: PTH116 - half the cost of a Path
    return state.st_mtime_ns, state.st_size


def _load(path: Path, key: tuple[int, int, int]) -> Decoded | None:
    """Return the cached image; None if there is none, or its source changed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        length = os.fstat(file).st_size
        if length < _HEADER.size:
            return None
        mapped = mmap.mmap(file, length, access=mmap.ACCESS_COPY)
    finally:
        os.close(file)
    magic, modified, size, height, width, factor, rows, columns, index = _HEADER.unpack_from(mapped)
    fits = length == _HEADER.size + 3 * rows * columns and magic == _MAGIC
    if not fits or (modified, size, index) != key:
        return None
    pixels = torch.frombuffer(mapped, dtype=torch.uint8, offset=_HEADER.size).view(rows, columns, 3)
    return Decoded(pixels.permute(2, 0, 1), factor, (height, width))
