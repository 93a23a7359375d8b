"""Numbers of devices, bandwidths and times as they are given on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.errors import UserError
from rankless.launch.planning import units


@pytest.mark.parametrize(
    ("read", "texts", "value"),
    [
        (units.bandwidth, ("25GB/s", "25 GB/s", "25e9B/s", "25000MB/s"), 25e9),
        (units.bandwidth, ("100Gbit/s", "100Gb/s", "100Gbps"), 12.5e9),
        (units.bandwidth, ("1.5GiB/s",), 1.5 * 2**30),
        (units.latency, ("20us", "20 µs", "0.02ms", "0.00002s"), 2e-5),
        (units.devices, ("8x4", "8X4", " 8 × 4 "), (8, 4)),
        (units.devices, ("4",), (1, 4)),
        (units.milliseconds, ("210", "210ms"), 0.21),
    ],
)
def test_values_are_read_with_their_units(read, texts, value):
    assert all(read(text) == pytest.approx(value) for text in texts)


@pytest.mark.parametrize(
    ("read", "option", "texts"),
    [
        (units.devices, "--devices", ["", "0", "8x0", "x4", "8x", "-1", "8x4x2", "two", "1.5", "2000000x4"]),
        (units.bandwidth, "--bandwidth", ["", "25", "25GB", "0GB/s", "-1GB/s", "nanGB/s", "1e999GB/s"]),
        (units.latency, "--latency", ["", "20", "0us", "-1us", "20 minutes", "infs", "us"]),
        (units.milliseconds, "--step-ms", ["", "0", "-1", "210s", "long"]),
    ],
)
def test_what_is_none_is_named_with_an_example(read, option, texts):
    for text in texts:
        with pytest.raises(UserError, match=rf"^{option} is '{text}': expected .*as in ") as caught:
            read(text)
        assert len(caught.value.problems) == 1


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_user_error(text):
    for read in (units.devices, units.bandwidth, units.latency, units.milliseconds):
        try:
            value = read(text)
        except UserError:
            continue
        assert min(value) > 0 if isinstance(value, tuple) else value > 0


@given(st.floats(1e-7, 1e7))
def test_a_shown_time_has_three_digits_and_its_unit(seconds):
    number, unit = units.shown_time(seconds).split()
    scale = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(seconds, rel=0.01, abs=1e-8)
