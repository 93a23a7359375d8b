"""Read and write Darknet/YOLO labels: one ``.txt`` file per image with lines ``class x y w h``.

Classes count from 0. A box is given by its center and size, normalized by the size of the upright image. A
line with more numbers is a polygon, as used for segmentation, and its bounds become the box, or a box with
key points, which are not used. A description file, lists or folders determine the images of each split.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from rankless.data.formats import outlines
from rankless.data.formats.darknet_description import YAML_NAMES, description_in
from rankless.data.formats.darknet_splits import (
    LAYOUT,
    REQUIRED,
    Split,
    find_split,
    folder_splits,
    label_folders,
    mixed_splits,
    split_lists,
    splits,
    texts_beside,
)
from rankless.data.formats.folders import FolderNames, names_files
from rankless.data.formats.splits import as_file_name, is_for_tests, known_as
from rankless.data.formats.writing import ImageFiles, file_names, lost_flags, names_of, rounded, shortest
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import Finding
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import scan, with_headers
from rankless.errors import UserError, counted, printable
from rankless.files import reading

TITLE = "Darknet (YOLO)"
BOXES_IN = "folders"
__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

# Text files that are not labels: class names, lists of images, notes.
_OTHERS = {"classes", "labels", "license", "list", "readme", "test", "train", "trainval", "val", "valid"}
_SNIFFED = 4096  # number of bytes to read to recognize a label file
_LABEL = re.compile(r"\d+(\s+-?\d*\.?\d+([eE][-+]?\d+)?){4}(?!\S)")
_FLAGS = {0.0, 1.0, 2.0}  # whether a key point is missing, hidden or visible
_OUT = 0.02  # how far a box with key points may extend beyond its image, normalized
_MOST_BOXES = 0.9  # minimum fraction of lines whose first numbers must be boxes if all lines have key points
_FEW_FLAGS = 4  # minimum number of key points in a split whose flags are evidence
_ANY = "any"


def recognize(root: Path) -> str:
    if root.is_file():
        return f"'{root.name}' is a description file" if description_in(root) else ""
    for name in YAML_NAMES:
        if (root / name).is_file():
            return f"it has '{name}'"
    if any(file.is_file() for file in root.glob("*.data")):
        return "it has a '.data' file"
    if first := next(iter(split_lists(root).values()), None):
        return f"'{first.name}' lists images that have label files"
    for folder in folder_splits(root).values():
        for labels in label_folders(os.fspath(folder))[:-1]:
            if Path(labels).is_dir():
                return (
                    f"it has the folders '{folder.relative_to(root)}' and '{Path(labels).relative_to(root)}'"
                )
    for folder in (root, *mixed_splits(root).values()):
        texts = list(texts_beside(folder))
        if texts and (names_files([root, folder]) or any(map(is_label_file, texts))):
            return f"it has labels next to the images in '{folder.name}'"
    return ""


def is_label_file(file: Path) -> bool:
    """Return whether the first line of a text file looks like a label: a class number and coordinates."""
    try:
        with reading.opened(file) as opened:
            line = opened.read(_SNIFFED).strip().partition(b"\n")[0].decode()
    except (OSError, UnicodeDecodeError):
        return False
    return _LABEL.match(line) is not None


def read(root: Path, split: str, class_names: Sequence[str] | None = None, form: str = "") -> Raw:
    """Read one split; ``form`` is the form of the boxes, or ``polygon``, if the user has given it."""
    files = find_split(root, split, class_names)
    items = list(_with_labels(files))
    if not any(label for _, label in items):
        first = Path(files.paths[0])
        expected = Path(label_folders(os.fspath(first.parent))[0], f"{first.stem}.txt")
        raise UserError(
            f"{root}: the images of the split '{split}' have no label files; expected, for example, "
            f"{expected}; put the labels in a folder 'labels' that mirrors 'images', or next to the "
            "images if there is no folder 'images'"
        )
    wanted = str(4 + files.key_points) if files.key_points else ""
    if form:
        wanted = "" if form == "polygon" else _ANY
    raw = scan(read_labels, [(*item, wanted) for item in items], "images")
    if not form and not files.key_points:
        raw = _with_key_points(raw, items, root, split)
    raw = files.with_raw(raw)
    raw.names, raw.normalized, raw.form = files.class_names, True, "cxcywh"
    return raw


def _with_key_points(raw: Raw, items: list[tuple[str, str]], root: Path, split: str) -> Raw:
    """Decide whether all lines contain boxes with key points, and if so, read them again."""
    numbers, certain = _numbers_with_key_points(raw.tallies)
    if numbers and not certain:
        tallies = Counter(raw.tallies)
        for other in set(splits(root)) - {split}:
            with suppress(UserError):
                files = find_split(root, other)
                raw.depends += files.depends
                others = scan(read_labels, [(*item, "") for item in _with_labels(files)], "other labels")
                raw.depends += others.depends
                tallies.update(others.tallies)
        numbers, certain = _numbers_with_key_points(tallies)
    if certain:
        raw = scan(read_labels, [(*item, str(numbers)) for item in items], "images")
        raw.about.append(f"lines of {numbers} numbers and a class are read as boxes with key points")
    elif numbers:
        shape = f"'kpt_shape: [{(numbers - 4) // 2}, 2]'"
        create = f"create a 'data.yaml' with 'train', 'val', 'names' and {shape}"
        add = f"add {shape} to 'data.yaml'" if description_in(root) else create
        problem = (
            f"all lines have {numbers} numbers and a class, and may be polygons or boxes with key points; "
            f"for key points, {add}; for polygons, set "
            "data.format=darknet:polygon (`rankless data`: --format darknet:polygon)"
        )
        lines = raw.tallies[str(numbers)]
        raw.findings.add_many("other form", lines, [Finding(raw.findings.first["outline"][0].where, problem)])
    return raw


def _numbers_with_key_points(tallies: Mapping[str, int]) -> tuple[int, bool]:
    """Return how many numbers the lines have if they may be boxes with key points, and whether they must be.

    All lines with key points have the same length, and their first four numbers are a box. A line is not a
    polygon if it has an odd number of numbers. Polygons do not have flags: every third number is 0, 1 or 2.
    """
    long = [int(name) for name in tallies if name.isdecimal() and int(name) > 4]
    if len(long) != 1:
        return 0, False
    (numbers,) = long
    lines, points = tallies[str(numbers)], (numbers - 4) // 3
    with_flags = (numbers - 4) % 3 == 0 and tallies.get("flags") == lines and points * lines >= _FEW_FLAGS
    if numbers % 2:
        return (numbers, True) if (numbers - 4) % 3 == 0 else (0, False)
    return (numbers, with_flags) if tallies.get("boxes", 0) >= _MOST_BOXES * lines else (0, False)


def _with_labels(files: Split) -> Iterator[tuple[str, str]]:
    """Yield each image with its label file, or with "" if there is none; note differences in spelling."""
    listings: dict[str, tuple[list[FolderNames], Collection[str]]] = {}
    for image in files.paths:
        folder, name = image.rsplit("/", 1)
        if folder not in listings:
            listings[folder] = _listings(folder, files)
        stem = os.path.splitext(name)[0]  # noqa: PTH122 - Path takes ten times as long
        names, taken = listings[folder]
        label = next((path for each in names if (path := each.with_stem(stem, taken))), "")
        files.note_spelling(label, stem)
        yield image, label


def _listings(folder: str, files: Split) -> tuple[list[FolderNames], Collection[str]]:
    """List the label folders of an image folder, and report label files without an image.

    Also return the stems of the images in the folder.
    """
    listings = [FolderNames(each, {".txt"}) for each in label_folders(folder)]
    files.depends += [folder, *(each.folder for each in listings)]
    stems = FolderNames(folder, EXTENSIONS).files.keys()
    for each in listings if len(listings) == 1 else [one for one in listings if one.folder != folder]:
        free = [stem for stem in each.files if stem not in stems and stem.lower() not in _OTHERS]
        used = {each.with_stem(stem, stems) for stem in stems if stem not in each.files} if free else set()
        for stem in free:
            if (file := f"{each.folder}/{each.files[stem]}") not in used:
                files.findings.add("label without image", file)
    return listings, stems


def read_labels(items: list[tuple[str, ...]]) -> Raw:
    """Parse label files and read image headers.

    Each item is an image, its label file (or ""), and the number of numbers in a line with key points, which
    is ``any`` for all longer lines, and "" if these are polygons.
    """
    made = RawBuilder()
    tallies = Counter[str]()
    for image, label, with_points in items:
        number = made.add_image(image, label)
        if not label:
            made.findings.add("no label file", image)
            continue
        try:
            content = reading.read_bytes(label, reading.LABELS)
        except OSError as error:
            made.findings.add("unreadable file", label, f"{error.strerror or error}; expected a text file")
            continue
        if content.isspace() or not content:
            made.findings.add("empty", image)
        _parse(content, number, label, made, with_points, tallies)
    depends = [label for _, label, _ in items if label]
    return with_headers(made.raw(normalized=True, depends=depends, tallies=dict(tallies)))


def _parse(
    content: bytes, image: int, file: str, made: RawBuilder, with_points: str, tallies: Counter[str]
) -> None:
    text = content.removeprefix(b"\xef\xbb\xbf")
    if not _is_text(text):
        made.findings.add("unreadable file", file, "not UTF-8 text; expected lines of numbers")
        return
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        tallies[str(len(columns) - 1)] += 1
        points = len(columns) > 5 and with_points in (_ANY, str(len(columns) - 1))
        polygon = not with_points and len(columns) > 6 and len(columns) % 2 == 1
        if len(columns) != 5 and not polygon and not points:
            expected = "5: class x y width height"
            if len(columns) > 6:
                expected += ", or 'kpt_shape: [NUMBER, 2 or 3]' in a 'data.yaml' for key points"
            problem = f"found {counted(len(columns), 'column')}; expected {expected}"
            made.findings.add("not understood", f"{file}:{number}", problem)
            continue
        try:
            if b"_" in line:  # Python accepts 1_0 as 10
                raise ValueError
            label, *row = map(float, columns)
            if not label.is_integer():
                raise ValueError
        except ValueError:
            shown = printable(line.decode("utf-8", "replace").strip())
            expected = "numbers: class x y width height, where class is a whole number"
            made.findings.add("not a number", f"{file}:{number}", f"'{shown}'; expected {expected}")
            continue
        if polygon or points:
            made.findings.add("outline" if polygon else "key points", f"{file}:{number}")
        if not all(map(math.isfinite, row)):
            shown = printable(line.decode().strip())
            made.findings.add("not finite", f"{file}:{number}", f"'{shown}'; expected finite numbers")
            continue
        x, y, width, height = row[:4]
        if polygon:
            tallies["boxes"] += abs(x - 0.5) + width / 2 <= 0.5 + _OUT >= abs(y - 0.5) + height / 2
            tallies["flags"] += _FLAGS.issuperset(row[6::3])
            box = outlines.bounds(row[::2], row[1::2])
        else:
            box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        made.add_box(image, box, int(max(-(2.0**31), min(2.0**31, label))), number)


def _is_text(content: bytes) -> bool:
    try:
        return b"\0" not in content and (content.isascii() or bool(content.decode()))
    except UnicodeDecodeError:
        return False


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``data.yaml``, ``images/SPLIT`` and ``labels/SPLIT``, without difficult objects and crowds.

    If ``train`` or ``val`` has another name, ``data.yaml`` contains it under both names.
    """
    lost: list[str] = []
    content: dict[str, str | list[str]] = {}
    for split, data in splits.items():
        folder = as_file_name(split)
        lost += lost_flags(data, split)
        names = list(file_names(data))
        lost += rounded(split, _write_split(out, folder, data, names))
        for index, name in enumerate(names):
            files.put(data, index, out / "images" / folder / name)
        content[folder] = f"images/{folder}"
        if names != sorted(names):  # the reader sorts a folder by name, but the order determines the batches
            content[folder] = f"{folder}.txt"
            listed = "".join(f"./images/{folder}/{name}\n" for name in names)
            (out / f"{folder}.txt").write_text(listed, encoding="utf-8", errors="surrogateescape")
    comment = ""
    for name in REQUIRED:
        if name not in content and (meant := known_as(name, tuple(content))) in content:
            content[name] = content[meant]
            if is_for_tests(meant):
                lost.append(f"data.yaml has no 'val' of its own, so 'val' refers to the images of '{meant}'")
                comment = f"# val: the images of '{meant}', because the data has no validation split\n"
    content["names"] = list(names_of(splits))
    text = comment + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return lost


def _write_split(out: Path, folder: str, data: Annotations, names: Sequence[str]) -> int:
    """Write a label file for every image, and return the number of boxes that had to be rounded."""
    labels_folder, inexact = out / "labels" / folder, 0
    labels_folder.mkdir(parents=True)
    for index, name in enumerate(names):
        rows = data.rows(index)
        plain = data.flags[rows] == 0
        boxes, labels = data.boxes[rows][plain], data.labels[rows][plain]
        height, width = data.sizes[index].tolist()
        normalized, exact = _normalized(boxes.astype(np.float64), width, height)
        inexact += int((~exact).sum())
        lines = (
            " ".join([str(label), *map(shortest, row)]) + "\n"
            for label, row in zip(labels.tolist(), normalized.tolist(), strict=True)
        )
        (labels_folder / Path(name).with_suffix(".txt")).write_text("".join(lines), encoding="utf-8")
    return inexact


def _normalized(
    boxes: NDArray[np.float64], width: int, height: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return normalized centers and sizes, (N, 4), and a mask, (N,), of the boxes without rounding errors.

    For a box at the left or top edge, the center is exactly half of the size, so reading restores 0 exactly.
    """
    sides = np.array([width, height], np.float64)
    low, high = boxes[:, :2], boxes[:, 2:]
    size = (high - low) / sides
    center = (low + high) / 2 / sides
    back = np.concatenate((center - size / 2, center + size / 2), 1) * np.tile(sides, 2)
    exact = (back.clip(0, np.tile(sides, 2)).astype(np.float32) == boxes).all(1)
    return np.concatenate((center, size), 1), exact
