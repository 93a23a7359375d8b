"""What is trained on in place of a picture that cannot be read: another one, drawn by a key.

The key holds the seed and the unreadable picture's number and nothing else, so the same picture stands for it
in every epoch, on every rank and in every loader process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rankless.data.images.image_file import UnreadablePicture
from rankless.randomness import generator
from rankless.structures import Unreadable

Value = TypeVar("Value")

TRIES = 20
"""So many others are tried: were every second one unreadable, one picture in a million would find none."""


def readable(
    read: Callable[[int], Value], index: int, count: int, seed: int, unreadable: list[Unreadable]
) -> Value:
    """What ``read`` gives of picture ``index``, or of the first readable one of those drawn in its place.

    Args:
        read: takes a picture's number; raises UnreadablePicture.
        index: the picture that is wanted.
        count: how many pictures there are to draw from.
        seed: the recipe's.
        unreadable: every picture that could not be read on the way is added.

    Raises:
        UnreadablePicture: neither it nor any of :data:`TRIES` others can be read.
    """
    place = index
    for attempt in range(TRIES + 1):
        try:
            return read(place)
        except UnreadablePicture as error:
            unreadable.append(Unreadable(place, error.path, error.reason))
            fault = error
            place = int(generator(seed, "replacement", index, attempt).integers(count))
    raise fault
