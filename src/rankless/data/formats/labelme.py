"""Read labelme JSON: one file per image, with shapes in pixels.

See https://github.com/wkentaro/labelme. A file belongs to the image with the same name in the same folder, or
to the only one in the split. Polygons with the same label and ``group_id`` are one object, as in labelme's
own converters. Files of X-AnyLabeling have the same layout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PureWindowsPath
from typing import Any

from rankless.data.formats import outlines
from rankless.data.formats.folders import SplitFiles, in_order
from rankless.data.formats.label_files import looks_like
from rankless.data.formats.labeled_images import NO_BOX, Entry, UnknownShape, decode_json, numbers
from rankless.data.formats.outlines import Box
from rankless.data.formats.splits import chosen, is_usual, usual_order
from rankless.data.images.image_file import is_image
from rankless.data.index.raw import Raw, RawBuilder, joined, stated_size
from rankless.data.index.scan import scan, with_headers
from rankless.errors import UserError, printable
from rankless.files import reading

TITLE = "labelme JSON"
BOXES_IN = "folder"
LAYOUT = (
    "one .json file per image, next to it or in a folder of its own; folders 'train' and 'val' are splits"
)
_FEW = 200  # maximum number of folders to look at, and of files to look at in each
_SHAPES = ("rectangle", "rotation", "polygon", "quadrilateral", "circle", "mask")
_WITHOUT = ("point", "points", "line", "linestrip", "lines", "cuboid")

Files = dict[str, tuple[list[str], list[str]]]
"""The images and the JSON files of each split."""


def recognize(root: Path) -> str:
    for folder, _, _ in islice(os.walk(root), _FEW) if root.is_dir() else ():
        with os.scandir(folder) as entries:
            every = (entry.name for entry in islice(entries, _FEW) if not entry.name.startswith("."))
            names = [name for name in every if name.lower().endswith(".json")]
        first = Path(folder, min(names)) if names else None
        if first and looks_like(first) == TITLE:
            return f"'{first.relative_to(root)}' looks like {TITLE}"
    return ""


def splits(root: Path) -> list[str]:
    return usual_order(_files(root, SplitFiles()))


def read(root: Path, split: str) -> Raw:
    result = SplitFiles()
    files = _files(root, result)
    name = chosen(root, split, files, LAYOUT)
    items = list(_pairs(*files[name], result))
    others = [(file,) for each in files if each != name for file in files[each][1]]
    raw = joined([scan(read_shapes, items, "images"), scan(read_labels, others, "labels of other splits")])
    raw.rename(in_order(raw.names))
    return result.with_raw(raw)


def _files(root: Path, result: SplitFiles) -> Files:
    """List all images and JSON files below ``root``. The split is the first folder with a usual name."""
    if not root.is_dir():
        raise UserError(f"{root}: this is a file; expected the folder with the images and {LAYOUT}")
    made: Files = {}
    for entry in result.walk(os.fspath(root)):
        kind = 0 if is_image(entry.name) else 1 if entry.name.lower().endswith(".json") else -1
        if kind < 0 or entry.name.startswith("."):
            continue
        folders = Path(entry.path).relative_to(root).parts[:-1]
        split = next(filter(is_usual, folders), "train")
        made.setdefault(split, ([], []))[kind].append(entry.path)
    return {split: files for split, files in made.items() if files[0]}


def _pairs(images: list[str], files: list[str], result: SplitFiles) -> Iterator[tuple[str, str]]:
    """Yield each image with its JSON file, or with "" if it has none, and report files without an image."""
    by_path = {os.path.splitext(file)[0]: file for file in files}  # noqa: PTH122 - Path takes ten times as long
    by_stem: dict[str, list[str]] = {}
    for path in by_path:
        by_stem.setdefault(path.rsplit("/", 1)[1], []).append(path)
    paths = {os.path.splitext(image)[0] for image in images}  # noqa: PTH122
    stems: dict[str, int] = {}
    for path in paths:
        stems[path.rsplit("/", 1)[1]] = stems.get(path.rsplit("/", 1)[1], 0) + 1
    used: set[str] = set()
    for image in sorted(images):
        path = os.path.splitext(image)[0]  # noqa: PTH122
        stem = path.rsplit("/", 1)[1]
        alone = stems[stem] == len(by_stem.get(stem, ())) == 1
        match = path if path in by_path else by_stem[stem][0] if alone else ""
        used.add(match)
        yield image, by_path.get(match, "")
    for path, file in by_path.items():
        if path not in used and looks_like(Path(file)) == TITLE:
            result.findings.add("label without image", file)


def read_shapes(items: list[tuple[str, ...]]) -> Raw:
    """Parse JSON files and read image headers, given pairs of an image and its JSON file (or "")."""
    made, labels = RawBuilder(), dict[str, int]()
    for image, file in items:
        entry = _entry(file, image) if file else Entry(0)
        number = made.add_image(image, file, entry.size)
        for kind, problem in entry.problems:
            made.findings.add(kind, file, problem)
        if not file:
            made.findings.add("no label file", image)
        elif not entry.objects and not entry.problems:
            made.findings.add("empty", image)
        for place, (label, box) in enumerate(entry.objects, 1):
            made.add_box(number, box, labels.setdefault(label, len(labels)), place)
    return with_headers(_raw(made, labels, items))


def read_labels(items: list[tuple[str, ...]]) -> Raw:
    """Read only the labels from JSON files. Each item is a tuple with the path of one file."""
    made, labels = RawBuilder(), dict[str, int]()
    for (file,) in items:
        labels.update((label, 0) for label, _ in _entry(file, "").objects)
    return _raw(made, labels, items)


def _raw(made: RawBuilder, labels: dict[str, int], items: Sequence[tuple[str, ...]]) -> Raw:
    depends = [item[-1] for item in items if item[-1]]
    raw = made.raw(names=list(labels), counted="object", depends=depends)
    raw.rename(sorted(labels))
    return raw


def _entry(file: str, image: str) -> Entry:
    made = Entry(0)
    try:
        content = decode_json(reading.read_bytes(file, reading.LABELS))
    except OSError as error:
        made.report("unreadable file", f"{reading.reason(error)}; expected {TITLE}")
        return made
    except ValueError as error:
        made.report("unreadable file", f"not JSON: {printable(str(error))}; expected {TITLE}")
        return made
    shapes = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(shapes, list):
        made.report("not understood", f"no list 'shapes'; expected {TITLE}")
        return made
    named = PureWindowsPath(str(content.get("imagePath") or image)).name  # with / or \
    if image and named != Path(image).name and reading.is_file(f"{Path(image).parent}/{named}"):
        expected = f"expected the image next to this file, '{printable(Path(image).name)}'"
        made.report(
            "not understood", f"'imagePath' is '{printable(named)}'; {expected}; correct it or rename one"
        )
        return made
    sides = content.get("imageHeight"), content.get("imageWidth")
    made.size = stated_size(*(side if side is None or type(side) in (int, float) else 0 for side in sides))
    groups: dict[Any, list[Any]] = {}
    for place, shape in enumerate(shapes):
        values = shape if isinstance(shape, dict) else {}
        group = values.get("group_id")
        key = (
            place
            if group is None
            else (str(values.get("label")), str(group), values.get("shape_type") in _WITHOUT)
        )
        groups.setdefault(key, []).append(shape)
    for place, group in enumerate(groups.values(), 1):
        label = group[0].get("label") if isinstance(group[0], dict) else None
        made.add(f"object {place}", label, _shape, group)
    return made


def _shape(group: list[Any]) -> tuple[str, Box]:
    """Return the bounds of all shapes of an object."""
    parts = [_part(shape) for shape in group]
    boxes = [box for _, box in parts]
    bounds = outlines.bounds([x for box in boxes for x in box[::2]], [y for box in boxes for y in box[1::2]])
    return parts[0][0] if len(parts) == 1 or parts[0][0] == NO_BOX else "outline", bounds


def _part(shape: Any) -> tuple[str, Box]:
    kind = shape.get("shape_type") or "polygon"
    if kind in _WITHOUT:
        return NO_BOX, (0, 0, 0, 0)
    if kind not in _SHAPES:
        raise UnknownShape(kind, (*_SHAPES, *_WITHOUT))
    xs, ys = (numbers(*(point[axis] for point in shape["points"])) for axis in (0, 1))
    if kind == "circle":  # the center and a point on the circle
        (x, edge_x), (y, edge_y) = xs, ys
        radius = math.hypot(edge_x - x, edge_y - y)
        return "outline", outlines.ellipse_bounds(x, y, radius, radius)
    x1, y1, x2, y2 = outlines.bounds(xs, ys)
    if kind == "mask":  # the first and the last pixel
        return "outline", (x1, y1, x2 + 1, y2 + 1)
    return {"rectangle": "", "rotation": "turned"}.get(kind, "outline"), (x1, y1, x2, y2)
