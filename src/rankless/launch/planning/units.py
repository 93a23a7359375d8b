"""Parse and format the options of a plan."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rankless.errors import UserError

MOST_DEVICES = 1 << 20
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*", re.ASCII)
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_RATES = {
    f"{prefix}{unit}": scale / bits
    for prefix, scale in (*_PREFIXES.items(), *_BINARY.items())
    for unit, bits in (("B/s", 1), ("bit/s", 8), ("b/s", 8), ("Bps", 1), ("bps", 8))
}
# Each unit, its seconds, and the time from which the next unit is used.
_SHOWN = (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0))
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class PlanOptions:
    devices: tuple[int, int] | None = None  # machines, and devices per machine; None means this machine
    bandwidth: float | None = None  # bytes per second; None measures it
    latency: float | None = None  # seconds; None measures it
    step: float | None = None  # duration of a step on one device in seconds; None measures it
    check: tuple[int, ...] = ()  # numbers of processes for which to measure the step as well
    seconds: float = 2.0  # time for each measurement of steps
    rounds: int = 3  # number of measurements if there is a check


def devices(text: str) -> tuple[int, int]:
    """Parse ``8x4`` (machines × devices per machine) or ``4`` (devices of one machine)."""
    found = re.fullmatch(r"\s*(?:([0-9]{1,9})\s*[xX×]\s*)?([0-9]{1,9})\s*", text, re.ASCII)
    machines, each = (int(number or 1) for number in found.groups()) if found else (0, 0)
    if not 1 <= machines * each <= MOST_DEVICES:
        raise UserError(
            f"--devices is '{text}': expected MACHINESxDEVICES, as in 8x4, or a number of devices of one "
            f"machine, from 1 to {MOST_DEVICES:,} in total"
        )
    return machines, each


def bandwidth(text: str) -> float:
    """Convert a bandwidth such as ``25GB/s`` or ``100Gbit/s`` to bytes per second."""
    return _quantity(
        "--bandwidth", text, _RATES, "a bandwidth above 0 with a unit, as in 25GB/s or 100Gbit/s"
    )


def latency(text: str) -> float:
    """Convert a time such as ``20us`` to seconds."""
    return _quantity("--latency", text, _TIMES, "a time above 0 with a unit, as in 20us or 0.5ms")


def milliseconds(text: str) -> float:
    """Convert milliseconds such as ``210`` or ``210ms`` to seconds."""
    scales = {"": 1e-3, "ms": 1e-3}
    return _quantity("--step-ms", text, scales, "a number of milliseconds above 0, as in 210")


def _quantity(option: str, text: str, scales: dict[str, float], expected: str) -> float:
    found = _NUMBER.fullmatch(text)
    scale = scales.get(found[2]) if found else None
    value = float(found[1]) * scale if found and scale else 0.0
    if not value > 0 or math.isinf(value):
        raise UserError(f"{option} is '{text}': expected {expected}")
    return value


def shown_time(seconds: float) -> str:
    """Format a time with up to three digits, such as ``85 µs``, ``3.41 s`` or ``7.2 h``."""
    for unit, scale, most in _SHOWN:
        if seconds < most:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 3600)} h" if seconds < 48 * 3600 else f"{_three(seconds / 86400)} days"


def shown_bandwidth(rate: float) -> str:
    """Format bytes per second with up to three digits, such as ``25 GB/s``."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= scale:
            return f"{_three(rate / scale)} {unit}"
    return f"{_three(rate)} B/s"


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
