"""Read and write COCO annotations: one JSON file per split, with boxes ``[x, y, width, height]``.

See Lin et al., "Microsoft COCO: Common Objects in Context", 2014, and https://cocodataset.org/#format-data.
The corner of the image is (0, 0), so ``xyxy = (x, y, x + width, y + height)``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankless.data.formats import outlines
from rankless.data.formats.coco_json import (
    Annotation,
    Classes,
    Image,
    Parts,
    decode,
    entries,
    identity,
    load,
    read_classes,
    save,
)
from rankless.data.formats.folders import ImageSearch, ListedImages, subfolders
from rankless.data.formats.label_files import ends_of, looks_like
from rankless.data.formats.splits import as_file_name, chosen, usual_order, without_year
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.raw import NO_AREA, Raw, stated_size
from rankless.errors import UserError, one_of, printable

TITLE = "COCO JSON"
BOXES_IN = "folders"
LAYOUT = (
    "'annotations/instances_train.json' with images in 'train' or 'images/train', "
    "'train/_annotations.coco.json' next to the images, or a single .json file"
)
_BESIDE = ("_annotations.coco.json", "annotations.json", "labels.json", "result.json")
"""Usual names of an annotation file in the folder of a split."""
_LISTS = re.compile(rb'"(images|annotations|categories)"\s*:')
_ENTRIES = re.compile(rb'"(file_name|image_id|category_id|bbox|supercategory|licenses)"\s*:')
_MOST = 200  # Maximum number of JSON files to examine. A folder with more files has one file per image.
_AFFIXES = re.compile(
    r"^(instances|bbox|detection)[_-]|[_-](annotations|instances|coco|bbox)$", re.IGNORECASE
)
_OTHERS = re.compile(r"^(captions|panoptic|stuff|image_info)[_-]", re.IGNORECASE)
_SAME = 1e-6  # maximum relative difference at which an object's area and the area of its box count as equal
_NO_BOX = [0, 0, 0, 0]  # written by programs that only annotate outlines
_MISSING = -1  # the index of a missing image


def recognize(root: Path) -> str:
    if root.is_file():
        other = looks_like(root) not in ("", TITLE)
        return "it is a .json file" if root.suffix.lower() == ".json" and not other else ""
    files = _annotation_files(root)
    first = next((files[name] for name in usual_order(files)), None)
    return f"it has '{first.relative_to(root)}'" if first else ""


def splits(root: Path) -> list[str]:
    return usual_order(_annotation_files(root))


def read(root: Path, split: str) -> Raw:
    files = _annotation_files(root)
    full = (name for name, file in files.items() if _stem(file) == split)  # such as train2017 for train
    name = next(full, None) or chosen(root, split, files, LAYOUT)
    file = files[name]
    classes = read_classes(files)
    parts = load(file)
    if missing := [key for key in ("images", "annotations") if getattr(parts, key) is None]:
        raise UserError(
            f"{file}: no {' and no '.join(repr(key) for key in missing)}; expected the lists 'images', "
            "'annotations' and 'categories'"
        )
    reader = _Reader(file, ImageSearch(_image_folders(root, name, file)), classes=classes)
    reader.read_images(parts)
    if reader.made.paths:
        reader.read_boxes(parts)
    odd = reader.made.findings.first.get("not understood", [])
    looked = () if root.is_file() else (root, root / "annotations", *(file.parent for file in files.values()))
    return reader.raw(
        classes.names,
        None,
        [*looked, *files.values()],
        f"no valid entry in 'images'; the first problem: {odd[0].problem}" if odd else "no images are listed",
        classes.notes,
        counted="annotation",
        form="xywh",
    )


@dataclass
class _Reader(ListedImages):
    classes: Classes = field(kw_only=True)
    ids: dict[Any, int] = field(default_factory=dict)  # the index of each image by its id

    def read_images(self, parts: Parts) -> None:
        for number, entry in enumerate(entries(parts.images or [], Image)):
            if entry is None or not isinstance(entry.file_name, str) or entry.id is None:
                given = "not an object"
                if entry is not None:
                    given = f"id {_short(entry.id)}, file_name {_short(entry.file_name)}"
                expected = "expected an object with an 'id' and a 'file_name'"
                self.report("not understood", f": image {number}", f"{given}; {expected}")
                continue
            key, name = identity(entry.id), f"'{printable(entry.file_name)}'"
            where = f": image {_short(key)}"
            path = self.locate(entry.file_name, where)
            known = self.ids.get(key)
            if known is None:
                sides = (entry.height, entry.width)
                numbers = (side if side is None or isinstance(side, int | float) else 0 for side in sides)
                self.ids[key] = self.image(path, stated_size(*numbers)) if path else _MISSING
            elif path != ("" if known == _MISSING else self.made.paths[known]):
                self.report("not understood", where, f"{name} has the id of another image")
            elif path:
                self.report("listed twice", where, name)

    def read_boxes(self, parts: Parts) -> None:
        ids = array("q")
        for number, entry in enumerate(entries(parts.annotations or [], Annotation)):
            if entry is None:
                self.report("not understood", _where(Annotation(), number), "not an object in UTF-8")
                continue
            image = _look_up(self.ids, entry.image_id)
            if image is None:
                self.report("unknown image", _where(entry, number), f"image_id {_short(entry.image_id)}")
            elif image != _MISSING:
                line = entry.id if isinstance(entry.id, int) and abs(entry.id) < 2**62 else number
                ids.append(line)
                self._add(entry, image, line, _where(entry, number))
        known, counts = np.unique(np.array(ids, np.int64), return_counts=True)
        for each in known[counts > 1].tolist():
            self.report("repeated id", f": annotation {each}")

    def _add(self, entry: Annotation, image: int, line: int, where: str) -> None:
        label = _look_up(self.classes.labels, entry.category_id)
        if label is None:
            first = one_of(_short(key) for key in list(self.classes.labels)[:10])
            problem = f"category_id {_short(entry.category_id)}; expected {first}"
            self.report("unnamed class", where, problem)
            return
        flags = self._flags(entry, where) if entry.iscrowd or entry.ignore else 0
        box = entry.bbox
        try:
            none = not box or box == _NO_BOX
            if outline := outlines.of_segmentation(decode(entry.segmentation)) if none else None:
                self.report("outline", where)
                x1, y1, x2, y2 = outline
            elif not box:
                self.report("not understood", where, "no 'bbox' and no valid 'segmentation'")
                return
            else:
                x1, y1, width, height = box
                x2, y2 = x1 + width, y1 + height
                if isinstance(entry.attributes, dict) and (degrees := entry.attributes.get("rotation")):
                    x1, y1, x2, y2 = outlines.rotated_bounds((x1, y1, x2, y2), degrees)  # as written by CVAT
                    self.report("turned", where)
            area = _area(entry, x2 - x1, y2 - y1)
            self.made.add_box(image, (x1, y1, x2, y2), label, line, flags, area)
        except (TypeError, OverflowError):
            self.report("not a number", where, f"bbox {_short(box)}; expected four numbers")
        except ValueError:
            self.report("not understood", where, f"bbox {_short(box)}; expected x, y, width, height")

    def _flags(self, entry: Annotation, where: str) -> int:
        flags = 0
        for key, value, flag in (("iscrowd", entry.iscrowd, CROWD), ("ignore", entry.ignore, DIFFICULT)):
            if not value or value == "0":
                continue
            if value not in (1, "1"):
                self.report("not understood", where, f"{key} {_short(repr(value))}; expected 0 or 1")
            flags |= flag
        return flags


def _look_up(numbers: Mapping[Any, int], key: Any) -> int | None:
    """Look up an id. Integers, the usual case, need not be converted to the canonical form."""
    number = numbers.get(key) if type(key) is int else None
    return numbers.get(identity(key)) if number is None else number


def _where(entry: Annotation, number: int) -> str:
    return f": annotations[{number}]" if entry.id is None else f": annotation {_short(entry.id)}"


def _area(entry: Annotation, width: float, height: float) -> float:
    """Return the area of an object in pixels, or NaN if it is missing, invalid or equal to the box area."""
    area = entry.area
    if type(area) not in (int, float) or not 0 <= area < 1e30:
        return NO_AREA
    return NO_AREA if abs(area - width * height) <= _SAME * abs(width * height) else float(area)


def _short(value: Any) -> str:
    return printable(str(value))


def _annotation_files(root: Path) -> dict[str, Path]:
    if root.is_file():
        return {_stem(root): root}
    files: dict[str, Path] = {}
    for folder in (root / "annotations", root):
        found = sorted(folder.glob("*.json"))
        for file in found if len(found) <= _MOST else ():
            if not _OTHERS.match(file.name) and _is_coco(file):
                beside = file.name in _BESIDE and folder != root
                files.setdefault(folder.name if beside else _stem(file), file)
    for folder in subfolders(root):
        there = [folder / name for name in _BESIDE if folder.name != "annotations"]
        if first := next(filter(_is_coco, there), None):
            files.setdefault(folder.name, first)
    if len(files) == 1 and next(iter(files.values())).name in _BESIDE:
        return files if next(iter(files.values())).parent != root else {"train": next(iter(files.values()))}
    return {short: files[name] for short, name in without_year(files).items()}


def _is_coco(file: Path) -> bool:
    """Return whether a file looks like COCO JSON, judging by its name or by its start and end."""
    if not file.is_file():
        return False
    if re.match(r"instances_|_annotations\.coco\.json$", file.name):
        return True
    shown = ends_of(file)
    lists = {match.group(1) for match in _LISTS.finditer(shown)}
    return len(lists) > 1 or (bool(lists) and _ENTRIES.search(shown) is not None)


def _stem(file: Path) -> str:
    if file.name == _BESIDE[0]:
        return file.parent.name
    return _AFFIXES.sub("", file.stem.removesuffix(".coco")) or file.stem


def _image_folders(root: Path, split: str, file: Path) -> list[Path]:
    """Return the folders that the image names in ``file`` may be relative to, the most likely first."""
    names = list(dict.fromkeys((_stem(file), split, file.stem)))
    if file.name in _BESIDE:
        names = [split]
    top = root if root.is_dir() else file.parent
    if file.parent == top and top.name in {"annotations", "labels", "json"}:
        top = file.parent.parent  # the root is the annotation folder
    folders = [file.parent, file.parent / "images", file.parent / "data"] if file.name in _BESIDE else []
    for name in names:
        folders += [top / name, top / "images" / name, top / name / "images"]
    return [*folders, top / "images", top / "data", top / "JPEGImages", top, file.parent]


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write COCO JSON files and images. Ids count from 1 across all splits.

    Coordinates keep all digits. ``ignore`` marks difficult objects. If the area of an object is unknown, the
    area of its box is written.
    """
    (out / "annotations").mkdir(parents=True)
    image = box = 1
    for split, data in splits.items():
        if not data.has_boxes:
            raise UserError(f"{split}: COCO JSON requires boxes, but the images have none")
        split = as_file_name(split)
        # File names may contain bytes that are not valid UTF-8, which JSON cannot contain.
        names = [name.encode("utf-8", "backslashreplace").decode() for name in file_names(data)]
        for index, name in enumerate(names):
            files.put(data, index, out / "images" / split / name)
        save(out / "annotations" / f"instances_{split}.json", data, names, image, box)
        image += len(data)
        box += len(data.labels)
    return []
