"""What is trained on in place of an image that cannot be read: another one, drawn by a key.

The key holds the seed and the unreadable image's number and nothing else, so the same image stands for it
in every epoch, on every rank and in every loader process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rankless.data.images.image_file import UnreadableImage
from rankless.randomness import generator
from rankless.structures import Unreadable

Value = TypeVar("Value")

TRIES = 20
"""So many others are tried: were every second one unreadable, one image in a million would find none."""


def readable(
    read: Callable[[int], Value], index: int, count: int, seed: int, unreadable: list[Unreadable]
) -> Value:
    """What ``read`` gives of image ``index``, or of the first readable one of those drawn in its place.

    Args:
        read: takes an image's number; raises UnreadableImage.
        index: the image that is wanted.
        count: how many images there are to draw from.
        seed: the recipe's.
        unreadable: every image that could not be read on the way is added.

    Raises:
        UnreadableImage: neither it nor any of :data:`TRIES` others can be read.
    """
    place = index
    for attempt in range(TRIES + 1):
        try:
            return read(place)
        except UnreadableImage as error:
            unreadable.append(Unreadable(place, error.path, error.reason))
            fault = error
            place = int(generator(seed, "replacement", index, attempt).integers(count))
    raise fault
