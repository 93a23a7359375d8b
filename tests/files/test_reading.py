"""What is read is a regular file of a sane size; anything else is a sentence, and nobody waits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankless.files import reading

pytestmark = pytest.mark.timeout(20)  # a pipe that is opened the usual way waits for ever


def refused(path: object, most: int | None = 100) -> str:
    with pytest.raises(OSError) as caught:
        reading.read_bytes(path, most)  # type: ignore[arg-type]
    assert caught.value.strerror
    return caught.value.strerror


def test_a_pipe_a_device_a_socket_and_a_folder_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe; expected a regular file" in refused(tmp_path / "pipe")
    assert "it is a device" in refused("/dev/zero")
    assert refused(tmp_path) == "Is a directory"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        assert "it is a socket" in refused(tmp_path / "socket")


def test_names_that_no_file_can_have(tmp_path: Path):
    assert refused(tmp_path / ("x" * 300)) == "File name too long"
    assert "NUL" in refused("a\0b")
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refused(tmp_path / "loop")
    assert not any(map(reading.is_file, (tmp_path / "loop", "a\0b", "x" * 300)))


def test_the_limit_is_named(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 101)
    assert refused(file) == "it has 101 bytes, more than the allowed 100"
    file.write_bytes(b"x" * 100)
    assert reading.read_bytes(file, 100) == b"x" * 100
    # A size that nobody wrote: nothing is read before it is refused.
    with file.open("wb") as sparse:
        sparse.truncate(1 << 42)
    assert "it has 4,398,046,511,104 bytes, more than the" in refused(file, None)


def test_files_whose_size_nobody_knows():
    assert reading.read_bytes("/proc/self/status", 100_000).startswith(b"Name:")
    assert "more than the allowed 100" in refused("/proc/self/status")


def test_text_is_read_as_python_reads_it(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes("\ufeffa\r\nb\rc".encode())
    assert reading.read_text(file, 100) == file.read_text("utf-8-sig")
    with reading.opened_text(file, newline="") as lines:
        assert list(lines) == ["a\r\n", "b\r", "c"]
    file.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        reading.read_text(file, 100)
    assert reading.read_text(file, 100, errors="surrogateescape") == "\udcff"
