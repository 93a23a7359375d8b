"""Damage to what is valid: bytes and texts that are cut, flipped, repeated, and filled with odd values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    "0", "-1", "1", "-0", "1e400", "-1e308", "nan", "inf", "1e-320", "0x10", "1_0", "١", "2147483648",
    "-9223372036854775809", "18446744073709551616", "1000000000", "1000000", "65536", "0.5", "1e9", "NaN",
    "9" * 30, "9" * 5000, "", " ", "true", "null", "1,2", "3/0",
)  # fmt: skip
WORDS = (
    "", " ", ".", "..", "/", "~", "-", "--", "*", "?", "[", "]", "{", "}", "(", ")", "'", '"', "\\", "|", "#",
    "%s", "%d", "{0}", "$HOME", "`id`", "a b", "é", "e\u0301", "😀", "\u202egpj.exe", "\u200b", "\ufeff",
    "\x1b[31m", "\x07", "\x00", "\x7f", "\x85", "\u2028", "\r", "\n", "\t", "a\nb", "con", "nul", "../../x",
    "/dev/zero", "/dev/null", "/etc/passwd", "/proc/self/mem", "x" * 256, "x" * 5000, "é" * 200, "a/" * 200,
    "\ud800", "evil", "evil:Task", "evil.py:Task", "__import__('evil')",
    "!!python/object/apply:os.system [id]",
)  # fmt: skip

numbers = st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats().map(repr)
words = st.sampled_from(WORDS) | st.text(max_size=12)
odd = numbers | words


def encoded(text: str) -> bytes:
    """UTF-8, with lone surrogates as they are: bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def argument(text: str) -> str:
    """As the system hands it to a process: no NUL, and bytes that are no UTF-8 as Python shows them."""
    return encoded(text).replace(b"\0", b"").decode("utf-8", "surrogateescape")


@st.composite
def damaged(draw: st.DrawFn, content: bytes, tokens: Sequence[str] = ()) -> bytes:
    """``content`` after one to six blows."""
    found = content
    for _ in range(draw(st.integers(1, 6))):
        found = draw(st.sampled_from(_BLOWS))(draw, found, tokens)
    return found


@st.composite
def overwritten(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` with other values in up to eight places: whatever has a length keeps it."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(content) - 4))
        found[at : at + 4] = draw(st.sampled_from(_FOUR) | st.binary(min_size=4, max_size=4))
    return bytes(found)


_FOUR = (bytes(4), b"\xff" * 4, b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\1\0\0\0")
"""Zero, NaNs and infinities as float32, and the smallest that is not zero."""


def _span(draw: st.DrawFn, content: bytes) -> tuple[int, int]:
    start = draw(st.integers(0, len(content)))
    return start, min(start + draw(st.sampled_from([1, 2, 4, 8, 16, 64, 300])), len(content))


def _flip(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    if not content:
        return content
    at, bit = draw(st.integers(0, len(content) - 1)), draw(st.integers(0, 7))
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def _byte(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    if not content:
        return content
    at, value = draw(st.integers(0, len(content) - 1)), draw(st.sampled_from(b'\0\1\x7f\x80\xff\n"'))
    return content[:at] + bytes([value]) + content[at + 1 :]


def _cut(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    return content[: draw(st.integers(0, len(content)))]


def _remove(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    start, end = _span(draw, content)
    return content[:start] + content[end:]


def _repeat(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    start, end = _span(draw, content)
    return content[:end] + content[start:end] * draw(st.sampled_from([1, 2, 50])) + content[end:]


def _move(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    start, end = _span(draw, content)
    rest = content[:start] + content[end:]
    at = draw(st.integers(0, len(rest)))
    return rest[:at] + content[start:end] + rest[at:]


def _insert(draw: st.DrawFn, content: bytes, tokens: Sequence[str]) -> bytes:
    start, end = _span(draw, content)
    token = draw(st.sampled_from(tokens)) if tokens and draw(st.booleans()) else draw(odd)
    return content[:start] + encoded(token) + content[end if draw(st.booleans()) else start :]


def _size(draw: st.DrawFn, content: bytes, _: Sequence[str]) -> bytes:
    """A number of 4 or 8 bytes that is no longer true."""
    length = draw(st.sampled_from([2, 4, 8]))
    at = draw(st.integers(0, max(len(content) - length, 0)))
    value = draw(st.sampled_from([0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
    order: Any = draw(st.sampled_from(["little", "big"]))
    return content[:at] + (value % 2 ** (8 * length)).to_bytes(length, order) + content[at + length :]


_BLOWS: tuple[Callable[[st.DrawFn, bytes, Sequence[str]], bytes], ...] = (
    _flip, _byte, _cut, _remove, _repeat, _move, _insert, _insert, _size,
)  # fmt: skip


@st.composite
def damaged_text(draw: st.DrawFn, content: str, tokens: Sequence[str] = ()) -> bytes:
    """Lines and the words in them exchanged, repeated, dropped, and replaced by odd values; seldom bytes."""
    lines = content.split("\n")
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        kind = draw(st.sampled_from(["word", "word", "word", "drop", "twice", "other", "many"]))
        if not lines:
            break
        if kind == "word":
            lines[at] = _other_word(draw, lines[at], tokens)
        elif kind == "drop":
            del lines[at]
        elif kind == "twice":
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        elif kind == "many":
            lines[at:at] = [lines[at]] * draw(st.sampled_from([10, 300]))
        else:
            lines.insert(at, draw(st.sampled_from(tokens) if tokens else odd))
    found = encoded("\n".join(lines))
    return draw(damaged(found, tokens)) if draw(st.integers(0, 5)) == 0 else found


def _other_word(draw: st.DrawFn, line: str, tokens: Sequence[str]) -> str:
    """One run of letters and digits, or one sign, is another."""
    parts = re.findall(r"[\w.+-]+|\s+|[^\w\s]", line)
    if not parts:
        return draw(odd)
    at = draw(st.integers(0, len(parts) - 1))
    parts[at] = draw(st.sampled_from(tokens)) if tokens and draw(st.booleans()) else draw(odd)
    return "".join(parts)


_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from([2**31, 2**63, 2**64, -(10**30), 10**300, 1e308, 1e-320, 0.5, -1.5])
    | st.floats()
    | words
)
json_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged_value(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one of its parts exchanged, dropped or repeated; mostly deep inside."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(list(value)))
        kind = draw(st.integers(0, 7))
        if kind == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if kind == 1:
            return {(draw(words) if name == key else name): inner for name, inner in value.items()}
        return value | {key: draw(damaged_value(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(value) - 1))
        kind = draw(st.integers(0, 7))
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[:at] + [value[at]] * draw(st.sampled_from([2, 100])) + value[at:]
        return [*value[:at], draw(damaged_value(value[at])), *value[at + 1 :]]
    return draw(json_values)
