"""Messages between processes: lines of JSON that msgspec checks against their types; nothing is unpickled."""

from __future__ import annotations

from typing import Any

import msgspec


def line(message: Any) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """Puts whole lines together from what comes in pieces."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        self.rest += data
        if b"\n" not in data:
            return []
        *whole, rest = bytes(self.rest).split(b"\n")
        self.rest = bytearray(rest)
        return whole
