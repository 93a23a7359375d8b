"""Image sources, which form a chain of objects with a method ``read(index)``.

``FileImages`` decodes the images. ``CachedImages`` (:mod:`rankless.data.images.image_cache`) saves the
decoded images. A data set's source adds boxes or a class. ``ReadableImages`` replaces unreadable images in
training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from rankless.data.images import image_file
from rankless.data.images.image_file import Decoded, Shown, UnreadableImage
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import open_source
from rankless.randomness import generator
from rankless.structures import Unreadable

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)
Cache = Literal["none", "ram", "disk"]

TRIES = 20
"""The number of replacements to try. If half of the images are unreadable, one in a million finds none."""


class Readable(Protocol[Value_co]):
    """The interface of an image source, which is one link of the chain."""

    def read(self, index: int) -> Value_co:
        """Return image ``index``; raise UnreadableImage if it cannot be read."""
        ...


@dataclass(frozen=True)
class FileImages:
    """The images of one split, decoded on each read.

    Attributes:
        annotations: the split's annotations, which list the image files.
        shown: the size at which images will be shown, which limits the reduction; None means no reduction.
    """

    annotations: Annotations
    shown: Shown | None = None

    def read(self, index: int) -> Decoded:
        """Decode and return image ``index``."""
        annotations = self.annotations
        return image_file.read_for(open_source(annotations, index), self.shown, name=annotations.path(index))


class ImageSource(ABC, Generic[Value]):
    """An open data set. It must be picklable, because loader processes receive a copy.

    Attributes:
        class_names: the names of the classes; a label is an index into this list.
        notes: sentences about how the data was read, and about its problems.
    """

    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, index: int) -> Value:
        """Return image ``index``; raise UnreadableImage if it cannot be read."""

    @abstractmethod
    def source(self, index: int) -> str:
        """Return the file of image ``index``, or a name for reports if there is no file."""

    def digest(self) -> str | None:
        """Return a hash of the annotations, or None if the images are generated."""
        return None

    def files(self) -> list[str]:
        """Return the local image files, each once; empty if the images are generated or remote."""
        return []

    def opened(self, shown: Shown, cache: Cache) -> tuple[Any, tuple[str, ...]]:
        """Return this source with images reduced for ``shown`` and read through a cache, and notes on it."""
        off = f"data.cache is {cache}, but this dataset is generated, not read from files, so caching is off"
        return self, () if cache == "none" else (off,)


Source = TypeVar("Source", bound=ImageSource[Any])


class ImageExamples(Generic[Source]):
    """The base class of detection and classification :class:`rankless.tasks.protocol.Examples`.

    Attributes:
        images: the open image source.
        shown: the size at which images will be shown.
        notes: sentences on clipped, missing or omitted data.
    """

    images: Source

    def __init__(self, source: Source, size: tuple[int, int], seed: int, shown: Shown, cache: Cache) -> None:
        self.size, self.seed, self.shown = size, seed, shown
        self.images, notes = source.opened(shown, cache)
        self.notes: tuple[str, ...] = (*source.notes, *notes)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str | None:
        """Return a hash of the annotations, or None if the images are generated."""
        return self.images.digest()

    def files(self) -> list[str]:
        """Return the local image files."""
        return self.images.files()


@dataclass
class ReadableImages(Generic[Value]):
    """Training images in which a random image, keyed by (seed, index), replaces an unreadable image.

    The replacement is the same in every epoch, on every rank and in every loader process.

    Attributes:
        images: the image source.
        count: the number of images to draw from.
        seed: the recipe's seed.
        memo: the images read so far, by index, so that each is read only once; None disables this.
        unreadable: the images that could not be read.
        position: the index of the last returned image, which is the requested image or its replacement.
    """

    images: Readable[Value]
    count: int
    seed: int
    memo: dict[int, Value | UnreadableImage] | None = None
    unreadable: list[Unreadable] = field(default_factory=list)
    position: int = -1

    def read(self, index: int) -> Value:
        """Return image ``index``, or the first readable image that is drawn to replace it."""
        position = index
        for attempt in range(TRIES + 1):
            value = self.memo.get(position) if self.memo else None
            if value is None:
                try:
                    value = self.images.read(position)
                except UnreadableImage as problem:
                    value = problem.with_traceback(None)  # otherwise the memo would keep frames alive
                if self.memo is not None:
                    self.memo[position] = value
            if not isinstance(value, UnreadableImage):
                self.position = position
                return value
            error = value
            self.unreadable.append(Unreadable(position, error.path, error.reason))
            position = int(generator(self.seed, "replacement", index, attempt).integers(self.count))
        raise error
