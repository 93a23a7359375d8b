"""A list of the data's files with their SHA-256, written to the run directory during training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

from rankless.files.writing import keep_beside, write_atomically
from rankless.runs.chain import sum_of


class DataSums:
    """A thread that writes the list at ``path``, one line per file as ``sha256sum`` does.

    A list of an earlier start with other content is kept beside it, and one that is newer than every file is
    used again. ``files`` returns the paths; if there are none, nothing is written.
    """

    def __init__(self, path: Path, files: Callable[[], Sequence[str]]) -> None:
        self._path, self._files = path, files
        self._sum: str | None = None
        self._done, self._closed = Event(), False
        Thread(target=self._make, name="data sums", daemon=True).start()

    def digest(self, seconds: float) -> str | None:
        """Return the SHA-256 of the list after waiting at most ``seconds``; None if it is not complete."""
        return self._sum if self._done.wait(seconds) else None

    def close(self) -> None:
        """End the thread soon, even if the list is incomplete."""
        self._closed = True

    def _make(self) -> None:
        try:
            lines, files = [], self._files()
            if self._is_current(files):
                self._sum = sum_of(self._path)
                return
            for name, digest in sums_of(files):
                if self._closed:
                    return
                lines.append(f"{digest}  {name}\n")
            if lines:
                self._sum = self._write("".join(lines))
        finally:
            self._done.set()

    def _is_current(self, files: Sequence[str]) -> bool:
        """Return whether the list has the names of these files, none of which has changed since."""
        try:
            made = self._path.stat().st_mtime
            names = [line[66:-1] for line in self._path.read_text(errors="surrogateescape").splitlines(True)]
            return names == names_of(files) and all(Path(file).stat().st_ctime < made for file in files)
        except OSError:
            return False

    def _write(self, text: str) -> str | None:
        digest = hashlib.sha256(os.fsencode(text)).hexdigest()
        try:
            if (before := sum_of(self._path)) not in (None, digest):
                keep_beside(self._path)
            if before != digest:
                write_atomically(self._path, text)
        except OSError:  # the chain does not need the list
            return None
        return digest


def sums_of(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each file below :func:`common_folder`, and its SHA-256."""
    for name, file in zip(names_of(files), files, strict=True):
        yield name, sum_of(Path(file)) or "unreadable"


def names_of(files: Sequence[str]) -> list[str]:
    """Return the name of each file in a list, relative to :func:`common_folder`."""
    root = common_folder(files)
    return [os.path.relpath(file, root).replace("\n", "\\n") for file in files]


def common_folder(files: Sequence[str]) -> str:
    """Return the deepest folder that contains all files; relative paths survive moving the data."""
    return os.path.commonpath({Path(file).absolute().parent for file in files}) if files else ""
