"""Read and write annotation lines, one per image: ``path x1,y1,x2,y2,class x1,y1,x2,y2,class …``.

Coordinates are in pixels, where (0, 0) is the corner of the image. Classes count from 0. Many Keras trainers
use this format; see https://github.com/qqwweee/keras-yolo3#training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from rankless.data.formats.folders import ImageSearch, ListedImages, numbered_names, subfolders
from rankless.data.formats.splits import as_file_name, chosen, is_for_training, set_aside, usual_order
from rankless.data.formats.writing import (
    ImageFiles,
    file_names,
    fit_names,
    lost_flags,
    names_of,
    on_one_line,
    shortest,
)
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw
from rankless.errors import UserError, counted, printable
from rankless.files import reading

TITLE = "annotation lines"
BOXES_IN = "folder"
LAYOUT = (
    "'train.txt' (or 'train/_annotations.txt') with lines 'path x1,y1,x2,y2,class …' and a 'classes.txt', or "
    "one such .txt file"
)
_DIVIDED = ("train", "val")  # splits into which a single list is divided
_BESIDE = "_annotations.txt"  # name of a list in the folder of its split
_SNIFFED = 1000  # number of lines to read to determine the kind of a file
_MOST = 200  # Maximum number of .txt files to examine. A folder with more files has one file per image.
_ENDINGS = "|".join(re.escape(ending) for ending in sorted(EXTENSIONS))
# The path ends at the last image extension before a space or the end of the line.
_LINE = re.compile(rf"(?P<path>.*(?:{_ENDINGS}))(?:\s+(?P<boxes>.*))?", re.IGNORECASE)
_COMMA = re.compile(r"\s*,\s*")
_BOX = re.compile(r"[-+.\deE]+(?:,[-+.\deE]+){4}")
_SUFFIX = re.compile(r"(?<=.)[_-](annotations?|boxes|labels?|lines)$", re.IGNORECASE)


def recognize(root: Path) -> str:
    first = next((file for file in _splits(root).values() if list_kind(file) == "boxes"), None)
    return f"'{first.name}' has lines 'path x1,y1,x2,y2,class'" if first else ""


def splits(root: Path) -> list[str]:
    """Return the names of the lists, or ``train`` and ``val`` if a single list is divided."""
    files = _splits(root)
    return list(_DIVIDED) if _lone(files) else usual_order(files)


def undivided(root: Path, split: str) -> str:
    """Return the list that is divided to create ``split``, or ``split`` if no list is divided."""
    return (split in _DIVIDED and _lone(_splits(root))) or split


def read(root: Path, split: str, class_names: Sequence[str] | None = None) -> Raw:
    files = _splits(root)
    divided = _lone(files) if split in _DIVIDED else ""
    name = divided or chosen(root, split, files, LAYOUT)
    file, top = files[name], root if root.is_dir() else root.parent
    folders = list(dict.fromkeys((top, top / "model_data", top.parent / "model_data", file.parent)))
    names, classes = numbered_names(
        folders,
        class_names,
        f"{root}: no class names found next to {file.name}; add a 'classes.txt', '*_classes.txt' or "
        "'*.names' file (one name per line, starting with class 0) to this folder or to 'model_data'",
    )
    search = ImageSearch([file.parent, top, top / name, top / "images", top / "images" / name, top.parent])
    reader = _Reader(file, search, classes=len(names))
    reader.read()
    about = [] if classes else ["class names from data.classes"]
    if reader.joined:
        repeat = counted(reader.joined, "line repeats", "lines repeat")
        about.append(f"{repeat} the image of an earlier line, so the boxes of these lines are joined")
    nothing = f"no lines found; expected {LAYOUT}"
    raw = reader.raw(names, classes, [file, *folders], nothing, about, form="xyxy")
    if divided:
        _divide(raw, split, file, top)
    return raw


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``SPLIT.txt`` for every split, ``classes.txt`` and the images in ``images/SPLIT``.

    Difficult objects and crowds are dropped, because the format cannot mark them.
    """
    lost: list[str] = []
    for split, data in splits.items():
        if not data.has_boxes:
            raise UserError(f"{split}: annotation lines require boxes, but the images have none")
        name = as_file_name(split)
        lost += lost_flags(data, split)
        with (out / f"{name}.txt").open("w", encoding="utf-8", errors="surrogateescape") as file:
            for index, given in enumerate(on_one_line(file_names(data))):
                files.put(data, index, out / "images" / name / given)
                boxes = (
                    ",".join([*map(shortest, box), str(label)])
                    for box, label, flags, _ in data.objects(index)
                    if not flags
                )
                file.write(" ".join((f"images/{name}/{given}", *boxes)) + "\n")
    names, changed = fit_names(names_of(splits), distinct=False)
    (out / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return lost + changed


@dataclass
class _Reader(ListedImages):
    classes: int = field(kw_only=True)
    by_name: dict[str, int] = field(default_factory=dict)  # index of each image by its listed name
    joined: int = 0  # number of lines with the name of an earlier line

    def read(self) -> None:
        for line, text in lines_of(self.file):
            name, boxes = _parse(text)
            if name in self.by_name:
                self.joined += 1
            elif path := self.locate(name, f":{line}"):
                self.by_name[name] = self.image(path)
            for box in boxes if name in self.by_name else ():
                self._add(box, self.by_name[name], line)

    def _add(self, text: str, image: int, line: int) -> None:
        numbers = text.split(",")
        if len(numbers) != 5:
            self.report("not understood", f":{line}", f"'{printable(text)}'; expected x1,y1,x2,y2,class")
            return
        try:
            x1, y1, x2, y2, label = map(float, numbers)
            if not label.is_integer() or abs(label) > 2**31:
                raise ValueError(label)
        except ValueError:
            expected = f"four numbers and a class from 0 to {self.classes - 1}"
            self.report("not a number", f":{line}", f"'{printable(text)}'; expected {expected}")
            return
        self.made.add_box(image, (x1, y1, x2, y2), int(label), line)


def _parse(line: str) -> tuple[str, list[str]]:
    if match := _LINE.fullmatch(line):
        return match["path"], _COMMA.sub(",", match["boxes"] or "").split()
    parts = line.split()  # without an image extension, the path ends with the last word without a comma
    boxes = len(list(takewhile(lambda part: "," in part, parts[:0:-1])))
    return line.rsplit(None, boxes)[0], parts[len(parts) - boxes :]


def lines_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every nonempty line of a file."""
    try:
        with reading.opened_text(file, errors="surrogateescape") as opened:
            for count, line in enumerate(opened, 1):
                if line := line.strip():
                    yield count, line
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {reading.reason(error)}; expected {LAYOUT}") from None


def list_kind(file: Path) -> str:
    """Guess from its first lines whether a ``.txt`` file lists ``boxes``, ``images``, or neither ("")."""
    if file.suffix.lower() != ".txt":
        return ""
    kind = ""
    try:
        for (_, line), _ in zip(lines_of(file), range(_SNIFFED), strict=False):
            boxes = _parse(line)[1]
            if any(_BOX.fullmatch(box) for box in boxes):
                return "boxes"
            if boxes or _LINE.fullmatch(line) is None:
                return ""
            kind = "images"
    except UserError:
        return ""
    return kind


def _lone(files: Mapping[str, Path]) -> str:
    """Return the name of the list to divide, or "" if there are several or its name implies a split."""
    (name, *more) = files or [""]
    return name if name != "train" and not more and is_for_training(name) else ""


def _divide(raw: Raw, split: str, file: Path, top: Path) -> None:
    """Keep only the images of ``split``, ``train`` or ``val``, and add a note about the division."""
    count = len(raw.paths)
    names = [os.path.relpath(path, top) for path in raw.paths]
    aside = set_aside(names, "annotation lines")
    raw.only([index for index, name in enumerate(names) if (name in aside) == (split == "val")])
    raw.about.append(
        f"{file.name} is the only list, so it is divided by a hash of the image paths: {len(raw.paths)} of "
        f"its {count} images are '{split}'; use data.val=none to train on all images without evaluations"
    )


def _splits(root: Path) -> dict[str, Path]:
    files = [root] if root.is_file() else sorted(file for file in root.glob("*.txt") if file.is_file())
    lists = [file for file in files if file == root or (len(files) <= _MOST and list_kind(file))]
    beside = (folder / _BESIDE for folder in subfolders(root))  # as written by Roboflow
    found = {file.parent.name: file for file in beside if file.is_file() and list_kind(file)}
    return found | {_name(file): file for file in lists}


def _name(file: Path) -> str:
    return file.parent.name if file.name == _BESIDE else _SUFFIX.sub("", file.stem)
