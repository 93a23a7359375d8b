"""The journal of a prediction, a file with one line per image, from which a killed prediction can be resumed.

The file is in the output folder while the prediction runs. At the end, all formats are written from it, and
it is unlinked. An open :class:`Journal` can still read it.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankless.errors import UserError

NAME = ".rankless-predictions.jsonl"
_FORMAT = "rankless predictions 1"
_AT_ONCE = 1 << 20  # bytes


class Entry(NamedTuple):
    """The predictions for one image.

    Attributes:
        stem: name of the image's files without extension, including the number of a video frame.
        image: the object for the image in ``predictions.json``.
    """

    stem: str
    image: dict[str, Any]


class Journal:
    """The entries of all images, each of which is read from disk on demand.

    ``asked`` contains the options of the prediction, which must not change when it is resumed. ``failed``
    lists the source and the reason for each unreadable image. ``done`` contains the sources that were
    finished when the journal was opened. A video is finished after its last frame.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any], *, resume: bool) -> None:
        self.path, self.failed, self.done = folder / NAME, list[tuple[str, str]](), set[str]()
        self._starts, self._end = array("Q"), 0
        head = json.loads(json.dumps({"format": _FORMAT, **asked}))
        if resume:
            refuse_nothing_to_resume(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
        try:
            self._file = os.open(self.path, flags, 0o666)
        except OSError as error:
            raise UserError(
                f"--out {self.path}: cannot be written ({error.strerror}); use another folder"
            ) from error
        weakref.finalize(self, os.close, self._file)
        if resume:
            self._read_existing(head)
        else:
            self._append(head)

    def add(self, entry: Entry, files: Sequence[str] = ()) -> None:
        """Record the results for an image or a frame, and the files written for it."""
        self._starts.append(self._end)
        self._append({"stem": entry.stem, "files": list(files), "image": entry.image})

    def add_failure(self, source: str, reason: str) -> None:
        """Record an image that could not be read."""
        self._append({"failed": source, "reason": reason})
        self.failed.append((source, reason))

    def end_video(self, source: str, files: Sequence[str] = ()) -> None:
        """Record the end of a video, and the files written for it."""
        self._append({"ended": source, "files": list(files)})

    def remove(self) -> None:
        """Unlink the file. This object can still read the entries."""
        self.path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Entry:
        start = self._starts[index]
        line = b""
        while not line.endswith(b"\n") and (part := os.pread(self._file, 4096, start + len(line))):
            line += part[: part.find(b"\n") + 1 or len(part)]
        return _entry(json.loads(line))

    def __iter__(self) -> Iterator[Entry]:
        for _, line in self._lines():
            if "image" in (row := json.loads(line)):
                yield _entry(row)

    def files(self) -> Iterator[str]:
        """Yield the paths, relative to the folder, of all files written for images and videos."""
        for _, line in self._lines():
            yield from json.loads(line).get("files", ())

    def _append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        try:
            if os.pwrite(self._file, line, self._end) != len(line):
                raise OSError(0, "the disk is full")
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); free some space and add --resume to "
                "continue"
            ) from error
        self._end += len(line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        at, rest = 0, b""
        while part := os.pread(self._file, _AT_ONCE, at + len(rest)):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield at, line
                at += len(line) + 1

    def _read_existing(self, head: Mapping[str, Any]) -> None:
        """Read the existing lines, and drop an incomplete last line and the frames of an unfinished video."""
        video_start, failed_before = None, 0
        for number, (start, line) in enumerate(self._lines()):
            try:
                row = json.loads(line)
            except ValueError:
                break
            if number == 0:
                _refuse_another(self.path, row, head)
            elif "image" in row:
                if "frame" not in row["image"]:
                    self.done.add(row["image"]["source"])
                elif video_start is None:
                    video_start, failed_before = (start, len(self._starts)), len(self.failed)
                self._starts.append(start)
            elif "failed" in row:
                self.failed.append((row["failed"], row["reason"]))
                self.done.add(row["failed"])
            else:
                self.done.add(row["ended"])
                video_start = None
            self._end = start + len(line) + 1
        if not self._end:
            _refuse_another(self.path, {}, head)
        if video_start is not None:
            self._end, count = video_start
            del self._starts[count:], self.failed[failed_before:]
        os.ftruncate(self._file, self._end)


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(row["stem"], row["image"])


def refuse_unfinished(folder: Path) -> None:
    """Raise an error if a folder contains an unfinished prediction."""
    if (folder / NAME).is_file():
        raise UserError(
            f"--out {folder}: contains an unfinished prediction; add --resume to continue it, or --force to "
            "start again"
        )


def refuse_nothing_to_resume(folder: Path) -> None:
    """Raise an error if a folder contains no unfinished prediction."""
    if not (folder / NAME).is_file():
        raise UserError(f"--out {folder}: contains no unfinished prediction to continue; remove --resume")


def _refuse_another(path: Path, found: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    if found.get("format") != head["format"]:
        raise UserError(f"{path}: was written by another version of Rankless; add --force to start again")
    changed = [key for key in head if found.get(key) != head[key]]
    if changed:
        raise UserError(
            f"--resume: the prediction in {path.parent} was started with different {' and '.join(changed)}; "
            "repeat the original command, or use --force to start again"
        )
