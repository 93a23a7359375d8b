"""Class colors: each is as far as possible from all earlier ones, so the first few are the most distinct.

They were chosen one after another from points of OKLCH (Ottosson, A perceptual color space, 2020) with
lightness 0.5 to 0.92 and chroma 0.07 to 0.24, neither too dark nor too pale for a line. Differences in hue
count 1.6 times as much as those in lightness.
"""

from __future__ import annotations

Color = tuple[int, int, int]

_COLORS = bytes.fromhex("""
    e14b39 6bf548 3646e8 afd5fe 2b7440 d657f1 cfa508 87678e f89fbb 66c093 7591f4 fde0b0 ab1d72 905211
    8437b2 edee31 0e6a9b fb40ad 32a8c7 8afde7 bc8c71 38a017 c88ef1 adfd9c 8a8c34 5554b6 974555 7a47f3
    b761b1 f9875e f21764 aaa4d5 599480 b2cb52 bb1cb5 e06c94 f1bafe 56d3da 2dcb65 b71532 c0c28e 20f6a5
    6e87b1 956ed2 f7cc4b 276ee1 f674d0 6c6433 29706c e6af9c cb6620 903d8b bf696a b688a6 cdf1c5 73b0ee
    faab3f 986655 9f33da 82c11f 7472f4 d44996 2f8adc a7e954 568502 5b5f8b 8aa173 aef2fe e9ec94 b07932
    a63c0c 2cdcaf b74771 8da523 f398eb 25aea7 7468b0 de9a60 d8aed3 9ce6ab 619655 90cdb7 b7698f 74b7c3
    f964f1 db2fb2 7d24d3 a053fd 45b164 bc70ee ad85cb afb15b 4d74b5 6bcbf7 8e710f 04896a
""")
COUNT = len(_COLORS) // 3
"""So many colors can be distinguished; more classes repeat them."""


def color(label: int) -> Color:
    """Return the color of a class id."""
    red, green, blue = _COLORS[label % COUNT * 3 :][:3]
    return red, green, blue
