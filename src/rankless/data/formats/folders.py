"""Listing folders of images: each real folder once, in an order that does not depend on the file system."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankless.data.images.image_file import is_image
from rankless.data.index.findings import Findings
from rankless.files import reading


@dataclass
class Gathered:
    """The images under some folders.

    Attributes:
        paths: image files; those of one folder sorted by name.
        folders: every folder that was listed.
        findings: hidden files and folders, and folders that cannot be listed.
    """

    paths: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def add(self, top: str) -> None:
        """Add all images under ``top``, sorted by path.

        Links to folders are followed. A folder that several names lead to counts once, by its real name if
        that lies under ``top``, so that no loop of links goes on for ever.
        """
        found: list[str] = []
        real: list[str] = [top]
        links: list[str] = []
        entered: set[tuple[int, int]] = set()
        while real or links:
            folder = real.pop() if real else links.pop(0)
            try:
                status = os.stat(folder)  # noqa: PTH116 - strings are much faster than Path over a million
                if (status.st_dev, status.st_ino) in entered:
                    continue
                entered.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError as error:
                self.findings.add("unreadable file", folder, f"{error.strerror}, expected a folder")
                continue
            self.folders.append(folder)
            for entry in entries:
                is_folder = reading.is_folder(entry)
                if entry.name.startswith(".") and (is_folder or is_image(entry.name)):
                    self.findings.add("left out", entry.path, "hidden: its name begins with a dot")
                elif is_folder:
                    (links if entry.is_symlink() else real).append(entry.path)
                elif is_image(entry.name):
                    found.append(entry.path)
        self.paths += sorted(found)


class Names:
    """The files in one folder by their name without its ending, found in any Unicode form (NFC, NFD).

    Args:
        folder: need not exist.
        endings: in lower case; other files are passed over.
    """

    def __init__(self, folder: str, endings: Iterable[str]) -> None:
        self.folder, wanted = folder, frozenset(endings)
        try:
            with os.scandir(folder) as listed:
                split = [os.path.splitext(entry.name) for entry in listed]  # noqa: PTH122 - as above
        except (OSError, ValueError):  # not there, no folder, or no name that a file can have
            split = []
        files = sorted((stem, ending) for stem, ending in split if ending.lower() in wanted)
        self.files: dict[str, str] = {}
        for stem, ending in files:
            if not stem.startswith("."):
                self.files.setdefault(stem, f"{stem}{ending}")
        self._composed: dict[str, str] | None = None

    def find(self, stem: str) -> str:
        """The path of the file called ``stem``, or nothing."""
        name = self.files.get(stem)
        if name is None and not stem.isascii():
            if self._composed is None:
                self._composed = {composed(stem): name for stem, name in self.files.items()}
            name = self._composed.get(composed(stem))
        return f"{self.folder}/{name}" if name else ""


def composed(name: str) -> str:
    """A name in the Unicode form in which letters and their accents are one character."""
    return unicodedata.normalize("NFC", name)
