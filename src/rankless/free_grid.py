"""STUB"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FreeHead:
    stride: int
    bins: int = 0
