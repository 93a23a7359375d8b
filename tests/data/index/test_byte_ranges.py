"""Images in shards: their paths, and a window that reads as a file of its own does."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.index.byte_ranges import LocalFile, Window, file_of, path_in


@pytest.mark.parametrize(
    ("shard", "member", "path"),
    [
        ("/d/a.tar", "1.jpg", "/d/a.tar//1.jpg"),
        ("//host/a.tar", "/x//y/1.jpg", "//host/a.tar//x/y/1.jpg"),
        ("a.tar", "b.tar/1.jpg", "a.tar//b.tar/1.jpg"),
    ],
)
def test_paths(shard, member, path):
    assert path_in(shard, member) == path and file_of(path) == shard
    assert file_of(shard) == shard


_WHENCE = st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])


@given(st.lists(st.tuples(st.integers(0, 30), _WHENCE, st.integers(0, 40)), max_size=8), st.booleans())
def test_a_window_is_a_file(tmp_path_factory, moves, buffered):
    path = tmp_path_factory.mktemp("window") / "file"
    content = bytes(range(100))
    path.write_bytes(content)
    file = os.open(path, os.O_RDONLY)
    window, known = Window(LocalFile(file), 30, 25), io.BytesIO(content[30:55])
    seen = io.BufferedReader(window, 7) if buffered else window
    for offset, whence, count in moves:
        offset = -min(offset, 25) if whence == os.SEEK_END else offset
        assert seen.seek(offset, whence) == known.seek(offset, whence)
        assert seen.read(count) == known.read(count) and seen.tell() == known.tell()
    os.close(file)
