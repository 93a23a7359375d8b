"""Walking folders of class folders: which images lie in which class, and what else lies there."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.images import image_file
from rankless.files import reading


@dataclass
class Found:
    """What lies in one folder of class folders.

    Attributes:
        classes: class to (name inside the class folder to path), both sorted.
        odd: why something was left out, as in "empty files", to paths.
        entered: the folders and files whose change would change all this.
    """

    classes: dict[str, dict[str, str]] = field(default_factory=dict)
    odd: dict[str, list[str]] = field(default_factory=dict)
    entered: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, path: str) -> None:
        """Count one."""
        self.odd.setdefault(reason, []).append(path)


def class_folders(place: Path) -> Found:
    """Every class folder in ``place`` with its images."""
    found = Found(entered=[os.fspath(place)])
    for entry in sorted(place.iterdir()):
        if reading.is_folder(entry) and not entry.name.startswith("."):
            files = found.classes.setdefault(_composed(entry.name), {})
            files |= dict(_walk(str(entry), "", found, set()))
        elif reading.is_folder(entry):
            found.leave_out("hidden folders", str(entry))
        elif image_file.is_image(entry):
            found.leave_out("images outside the class folders", str(entry))
    found.classes = {name: dict(sorted(found.classes[name].items())) for name in sorted(found.classes)}
    return found


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _walk(folder: str, inside: str, found: Found, entered: set[str]) -> Iterator[tuple[str, str]]:
    """(name inside the class folder, path) of every image below ``folder``, each real folder once."""
    real = os.path.realpath(folder)
    if real in entered:
        return
    entered.add(real)
    found.entered.append(folder)
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        found.leave_out("folders that cannot be opened", folder)
        return
    for entry in entries:
        name = f"{inside}{_composed(entry.name)}"
        if entry.name.startswith("."):
            found.leave_out("hidden files and folders", entry.path)
        elif reading.is_folder(entry):
            yield from _walk(entry.path, f"{name}/", found, entered)
        elif not image_file.is_image(entry.name):
            found.leave_out("files that are no images by their endings", entry.path)
        elif reason := _unusable(entry):
            found.leave_out(reason, entry.path)
            found.entered.append(entry.path)
        else:
            yield name, entry.path


def _unusable(entry: os.DirEntry[str]) -> str:
    """Why a file with an image's ending can be none; its content is not looked at."""
    try:
        status = entry.stat()
    except OSError:
        return "links that lead nowhere"
    if not stat.S_ISREG(status.st_mode):
        return "images that are no files"
    return "" if status.st_size else "empty files"
