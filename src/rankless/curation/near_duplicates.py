"""Search for identical and nearly identical images, such as images that were saved again or resized.

Every image is reduced to a thumbnail of 16 × 16 mean colors. Two images are nearly the same if no mean
differs much and the root mean square difference is small. The search is exact: block means are a projection
of the thumbnail, so similar images are close together in a k-d tree of block means.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rankless.curation.progress import each
from rankless.data.images.image_file import Shown, UnreadableImage, read, read_for
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import counted

_SIDE, _BLOCKS = 16, 2
_SHOWN = Shown((_SIDE, _SIDE), "stretch", 4)
# Root mean square differences, in levels of 255. Microscope images (640 × 480) and photographs of hands
# (100 × 100) differ by 0.1 to 1.6 after they were saved again at JPEG quality 50, as WebP, resized to a half
# or a third, or stretched, and by up to 2.4 at quality 30. Different images differ by 9.4 or more. Images
# with little contrast (a sky, tissue) resemble each other more, so their limit is lower.
_MOST, _LEAST, _OF_CONTRAST = 3.0, 1.0, 0.1
_MOST_ANYWHERE = 12.0
"""The maximum difference of one mean. A larger difference indicates an object in only one of the images."""
_AT_ONCE = 4096

Thumbnails = NDArray[np.uint8]
"""The thumbnails of N images, (N, 3 * 16 * 16)."""


@dataclass(frozen=True)
class Alike:
    """Groups of identical or nearly identical images.

    Attributes:
        groups: the indices of the two or more images in each group, in ascending order.
        identical: the number of images with the same bytes as an earlier image.
        near: the number of further images that are nearly the same as another image.
    """

    groups: list[list[int]]
    identical: int
    near: int

    def notes(self) -> list[str]:
        """Return a sentence about the duplicates, if there are any."""
        found = [
            f"{counted(count, 'image is', 'images are')} {what} another"
            for count, what in ((self.identical, "a copy of"), (self.near, "nearly the same as"))
            if count
        ]
        together = f"kept together in {counted(len(self.groups), 'group')}"
        return [f"{' and '.join(found)}: {together}"] if found else []


class Look(NamedTuple):
    """An image's digest and thumbnail for comparison, or the error if the image cannot be read."""

    digest: bytes = b""
    thumbnail: Thumbnails | None = None
    error: UnreadableImage | None = None


def look_at(whole: Annotations, index: int, *, near: bool, decode: bool = False) -> Look:
    """Hash an image. ``near`` also makes its thumbnail, and ``decode`` decodes it fully to find errors."""
    digest, small = b"", None
    try:
        data, path = content(whole, index), whole.path(index)
        digest = blake2b(data, digest_size=16).digest()
        if decode:
            read(io.BytesIO(data), name=path)
        small = thumbnail(data, path) if near else None
    except UnreadableImage as error:
        return Look(digest, error=error)
    return Look(digest, small)


def find_alike(whole: Annotations, *, near: bool = True) -> Alike:
    """Compare all images of a split with each other by bytes and, with ``near``, by thumbnails.

    An image that cannot be decoded is compared only by its bytes.
    """
    look = partial(look_at, whole, near=near)
    first: dict[bytes, int] = {}
    pairs: list[tuple[int, int]] = []
    thumbnails, numbers = [], []
    for index, seen in enumerate(each(look, range(len(whole)), "comparing images")):
        other = first.setdefault(seen.digest, index) if seen.digest else index
        if other != index:
            pairs.append((other, index))
        elif seen.thumbnail is not None:
            thumbnails.append(seen.thumbnail)
            numbers.append(index)
    close = near_pairs(np.array(thumbnails, np.uint8)) if len(thumbnails) > 1 else ()
    similar = [(numbers[one], numbers[other]) for one, other in close]
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, lowest in enumerate(joined(len(whole), [*pairs, *similar])):
        groups[lowest].append(index)
    found = len({other for _, other in similar})
    return Alike([group for group in groups.values() if len(group) > 1], len(pairs), found)


def thumbnail(data: bytes, name: str) -> Thumbnails:
    """Return the thumbnail, (3 * 16 * 16,), of an encoded image."""
    pixels = read_for(io.BytesIO(data), _SHOWN, name=name).image.permute(1, 2, 0).contiguous().numpy()
    means = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(means).transpose(2, 0, 1).reshape(-1)


def near_pairs(thumbnails: Thumbnails) -> Iterator[tuple[int, int]]:
    """Yield each pair of nearly equal thumbnails once, with the lower index first."""
    from sklearn.neighbors import KDTree  # importing it is slow

    contrast = thumbnails.std(1, dtype=np.float32)  # (N,)
    limit = np.clip(_OF_CONTRAST * contrast, _LEAST, _MOST)
    edge = _SIDE // _BLOCKS
    blocks = thumbnails.reshape(-1, 3, _BLOCKS, edge, _BLOCKS, edge).astype(np.float32).mean((3, 5))
    # The mean over edge² numbers of two thumbnails differs by at most their distance / edge.
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


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return, for each number below ``count``, the lowest number in its group (union-find).

    Two numbers are in the same group if pairs connect them, directly or through other numbers.
    """
    above = list(range(count))

    def lowest(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    for pair in pairs:
        low, high = sorted(map(lowest, pair))
        above[high] = low
    return list(map(lowest, range(count)))
