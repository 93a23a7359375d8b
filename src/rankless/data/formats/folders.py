"""Find files in folders, and the images listed in annotation files.

Each folder is listed only once. The results do not depend on the order in which the file system lists names
or on their Unicode form (NFC, NFD).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rankless.data.images.image_file import is_image
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_sizes
from rankless.errors import UserError, counted, printable
from rankless.files import reading

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
_UPLOADED = re.compile(r"^[0-9a-f]{8}(-|__)")
_PATTERNS = ("classes.txt", "*_classes.txt", "*.names", "_darknet.labels")


@dataclass
class SplitFiles:
    """The base class for the files of a split."""

    depends: list[str] = field(default_factory=list)  # folders that were listed and files that were read
    findings: Findings = field(default_factory=Findings)  # missing and ignored files
    notes: list[str] = field(default_factory=list)  # notes on how the split was read

    def with_raw(self, raw: Raw) -> Raw:
        """Add the dependencies, findings and notes to ``raw`` and return it."""
        self.findings.update(raw.findings)
        raw.findings = self.findings
        raw.depends = [*dict.fromkeys(self.depends), *raw.depends]
        raw.about = [*self.notes, *raw.about]
        return raw


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", name)


def subfolders(root: Path) -> list[Path]:
    """Return the visible folders in ``root``, sorted by name; empty if ``root`` is not a folder."""
    try:
        with os.scandir(root) as listed:
            return sorted(root / e.name for e in listed if e.name[0] != "." and reading.is_folder(e))
    except OSError as error:
        _raise_unless_absent(str(root), error)
        return []


def walk(top: str, listed: list[str], fail: Callable[[str, OSError], None]) -> Iterator[os.DirEntry[str]]:
    """Yield all files in ``top`` and its subfolders. Hidden folders are yielded but not entered.

    Links to folders are followed. A folder that can be reached by several paths is entered only once,
    preferably by its real path. Each listed folder is added to ``listed``. If a folder cannot be listed,
    ``fail`` is called with its path and the error.
    """
    real, links = [top], list[str]()
    entered: set[tuple[int, int]] = set()
    while real or links:
        folder = real.pop() if real else links.pop(0)
        try:
            status = os.stat(folder)  # noqa: PTH116 - faster than Path
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
    if error.errno not in _ABSENT:
        raise UserError(
            f"{folder}: cannot be listed ({error.strerror}); change its permissions, or check the disk"
        ) from error


class FolderNames:
    """The names of the files in a folder. The folder need not exist.

    ``endings`` are the lowercase extensions of the files to list. Default: all names, including folders.
    """

    def __init__(self, folder: str, endings: Collection[str] | None = None) -> None:
        self.folder = folder
        try:
            names: list[str] = os.listdir(folder)  # noqa: PTH208 - a million names
            self.exists = True
        except ValueError:  # not a valid file name
            names, self.exists = [], False
        except OSError as error:
            _raise_unless_absent(folder, error)
            names, self.exists = [], False
        self.exactly = frozenset(names if endings is None else ())
        self.files: dict[str, str] = {}
        """Names of visible files by their stems."""
        self._composed: dict[str, str] | None = None
        self._loosely: dict[str, str] | None = None
        if endings is not None:
            split = (os.path.splitext(name) for name in names)  # noqa: PTH122
            for stem, ending in sorted(pair for pair in split if pair[1].lower() in endings):
                if not stem.startswith("."):
                    self.files.setdefault(stem, f"{stem}{ending}")

    def with_stem(self, stem: str) -> str:
        """Return the path of the file with the given stem, in any Unicode form, or "" if there is none."""
        name = self.files.get(stem)
        if name is None and not stem.isascii():
            if self._composed is None:
                self._composed = {composed(stem): name for stem, name in self.files.items()}
            name = self._composed.get(composed(stem))
        return f"{self.folder}/{name}" if name else ""

    def like(self, name: str) -> str:
        """Return a name that equals ``name`` except for case, Unicode form or a missing extension, or ""."""
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
    """A search for image files by the names in annotations.

    Attributes:
        bases: folders that names may be relative to, the most likely first.
        listed: all folders that were searched, including missing folders.
        shortened: number of images that were found under a different name or in a different folder.
    """

    def __init__(self, bases: Iterable[Path]) -> None:
        self.bases = list(dict.fromkeys(os.fspath(base) for base in bases))
        self.listed: dict[str, FolderNames] = {}
        self.shortened = 0
        self._resolved: dict[str, list[FolderNames]] = {}

    def find(self, name: str) -> str:
        r"""Return the path of the file that ``name`` refers to, or "" if there is none.

        The name may use ``\`` for ``/``, differ in case or Unicode form, lack the extension, or have the
        prefix that Label Studio adds to uploads. Leading folders, which may be from another machine, are
        removed one by one until a file is found.
        """
        if not name.strip():
            return ""
        for spelled in dict.fromkeys((name, name.replace("\\", "/"))):
            folder, last = os.path.split(os.path.normpath(spelled))
            for names in self._folders(folder):
                if last in names.exactly:
                    return f"{names.folder}/{last}"
        if name.startswith(("/data/", "data/")):  # a URL from Label Studio
            name = unquote(name.rpartition("?d=")[2])
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        for cut in range(len(parts)):
            folder, last = "/".join(parts[cut:-1]), parts[-1]
            if not cut and name.startswith("/"):
                folder = f"/{folder}"
            for names in self._folders(folder):
                exactly = names.like(last)
                if match := exactly or names.like(_UPLOADED.sub("", last)):
                    self.shortened += cut > 0 or not exactly
                    return f"{names.folder}/{match}"
        return ""

    def notes(self) -> list[str]:
        """Return a list with a note on images that are not at their listed paths, if there are any."""
        if not self.shortened:
            return []
        one, many = "image is not at its listed path", "images are not at their listed paths"
        return [f"{counted(self.shortened, one, many)} but could be found by name"]

    def _folders(self, folder: str) -> list[FolderNames]:
        if folder not in self._resolved:
            paths = dict.fromkeys(os.path.normpath(os.path.join(base, folder)) for base in self.bases)  # noqa: PTH118
            for path in paths:
                if path not in self.listed:
                    self.listed[path] = FolderNames(path)
            self._resolved[folder] = [self.listed[path] for path in paths if self.listed[path].exists]
        return self._resolved[folder]


@dataclass
class ListedImages:
    """The base class for readers of annotation files that list images."""

    file: Path
    search: ImageSearch
    made: RawBuilder = field(default_factory=RawBuilder)
    numbers: dict[str, int] = field(default_factory=dict)  # index of each image by its path
    missing: str = ""  # name of the first missing image, or ""

    def report(self, kind: str, where: str, problem: str = "") -> None:
        """Add a finding; ``where`` follows the file name, such as ``:3`` or ``: annotation 7``."""
        self.made.findings.add(kind, f"{self.file}{where}", problem)

    def locate(self, name: str, where: str) -> str:
        """Return the path of the image with the listed name; if it is missing, report this and return ""."""
        path = self.search.find(name)
        if not path:
            self.missing = self.missing or name
            self.report("no image", where, f"no file '{printable(name)}'")
        return path

    def image(self, path: str, stated: tuple[int, int] = (0, 0)) -> int:
        """Return the index of the image at ``path``; add the image if it is new."""
        if path not in self.numbers:
            self.numbers[path] = self.made.add_image(path, str(self.file), stated)
        return self.numbers[path]

    def raw(
        self,
        names: Sequence[str],
        names_file: Path | None,
        depends: Iterable[Path],
        nothing: str,
        about: Sequence[str] = (),
        **rest: Any,
    ) -> Raw:
        """Return the annotations with image sizes from the image headers.

        ``depends`` are the files and folders that were read, except for the searched folders, and ``nothing``
        is the error message if the annotation file lists no images.
        """
        if not self.made.paths:
            looked = ", ".join(self.search.bases[:4])
            what = (
                f"none of the listed images, such as '{printable(self.missing)}', was found; looked in "
                f"{looked}"
            )
            raise UserError(f"{self.file}: {what if self.missing else nothing}")
        read = map(str, depends if names_file is None else (*depends, names_file))
        raw = self.made.raw(names=names, depends=list(dict.fromkeys([*read, *self.search.listed])), **rest)
        named = [f"class names from {names_file}"] if names_file else []
        raw.about = [*named, *about, *self.search.notes()]
        return raw if self.made.byte_ranges else with_sizes(raw)


def names_files(folders: Iterable[Path]) -> list[Path]:
    """Return the first file with class names in the given folders, such as ``classes.txt`` or ``*.names``.

    Roboflow writes ``_darknet.labels``, or ``_classes.txt``, next to the images of each split.

    If several files in a folder match the same pattern and have different contents, all of them are returned.
    """
    folders = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
    for name, folder in itertools.product(_PATTERNS, folders):
        files = [file for file in sorted(folder.glob(name)) if file.is_file()]
        if len(files) > 1:
            files = list({read_names(file): file for file in reversed(files)}.values())[::-1]
        if files:
            return files
    return []


def names_file(folders: Iterable[Path]) -> Path | None:
    """Return the file found by :func:`names_files`, or None; raise an error if there are several."""
    files = names_files(folders)
    if len(files) > 1:
        both = " and ".join(f"'{file.name}' ({len(read_names(file))})" for file in files[:2])
        raise UserError(
            f"{files[0].parent}: {both} contain different classes; expected only one such file; choose one "
            f"with data.classes={files[0]} (`rankless data`: --classes {files[0]}), or move the other away"
        )
    return files[0] if files else None


def numbered_names(
    folders: Iterable[Path], given: Sequence[str] | None, missing: str
) -> tuple[tuple[str, ...], Path | None]:
    """Return the names of classes that are numbers in the data, and the file that lists them, if any.

    If ``folders`` do not contain exactly one file with class names, the names ``given`` in ``data.classes``
    are used. ``missing`` is the error message if there are no class names.
    """
    folders = list(folders)
    if given and len(names_files(folders)) != 1:
        return tuple(given), None
    file = names_file(folders)
    if file is None:
        raise UserError(f"{missing}, or set data.classes (`rankless data`: --classes)")
    return read_names(file), file


def read_text(file: Path, expected: str, most: int | None = None) -> str:
    """Return the text of a file of at most ``most`` bytes. ``expected`` completes the error message."""
    try:
        return reading.read_text(file, most)
    except (OSError, UnicodeDecodeError) as error:
        problem = reading.reason(error)
        raise UserError(f"{file}: cannot be read: {problem}; expected {expected} in UTF-8") from None


def read_names(file: Path) -> tuple[str, ...]:
    """Return the class names in a file with one name per line, ignoring empty lines."""
    lines = read_text(file, "one class name per line", reading.NAMES).splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise UserError(f"{file}: the file is empty; expected one class name per line")
    return names
