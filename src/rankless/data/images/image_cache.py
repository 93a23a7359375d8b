"""Decoded images kept on the disk or in memory, once for all ranks and loader processes of a machine.

A file for each image: decoded it takes a hundred kilobytes or more, so nothing is lost by it; a rename
makes it appear whole or not at all, with any number of runs at work and none of them waiting; and one changed
source drops one file. Processes map the files, so that the kernel keeps one copy for all. In memory the same
files lie in ``/dev/shm`` and go with the last process that uses them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import PIL
import simplejpeg
import torch

from rankless.data.images.image_file import Decoded, Shown
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import file_of
from rankless.errors import UserError
from rankless.files.cache_folder import cache_folder, hold, remove_unheld, remove_unused

T = TypeVar("T")

MEMORY = Path("/dev/shm")
"""A file system that lives in memory."""

_KINDS = f"v1-{PIL.__version__}-{simplejpeg.__version__}"  # other decoders may decode otherwise
_HEADER = struct.Struct(
    "<8s8q"
)  # magic; modified, bytes of the source; its H, W; the factor; H, W kept; image
_MAGIC = b"RANKPIC1"
_SPARE = 0.02  # of a disk's size stays free


@dataclass
class ImageCache:
    """The decoded images of one split. Pickles as its folder's name.

    Args:
        folder: where they lie.
        durable: whether an image is on the disk before it counts as kept; without need in memory.
    """

    folder: Path
    durable: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.durable:
            weakref.finalize(
                self, remove_unheld, self.folder
            )  # finalizers run last made first: after the hold
        hold(self.folder, self)

    def __reduce__(self) -> Any:
        return ImageCache, (self.folder, self.durable)  # a loader process holds the folder itself

    def read(
        self, annotations: Annotations, index: int, shown: Shown, decode: Callable[[], Decoded]
    ) -> Decoded:
        """Image ``index`` as ``decode`` gives it: the kept copy, if its source is unchanged.

        The copy's pages are the machine's; what is written into the tensor stays in this process. Where a
        image cannot be kept (no room), it is decoded and nothing is said: no number depends on it.

        Args:
            annotations: of the split, the same in every call.
            index: the image.
            shown: how large it will be; an image is kept once for every factor by which it is reduced.
            decode: reads it.

        Raises:
            UnreadableImage: what ``decode`` raises.
        """
        try:
            state = _state(annotations.path(index))
        except OSError:
            return decode()  # it says what is wrong
        factor = shown.reduction(*(max(1, side) for side in annotations.sizes[index].tolist()))
        # Of the million files of a large split no folder should hold more than some thousands.
        path = self.folder / f"{index % 256:02x}" / f"{index}-{factor}"
        if (found := _load(path, (*state, index))) is not None:
            return found
        made = decode()
        with contextlib.suppress(OSError):
            self._keep(path, made, (*state, index))
        return made

    def _keep(self, path: Path, made: Decoded, key: tuple[int, int, int]) -> None:
        path.parent.mkdir(exist_ok=True)
        rows = np.ascontiguousarray(made.image.permute(1, 2, 0).numpy())
        header = _HEADER.pack(_MAGIC, *key[:2], *made.source, made.reduced, *rows.shape[:2], key[2])
        handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                content = memoryview(header + rows.tobytes())
                while content:
                    content = content[file.write(content) :]
                if self.durable:
                    os.fdatasync(handle)  # else a power cut could leave a name without its bytes
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def open_cache(
    kind: Literal["none", "ram", "disk"], annotations: Annotations, shown: Shown
) -> tuple[ImageCache | None, tuple[str, ...]]:
    """The cache that ``data.cache`` asks for, and what to say of it.

    Args:
        kind: the recipe's word.
        annotations: of the split.
        shown: how large the images will be.

    Returns:
        The cache, None if there is none, and sentences: how large it gets, or why there is none.

    Raises:
        UserError: the disk has not the room, or the folder cannot be written to.
    """
    if kind == "none" or not len(annotations):
        return None, ()
    need = needed(annotations, shown)
    size = f"{_amount(need)} for {len(annotations)} images"
    if kind == "disk":
        cache = _on_disk(cache_folder() / "images" / _digest(annotations), need, size)
        return cache, (f"Decoded images are kept in {cache.folder}: {size}.",)
    home = MEMORY / f"rankless-{os.getuid()}"
    folder = home / f"{_digest(annotations)}-{_KINDS}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        for left in home.iterdir():  # by runs that were killed
            if left != folder:
                remove_unheld(left)
        _refuse_without_room(home, folder, need)
        cache = ImageCache(folder, durable=False)
    except (OSError, UserError) as error:
        reason = "; ".join(error.faults) if isinstance(error, UserError) else (error.strerror or str(error))
        return None, (f"Decoded images are not kept in memory ({size}): {reason}.",)
    return cache, (f"Decoded images are kept in memory: {size}, once for all processes of a machine.",)


def kept(samples: T, kind: Literal["none", "ram", "disk"], shown: Shown) -> tuple[T, tuple[str, ...]]:
    """A source of images with the cache that ``data.cache`` asks for, and what to say of it.

    Raises:
        UserError: the disk has not the room for it.
    """
    if kind == "none":
        return samples, ()
    keep: Callable[..., tuple[T, tuple[str, ...]]] | None = getattr(samples, "kept", None)
    if keep is None:
        return samples, (f"data.cache is {kind}, but these images come from no files: none is kept.",)
    return keep(kind, shown)


def needed(annotations: Annotations, shown: Shown) -> int:
    """Bytes of the decoded, reduced images of a split together."""
    total = 0
    sizes, counts = np.unique(annotations.sizes, axis=0, return_counts=True)
    for (height, width), count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if height and width:
            factor = shown.reduction(height, width)
            total += count * (_HEADER.size + 3 * -(-height // factor) * -(-width // factor))
    return total


def _amount(size: int) -> str:
    """Bytes as text."""
    units = {2**30: "GiB", 2**20: "MiB"}
    unit, name = next((each for each in units.items() if size >= each[0]), (2**10, "KiB"))
    return f"{size / unit:.{1 if size < 10 * unit else 0}f} {name}"


def _on_disk(folder: Path, need: int, size: str) -> ImageCache:
    try:
        cache = ImageCache(folder / _KINDS)
        for old in folder.iterdir():
            if old.is_dir() and old != cache.folder:
                remove_unheld(old)
        (folder / "used").touch()
        remove_unused(folder.parent, "used")
        _refuse_without_room(folder, cache.folder, need)
    except OSError as error:
        raise UserError(
            f"data.cache is disk, but {folder} cannot be written to ({error.strerror or error}): name "
            "another folder in the environment variable RANKLESS_CACHE, or set data.cache to none."
        ) from None
    except UserError as error:
        raise UserError(
            f"data.cache is disk and needs {size}, but {'; '.join(error.faults)}: make room, name a folder "
            "on another disk in the environment variable RANKLESS_CACHE, or set data.cache to none."
        ) from None
    return cache


def _refuse_without_room(place: Path, folder: Path, need: int) -> None:
    """Raise a UserError if what is still missing in ``folder`` does not fit beside what ``place`` holds."""
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize - int(_SPARE * disk.f_blocks * disk.f_frsize)
    if need <= free:
        return  # what lies there already need not be counted
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if need - there > free:
        raise UserError(f"{place} has {_amount(max(0, free))} to spare")


def _digest(annotations: Annotations) -> str:
    """What the numbers of a split's images stand for: its paths and spans, in their order."""
    made = hashlib.blake2b(annotations.path_bytes.tobytes(), digest_size=12)
    made.update(os.path.abspath(annotations.path(0)).encode(errors="surrogateescape"))  # noqa: PTH100 - names links
    made.update(annotations.path_ends.tobytes())
    made.update(annotations.spans.tobytes())
    return made.hexdigest()


def _state(path: str) -> tuple[int, int]:
    """When a file, or the shard an image lies in, was changed in nanoseconds, and how many bytes it has."""
    found = os.stat(file_of(path))  # noqa: PTH116 - half the cost of a Path
    return found.st_mtime_ns, found.st_size


def _load(path: Path, key: tuple[int, int, int]) -> Decoded | None:
    """The kept image; None if there is none, or of another source."""
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
