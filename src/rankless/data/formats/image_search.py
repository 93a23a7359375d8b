"""Finding the files of images that an annotation names: each folder is listed once."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankless.data.images.image_file import is_image


class ImageSearch:
    """Looks names up in a few folders.

    Args:
        bases: the folders that a name may be relative to, the likeliest first.

    Attributes:
        listed: every folder that was looked into, there or not.
        shortened: how many names were found only without their first folders.
    """

    def __init__(self, bases: Iterable[Path]) -> None:
        self.bases = list(dict.fromkeys(os.fspath(base) for base in bases))
        self.listed: dict[str, None] = {}
        self.shortened = 0
        self._names: dict[str, _Names | None] = {}
        self._places: dict[str, list[tuple[str, _Names]]] = {}

    def find(self, name: str) -> str:
        r"""The file that ``name`` means, or nothing.

        Taken is the first of: the name as it is; with ``\`` as ``/``; in another case or Unicode form, or
        without its ending; and all of this without its first folder, its first two …, because lists name
        folders of the machine they were written on.
        """
        if not name.strip():
            return ""
        for spelled in dict.fromkeys((name, name.replace("\\", "/"))):
            folder, last = os.path.split(os.path.normpath(spelled))
            for place, names in self._folders(folder):
                if last in names.exactly:
                    return f"{place}/{last}"
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        for cut in range(len(parts)):
            folder, last = "/".join(parts[cut:-1]), parts[-1]
            if not cut and name.startswith("/"):
                folder = f"/{folder}"
            for place, names in self._folders(folder):
                if found := names.loosely(last):
                    self.shortened += cut > 0
                    return f"{place}/{found}"
        return ""

    def notes(self) -> list[str]:
        """How names were found, as sentences."""
        if not self.shortened:
            return []
        return [f"{self.shortened} images are not where their path says and were found by its end"]

    def _folders(self, folder: str) -> list[tuple[str, _Names]]:
        """The folders that ``folder`` is, seen from every base."""
        if folder not in self._places:
            self._places[folder] = list(self._look(folder))
        return self._places[folder]

    def _look(self, folder: str) -> Iterator[tuple[str, _Names]]:
        for place in dict.fromkeys(os.path.normpath(os.path.join(base, folder)) for base in self.bases):  # noqa: PTH118
            if place not in self._names:
                try:
                    self._names[place] = _Names(os.listdir(place))  # noqa: PTH208 - names are wanted
                except (OSError, ValueError):  # not there, no folder, or no name that a file can have
                    self._names[place] = None
                self.listed[place] = None
            if (names := self._names[place]) is not None:
                yield place, names


class _Names:
    """The names in one folder."""

    def __init__(self, names: list[str]) -> None:
        self.exactly = frozenset(names)
        self._alike: dict[str, str] | None = None

    def loosely(self, name: str) -> str:
        """A name that differs in case, Unicode form or by a missing ending; the first such by name."""
        if name in self.exactly:
            return name
        if self._alike is None:
            self._alike = {}
            shown = sorted(self.exactly)
            for each in shown:
                self._alike.setdefault(_plain(each), each)
            for each in filter(is_image, shown):
                self._alike.setdefault(_plain(os.path.splitext(each)[0]), each)  # noqa: PTH122
        return self._alike.get(_plain(name), "")


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
