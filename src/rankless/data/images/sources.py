"""Image sources: objects with a method ``read(index)`` that can be chained."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from rankless.data.images import image_file
from rankless.data.images.image_file import Decoded, Shown, UnreadableImage
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.randomness import generator
from rankless.structures import Unreadable

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)
Cache = Literal["none", "ram", "disk"]

TRIES = 20
"""Maximum number of replacements to try. Even if half of the images are unreadable, failure is unlikely."""


class Readable(Protocol[Value_co]):
    """The interface of an image source."""

    def read(self, index: int) -> Value_co:
        """Return an image; raise UnreadableImage if it cannot be read."""
        ...


@dataclass(frozen=True)
class FileImages:
    """The images of one split, decoded on each read, and reduced if ``shown`` is given."""

    annotations: Annotations
    shown: Shown | None = None

    def read(self, index: int) -> Decoded:
        path = self.annotations.path(index)
        inside = len(self.annotations.byte_ranges)
        source: image_file.Source = io.BytesIO(content(self.annotations, index)) if inside else path
        return image_file.read_for(source, self.shown, name=path)


class ImageSource(ABC, Generic[Value]):
    """An open data set. It must be picklable for loader processes."""

    class_names: tuple[str, ...]  # names of the classes; labels are indices into this tuple
    notes: tuple[str, ...] = ()  # notes on how the data was read and on problems in it

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, index: int) -> Value:
        """Return an image; raise UnreadableImage if it cannot be read."""

    @abstractmethod
    def source(self, index: int) -> str:
        """Return the path of an image, or a name for reports if it is not a file."""

    def digest(self) -> str | None:
        """Return a hash of the annotations, or None if the images are generated."""
        return None

    def files(self) -> list[str]:
        """Return the local image files without duplicates; empty if the images are generated or remote."""
        return []

    def opened(self, shown: Shown, cache: Cache) -> tuple[Any, tuple[str, ...]]:
        """Return a source whose images are reduced for ``shown`` and cached, and notes on the cache."""
        off = f"data.cache is '{cache}', but generated images are not cached"
        return self, () if cache == "none" else (off,)


Source = TypeVar("Source", bound=ImageSource[Any])


class ImageExamples(Generic[Source]):
    """Base class of :class:`rankless.tasks.protocol.Examples` for detection and classification."""

    images: Source

    def __init__(self, source: Source, size: tuple[int, int], seed: int, shown: Shown, cache: Cache) -> None:
        self.size, self.seed, self.shown = size, seed, shown
        self.images, notes = source.opened(shown, cache)
        source_notes = source.notes
        if shown.values != "full":
            source_notes = tuple(note for note in source.notes if image_file.GIVE_RANGE not in note)
        self.notes: tuple[str, ...] = (*source_notes, *notes)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str | None:
        """Hash of the annotations, or None if the images are generated."""
        return self.images.digest()

    def files(self) -> list[str]:
        return self.images.files()


@dataclass
class ReadableImages(Generic[Value]):
    """Training images, in which unreadable images are replaced with randomly chosen images.

    The replacement depends only on the seed and the index of the unreadable image.
    """

    images: Readable[Value]
    count: int  # number of images to choose from
    seed: int
    memo: dict[int, Value | UnreadableImage] | None = None  # images read so far; None to keep none
    unreadable: list[Unreadable] = field(default_factory=list)  # images that could not be read
    position: int = -1  # index of the last returned image or replacement

    def read(self, index: int) -> Value:
        position = index
        for attempt in range(TRIES + 1):
            value = self.memo.get(position) if self.memo else None
            if value is None:
                try:
                    value = self.images.read(position)
                except UnreadableImage as problem:
                    value = problem.with_traceback(None)  # otherwise, the memo would keep frames alive
                if self.memo is not None:
                    self.memo[position] = value
            if not isinstance(value, UnreadableImage):
                self.position = position
                return value
            error = value
            self.unreadable.append(Unreadable(position, error.path, error.reason))
            position = int(generator(self.seed, "replacement", index, attempt).integers(self.count))
        raise error
