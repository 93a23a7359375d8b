"""Images that are the same, or nearly: copies of a file, and images that were saved again or resized.

Every image becomes a thumbnail of 16 × 16 means in three colors. Two images are nearly the same where no
mean differs much, and all of them together hardly at all. The search is exact: block means of a thumbnail
are a projection of it, so images that differ little lie close together in a tree of these.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rankless.curation.progress import each
from rankless.data.images.image_file import Shown, UnreadableImage, read_for
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import counted

_SIDE, _BLOCKS = 16, 2
_SHOWN = Shown((_SIDE, _SIDE), "stretch", 4)
# Root mean squares in levels of 255. Of microscope images (640 × 480) and photographs of hands (100 × 100),
# one saved again at JPEG quality 50, as WebP, at half or a third of its size or stretched differs by 0.1 to
# 1.6, at quality 30 by up to 2.4; no two different ones by less than 9.4. Images of little contrast (of
# a sky, of tissue) resemble each other more, so they have to come closer.
_MOST, _LEAST, _OF_CONTRAST = 3.0, 1.0, 0.1
_MOST_ANYWHERE = 12.0
"""In one mean: more is an object that is on one of the two images only."""
_AT_ONCE = 4096

Thumbnails = NDArray[np.uint8]
"""(N, 3 * 16 * 16)."""


@dataclass(frozen=True)
class Alike:
    """Groups of images that are identical or nearly so.

    Attributes:
        groups: the numbers of images that belong together, two or more each, ascending.
        identical: how many images have the bytes of another that comes before them.
        near: how many further images are nearly the same as another.
    """

    groups: list[list[int]]
    identical: int
    near: int

    def notes(self) -> list[str]:
        """Return a sentence on the duplicates; none if there are none."""
        found = [
            f"{counted(count, 'image is', 'images are')} {what} another"
            for count, what in ((self.identical, "a copy of"), (self.near, "nearly the same as"))
            if count
        ]
        together = f"kept together in {counted(len(self.groups), 'group')}"
        return [f"{' and '.join(found)}: {together}"] if found else []


class _Seen(NamedTuple):
    digest: bytes
    thumbnail: Thumbnails | None


def find_alike(whole: Annotations, *, near: bool = True) -> Alike:
    """Compare all images of a split, each with all others.

    Args:
        whole: the images; one that cannot be read is compared by its bytes alone.
        near: also find those that are nearly the same; they are decoded.
    """

    def look(index: int) -> _Seen:
        try:
            data = content(whole, index)
        except UnreadableImage:
            return _Seen(b"", None)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        try:
            return _Seen(digest, thumbnail(data, whole.path(index)) if near else None)
        except UnreadableImage:
            return _Seen(digest, None)

    joined = Joined(len(whole))
    first: dict[bytes, int] = {}
    thumbnails, numbers, identical = [], [], 0
    for index, seen in enumerate(each(look, range(len(whole)), "comparing images")):
        other = first.setdefault(seen.digest, index) if seen.digest else index
        if other != index:
            identical += 1
            joined.join(other, index)
        elif seen.thumbnail is not None:
            thumbnails.append(seen.thumbnail)
            numbers.append(index)
    found: set[int] = set()
    for one, other in near_pairs(np.array(thumbnails, np.uint8)) if len(thumbnails) > 1 else ():
        joined.join(numbers[one], numbers[other])
        found.add(numbers[max(one, other)])
    return Alike(joined.groups(), identical, len(found))


def thumbnail(data: bytes, name: str) -> Thumbnails:
    """Make the thumbnail of an encoded image, (3 * 16 * 16,)."""
    pixels = read_for(io.BytesIO(data), _SHOWN, name=name).image.permute(1, 2, 0).contiguous().numpy()
    means = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(means).transpose(2, 0, 1).reshape(-1)


def near_pairs(thumbnails: Thumbnails) -> Iterator[tuple[int, int]]:
    """Pairs of rows of (N, 3 * 16 * 16) that are nearly the same, the lower one first, each pair once."""
    from sklearn.neighbors import KDTree  # slow to import

    contrast = thumbnails.std(1, dtype=np.float32)  # (N,)
    limit = np.clip(_OF_CONTRAST * contrast, _LEAST, _MOST)
    edge = _SIDE // _BLOCKS
    blocks = thumbnails.reshape(-1, 3, _BLOCKS, edge, _BLOCKS, edge).astype(np.float32).mean((3, 5))
    # Of two thumbnails a mean over edge² numbers differs by at most their distance / edge.
    points = blocks.reshape(len(thumbnails), -1)
    radius = limit * np.float32(np.sqrt(thumbnails.shape[1]) / edge) + 1e-3
    tree = KDTree(points)
    for start in range(0, len(points), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        for one, others in enumerate(tree.query_radius(points[rows], radius[rows]), start):
            later = np.sort(others[others > one])
            for part in range(0, len(later), _AT_ONCE):
                others = later[part : part + _AT_ONCE]
                apart = thumbnails[others].astype(np.float32) - thumbnails[one]
                bound = np.minimum(limit[others], limit[one])
                close = (np.square(apart).mean(1) <= bound**2) & (np.abs(apart).max(1) <= _MOST_ANYWHERE)
                yield from ((one, int(other)) for other in others[close])


class Joined:
    """Numbers that are joined pair by pair into groups (union-find).

    Args:
        count: they are 0 … count - 1.
    """

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def root(self, number: int) -> int:
        """The least number of the group."""
        while self._above[number] != number:
            self._above[number] = self._above[self._above[number]]
            number = self._above[number]
        return number

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._above[high] = low

    def join_all(self, numbers: Iterable[int]) -> None:
        first, *rest = numbers
        for other in rest:
            self.join(first, other)

    def groups(self) -> list[list[int]]:
        """The groups of two numbers or more, by their least number."""
        made: defaultdict[int, list[int]] = defaultdict(list)
        for number in range(len(self._above)):
            made[self.root(number)].append(number)
        return [group for group in made.values() if len(group) > 1]
