"""What stands in for an unreadable image: always the same, always readable, and all met on the way told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.images.image_file import UnreadableImage
from rankless.data.images.replacing import TRIES, readable
from rankless.structures import Unreadable


def reader(damaged: set[int]) -> Callable[[int], str]:
    def read(index: int) -> str:
        if index in damaged:
            raise UnreadableImage(f"{index}.jpg", "cut short")
        return f"image {index}"

    return read


def drawn(index: int, damaged: set[int], count: int = 50, seed: int = 0) -> tuple[str, list[Unreadable]]:
    unreadable: list[Unreadable] = []
    return readable(reader(damaged), index, count, seed, unreadable), unreadable


def test_a_readable_image_is_itself() -> None:
    assert drawn(7, {3}) == ("image 7", [])


@given(st.sets(st.integers(0, 49), min_size=1, max_size=25), st.integers(0, 3))
def test_a_damaged_one_is_replaced_by_a_readable_one_and_all_met_are_told(
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


def test_where_nothing_can_be_read_it_is_a_fault() -> None:
    unreadable: list[Unreadable] = []
    with pytest.raises(UnreadableImage, match="cut short"):
        readable(reader(set(range(50))), 7, 50, 0, unreadable)
    assert len(unreadable) == TRIES + 1 and unreadable[0].index == 7
