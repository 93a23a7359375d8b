"""Sizes of multi-scale training: multiples of 32 in reach, each as likely, the same for so many steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.multi_scale import StepSizes

sides = st.integers(1, 40).map(lambda n: 32 * n)


def test_darknets_sizes() -> None:
    """From 320 to 608 around 448 in Redmon's YOLOv2 and v3; 416 / 1.4 = 297.1, 416 · 1.4 = 582.4."""
    sizes = StepSizes((416, 416), 0.4, 10, 0).choices()
    assert sizes == [(side, side) for side in range(320, 577, 32)]
    # The bounds themselves are in: 320 · 1.1 is not quite 352 in floating point.
    assert StepSizes((320, 320), 0.1, 10, 0).choices()[-1] == (352, 352)
    assert StepSizes((480, 480), 0.5, 10, 0).choices()[0] == (320, 320)


@given(st.tuples(sides, sides), st.floats(0, 2), st.integers(0, 500))
def test_every_size_is_a_multiple_in_reach_and_keeps_the_aspect(
    size: tuple[int, int], spread: float, step: int
) -> None:
    made = StepSizes(size, spread, 10, 3)
    choices = made.choices()
    assert size in choices and len(set(choices)) == len(choices) and made.of(step) in choices
    for found in choices:
        for side, wanted in zip(found, size, strict=True):
            assert side % 32 == 0
            assert wanted / (1 + spread) - 1e-3 <= side <= wanted * (1 + spread) + 1e-3
        scale = max(found) / max(size)
        # No other multiple in reach is nearer to the aspect.
        shorter = min(size)
        reach = [
            side
            for side in range(32, 4000, 32)
            if shorter / (1 + spread) - 1e-6 <= side <= shorter * (1 + spread) + 1e-6
        ]
        nearest = min(abs(side - shorter * scale) for side in reach)
        assert abs(min(found) - shorter * scale) == pytest.approx(nearest)
    assert choices[0] <= size <= choices[-1]


def test_a_size_lasts_so_many_steps_and_all_are_as_likely() -> None:
    made = StepSizes((416, 416), 0.4, 10, 5)
    drawn = [made.of(step) for step in range(9000)]
    assert all(len(set(drawn[at : at + 10])) == 1 for at in range(0, 9000, 10))
    counts = Counter(drawn[::10])
    assert len(counts) == 9 and all(count == pytest.approx(100, abs=40) for count in counts.values())
    assert drawn != [StepSizes((416, 416), 0.4, 10, 6).of(step) for step in range(9000)]
