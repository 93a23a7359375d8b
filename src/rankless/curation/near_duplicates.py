"""Find identical and nearly identical images, such as resized or recompressed copies.

Two images are nearly identical if their thumbnails of 16 × 16 mean colors have a small root mean square
difference and no large difference at any pixel. To find all such pairs, the means of blocks are compared
first, in the order of brightness, because the distance between two thumbnails bounds the distances between
their means.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from rankless.curation.progress import thread_map
from rankless.data.images.image_file import Shown, UnreadableImage, read_for
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import counted

_SIDE, _BLOCKS = 16, 2
_SHOWN = Shown((_SIDE, _SIDE), "stretch", 4, "auto")
# Root mean square differences of 8-bit values. Microscope images (640 × 480) and photographs of hands
# (100 × 100) differ by 0.1 to 1.6 from copies that were recompressed (JPEG quality 50, WebP), resized to a
# half or a third, or stretched, and by up to 2.4 from copies of JPEG quality 30. Different images differ by
# at least 9.4. The limit is lower for images with little contrast (sky, tissue), which resemble each other
# more.
_MOST, _LEAST, _OF_CONTRAST = 3.0, 1.0, 0.1
_MOST_ANYWHERE = 12.0
"""Maximum difference at one pixel. A larger difference suggests an object that only one image shows."""
_AT_ONCE = 2048  # thumbnails compared at once
_ROUNDING = 1.0  # more than the rounding errors of squared distances between means

Thumbnails = NDArray[np.uint8]
"""Thumbnails of N images, (N, 3 * 16 * 16)."""


@dataclass(frozen=True)
class Duplicates:
    """Groups of at least two identical or nearly identical images, as ascending indices.

    ``identical`` and ``near`` are the numbers of images that are identical or nearly identical to an earlier
    image.
    """

    groups: list[list[int]]
    identical: int
    near: int

    def notes(self) -> list[str]:
        found = [
            f"{counted(count, 'image is', 'images are')} {what} to another image"
            for count, what in ((self.identical, "identical"), (self.near, "nearly identical"))
            if count
        ]
        together = f"kept together in {counted(len(self.groups), 'group')}"
        return [f"{' and '.join(found)}: {together}"] if found else []


class Fingerprint(NamedTuple):
    """The digest and thumbnail of an image, or the error if it cannot be read."""

    digest: bytes = b""
    thumbnail: Thumbnails | None = None
    error: UnreadableImage | None = None


def fingerprint(whole: Annotations, index: int, *, near: bool, decode: bool = False) -> Fingerprint:
    """Hash an image. With ``near``, add a thumbnail. With ``decode``, check that the image can be decoded."""
    digest, small = b"", None
    try:
        data, path = content(whole, index), whole.path(index)
        digest = blake2b(data, digest_size=16).digest()
        if decode:
            _decoded(data, Shown((0, 0), detail=0, values="auto"), path)
        small = thumbnail(data, path) if near else None
    except UnreadableImage as error:
        return Fingerprint(digest, error=error)
    return Fingerprint(digest, small)


def find_duplicates(whole: Annotations, *, near: bool = True) -> Duplicates:
    """Compare all images of a split by their bytes and, with ``near``, by their thumbnails.

    Images that cannot be decoded are compared only by their bytes.
    """
    work = partial(fingerprint, whole, near=near)
    first: dict[bytes, int] = {}
    pairs: list[tuple[int, int]] = []
    thumbnails, numbers = [], []
    for index, seen in enumerate(thread_map(work, range(len(whole)), "comparing images")):
        other = first.setdefault(seen.digest, index) if seen.digest else index
        if other != index:
            pairs.append((other, index))
        elif seen.thumbnail is not None:
            thumbnails.append(seen.thumbnail)
            numbers.append(index)
    close = near_pairs(np.array(thumbnails, np.uint8)) if len(thumbnails) > 1 else ()
    similar = [(numbers[one], numbers[other]) for one, other in close]
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, lowest in enumerate(connected(len(whole), [*pairs, *similar])):
        groups[lowest].append(index)
    found = len({other for _, other in similar})
    return Duplicates([group for group in groups.values() if len(group) > 1], len(pairs), found)


def thumbnail(data: bytes, name: str) -> Thumbnails:
    """Return the thumbnail, (3 * 16 * 16,), of an encoded image. Errors refer to the image by ``name``."""
    pixels = _decoded(data, _SHOWN, name).permute(1, 2, 0).contiguous().numpy()
    means = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(means).transpose(2, 0, 1).reshape(-1)


def _decoded(data: bytes, shown: Shown, name: str) -> Tensor:
    try:
        return read_for(io.BytesIO(data), shown, name=name).image
    except UnreadableImage:  # also colors with 16 bits
        return read_for(io.BytesIO(data), replace(shown, values="full"), name=name).image


def near_pairs(thumbnails: Thumbnails) -> Iterator[tuple[int, int]]:
    """Yield the indices of each pair of nearly identical thumbnails once, the lower index first."""
    contrast = thumbnails.std(1, dtype=np.float32)  # (N,)
    limit = np.clip(_OF_CONTRAST * contrast, _LEAST, _MOST)
    edge = _SIDE // _BLOCKS
    blocks = thumbnails.reshape(-1, 3, _BLOCKS, edge, _BLOCKS, edge).astype(np.float32).mean((3, 5))
    # The means of a block of edge² pixels differ by at most the thumbnails' distance / edge.
    points = blocks.reshape(len(thumbnails), -1)
    radius = limit * np.float32(np.sqrt(thumbnails.shape[1]) / edge) + 1e-3
    brightness = points.sum(1) / np.float32(np.sqrt(points.shape[1]))  # differs by at most the distance
    order = np.argsort(brightness)
    brightness, points, radius = brightness[order], points[order] - points.mean(0), radius[order]
    for start in range(0, len(order), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        end = int(np.searchsorted(brightness, (brightness[rows] + radius[rows]).max(), "right"))
        for first in range(start, end, _AT_ONCE):
            others = slice(first, min(first + _AT_ONCE, end))
            close = _squares(points[rows], points[others]) <= np.square(radius[rows])[:, None] + _ROUNDING
            if first == start:
                close = np.triu(close, 1)
            ones, twos = close.nonzero()
            for part in range(0, len(ones), _AT_ONCE):
                one = order[start + ones[part : part + _AT_ONCE]]
                two = order[first + twos[part : part + _AT_ONCE]]
                apart = thumbnails[one].astype(np.float32) - thumbnails[two]
                bound = np.minimum(limit[one], limit[two])
                same = (np.square(apart).mean(1) <= bound**2) & (np.abs(apart).max(1) <= _MOST_ANYWHERE)
                low, high = np.minimum(one, two)[same], np.maximum(one, two)[same]
                yield from zip(low.tolist(), high.tolist(), strict=True)


def _squares(ones: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the squared distances (N, M) of points (N, D) and (M, D)."""
    squares: NDArray[np.float32] = np.square(ones).sum(1)[:, None] + np.square(others).sum(1)
    squares -= 2 * (ones @ others.T)
    return squares


def connected(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the smallest node in the connected component of each node.

    The nodes are the numbers below ``count``, and ``pairs`` are the edges.
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
