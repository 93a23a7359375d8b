"""Pascal VOC: one XML file per image, in which each object has a class name and a box.

``xmin`` … ``xmax`` are numbers of pixels, counted from 1, the last included (Everingham et al., "The PASCAL
VOC 2012 Development Kit"): the box ``(1, 1, width, height)`` covers the whole image. On the continuous
plane, where pixel 1 reaches from 0 to 1, that is ``xyxy = (xmin - 1, ymin - 1, xmax, ymax)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rankless.data.formats.splits import as_file_name
from rankless.data.formats.voc_layout import LAYOUT, find_split, recognize, splits
from rankless.data.formats.voc_xml import NOT_XML, Annotation, VocObject, parse, unreadable, written
from rankless.data.formats.writing import (
    ImageFiles,
    file_names,
    fit_names,
    lost_areas,
    lost_of,
    names_of,
    rounded,
)
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.findings import KINDS, Findings
from rankless.data.index.raw import Raw, RawBuilder, joined
from rankless.data.index.scan import scan, with_headers
from rankless.errors import UserError, counted, printable
from rankless.files import reading

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "Pascal VOC"


def read(root: Path, split: str) -> Raw:
    """Read one split.

    The class names are those of all splits together, sorted: every split numbers them alike. So a file of
    another split that cannot be read at all is reported, too; its boxes are judged when it is used.
    """
    files = find_split(root, split)
    if not any(annotation for _, annotation in files.items):
        raise UserError(
            f"{root}: not one of the {len(files.items)} images of the split '{split}' has an annotation; the "
            f"first is {files.items[0][0]}; put their XML files into 'Annotations', or name another split"
        )
    raw = scan(read_annotations, files.items, "images")
    if files.others:
        raw = joined([raw, scan(read_class_names, files.others, "annotations of other splits")])
    if not raw.names and not any(KINDS[kind].outcome == "stops" for kind in raw.findings.counts):
        raise UserError(f"{root}: no annotation of any split has an object; expected boxes with class names")
    return files.with_raw(raw)


def read_annotations(items: list[tuple[str, ...]]) -> Raw:
    """Parse some (image, XML file or nothing) and read the images' headers."""
    made, labels = RawBuilder(), dict[str, int]()
    for file, annotation in items:
        parsed = Annotation([], (0, 0), [])
        if annotation:
            parsed = _read(annotation, made.findings)
            if parsed.readable and not parsed.objects and not parsed.problems:
                made.findings.add("empty", file)
        else:
            made.findings.add("no label file", file)
        for kind, sentence in parsed.problems:
            made.findings.add(kind, annotation, sentence)
        image = made.add_image(file, annotation, parsed.size)
        for each in parsed.objects:
            x1, y1, x2, y2 = each.box
            label = labels.setdefault(each.name, len(labels))
            made.add_box(image, (x1 - 1, y1 - 1, x2, y2), label, each.number, DIFFICULT * each.difficult)
    return with_headers(_raw(made, labels, items))


def read_class_names(items: list[tuple[str, ...]]) -> Raw:
    """Parse some (XML file,) for their class names alone; no images and no boxes."""
    made, labels = RawBuilder(), dict[str, int]()
    for (annotation,) in items:
        labels.update((each.name, 0) for each in _read(annotation, made.findings).objects)
    return _raw(made, labels, items)


def _raw(made: RawBuilder, labels: Mapping[str, int], items: Sequence[tuple[str, ...]]) -> Raw:
    depends = [item[-1] for item in items if item[-1]]
    raw = made.raw(names=list(labels), counted="object", one_based=True, depends=depends)
    raw.rename(sorted(labels))
    return raw


def _read(file: str, findings: Findings) -> Annotation:
    """Parse a file; what is not an annotation at all is added to the findings, and has no objects."""
    try:
        parsed = parse(reading.read_bytes(file, reading.LABELS))
    except OSError as error:
        parsed = unreadable("unreadable file", f"{error.strerror or error}; expected an XML file")
    if parsed.readable:
        return parsed
    for kind, sentence in parsed.problems:
        findings.add(kind, file, sentence)
    return parsed._replace(problems=[])


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``; return what is lost.

    An image that several splits have with the same boxes is written once.
    """
    names, changed = fit_names(names_of(splits), distinct=False)
    _check(names)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (out / folder).mkdir(parents=True)
    taken: set[str] = set()
    stems: dict[tuple[object, ...], str] = {}
    for split, data in splits.items():
        keys = list(_keys(data))
        fresh = [index for index, key in enumerate(keys) if key not in stems]
        for index, name in zip(fresh, file_names(data, taken, fresh), strict=True):
            file = out / "JPEGImages" / name
            files.put(data, index, file)
            (out / "Annotations" / f"{file.stem}.xml").write_bytes(_written(data, index, name, names))
            stems[keys[index]] = file.stem
        listed = "".join(f"{stems[key]}\n" for key in keys)
        (out / "ImageSets" / "Main" / f"{as_file_name(split)}.txt").write_text(listed, encoding="utf-8")
    return [*_lost(splits, names), *changed]


def _check(names: Sequence[str]) -> None:
    problems = [
        f"class '{printable(name)}': cannot be written as Pascal VOC; expected a name that XML can hold and "
        "that differs from all others; rename it"
        for label, name in enumerate(names)
        if not name or NOT_XML.search(name) or name in names[:label]
    ]
    if problems:
        raise UserError(problems)


def _keys(annotations: Annotations) -> Iterator[tuple[object, ...]]:
    """What makes images the same: file, bytes in it, boxes, classes and flags."""
    for index, path in enumerate(annotations.paths()):
        objects = tuple((*box, label, flags) for box, label, flags, _ in annotations.objects(index))
        yield path, annotations.byte_ranges[index : index + 1].tobytes(), objects


def _written(annotations: Annotations, index: int, name: str, names: Sequence[str]) -> bytes:
    """One annotation."""
    height, width = annotations.sizes[index].tolist()
    objects = (
        VocObject(names[label], (x1, y1, x2, y2), bool(flag & (DIFFICULT | CROWD)))
        for (x1, y1, x2, y2), label, flag, _ in annotations.objects(index)
    )
    return written(name, (height, width), objects)


def _lost(splits: Mapping[str, Annotations], names: Sequence[str]) -> list[str]:
    lost = []
    for split, data in splits.items():
        crowds = int(((data.flags & CROWD) > 0).sum())
        lost += lost_of(split, crowds, "crowd,", "crowds,", "which the format lacks: written as difficult")
        lost += lost_areas(split, int((~np.isnan(data.areas)).sum()))
        begins = data.boxes[:, :2].astype(np.float64)
        lost += rounded(split, int(((begins + 1 - 1).astype(np.float32) != begins).any(1).sum()))
    used = {label for data in splits.values() for label in np.unique(data.labels).tolist()}
    if unused := [name for label, name in enumerate(names) if label not in used]:
        shown = ", ".join(f"'{name}'" for name in unused[:8])
        have = counted(len(unused), "class has no box, and is", "classes have no box, and are")
        lost.append(f"{have} lost without one: {shown}")
    if list(names) != sorted(names):
        lost.append("the order of the classes is lost: they are numbered by their sorted names")
    return lost
