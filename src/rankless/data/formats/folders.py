"""Find files in folders, and the images listed in annotation files.

Each folder is listed only once. The results do not depend on the order in which the file system lists names
or on their Unicode form (NFC, NFD). Two entries of an annotation file never share an image file silently.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from rankless.data.images.image_file import is_image
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_sizes
from rankless.errors import UserError, counted, printable
from rankless.files import reading

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
_UPLOADED = re.compile(r"^[0-9a-f]{8}(-|__)")
_ENCODED_SLASH = re.compile("%2F|%5C", re.IGNORECASE)
_PATTERNS = ("classes.txt", "*_classes.txt", "*.names", "_darknet.labels")


@dataclass
class SplitFiles:
    """The base class for the files of a split."""

    depends: list[str] = field(default_factory=list)  # folders that were listed and files that were read
    findings: Findings = field(default_factory=Findings)  # missing and ignored files
    notes: list[str] = field(default_factory=list)  # notes on how the split was read
    respelled: list[str] = field(default_factory=list)  # files that were found under another spelling

    def note_spelling(self, path: str, name: str) -> None:
        """Record the file found for a name (without extension) if they differ in more than Unicode's form."""
        if path and composed(os.path.splitext(path)[0].rpartition("/")[2]) != composed(name):  # noqa: PTH122
            self.respelled.append(f"{path} for '{printable(name)}'")

    def walk(self, top: str) -> Iterator[os.DirEntry[str]]:
        """Yield all files below ``top``; see :func:`walk`. Report folders that are not read."""

        def fail(folder: str, error: OSError) -> None:
            self.findings.add("unreadable file", folder, f"{error.strerror}; expected a readable folder")

        def again(folder: str) -> None:
            self.findings.add("left out", folder, "link to a folder that is read elsewhere")

        return walk(top, self.depends, fail, again)

    def with_raw(self, raw: Raw) -> Raw:
        """Add the dependencies, findings and notes to ``raw`` and return it."""
        self.findings.update(raw.findings)
        raw.findings = self.findings
        raw.depends = [*dict.fromkeys(self.depends), *raw.depends]
        if self.respelled:
            found = counted(len(self.respelled), "file was", "files were")
            self.notes.append(
                f"{found} found under another spelling of the listed or the image's name; the first: "
                f"{self.respelled[0]}"
            )
        raw.about = [*self.notes, *raw.about]
        return raw


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", name)


def spelled(name: str) -> str:
    """Return the form in which names are equal if they differ only in case, Unicode form or URL encoding."""
    return composed(unquote(name)).casefold()


def subfolders(root: Path) -> list[Path]:
    """Return the visible folders in ``root``, sorted by name; empty if ``root`` is not a folder."""
    try:
        with os.scandir(root) as listed:
            return sorted(root / e.name for e in listed if e.name[0] != "." and reading.is_folder(e))
    except OSError as error:
        _raise_unless_absent(str(root), error)
        return []


def walk(
    top: str, listed: list[str], fail: Callable[[str, OSError], None], again: Callable[[str], None]
) -> Iterator[os.DirEntry[str]]:
    """Yield all files in ``top`` and its subfolders. Hidden folders are yielded but not entered.

    Links to folders are followed. A folder that can be reached by several paths is entered only once,
    preferably by its real path. ``again`` is called with every other path, and with the paths of links to
    folders above ``top``, which are not followed. Each listed folder is added to ``listed``. If a folder
    cannot be listed, ``fail`` is called with its path and the error.
    """
    real, links = [top], list[str]()
    entered: set[tuple[int, int]] = set()
    with suppress(OSError):
        entered.update((above.stat().st_dev, above.stat().st_ino) for above in Path(top).resolve().parents)
    while real or links:
        folder = real.pop() if real else links.pop(0)
        try:
            status = os.stat(folder)  # noqa: PTH116 - faster than Path
            if (status.st_dev, status.st_ino) in entered:
                again(folder)
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
        self._spelled: dict[str, list[tuple[str, str]]] | None = None
        if endings is not None:
            split = (os.path.splitext(name) for name in names)  # noqa: PTH122
            for stem, ending in sorted(pair for pair in split if pair[1].lower() in endings):
                if not stem.startswith("."):
                    self.files.setdefault(stem, f"{stem}{ending}")

    def with_stem(self, stem: str, taken: Collection[str] = ()) -> str:
        """Return the path of the file with the given stem, or "" if there is none.

        If no file has exactly this stem, it is the file whose stem is closest to it in case, Unicode form and
        URL encoding. Its stem must not be one of ``taken``, the stems of other files of the data set.
        """
        name = self.files.get(stem) or self._closest(stem, taken, lambda: self.files.items())
        return f"{self.folder}/{name}" if name else ""

    def like(self, name: str) -> str:
        """Return a name that equals ``name``, or the closest one, or "".

        The names may differ in case, Unicode form and URL encoding, and ``name`` may lack the extension.
        """
        if name in self.exactly:
            return name
        shown = sorted(self.exactly)
        stems = ((os.path.splitext(each)[0], each) for each in filter(is_image, shown))  # noqa: PTH122
        return self._closest(name, (), lambda: itertools.chain(zip(shown, shown, strict=True), stems))

    def _closest(
        self, name: str, taken: Collection[str], files: Callable[[], Iterable[tuple[str, str]]]
    ) -> str:
        if self._spelled is None:
            self._spelled = {}
            for each in files():
                self._spelled.setdefault(spelled(each[0]), []).append(each)
        alike = [each for each in self._spelled.get(spelled(name), ()) if each[0] not in taken]
        forms = (composed, lambda text: composed(unquote(text)))
        alike.sort(key=lambda each: [form(each[0]) != form(name) for form in forms])
        return alike[0][1] if alike else ""


class ImageSearch:
    """A search for image files by the names in annotations.

    Attributes:
        bases: folders that names may be relative to, the most likely first.
        listed: all folders that were searched, including missing folders.
        shortened: number of images that were found under a different name or in a different folder.
        example: the listed name and the path of the first of these images.
    """

    def __init__(self, bases: Iterable[Path]) -> None:
        self.bases = list(dict.fromkeys(os.fspath(base) for base in bases))
        self.listed: dict[str, FolderNames] = {}
        self.shortened = 0
        self.example = "", ""
        self._resolved: dict[str, list[FolderNames]] = {}

    def find(self, name: str) -> str:
        r"""Return the path of the file that ``name`` refers to, or "" if there is none.

        The name may use ``\`` for ``/``, differ in case, Unicode form or URL encoding, lack the extension, or
        have the prefix that Label Studio adds to uploads. Leading folders, which may be from another machine,
        are removed one by one until a file is found.
        """
        if not name.strip():
            return ""
        for slashed in dict.fromkeys((name, name.replace("\\", "/"))):
            folder, last = os.path.split(os.path.normpath(slashed))
            for names in self._folders(folder):
                if last in names.exactly:
                    return f"{names.folder}/{last}"
        listed = name
        if name.startswith(("/data/", "data/")):  # a URL from Label Studio
            name = unquote(name.rpartition("?d=")[2])
        parts = _ENCODED_SLASH.sub("/", name.replace("\\", "/")).split("/")
        parts = [part for part in parts if part not in ("", ".")]
        for cut in range(len(parts)):
            folder, last = "/".join(parts[cut:-1]), parts[-1]
            if not cut and name.startswith("/"):
                folder = f"/{folder}"
            for form in dict.fromkeys((folder, unquote(folder), quote(folder, errors="replace"))):
                for names in self._folders(form):
                    exactly = names.like(last)
                    if match := exactly or names.like(_UPLOADED.sub("", last)):
                        path = f"{names.folder}/{match}"
                        if cut > 0 or not exactly or form != folder or ("%" in match) != ("%" in last):
                            self.example = self.example if self.shortened else (listed, path)
                            self.shortened += 1
                        return path
        return ""

    def notes(self) -> list[str]:
        """Return a list with a note on images that are not at their listed paths, if there are any."""
        if not self.shortened:
            return []
        one, many = "image is not at its listed path", "images are not at their listed paths"
        listed, path = self.example
        example = f"the first: '{printable(listed)}' as {path}"
        return [f"{counted(self.shortened, one, many)} but could be found by name; {example}"]

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
    entries: list[tuple[Path, str, str]] = field(default_factory=list)  # file, place and name of each image
    missing: str = ""  # name of the first missing image, or ""
    _located: tuple[Path, str, str] = (Path(), "", "")

    def report(self, kind: str, where: str, problem: str = "") -> None:
        """Add a finding; ``where`` follows the file name, such as ``:3`` or ``: annotation 7``."""
        self.made.findings.add(kind, f"{self.file}{where}", problem)

    def locate(self, name: str, where: str) -> str:
        """Return the path of the image with the listed name; if it is missing, report this and return ""."""
        path = self.search.find(name)
        self._located = self.file, where, name
        if not path:
            self.missing = self.missing or name
            self.report("no image", where, f"no file '{printable(name)}'")
        return path

    def image(self, path: str, stated: tuple[int, int] = (0, 0)) -> int:
        """Add the image at ``path``, which :meth:`locate` has just found for an entry; return its index."""
        self.entries.append(self._located)
        return self.made.add_image(path, str(self.file), stated)

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
        if self.made.byte_ranges:
            return raw
        self._keep_one_entry_per_file(raw)
        return with_sizes(raw)

    def _keep_one_entry_per_file(self, raw: Raw) -> None:
        """Drop entries that repeat an earlier one, and all entries of a file whose annotations differ."""
        first: dict[str, int] = {}
        repeats = {
            number: first[path]
            for number, path in enumerate(raw.paths)
            if first.setdefault(path, number) != number
        }
        if not repeats:
            return
        objects: defaultdict[int, list[bytes]] = defaultdict(list)
        for row in np.flatnonzero(np.isin(raw.image, [*repeats, *repeats.values()])).tolist():
            parts = (each[row].tobytes() for each in (raw.labels, raw.flags, raw.areas))
            box = b"" if raw.boxes is None else raw.boxes[row].tobytes()
            objects[int(raw.image[row])].append(b"".join((*parts, box)))
        dropped = set[int]()
        for number, earlier in repeats.items():
            (file, where, name), (other, place, also) = self.entries[number], self.entries[earlier]
            dropped.add(number)
            if sorted(objects[number]) == sorted(objects[earlier]):
                raw.findings.add("listed twice", f"{file}{where}", f"'{printable(name)}'")
                continue
            dropped.add(earlier)
            place = place.replace(": ", "").replace(":", "line ") if file == other else f"{other}{place}"
            raw.findings.add(
                "shared file",
                f"{file}{where}",
                f"'{printable(name)}' and '{printable(also)}' ({place}) both refer to {raw.paths[number]}; "
                "expected one entry per image file; correct the names, add the missing image, or join the "
                "entries",
            )
        kept = [number for number in range(len(raw.paths)) if number not in dropped]
        if not kept:
            raise UserError(raw.findings.stopping())
        raw.only(kept)


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


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the distinct class names; if all are numbers, sort them by value."""
    names = set(names)
    digits = all(name.isascii() and name.isdigit() for name in names)

    def key(name: str) -> tuple[int, str, str]:
        value = name.lstrip("0") if digits else ""
        return len(value), value, name

    return sorted(names, key=key)
