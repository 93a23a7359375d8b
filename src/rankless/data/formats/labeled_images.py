"""Read annotation files that list images with their objects, as many labeling tools write them.

The module of a format parses a file into :class:`Entry` objects. This module finds the files and the images,
numbers the classes, and builds the :class:`rankless.data.index.raw.Raw` of a split.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rankless.data.formats.folders import ImageSearch, ListedImages, in_order, subfolders
from rankless.data.formats.label_files import looks_like
from rankless.data.formats.outlines import Box
from rankless.data.formats.splits import chosen, is_usual, usual_order
from rankless.data.index.findings import KINDS
from rankless.data.index.raw import Raw
from rankless.errors import UserError, one_of, printable
from rankless.files import reading

NO_BOX = "not a box"
"""The kind of finding for a point, a line or another annotation without a box."""
_MOST = 200  # Maximum number of files to examine. A folder with more files has one file per image.


@dataclass
class Entry:
    """An image in an annotation file.

    Attributes:
        number: its number or id in the file.
        name: name of its file; empty if the image is left out.
        size: annotated (height, width); see :func:`rankless.data.index.raw.stated_size`.
        split: name of its split, if the file states it.
        objects: class and box of each object.
        problems: pairs of a kind of problem, from :data:`rankless.data.index.findings.KINDS`, and a sentence.
    """

    number: int
    name: str = ""
    size: tuple[int, int] = (0, 0)
    split: str = ""
    objects: list[tuple[str, Box]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def report(self, kind: str, problem: str) -> None:
        self.problems.append((kind, problem))

    def add(self, which: str, label: Any, shape: Callable[[Any], tuple[str, Box]], value: Any) -> None:
        """Add an object, or report why it is left out.

        Args:
            which: the object's place in the image, such as ``region 2``.
            label: name of the class; anything but text or a whole number is reported.
            shape: returns the kind of finding to report, such as ``outline``, ``turned``, :data:`NO_BOX` or
                "", and the box, xyxy. It may raise :class:`UnknownShape`, and the usual errors for a value
                that it does not understand.
            value: argument of ``shape``.
        """
        try:
            kind, box = shape(value)
        except UnknownShape as problem:
            self.report("other form", f"{which}: {problem}")
            return
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            self.report("not a number", f"{which}: {printable(str(value))}; expected coordinates as numbers")
            return
        name = str(label).strip() if isinstance(label, str | int) and not isinstance(label, bool) else ""
        if kind == NO_BOX:
            self.report(kind, f"{which} ('{printable(name)}')")
        elif not name or name != name.encode(errors="replace").decode():
            self.report("unnamed class", f"{which}: {printable(repr(label))}; expected the name of a class")
        else:
            if kind:
                self.report(kind, which)
            self.objects.append((name, box))


class UnknownShape(Exception):  # noqa: N818  # it becomes a finding
    """A shape has a type that its format does not have; the text names both."""

    def __init__(self, name: object, expected: Iterable[str]) -> None:
        super().__init__(f"the shape is {printable(repr(name), 40)}; expected {one_of(expected)}")


@dataclass
class Parsed:
    """The contents of an annotation file: its images, the classes that it declares in order, and notes."""

    entries: list[Entry]
    names: Sequence[str] = ()
    notes: Sequence[str] = ()


def numbers(*values: Any) -> tuple[float, ...]:
    """Convert JSON numbers to floats; raise an error for any other value."""
    if not all(type(value) in (int, float) for value in values):
        raise ValueError(values)
    return tuple(map(float, values))


def decode_json(content: bytes) -> Any:
    """Decode JSON, also with NaN and numbers out of range; raise ValueError if it is invalid."""
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_json(file: Path, expected: str) -> Any:
    """Load a JSON file; ``expected`` completes the error message."""
    try:
        return decode_json(reading.read_bytes(file))
    except OSError as error:
        problem = f"cannot be read: {reading.reason(error)}"
    except ValueError as error:
        problem = f"cannot be read as JSON: {printable(str(error))}"
    raise UserError(f"{file}: {problem}; expected {expected}; export the file again")


def _split_in(stem: str) -> str:
    """Return the name of a split in a file name such as ``labels_train``, or the whole name."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", stem) if is_usual(word)]
    return words[0] if len(words) == 1 else stem


def by_split(parsed: Mapping[str, Parsed]) -> dict[str, list[tuple[str, Entry]]]:
    """Group images by split; each comes with the key of its file."""
    made: dict[str, list[tuple[str, Entry]]] = {}
    for name, each in parsed.items():
        for entry in each.entries:
            made.setdefault(entry.split or name, []).append((name, entry))
    return made


@dataclass(frozen=True)
class ListFormat:
    """A format whose annotation files list images with their objects.

    Attributes:
        title: the format as named by :func:`rankless.data.formats.label_files.looks_like`.
        layout: the expected files, for messages.
        ending: the extension of the files.
        parse: parses a file.
        counted, normalized: values of these fields of :class:`rankless.data.index.raw.Raw`.
    """

    title: str
    layout: str
    ending: str
    parse: Callable[[Path], Parsed]
    counted: str = "image"
    normalized: bool = False

    def recognize(self, root: Path) -> str:
        """Return why ``root`` contains annotation files of this format, or "" if it does not."""
        if root.is_file():
            return f"it looks like {self.title}" if looks_like(root) == self.title else ""
        files = self.files(root)
        first = next((files[name] for name in usual_order(files)), None)
        return f"'{first.relative_to(root)}' looks like {self.title}" if first else ""

    def splits(self, root: Path) -> list[str]:
        return usual_order(self.files(root))

    def files(self, root: Path) -> dict[str, Path]:
        """Map each split to its annotation file, or a single file that is ``root`` to its own name.

        The files are in ``root``, in ``annotations``, or in the folder of each split.
        """
        if root.is_file():
            return {root.stem: root}
        made: dict[str, Path] = {}
        for folder in (root, *subfolders(root)):
            split = folder.name if folder != root and is_usual(folder.name) else ""
            if not split and folder != root and folder.name.lower() != "annotations":
                continue
            files = sorted(folder.glob(f"*{self.ending}"))
            for file in files if len(files) <= _MOST else ():
                if looks_like(file) == self.title:
                    name = split or _split_in(file.stem)
                    if name in made:
                        both = f"'{made[name].relative_to(root)}' and '{file.relative_to(root)}'"
                        raise UserError(
                            f"{root}: {both} are both {self.title} for the split '{name}'; expected one file "
                            "per split; move one of them away"
                        )
                    made[name] = file
        if len(made) == 1 and not is_usual(next(iter(made))):
            return {"train": next(iter(made.values()))}
        return made

    def read(self, root: Path, split: str) -> Raw:
        """Read a split.

        Classes are numbered in the declared order, then in the order of their names in all splits.
        """
        files = self.files(root)
        parsed = {name: self.parse(file) for name, file in files.items()}
        groups = by_split(parsed)
        name = chosen(root, split, groups or files, self.layout)
        declared = dict.fromkeys(label for each in parsed.values() for label in each.names)
        used = {label for each in parsed.values() for entry in each.entries for label, _ in entry.objects}
        names = [*declared, *in_order(used - declared.keys())]
        chosen_files = dict.fromkeys(key for key, _ in groups.get(name, [])) or [name]
        folders = [folder for key in chosen_files for folder in _image_folders(root, name, files[key])]
        first = files[next(iter(chosen_files))]
        labels = {each: at for at, each in enumerate(names)}
        reader = _Reader(first, ImageSearch(folders), counted=self.counted, labels=labels)
        for key, entry in groups.get(name, []):
            reader.add(files[key], entry)
        notes = [note for key in chosen_files for note in parsed[key].notes]
        odd = reader.made.findings.first.get("not understood", [])
        nothing = f"no valid image; the first problem: {odd[0].problem}" if odd else "no images are listed"
        kind = {"counted": self.counted, "normalized": self.normalized}
        raw = reader.raw(names, None, _depends(root, files), nothing, notes, **kind)
        if not names and not any(KINDS[each].outcome == "stops" for each in raw.findings.counts):
            raise UserError(
                f"{root}: no objects in any split; expected boxes or outlines with the name of a class"
            )
        return raw


def _image_folders(root: Path, split: str, file: Path) -> list[Path]:
    top = root if root.is_dir() else file.parent
    inside = [top / split, top / "images" / split, top / split / "images", top / "images", top]
    return [file.parent, file.parent / "images", *inside, top.parent / "images", top.parent]


def _depends(root: Path, files: Mapping[str, Path]) -> list[Path]:
    folders = (
        () if root.is_file() else (root, *(folder for folder in (root / "annotations",) if folder.is_dir()))
    )
    return [*folders, *(file.parent for file in files.values()), *files.values()]


@dataclass
class _Reader(ListedImages):
    counted: str = field(kw_only=True)
    labels: Mapping[str, int] = field(kw_only=True)

    def add(self, file: Path, entry: Entry) -> None:
        self.file, where = file, f": {self.counted} {entry.number}"
        for kind, problem in entry.problems:
            self.report(kind, where, problem)
        if not entry.name or not (path := self.locate(entry.name, where)):
            return
        image = self.image(path, entry.size)
        if not entry.objects and not entry.problems:
            self.report("empty", where, path)
        for label, box in entry.objects:
            self.made.add_box(image, box, self.labels[label], entry.number)
