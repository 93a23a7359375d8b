"""Pascal VOC: one XML file per image, in which each object has a class name and a box.

``xmin`` … ``xmax`` are numbers of pixels, counted from 1, the last included (Everingham et al., "The PASCAL
VOC 2012 Development Kit"): the box ``(1, 1, width, height)`` covers the whole image. On the continuous
plane, where pixel 1 reaches from 0 to 1, that is ``xyxy = (xmin - 1, ymin - 1, xmax, ymax)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankless.data.formats.voc_annotation import Annotation, VocObject, parse
from rankless.data.formats.voc_layout import LAYOUT, find_split, split_names, why_voc
from rankless.data.formats.voc_writing import write
from rankless.data.index.annotations import DIFFICULT
from rankless.data.index.findings import KINDS, Findings
from rankless.data.index.raw import Raw, joined
from rankless.data.index.scan import headers, scan
from rankless.errors import UserError
from rankless.files import reading

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "Pascal VOC"


def recognize(root: Path) -> str:
    """Why ``root`` is Pascal VOC's; empty if it is not."""
    return why_voc(root)


def splits(root: Path) -> list[str]:
    """The splits of all years together."""
    return split_names(root)


def read(root: Path, split: str) -> Raw:
    """One split.

    The class names are those of all splits together, sorted: every split numbers them alike. So a file of
    another split that cannot be read at all is told, too; its boxes are judged when it is used.

    Raises:
        UserError: no such split, no image in it, or not one annotation.
    """
    files = find_split(root, split)
    if not any(annotation for _, annotation in files.items):
        raise UserError(
            f"Not one of the {len(files.items)} images of the split '{split}' in {root} has an "
            f"annotation; the first is {files.items[0][0]}. Put their XML files into 'Annotations', "
            "or name another split."
        )
    raw = scan(read_annotations, files.items, "images")
    if files.others:
        raw = joined([raw, scan(read_class_names, files.others, "annotations of other splits")])
    if not raw.names and not any(KINDS[kind].outcome == "stops" for kind in raw.findings.counts):
        raise UserError(f"{root}: no annotation of any split has an object, expected boxes with class names.")
    findings = files.findings
    findings.update(raw.findings)
    raw.findings, raw.from_one = findings, True
    raw.depends = [*files.depends, *raw.depends]
    raw.about = [*files.notes, *raw.about]
    return raw


def read_annotations(items: list[tuple[str, ...]]) -> Raw:
    """Parse some (image, XML file or nothing) and read the images' headers."""
    findings = Findings()
    image: list[int] = []
    objects: list[VocObject] = []
    stated = []
    for number, (file, annotation) in enumerate(items):
        found = Annotation([], (0, 0), [])
        if annotation:
            found = _read(annotation, findings)
            if found.readable and not found.objects and not found.faults:
                findings.add("empty", file)
        else:
            findings.add("no label file", file)
        for kind, sentence in found.faults:
            findings.add(kind, annotation, sentence)
        for each in found.objects:
            if each.outlined:
                findings.add("outline", f"{annotation}:{each.number}", f"'{each.name}'")
        objects += found.objects
        image += [number] * len(found.objects)
        stated.append(found.size)
    sizes, unreadable = headers([file for file, _ in items])
    findings.update(unreadable)
    raw = _raw(items, objects, findings)
    raw.sizes, raw.stated = sizes, np.array(stated, np.int32).reshape(-1, 2)
    raw.paths, raw.places = [file for file, _ in items], [annotation for _, annotation in items]
    raw.image = np.array(image, np.int64)
    return raw


def read_class_names(items: list[tuple[str, ...]]) -> Raw:
    """Parse some (XML file,) for their class names alone; no images and no boxes."""
    findings = Findings()
    names: set[str] = set()
    for (annotation,) in items:
        found = _read(annotation, findings)
        names.update(each.name for each in found.objects)
        if not found.readable:
            for kind, sentence in found.faults:
                findings.add(kind, annotation, sentence)
    raw = _raw(items, [], findings)
    raw.names = sorted(names)
    return raw


def _raw(items: Sequence[tuple[str, ...]], objects: Sequence[VocObject], findings: Findings) -> Raw:
    """A part without images, with the boxes on the continuous plane."""
    names = sorted({found.name for found in objects})
    labels = {name: label for label, name in enumerate(names)}
    none = np.zeros((0, 2), np.int32)
    with np.errstate(invalid="ignore"):
        boxes = np.array([found.box for found in objects], np.float64).reshape(-1, 4) - [1, 1, 0, 0]
    return Raw(
        paths=[],
        sizes=none,
        stated=none,
        places=[],
        image=np.zeros(0, np.int64),
        boxes=boxes,
        labels=np.array([labels[found.name] for found in objects], np.int64),
        flags=np.array([DIFFICULT * found.difficult for found in objects], np.uint8),
        areas=np.full(len(objects), np.nan, np.float32),
        lines=np.array([found.number for found in objects], np.int64),
        names=names,
        counted="object",
        from_one=True,
        depends=[item[-1] for item in items if item[-1]],
        findings=findings,
    )


def _read(file: str, findings: Findings) -> Annotation:
    try:
        return parse(reading.read_bytes(file, reading.LABELS))
    except OSError as error:
        findings.add("unreadable file", file, f"{error.strerror or error}, expected an XML file")
        return Annotation([], (0, 0), [], readable=False)
