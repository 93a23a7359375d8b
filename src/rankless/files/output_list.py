"""``.rankless-outputs``: the outputs in a folder, each with its command, name, size and digest."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from rankless.files.writing import sweep, write_atomically

LIST = ".rankless-outputs"
_HEADER = '{"format": "rankless outputs 1"}'
_DIGESTS = 2  # per file: a process may be killed between listing a new file and renaming it
_File = tuple[int, str]  # size and digest


class OutputList:
    """The list of the outputs in a folder; ``is_ours`` is false if another program wrote it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LIST
        self.known: dict[tuple[str, str], list[_File]] = {}
        self.is_ours, self._is_ready, self._is_tidy = True, False, False
        try:
            content = _content(self.path)
        except FileNotFoundError:
            return
        except OSError:
            self.is_ours = False
            return
        lines = content.decode("utf-8", "replace").split("\n")
        self.is_ours = lines[0] == _HEADER
        for line in lines[1:]:
            with suppress(ValueError, TypeError, RecursionError):  # a line that a kill or a full disk cut
                verb, name, size, digest = json.loads(line)
                self._know((str(verb), str(name)), (int(size), str(digest)))
        few = len(lines) < 2 * sum(map(len, self.known.values())) + 100
        self._is_tidy = few and lines[-1] == "" and os.lstat(self.path).st_nlink == 1

    def has(self, verb: str, file: Path) -> bool:
        """Check whether ``file`` was written by ``verb`` and not changed since."""
        known = self.known.get((verb, file.name), [])
        try:
            return os.lstat(file).st_size in [size for size, _ in known] and digest_of(file) in known
        except OSError:
            return False

    def prepare(self, *, listed: bool) -> None:
        """Make the folder, and the list if needed; only once."""
        if self._is_ready:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        if listed and not self._is_tidy:
            rows = [_row(key, file) for key, files in self.known.items() for file in files]
            write_atomically(self.path, "\n".join([_HEADER, *rows, ""]))
        self._is_ready = True

    def add(self, verb: str, name: str, file: _File) -> None:
        """Add an output that is about to be renamed to its final name."""
        key = verb, name
        if key in self.known:
            if file in self.known[key]:
                return
            self._know(key, file)
        # A new name is not kept here: a command may write a million files.
        # Line by line: a killed command has listed what it wrote.
        opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(opened, f"{_row(key, file)}\n".encode())
        finally:
            os.close(opened)

    def remove_others(self, verb: str, written: set[str]) -> list[Path]:
        """Remove unchanged outputs of ``verb`` whose names are not in ``written``."""
        names = sorted(name for known, name in self.known if known == verb and name not in written)
        removed = []
        for file in (self.folder / name for name in names if Path(name).name == name):
            if self.has(verb, file):
                with suppress(OSError):
                    file.unlink()
                    removed.append(file)
        return removed

    def _know(self, key: tuple[str, str], file: _File) -> None:
        self.known[key] = [*self.known.get(key, []), file][-_DIGESTS:]


def _row(key: tuple[str, str], file: _File) -> str:
    return json.dumps([*key, *file])


def digest_of(path: Path) -> _File:
    """Return the size and the digest of a regular file."""
    content = hashlib.blake2b(digest_size=16)
    size = 0
    with open(_open(path), "rb") as file:
        while block := file.read(1 << 20):
            content.update(block)
            size += len(block)
    return size, content.hexdigest()


def _content(path: Path) -> bytes:
    with open(_open(path), "rb") as file:
        return file.read()


def _open(path: Path) -> int:
    """Open a regular file to read, without waiting for a pipe."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(0, "is not a regular file")
