"""Whether a file may hold safetensors, from its first bytes."""

import struct
from pathlib import Path

import pytest

from rankless.runs.trained_weights import not_safetensors


@pytest.mark.parametrize(
    ("start", "said"),
    [
        # The header's length is written first. It may look like the start of a pickle or of a zip file.
        *((struct.pack("<Q", length) + b"{", None) for length in (0x80, 0x4B50, 0x04034B50, 1000)),
        (b"", "it is empty"),
        (b"\x80\x02}q\x00(X\x05\x00", "looks like a pickle"),
        (b"PK\x03\x04\x00\x00\x00\x00\x00", "looks like a pickle"),
        (b"hello, world", "does not start like a safetensors file"),
    ],
)
def test_the_first_bytes_tell_what_a_file_is(start, said):
    found = not_safetensors(Path("w.safetensors"), start[:9])
    assert said in found if said else found == ""
