"""The cache of byte ranges: what is put in comes out, it stays within its limit, and damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.files.range_cache import RangeCache, limit


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_cache_keeps_its_limit_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 10_000, spare=0)
    for number in range(30):
        cache.put(str(number), bytes(984))
        assert cache.get("0") is not None  # and is used by that
        for file in tmp_path.rglob("*"):  # clocks of file systems are coarse
            state = file.stat()
            os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns - 10**9))
        assert size(tmp_path) <= 10_000
    assert [number for number in range(30) if cache.get(str(number)) is not None] == [0, *range(21, 30)]


@pytest.mark.parametrize(("most", "spare"), [(100, 0.0), (1 << 20, 1.0)])
def test_neither_its_share_nor_the_disk_is_ever_filled(tmp_path: Path, most, spare) -> None:
    cache = RangeCache(tmp_path, most, spare=spare)
    cache.put("a", bytes(200))
    assert cache.get("a") is None and size(tmp_path) == 0


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: bytes(len(data)), lambda data: b""])
def test_what_is_put_in_comes_out_and_a_damaged_file_counts_as_none(tmp_path: Path, damage) -> None:
    cache = RangeCache(tmp_path, 1 << 20, spare=0)
    cache.put("a", b"one")
    (file,) = (file for file in tmp_path.rglob("*") if file.is_file())
    file.write_bytes(damage(file.read_bytes()))
    assert cache.get("a") is None and not file.exists()
    cache.put("a", b"one")
    cache.put("b", b"")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"one", b"", None)


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 20_000_000_000), ("0", 0), ("200GB", 200_000_000_000), ("1.5 GiB", 3 << 29), ("7", 7)],
)
def test_the_limit_is_read_with_its_unit(monkeypatch, text: str, size: int) -> None:
    monkeypatch.setenv("RANKLESS_REMOTE_CACHE", text)
    assert limit() == size


def test_no_size_is_a_sentence(monkeypatch) -> None:
    for text in ("much", "-1", "3 GBit", "nan"):
        monkeypatch.setenv("RANKLESS_REMOTE_CACHE", text)
        with pytest.raises(UserError, match=f"RANKLESS_REMOTE_CACHE is '{text}': expected a size such as"):
            limit()


def test_less_room_takes_effect_when_data_is_opened(tmp_path: Path) -> None:
    many = RangeCache(tmp_path, 100_000, 10_000, 0)
    for number in range(60):
        many.put(str(number), bytes(984))
    assert size(tmp_path) > 40_000
    RangeCache(tmp_path, 20_000, 10_000, 0).trim()
    assert 0 < size(tmp_path) <= 20_000
