"""During training, write a list of the data files and their SHA-256 digests to the run directory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from rankless.files.writing import keep_beside, write_atomically
from rankless.runs.chain import sum_of


class DataSums:
    """A thread that writes a list of the data files and their digests in the format of ``sha256sum``.

    If an earlier start wrote a different list, that list is kept under another name. If ``files`` returns no
    paths, no list is written.
    """

    def __init__(self, path: Path, files: Callable[[], Sequence[str]]) -> None:
        self._path, self._files = path, files
        self._sum: str | None = None
        self._done, self._closed = Event(), False
        Thread(target=self._make, name="data sums", daemon=True).start()

    def digest(self, seconds: float) -> str | None:
        """Return the SHA-256 of the list, or None if the list is not complete after ``seconds``."""
        return self._sum if self._done.wait(seconds) else None

    def close(self) -> None:
        """Tell the thread to stop, even if the list is incomplete."""
        self._closed = True

    def _make(self) -> None:
        try:
            lines = []
            for name, digest in sums_of(self._files()):
                if self._closed:
                    return
                lines.append(f"{digest}  {name}\n")
            if not lines:
                return
            digest = hashlib.sha256(os.fsencode("".join(lines))).hexdigest()
            with suppress(OSError):  # the chain does not need the list
                if (before := sum_of(self._path)) not in (None, digest):
                    keep_beside(self._path)
                if before != digest:
                    write_atomically(self._path, "".join(lines))
                self._sum = digest
        finally:
            self._done.set()


def sums_of(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the path of each file relative to :func:`common_folder`, and its SHA-256."""
    root = common_folder(files)
    for file in files:
        yield os.path.relpath(file, root).replace("\n", "\\n"), sum_of(Path(file)) or "unreadable"


def common_folder(files: Sequence[str]) -> str:
    """Return the deepest folder that contains all files. Paths relative to it stay valid if it is moved."""
    return os.path.commonpath({Path(file).absolute().parent for file in files}) if files else ""
