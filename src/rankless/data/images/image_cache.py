"""Cache decoded images on disk or in memory, shared by all ranks and loader processes of a machine.

Each image is a separate file, which is written atomically. Any number of runs can therefore share the cache
without waiting, and a changed source invalidates only one image. Processes map the files, so there is only
one copy in memory. The memory cache keeps the files in ``/dev/shm`` until the last process that uses them
exits.
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
from rankless.data.index.findings import UNKNOWN_RANGE
from rankless.errors import UserError, counted, in_gib
from rankless.files.cache_folder import cache_folder, hold, make_private, remove_unheld, remove_unused
from rankless.files.remote import is_remote
from rankless.files.writing import beside

_KINDS = f"v1-{PIL.__version__}-{simplejpeg.__version__}"  # other decoder versions may give different pixels
# Magic, modification time and size of the source file, H and W of the source image, reduction factor, H and W
# of the cached image, index.
_HEADER = struct.Struct("<8s8q")
_MAGIC = b"RANKPIC1"
_SPARE = 0.02  # fraction of the disk to leave free


@dataclass
class CachedImages:
    """Images of one split that are decoded only once.

    If ``durable`` is true, cached images are flushed to disk. A cache in memory does not need this.
    """

    images: FileImages
    folder: Path
    durable: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.durable:  # registered first, because finalizers run in reverse order
            weakref.finalize(self, remove_unheld, self.folder)
        hold(self.folder, self)

    def __reduce__(self) -> Any:
        return CachedImages, (self.images, self.folder, self.durable)  # loader processes lock the folder, too

    def read(self, index: int) -> Decoded:
        """Return an image, from the cache if its source file has not changed.

        Writing to the tensor does not change the cache. An image that cannot be cached is decoded every time.
        """
        annotations, shown = self.images.annotations, self.images.shown
        try:
            key = (*_state(annotations.path(index)), index)
        except OSError:
            return self.images.read(index)  # raises the error that names the problem
        height, width = annotations.sizes[index].tolist()
        factor = shown.reduction(max(1, height), max(1, width)) if shown else 1
        # 256 subfolders keep the number of files per folder small, even with a million images.
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
    annotations: Annotations, shown: Shown, kind: Cache, memory: Path = Path("/dev/shm")
) -> tuple[FileImages | CachedImages, tuple[str, ...]]:
    """Open the images of a split, with a cache if possible, and return them with notes on the cache.

    ``memory`` is the folder of a file system in memory.
    """
    if shown.values == "full" and (errors := annotations.findings.stopping([UNKNOWN_RANGE])):
        raise UserError(errors)
    files = FileImages(annotations, shown)
    if kind == "none" or not len(annotations):
        return files, ()
    need = needed(annotations, shown)
    size = f"{in_gib(need)} for {counted(len(annotations), 'image')}"
    if kind == "disk":
        images = _on_disk(files, cache_folder() / "images" / _digest(annotations, shown), need, size)
        return images, (f"decoded images are cached in {images.folder} ({size})",)
    home = memory / f"rankless-{os.geteuid()}"
    folder = home / f"{_digest(annotations, shown)}-{_KINDS}"
    try:
        make_private(home)
        for left in home.iterdir():  # left behind by killed runs
            if left != folder:
                remove_unheld(left)
        _check_room(home, folder, need)
        images = CachedImages(files, folder, durable=False)
    except (OSError, UserError) as error:
        reason = "; ".join(error.problems) if isinstance(error, UserError) else (error.strerror or str(error))
        return files, (f"decoded images are not cached in memory ({size}): {reason}",)
    return images, (f"decoded images are cached in memory shared by all processes on this machine ({size})",)


def needed(annotations: Annotations, shown: Shown) -> int:
    """Return the size in bytes of the cache for all images of a split."""
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
            f"data.cache is 'disk', but {folder} cannot be written to ({error.strerror or error}); set "
            "RANKLESS_CACHE to another folder, or use data.cache=none"
        ) from None
    except UserError as error:
        raise UserError(
            f"data.cache is 'disk' and needs {size}, but {'; '.join(error.problems)}; free some space, set "
            "RANKLESS_CACHE to a folder on another disk, or use data.cache=none"
        ) from None
    return images


def _check_room(disk: Path, folder: Path, need: int) -> None:
    state = os.statvfs(disk)
    free = state.f_bavail * state.f_frsize - int(_SPARE * state.f_blocks * state.f_frsize)
    if need <= free:
        return  # avoids counting the existing files
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if need - there > free:
        raise UserError(f"{disk} has only {in_gib(max(0, free))} available")


def _digest(annotations: Annotations, shown: Shown) -> str:
    """Return a hash of the paths and byte ranges of all images of a split, in order, and of their values."""
    digest = hashlib.blake2b(annotations.path_bytes.tobytes(), digest_size=12)
    first = annotations.path(0)
    if not is_remote(first):
        first = os.path.abspath(first)  # noqa: PTH100 - keeps links
    digest.update(first.encode(errors="surrogateescape"))
    digest.update(annotations.path_ends.tobytes())
    digest.update(annotations.byte_ranges.tobytes())
    if shown.values != "full":
        digest.update(repr(shown.values).encode())
    return digest.hexdigest()


def _state(path: str) -> tuple[int, int]:
    """Return the modification time (ns) and the size (bytes) of an image's file or shard."""
    if is_remote(path):  # the URL contains a tag of the content
        return int(file_of(path).rpartition("#")[2], 16) >> 1, 0
    state = os.stat(file_of(path))  # noqa: PTH116 - half the cost of a Path
    return state.st_mtime_ns, state.st_size


def _load(path: Path, key: tuple[int, int, int]) -> Decoded | None:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # missing or empty
        return None
    if len(mapped) < _HEADER.size:
        return None
    magic, modified, size, height, width, factor, rows, columns, index = _HEADER.unpack_from(mapped)
    fits = len(mapped) == _HEADER.size + 3 * rows * columns and magic == _MAGIC
    if not fits or (modified, size, index) != key:
        return None
    pixels = torch.frombuffer(mapped, dtype=torch.uint8, offset=_HEADER.size).view(rows, columns, 3)
    return Decoded(pixels.permute(2, 0, 1), factor, (height, width))
