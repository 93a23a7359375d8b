"""An image is read once, and what went wrong with it is told each time."""

import pytest

from rankless.data.datasets.memoize import once
from rankless.data.images.image_file import UnreadableImage


def test_every_number_is_asked_for_once() -> None:
    asked = []

    def read(number: int) -> list[int]:
        asked.append(number)
        return [number]

    reading = once(read)
    assert [reading(number) for number in (3, 1, 3, 3, 1)] == [[3], [1], [3], [3], [1]]
    assert asked == [3, 1]
    assert reading(3) is reading(3) and once(read)(3) is not reading(3)


def test_what_cannot_be_read_raises_the_same_each_time_and_holds_no_frames() -> None:
    asked = []

    def read(number: int) -> int:
        asked.append(number)
        raise UnreadableImage("a.jpg", "cut short")

    reading, depths = once(read), []
    for _ in range(3):
        with pytest.raises(UnreadableImage, match="cut short") as told:
            reading(7)
        depths.append(len(told.traceback))
    assert asked == [7] and len(set(depths)) == 1
