"""Strategies for hypothesis: damage to files as disks, crashes and strangers do it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Damage = Callable[[bytes], bytes]


def _flipped(share: float, bit: int) -> Damage:
    def flip(content: bytes) -> bytes:
        if not content:
            return b"\x01"
        place = int(share * len(content))
        return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]

    return flip


def _cut(share: float) -> Damage:
    return lambda content: content[: int(share * len(content))]


def _overwritten(share: float, block: bytes) -> Damage:
    def overwrite(content: bytes) -> bytes:
        place = int(share * len(content))
        return content[:place] + block + content[place + len(block) :]

    return overwrite


_shares = st.floats(0, 1, exclude_max=True)
byte_damage: st.SearchStrategy[Damage] = st.one_of(
    st.builds(_flipped, _shares, st.integers(0, 7)),
    st.builds(_cut, _shares),
    st.builds(_overwritten, _shares, st.binary(min_size=1, max_size=64) | st.just(bytes(512))),
    st.binary(max_size=300).map(lambda block: lambda _: block),
)
"""A function from the content of a file to damaged content: a bit, the end, a block, or all of it."""

hostile_json = st.sampled_from(
    [
        "",
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 5000,
        '{"step": ' + "9" * 5000 + "}",
        '{"step": 1e999}',
        '{"step": NaN, "images": Infinity}',
        "\ufeff{}",
        '"' + "x" * 100_000 + '"',
    ]
)
"""Texts that are hard on a reader of JSON."""


def text_of(value: Any) -> str:
    """JSON as Python writes it, NaN included."""
    return json.dumps(value)
