"""A case: the files that lie in an otherwise empty folder, and the command line that is run there."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class HardLink:
    """Another name of a file that the case lists before."""

    target: str


@dataclass(frozen=True)
class Fifo:
    """A named pipe that nobody writes to."""


@dataclass(frozen=True)
class Folder:
    pass


@dataclass(frozen=True)
class Hole:
    """A file of so many bytes that takes no room on the disk."""

    size: int


Entry = bytes | Link | HardLink | Fifo | Folder | Hole


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        words: the command line after ``rankless``.
        entries: path in the folder to what lies there.
        out: where new files may appear: these paths, and what is in or begins like them.
        changes: existing files that a command which succeeds may replace.
        logs: existing files that a command which is refused may change, too, to say so.
        anywhere: the words may name a place outside the folder; the system refuses to write there.
    """

    words: tuple[str, ...]
    entries: Mapping[str, Entry] = field(default_factory=dict)
    out: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    anywhere: bool = False

    def __repr__(self) -> str:
        return f"Case({self.words!r:.300}, files: {len(self.entries)})"


def build(case: Case, root: Path) -> None:
    """Put a case's files into ``root``. A path that cannot be made (its parent is a file) is left out."""
    for name, entry in case.entries.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, entry, root)
        except (OSError, ValueError):
            continue


def _put(path: Path, entry: Entry, root: Path) -> None:
    if isinstance(entry, bytes):
        path.write_bytes(entry)
    elif isinstance(entry, Link):
        path.symlink_to(entry.target)
    elif isinstance(entry, HardLink):
        os.link(root / entry.target, path)
    elif isinstance(entry, Fifo):
        os.mkfifo(path)
    elif isinstance(entry, Folder):
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(entry.size)


_WHOLE = 2**24  # larger files are told apart by size and time


def snapshot(root: Path) -> dict[str, str]:
    """Every path below ``root``, and a text that changes with what lies there. No link is followed."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - half the time of a case would be Path's
            about = os.lstat(path)
            found[os.path.relpath(path, root)] = _content(path, about)
    return found


def _content(path: str, about: os.stat_result) -> str:
    if stat.S_ISLNK(about.st_mode):
        return f"link {os.readlink(path)}"  # noqa: PTH115
    if not stat.S_ISREG(about.st_mode):
        return f"mode {stat.S_IFMT(about.st_mode)}"
    if about.st_size > _WHOLE:
        return f"file {about.st_size} {about.st_mtime_ns}"
    with open(path, "rb") as file:  # noqa: PTH123
        return f"file {hashlib.sha256(file.read()).hexdigest()}"
