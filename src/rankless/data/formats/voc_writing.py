"""Writing Pascal VOC: ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from rankless.data.formats.splits import as_file_name
from rankless.data.formats.writing import ImageFiles, file_names, names_of
from rankless.data.formats.written import number
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError, printable

_FORBIDDEN = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write a data set into the empty folder ``out``; returns what has no place in it, with counts.

    An image that several splits have with the same boxes is written once.

    Raises:
        UserError: class names that XML cannot hold, or that come to the same without spaces around them.
    """
    names = [name.strip() for name in names_of(splits)]
    _check(names)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (out / folder).mkdir(parents=True)
    taken: set[str] = set()
    written: dict[tuple[object, ...], str] = {}
    for split, data in splits.items():
        keys = _keys(data)
        fresh = [index for index, key in enumerate(keys) if key not in written]
        for index, name in zip(fresh, file_names(data, taken, fresh), strict=True):
            file = out / "JPEGImages" / name
            files.put(data, index, file)
            tree = _tree(data, index, name, names)
            (out / "Annotations" / f"{file.stem}.xml").write_bytes(ElementTree.tostring(tree, "utf-8"))
            written[keys[index]] = file.stem
        listed = "".join(f"{written[key]}\n" for key in keys)
        (out / "ImageSets" / "Main" / f"{as_file_name(split)}.txt").write_text(listed, encoding="utf-8")
    return _lost(splits, names)


def _check(names: Sequence[str]) -> None:
    faults = [
        f"The class '{printable(name)}' cannot be written as Pascal VOC, expected a name that XML can hold "
        "and that differs from all others: rename it."
        for number, name in enumerate(names)
        if not name or _FORBIDDEN.search(name) or name in names[:number]
    ]
    if faults:
        raise UserError(faults)


def _keys(annotations: Annotations) -> list[tuple[object, ...]]:
    """What makes images the same: file, place in it, boxes, classes and flags."""
    keys: list[tuple[object, ...]] = []
    for index, path in enumerate(annotations.paths()):
        rows = annotations.rows(index)
        boxes, labels, flags = annotations.boxes[rows], annotations.labels[rows], annotations.flags[rows]
        span = annotations.spans[index : index + 1]
        keys.append((path, boxes.tobytes(), labels.tobytes(), flags.tobytes(), span.tobytes()))
    return keys


def _tree(annotations: Annotations, index: int, name: str, names: Sequence[str]) -> ElementTree.Element:
    """One annotation; the first pixel is 1."""
    root = ElementTree.Element("annotation")
    _add(root, "filename", name)
    height, width = annotations.sizes[index].tolist()
    if height and width:
        size = ElementTree.SubElement(root, "size")
        for side, value in (("width", width), ("height", height), ("depth", 3)):
            _add(size, side, str(value))
    rows = annotations.rows(index)
    boxes = annotations.boxes[rows].astype(np.float64) + np.array([1, 1, 0, 0])
    labels, flags = annotations.labels[rows].tolist(), annotations.flags[rows].tolist()
    for box, label, flag in zip(boxes.tolist(), labels, flags, strict=True):
        thing = ElementTree.SubElement(root, "object")
        _add(thing, "name", names[label])
        _add(thing, "difficult", str(int(bool(flag & (DIFFICULT | CROWD)))))
        sides = ElementTree.SubElement(thing, "bndbox")
        for side, value in zip(_SIDES, box, strict=True):
            _add(sides, side, number(value))
    ElementTree.indent(root, "\t")
    return root


def _add(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text


def _lost(splits: Mapping[str, Annotations], names: Sequence[str]) -> list[str]:
    lost = []
    for split, data in splits.items():
        crowds = int(((data.flags & CROWD) > 0).sum())
        if crowds:
            lost.append(
                f"{split}: {crowds} boxes mark a crowd, which has no place here: written as difficult"
            )
        if areas := int((~np.isnan(data.areas)).sum()):
            lost.append(
                f"{split}: the areas of {areas} objects have no place here: a box's area counts instead"
            )
        begins = data.boxes[:, :2].astype(np.float64)
        if rounded := int(((begins + 1 - 1).astype(np.float32) != begins).any(1).sum()):
            lost.append(f"{split}: {rounded} boxes begin within a millionth of a pixel of the edge: rounded")
    used = {label for data in splits.values() for label in np.unique(data.labels).tolist()}
    if unused := [name for label, name in enumerate(names) if label not in used]:
        shown = ", ".join(f"'{name}'" for name in unused[:8])
        lost.append(f"{len(unused)} classes have no box, and without one a class has no place here: {shown}")
    if list(names) != sorted(names):
        lost.append("the order of the classes has no place here: they are numbered by their sorted names")
    return lost
