"""Annotation lines: ``path x1,y1,x2,y2,class x1,y1,x2,y2,class …``, an image a line, corners in pixels.

The image's corner is (0, 0) on the continuous plane; classes count from 0. It is the format of many Keras
trainers, https://github.com/qqwweee/keras-yolo3#training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from rankless.data.formats.class_names import PATTERNS, names_file, read_names
from rankless.data.formats.image_search import ImageSearch
from rankless.data.formats.rows import Rows
from rankless.data.formats.splits import as_file_name, chosen, usual_order
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.formats.written import fit_names, number, on_one_line, plain_boxes
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError, printable
from rankless.files import reading

TITLE = "annotation lines"
LAYOUT = "'train.txt' with lines 'path x1,y1,x2,y2,class …' and a 'classes.txt', or one such .txt file"
_SNIFFED = 1000
"""So many lines tell what a file is."""
_MOST = 200
"""In a folder of more .txt files than these each is of a single image."""
_ENDINGS = "|".join(re.escape(ending) for ending in sorted(EXTENSIONS))
# The path ends at the last ending of an image that a space or the line's end follows.
_LINE = re.compile(rf"(?P<path>.*(?:{_ENDINGS}))(?:\s+(?P<boxes>.*))?", re.IGNORECASE)
_COMMA = re.compile(r"\s*,\s*")
_BOX = re.compile(r"[-+.\deE]+(?:,[-+.\deE]+){4}")
_SUFFIX = re.compile(r"(?<=.)[_-](annotations?|boxes|lines)$", re.IGNORECASE)


def recognize(root: Path) -> str:
    """Why ``root`` holds annotation lines: a ``.txt`` file in which a box follows a path."""
    found = [(root, _kind(root))] if root.is_file() else list(_files(root).values())
    first = next((file for file, kind in found if kind == "boxes"), None)
    return f"'{first.name}' has lines 'path x1,y1,x2,y2,class'" if first else ""


def splits(root: Path) -> list[str]:
    """The ``.txt`` files that list images."""
    return usual_order(_found(root))


def read(root: Path, split: str) -> Raw:
    """One split; see :class:`rankless.data.formats.registry.Format`."""
    files = _found(root)
    name = chosen(root, split, files, LAYOUT)
    file, top = files[name], root if root.is_dir() else root.parent
    folders = [top, top / "model_data", top.parent / "model_data"]
    classes = names_file(folders)
    if classes is None:
        raise UserError(
            f"{root}: found no class names beside {file.name}, expected a 'classes.txt' (one name a line, "
            f"the first is class 0) or one of {', '.join(PATTERNS[1:])}, here or in 'model_data'."
        )
    names = read_names(classes)
    search = ImageSearch([file.parent, top, top / name, top / "images", top / "images" / name, top.parent])
    reading = _Reading(file, search, len(names))
    reading.all()
    depends = [str(file), str(classes), *map(str, folders), *search.listed]
    return reading.rows.raw(
        reading.paths,
        [str(file)] * len(reading.paths),
        names,
        depends=depends,
        findings=reading.findings,
        about=[f"class names from {classes}", *search.notes()],
    )


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``SPLIT.txt`` for every split, ``classes.txt`` and the images in ``images/SPLIT``.

    What is difficult or a crowd is left out, and so not trained on here either.

    Raises:
        UserError: images with one class each, without boxes.
    """
    left_out: list[str] = []
    for split, held in splits.items():
        if not held.has_boxes:
            raise UserError("Lines hold boxes, and these images have one class each and no boxes.")
        name = as_file_name(split)
        plain, lost = plain_boxes(held, split)
        left_out += lost
        with (out / f"{name}.txt").open("w", encoding="utf-8", errors="surrogateescape") as file:
            for index, given in enumerate(on_one_line(file_names(held))):
                files.put(held, index, out / "images" / name / given)
                rows = range(*held.rows(index).indices(len(held.labels)))
                corners = (",".join(map(number, held.boxes[row].tolist())) for row in rows if plain[row])
                labels = (int(held.labels[row]) for row in rows if plain[row])
                boxes = (f"{box},{label}" for box, label in zip(corners, labels, strict=True))
                file.write(" ".join((f"images/{name}/{given}", *boxes)) + "\n")
    known = next((annotations.class_names for annotations in splits.values()), ())
    names, changed = fit_names(known, distinct=False)
    (out / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return left_out + changed


@dataclass
class _Reading:
    """One file on its way to the flat form."""

    file: Path
    search: ImageSearch
    classes: int
    paths: list[str] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    findings: Findings = field(default_factory=Findings)
    seen: dict[str, int] = field(default_factory=dict)

    def all(self) -> None:
        """Every line; an image that several lines name has the boxes of all of them.

        Raises:
            UserError: the file cannot be read, or not one image is there.
        """
        missing = ""
        for count, line in _lines(self.file):
            name, boxes = _parsed(line)
            path = self.search.find(name)
            if not path:
                missing = missing or name
                self.findings.add("no image", f"{self.file}:{count}", f"no file '{printable(name)}'")
                continue
            image = self.seen.setdefault(path, len(self.paths))
            if image == len(self.paths):
                self.paths.append(path)
            for box in boxes:
                self._box(box, image, count)
        if not self.paths:
            looked = ", ".join(self.search.bases[:4])
            found = f"not one of its images is there; the first: '{printable(missing)}'; looked in {looked}"
            raise UserError(f"{self.file}: {found if missing else 'it has no line, expected ' + LAYOUT}.")

    def _box(self, text: str, image: int, line: int) -> None:
        place, words = f"{self.file}:{line}", text.split(",")
        if len(words) != 5:
            found = f"'{printable(text)}', expected x1,y1,x2,y2,class"
            self.findings.add("not understood", place, found)
            return
        try:
            x1, y1, x2, y2, label = map(float, words)
            if not label.is_integer() or abs(label) > 2**31:
                raise ValueError(label)
        except ValueError:
            found = f"'{printable(text)}', expected four numbers and a class from 0 to {self.classes - 1}"
            self.findings.add("not a number", place, found)
            return
        self.rows.add(image, (x1, y1, x2, y2), int(label), line)


def _parsed(line: str) -> tuple[str, list[str]]:
    """A line's path and its boxes, each as ``x1,y1,x2,y2,class``."""
    if match := _LINE.fullmatch(line):
        return match["path"], _COMMA.sub(",", match["boxes"] or "").split()
    words = line.split()  # without an ending the path reaches to the last word without a comma
    boxes = len(list(takewhile(lambda word: "," in word, words[:0:-1])))
    return line.rsplit(None, boxes)[0], words[len(words) - boxes :]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines that are not empty."""
    try:
        with reading.opened_text(file, errors="surrogateescape") as opened:
            for count, line in enumerate(opened, 1):
                if line := line.strip():
                    yield count, line
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reading.reason(error)}; expected {LAYOUT}.") from None


def _kind(file: Path) -> str:
    """What a ``.txt`` file has in its first lines: ``boxes``, only ``images``, or nothing of these."""
    if file.suffix.lower() != ".txt":
        return ""
    kind = ""
    try:
        for (_, line), _ in zip(_lines(file), range(_SNIFFED), strict=False):
            boxes = _parsed(line)[1]
            if any(_BOX.fullmatch(box) for box in boxes):
                return "boxes"
            if boxes or _LINE.fullmatch(line) is None:
                return ""
            kind = "images"
    except UserError:
        return ""
    return kind


def _files(folder: Path) -> dict[str, tuple[Path, str]]:
    files = sorted(folder.glob("*.txt"))
    if len(files) > _MOST:
        return {}
    kinds = {file: _kind(file) for file in files if file.is_file()}
    return {_SUFFIX.sub("", file.stem): (file, kind) for file, kind in kinds.items() if kind}


def _found(root: Path) -> dict[str, Path]:
    if root.is_file():
        return {_SUFFIX.sub("", root.stem): root}
    return {name: file for name, (file, _) in _files(root).items()}
