"""Whether a file may hold safetensors, from its first bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rankless.runs.trained_weights import not_safetensors


@pytest.mark.parametrize("length", [0x80, 0x4B50, 0x04034B50, 1000])
def test_a_header_may_be_as_long_as_a_pickle_begins(length):
    """The first eight bytes are the header's length: these are those of a pickle and of a zip file."""
    assert not_safetensors(Path("w.safetensors"), struct.pack("<Q", length) + b"{") == ""


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "it is empty"),
        (b"\x80\x02}q\x00(X\x05\x00", "looks like a pickle"),
        (b"PK\x03\x04\x00\x00\x00\x00\x00", "looks like a pickle"),
        (b"hello, world", "does not start like a safetensors file"),
    ],
)
def test_what_it_is_instead_is_said(start, said):
    assert said in not_safetensors(Path("w.safetensors"), start[:9])
