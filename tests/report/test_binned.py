"""Numbers in bounded memory against NumPy, and round numbers at the ticks of an axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import savgol_filter

from rankless.report.charts import shown, smoothed, ticks
from rankless.report.collected import Binned
from rankless.report.markup import duration


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(2, 20), st.integers(1, 50))
def test_bins_are_means_of_their_steps_and_lose_none(values, most, first):
    binned = Binned(most)
    for step, value in enumerate(values, first):
        binned.add(step, {"loss": value, "odd": value if step % 2 else math.nan})
    assert len(binned.bins) <= most
    assert binned.total("loss") == pytest.approx(sum(values), abs=1e-3)
    steps = np.arange(first, first + len(values))
    for one, (middle, mean) in zip(binned.bins, binned.points("loss"), strict=True):
        inside = (steps >= one.first) & (steps <= one.last)
        assert mean == pytest.approx(np.array(values)[inside].mean(), abs=1e-6)
        assert one.first <= middle <= one.last
    assert [one.first for one in binned.bins[1:]] == [one.last + 1 for one in binned.bins[:-1]]
    counted = sum(one.counts.get("odd", 0) for one in binned.bins)
    assert counted == (steps % 2).sum()


def test_few_steps_stay_as_they_are():
    binned = Binned()
    for step in range(1, 1001):
        binned.add(step, {"loss": 1 / step})
    assert list(binned.points("loss")) == [(step, 1 / step) for step in range(1, 1001)]


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_ticks_are_few_round_and_reach_both_ends(one, other):
    low, high = sorted((one, other))
    if high - low < 1e-6 * max(abs(low), abs(high), 1e-300):  # what a float cannot part any more
        return
    found = ticks(low, high)
    assert 3 <= len(found) <= 9
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6 * step and found[-1] >= high - 1e-6 * step
    assert float(f"{step:e}".partition("e")[0]) == pytest.approx(
        round(float(f"{step:e}".partition("e")[0])), abs=1e-3
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (1e-17, "0"), (0.25, "0.25"), (0.00025, "2.5e-4"), (1500, "1,500"), (20000, "20k"),
     (1.5e6, "1.5M"), (-40, "-40"), (0.1 + 0.2, "0.3")],
)  # fmt: skip
def test_numbers_at_ticks_are_short(value, expected):
    assert shown(value) == expected


def test_durations_have_two_units():
    durations = [duration(seconds) for seconds in (4.25, 210, 7500)]
    assert durations == ["4.25 s", "3 min 30 s", "2 h 5 min"]


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60), st.integers(1, 9))
def test_smoothing_is_a_centered_mean_that_starts_on_a_fitted_line_and_is_constant_at_the_end(values, reach):
    """As Savitzky and Golay smooth, within the values that there are; then the last window's mean."""
    points = [(float(x), y) for x, y in enumerate(values)]
    result = smoothed(points, reach)
    assert [x for x, _ in result] == [x for x, _ in points]
    reach = min(reach, (len(values) - 1) // 2)
    expected = savgol_filter(values, 2 * reach + 1, 1) if reach else np.array(values)
    expected[len(values) - reach :] = np.mean(values[len(values) - 2 * reach - 1 :])
    assert [y for _, y in result] == pytest.approx(expected.clip(min(values), max(values)), abs=1e-6)


def test_the_smoothed_curve_does_not_fall_at_its_last_step():
    losses = [(float(step), 2.0 - step / 1000) for step in range(400)]
    trend = smoothed(losses)
    assert [y for _, y in trend[:380]] == pytest.approx([y for _, y in losses[:380]])
    assert trend[-1][1] == trend[-2][1] == pytest.approx(1.6, abs=0.02)
    assert smoothed([*losses[:-1], (399.0, 0.6)])[-1][1] > 1.6 - 0.05, "of a fall by one"
