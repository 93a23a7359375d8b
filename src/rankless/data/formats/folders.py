"""Files in folders: walking them, and finding files by name. Each folder is listed once.

Nothing depends on the order in which a file system lists, or on the Unicode form (NFC, NFD) of its names.
"""

from __future__ import annotations

import errno
import itertools
import os
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.images.image_file import is_image
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError, counted
from rankless.files import reading

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
NAMES_PATTERNS = ("classes.txt", "*_classes.txt", "*.names")


@dataclass
class SplitFiles:
    """The files of one split, as a layout finds them: the base class.

    Attributes:
        depends: folders that were listed and files that were read.
        findings, notes: what is missing or left out, and how it was read.
    """

    depends: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    notes: list[str] = field(default_factory=list)

    def with_raw(self, raw: Raw) -> Raw:
        """Return the raw annotations, after the findings of the layout."""
        self.findings.update(raw.findings)
        raw.findings = self.findings
        raw.depends = [*dict.fromkeys(self.depends), *raw.depends]
        raw.about = [*self.notes, *raw.about]
        return raw


def composed(name: str) -> str:
    """Return a name in the Unicode form in which letters and their accents are one character (NFC)."""
    return unicodedata.normalize("NFC", name)


def subfolders(root: Path) -> list[Path]:
    """The folders in ``root`` that are not hidden, by name; none where it is not a folder."""
    try:
        with os.scandir(root) as listed:
            return sorted(root / e.name for e in listed if e.name[0] != "." and reading.is_folder(e))
    except OSError as error:
        _raise_unless_absent(str(root), error)
        return []


def walk(top: str, listed: list[str], fail: Callable[[str, OSError], None]) -> Iterator[os.DirEntry[str]]:
    """Every entry below ``top`` but the folders that are entered; hidden folders are not.

    Links to folders are followed. A folder that several names lead to is entered once, by its real name if
    that lies under ``top``, so a loop of links ends.
    """
    real, links = [top], list[str]()
    entered: set[tuple[int, int]] = set()
    while real or links:
        folder = real.pop() if real else links.pop(0)
        try:
            status = os.stat(folder)  # noqa: PTH116 - strings are much faster than Path over a million
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            fail(folder, error)
            continue
        listed.append(folder)
        for entry in entries:
            if reading.is_folder(entry) and not entry.name.startswith("."):
                (links if entry.is_symlink() else real).append(entry.path)
            else:
                yield entry


def _raise_unless_absent(folder: str, error: OSError) -> None:
    """Raise for a folder that exists but cannot be read: it must not pass for missing."""
    if error.errno not in _ABSENT:
        raise UserError(
            f"{folder}: cannot be listed ({error.strerror}); expected a folder that you may read; change its "
            "permissions, or look at the disk"
        ) from error


class FolderNames:
    """The names in one folder; empty where there is no such folder.

    Args:
        folder: need not exist.
        endings: in lower case; other files are passed over. None takes every name, and those of folders.
    """

    def __init__(self, folder: str, endings: Collection[str] | None = None) -> None:
        self.folder = folder
        try:
            names: list[str] = os.listdir(folder)  # noqa: PTH208 - a million names
            self.exists = True
        except ValueError:  # no name that a file can have
            names, self.exists = [], False
        except OSError as error:
            _raise_unless_absent(folder, error)
            names, self.exists = [], False
        self.exactly = frozenset(names if endings is None else ())
        self.files: dict[str, str] = {}
        """Name without its ending to name, of files that are not hidden."""
        self._composed: dict[str, str] | None = None
        self._loosely: dict[str, str] | None = None
        if endings is not None:
            split = (os.path.splitext(name) for name in names)  # noqa: PTH122
            for stem, ending in sorted(pair for pair in split if pair[1].lower() in endings):
                if not stem.startswith("."):
                    self.files.setdefault(stem, f"{stem}{ending}")

    def with_stem(self, stem: str) -> str:
        """Return the path of the file with this stem, in any Unicode form, or None."""
        name = self.files.get(stem)
        if name is None and not stem.isascii():
            if self._composed is None:
                self._composed = {composed(stem): name for stem, name in self.files.items()}
            name = self._composed.get(composed(stem))
        return f"{self.folder}/{name}" if name else ""

    def like(self, name: str) -> str:
        """The first name that differs at most in case, Unicode form or by a missing ending, or nothing."""
        if name in self.exactly:
            return name
        if self._loosely is None:
            self._loosely = {}
            shown = sorted(self.exactly)
            for each in shown:
                self._loosely.setdefault(composed(each).casefold(), each)
            for each in filter(is_image, shown):
                stem = os.path.splitext(each)[0]  # noqa: PTH122
                self._loosely.setdefault(composed(stem).casefold(), each)
        return self._loosely.get(composed(name).casefold(), "")


class ImageSearch:
    """Finds the files of images that an annotation names, in a few folders.

    Args:
        bases: the folders that a name may be relative to, the likeliest first.

    Attributes:
        listed: every folder that was looked into, there or not.
        shortened: how many names were found only without their first folders.
    """

    def __init__(self, bases: Iterable[Path]) -> None:
        self.bases = list(dict.fromkeys(os.fspath(base) for base in bases))
        self.listed: dict[str, FolderNames] = {}
        self.shortened = 0
        self._resolved: dict[str, list[FolderNames]] = {}

    def find(self, name: str) -> str:
        r"""Return the file that ``name`` means, or nothing.

        The first of: the name as it is; with ``\`` as ``/``; in another case or Unicode form, or without its
        ending; and all of this without its first folder, its first two …, because lists name folders of the
        machine they were written on.
        """
        if not name.strip():
            return ""
        for spelled in dict.fromkeys((name, name.replace("\\", "/"))):
            folder, last = os.path.split(os.path.normpath(spelled))
            for names in self._folders(folder):
                if last in names.exactly:
                    return f"{names.folder}/{last}"
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        for cut in range(len(parts)):
            folder, last = "/".join(parts[cut:-1]), parts[-1]
            if not cut and name.startswith("/"):
                folder = f"/{folder}"
            for names in self._folders(folder):
                if match := names.like(last):
                    self.shortened += cut > 0
                    return f"{names.folder}/{match}"
        return ""

    def notes(self) -> list[str]:
        """Sentences about how file names were matched."""
        if not self.shortened:
            return []
        one, many = "image is not where its path says", "images are not where their path says"
        return [f"{counted(self.shortened, one, many)}, and found by the path's end"]

    def _folders(self, folder: str) -> list[FolderNames]:
        """The folders that ``folder`` is, seen from every base."""
        if folder not in self._resolved:
            paths = dict.fromkeys(os.path.normpath(os.path.join(base, folder)) for base in self.bases)  # noqa: PTH118
            for path in paths:
                if path not in self.listed:
                    self.listed[path] = FolderNames(path)
            self._resolved[folder] = [self.listed[path] for path in paths if self.listed[path].exists]
        return self._resolved[folder]


def names_files(folders: Iterable[Path]) -> list[Path]:
    """The first ``classes.txt``, ``*_classes.txt`` or ``*.names`` in the folders, in this order.

    Several where one folder has several of the same pattern, which differ.
    """
    folders = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
    for name, folder in itertools.product(NAMES_PATTERNS, folders):
        files = [file for file in sorted(folder.glob(name)) if file.is_file()]
        if len(files) > 1:
            files = list({read_names(file): file for file in reversed(files)}.values())[::-1]
        if files:
            return files
    return []


def names_file(folders: Iterable[Path]) -> Path | None:
    """The one file of :func:`names_files`; None without one."""
    files = names_files(folders)
    if len(files) > 1:
        both = " and ".join(f"'{file.name}' ({len(read_names(file))})" for file in files[:2])
        raise UserError(
            f"{files[0].parent}: {both} name other classes; expected one such file; choose it with "
            f"data.classes={files[0]} (of `rankless data`: --classes {files[0]}), or move the other away"
        )
    return files[0] if files else None


def numbered_names(
    folders: Iterable[Path], given: Sequence[str] | None, missing: str
) -> tuple[tuple[str, ...], Path | None]:
    """The names of classes that are only numbers in the data, and the file that they are from.

    Args:
        folders: where a file of names may lie.
        given: by ``data.classes``; they serve where no file does, or where several differ.
        missing: the error where there are no names.
    """
    folders = list(folders)
    if given and len(names_files(folders)) != 1:
        return tuple(given), None
    file = names_file(folders)
    if file is None:
        raise UserError(f"{missing}; or name them with data.classes (of `rankless data`: --classes)")
    return read_names(file), file


def read_text(file: Path, expected: str, most: int | None = None) -> str:
    """Return the text of a file of at most ``most`` bytes; ``expected`` names its content in errors."""
    try:
        return reading.read_text(file, most)
    except (OSError, UnicodeDecodeError) as error:
        problem = reading.reason(error)
        raise UserError(f"{file}: cannot be read: {problem}; expected {expected} in UTF-8") from None


def read_names(file: Path) -> tuple[str, ...]:
    """Read the class names in a file, one a line; empty lines are skipped."""
    lines = read_text(file, "one class name a line", reading.NAMES).splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise UserError(f"{file}: the file is empty; expected one class name a line")
    return names
