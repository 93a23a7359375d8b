"""Reading every image of a micro-batch once, however many of its inputs show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rankless.data.images.image_file import UnreadableImage

Value = TypeVar("Value")


def once(read: Callable[[int], Value]) -> Callable[[int], Value]:
    """``read`` that asks for every number once, and gives the same value, or raises the same, from then on.

    What it gave lives as long as the returned function does.

    Args:
        read: takes an image's number; may raise UnreadableImage.
    """
    known: dict[int, Value | UnreadableImage] = {}

    def reading(number: int) -> Value:
        if number not in known:
            try:
                known[number] = read(number)
            except UnreadableImage as error:
                known[number] = error
        found = known[number]
        if isinstance(found, UnreadableImage):
            raise found.with_traceback(None)  # else each raising would keep its frames alive
        return found

    return reading
