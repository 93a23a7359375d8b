"""What replaces an unreadable image: always the same, always readable, and all met on the way reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.images.image_file import UnreadableImage
from rankless.data.images.sources import TRIES, ReadableImages
from rankless.structures import Unreadable


class Images:
    def __init__(self, damaged: set[int]) -> None:
        self.damaged = damaged
        self.asked: list[int] = []

    def read(self, index: int) -> str:
        self.asked.append(index)
        if index in self.damaged:
            raise UnreadableImage(f"{index}.jpg", "cut short")
        return f"image {index}"


def drawn(index: int, damaged: set[int], count: int = 50, seed: int = 0) -> tuple[str, list[Unreadable]]:
    images = ReadableImages(Images(damaged), count, seed)
    found = images.read(index)
    assert found == f"image {images.position}"
    return found, images.unreadable


@given(st.sets(st.integers(0, 49), min_size=1, max_size=25), st.integers(0, 3))
def test_a_damaged_image_is_replaced_and_every_damaged_image_is_reported(
    damaged: set[int], seed: int
) -> None:
    for index in damaged:
        found, unreadable = drawn(index, damaged, seed=seed)
        assert int(found.removeprefix("image ")) not in damaged
        assert unreadable[0] == Unreadable(index, f"{index}.jpg", "cut short")
        assert {one.index for one in unreadable} <= damaged
        assert drawn(index, damaged, seed=seed) == (found, unreadable)  # drawn again, in any epoch


def test_replacements_come_from_the_whole_data_and_hang_on_the_seed() -> None:
    everything = set(range(400))
    first = {drawn(index, {index}, count=400)[0] for index in everything}
    assert len(first) > 200  # 400 draws of 400 meet some 253 of them
    second = {index: drawn(index, {index}, count=400, seed=1)[0] for index in range(50)}
    assert sum(second[index] == drawn(index, {index}, count=400)[0] for index in range(50)) < 5


def test_where_nothing_can_be_read_it_is_an_error() -> None:
    images = ReadableImages(Images(set(range(50))), 50, 0)
    with pytest.raises(UnreadableImage, match="cut short"):
        images.read(7)
    assert len(images.unreadable) == TRIES + 1 and images.unreadable[0].index == 7


def test_with_a_memo_each_image_is_read_once_and_each_item_reports_its_images() -> None:
    source = Images({3})
    images = ReadableImages(source, 50, 0, memo={})
    first = [images.read(index) for index in (7, 1, 7, 3, 7)]
    other = replace(images, unreadable=[])
    assert [other.read(index) for index in (7, 1, 7, 3, 7)] == first
    assert first[:3] == ["image 7", "image 1", "image 7"]
    assert source.asked[:3] == [7, 1, 3] and len(source.asked) == len(set(source.asked))
    assert [one.index for one in images.unreadable] == [one.index for one in other.unreadable] == [3]
    assert images.memo is not None
    remembered = images.memo[3]
    assert isinstance(remembered, UnreadableImage) and remembered.__traceback__ is None  # holds no frames
