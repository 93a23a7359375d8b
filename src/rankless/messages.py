"""Encode messages between processes as lines of JSON, so that received data is never unpickled."""

from __future__ import annotations

from typing import Any

import msgspec


def line(message: Any) -> bytes:
    """Encode a message as a line of JSON."""
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """A buffer that splits received data into lines."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received data and return the completed lines without their line breaks."""
        self.rest += data
        if b"\n" not in data:
            return []
        *whole, rest = bytes(self.rest).split(b"\n")
        self.rest = bytearray(rest)
        return whole
