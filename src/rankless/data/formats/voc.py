"""Pascal VOC: one XML file per picture, in which each object has a class name and a box.

``xmin`` … ``xmax`` are numbers of pixels, counted from 1, the last included (Everingham et al., "The PASCAL
VOC 2012 Development Kit"): the box ``(1, 1, width, height)`` covers the whole picture. On the continuous
plane, where pixel 1 reaches from 0 to 1, that is ``xyxy = (xmin - 1, ymin - 1, xmax, ymax)``.

Every annotation is read and checked once, when the data is opened, and every fault is told at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data import pictures
from rankless.data.formats.faults import Fault, told
from rankless.data.formats.voc_annotation import Annotation, VocObject, parse
from rankless.data.formats.voc_layout import VocSplit, find_split
from rankless.errors import UserError
from rankless.types import Picture


@dataclass(frozen=True)
class VocData:
    """One split, its boxes flat in memory.

    Attributes:
        class_names: a label is a position in this list: the names of all splits together, sorted.
        paths: picture files, (N,).
        sizes: height and width of each picture in pixels, from its header; int64, (N, 2).
        offsets: the boxes of picture i are ``offsets[i] : offsets[i + 1]``; int64, (N + 1,).
        boxes: float32 xyxy in pixels of the upright picture and inside it, (total, 4).
        labels: int64, (total,).
        difficult: marked so in the file, (total,); they are neither trained on nor scored.
        notes: how the data was read; what was clipped, missing or left out, as sentences with counts.
    """

    class_names: tuple[str, ...]
    paths: list[str]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, index: int) -> str:
        """The file of picture ``index``."""
        return self.paths[index]

    def picture(self, index: int) -> Picture:
        """Picture ``index`` decoded, with the boxes to train on: those that are not difficult.

        Raises:
            UnreadablePicture: the file is missing or damaged.
        """
        image = pictures.read(self.paths[index])
        boxes, labels, _, _, difficult = self.ground_truth(index)
        return Picture(image, boxes[~difficult], labels[~difficult])

    def ground_truth(self, index: int) -> tuple[Tensor, Tensor, int, int, Tensor]:
        """Boxes xyxy in pixels, labels, height and width of picture ``index``, and which are difficult."""
        run = slice(self.offsets[index], self.offsets[index + 1])
        height, width = self.sizes[index].tolist()
        boxes, labels = torch.tensor(self.boxes[run]), torch.tensor(self.labels[run])
        return boxes, labels, height, width, torch.tensor(self.difficult[run])


@dataclass
class _Objects:
    """The objects of all pictures while they are read, and what is wrong with them."""

    found: list[VocObject] = field(default_factory=list)
    picture: list[int] = field(default_factory=list)  # the number of the picture each belongs to
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_voc(root: str, split: str) -> VocData:
    """One split of a Pascal VOC data set.

    Args:
        root: a folder with ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``, or one that holds several
            of these (VOC2007, VOC2012), with or without a ``VOCdevkit`` between.
        split: a list in ``ImageSets/Main``, of all years together; of one year as ``VOC2012/train``.

    Raises:
        UserError: no such split, no object at all, or faulty annotations and pictures: all of them together,
            the first 20 in full and the others counted by kind.
    """
    files = find_split(root, split)
    objects = _Objects()
    named = _read_annotations(root, split, files, objects)
    names = {found.name for found in objects.found} | _names_elsewhere(files.others, objects.faults)
    sizes = _read_sizes(files, named, objects)
    if objects.faults:
        count = len(objects.faults)
        raise UserError(
            told(objects.faults, f"{count} faults in the data: mend them, or take the files out.")
        )
    if not names:
        raise UserError(f"{root}: no annotation of any split has an object, expected boxes with class names.")
    class_names = tuple(sorted(names))
    boxes, labels, difficult, offsets, notes = _checked(objects, sizes, class_names)
    read_as = f"{root}: read as Pascal VOC, {len(files.pictures)} pictures with {len(boxes)} boxes"
    notes = [read_as, *files.notes, *objects.notes, *notes]
    return VocData(class_names, files.pictures, sizes, offsets, boxes, labels, difficult, notes)


def _read_annotations(
    root: str, split: str, files: VocSplit, objects: _Objects
) -> list[tuple[int, int] | None]:
    """Adds the objects and faults of every annotation of the split; returns the sizes that they state."""
    missing = [file for file, known in zip(files.pictures, files.annotations, strict=True) if known is None]
    if len(missing) == len(files.pictures):
        raise UserError(
            f"Not one of the {len(missing)} pictures of the split '{split}' in {root} has an annotation; "
            f"the first is '{files.names[0]}' in {files.places[0]}. Put their XML files into "
            "'Annotations', or name another split."
        )
    if missing:
        objects.notes.append(
            f"{len(missing)} of {len(files.pictures)} pictures have no annotation and count as empty; "
            f"the first: {missing[0]}"
        )
    stated: list[tuple[int, int] | None] = []
    for number, file in enumerate(files.annotations):
        annotation = _read(file, objects.faults) if file else Annotation([], None, [])
        objects.found += annotation.objects
        objects.picture += [number] * len(annotation.objects)
        objects.faults += [Fault(str(file), kind, sentence) for kind, sentence in annotation.faults]
        stated.append(annotation.size)
    return stated


def _names_elsewhere(files: Iterable[str], faults: list[Fault]) -> set[str]:
    """Class names of the other splits: every split must come to the same list.

    Their boxes are checked when they are used; a file that is no annotation at all hides its names.
    """
    names: set[str] = set()
    for file in files:
        annotation = _read(file, faults)
        names |= {found.name for found in annotation.objects}
        if not annotation.readable:
            faults += [Fault(file, kind, sentence) for kind, sentence in annotation.faults]
    return names


def _read(file: str, faults: list[Fault]) -> Annotation:
    try:
        return parse(Path(file).read_bytes())
    except OSError as error:
        faults.append(Fault(file, "unreadable", f"{error.strerror or error}, expected an XML file"))
        return Annotation([], None, [])


def _read_sizes(
    files: VocSplit, stated: list[tuple[int, int] | None], objects: _Objects
) -> NDArray[np.int64]:
    """Height and width of every picture from its header, (N, 2); adds faults, and a note on wrong sizes."""
    sizes = np.zeros((len(files.pictures), 2), np.int64)
    other, endings = [], ", ".join(sorted(pictures.EXTENSIONS))
    for number, (file, said) in enumerate(zip(files.pictures, stated, strict=True)):
        if not file:
            found = (
                f"'{files.names[number]}' has no file in 'JPEGImages', expected one that ends in {endings}"
            )
            objects.faults.append(Fault(files.places[number], "no picture", found))
            continue
        try:
            size = pictures.size(file)
        except pictures.UnreadablePicture as error:
            objects.faults.append(Fault(file, "unreadable picture", error.reason))
            continue
        sizes[number] = size
        if said is not None and said != size:
            other.append(f"{file} is {size[1]} × {size[0]}, its annotation says {said[1]} × {said[0]}")
    if other:
        objects.notes.append(
            f"{len(other)} pictures are of another size than their annotation says; boxes are taken as "
            f"pixels of the picture as it is; the first: {other[0]}"
        )
    return sizes


def _checked(
    objects: _Objects, sizes: NDArray[np.int64], class_names: tuple[str, ...]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], list[str]]:
    """Boxes on the continuous plane, clipped, without those of no use; labels, flags, offsets and notes."""
    written = np.array([found.box for found in objects.found], np.float64).reshape(-1, 4)
    places = {name: label for label, name in enumerate(class_names)}
    labels = np.array([places[found.name] for found in objects.found], np.int64)
    difficult = np.array([found.difficult for found in objects.found], bool)
    picture = np.array(objects.picture, np.int64)
    boxes = written - [1, 1, 0, 0]
    height, width = sizes[picture].T
    clipped = boxes.clip(0, np.stack((width, height, width, height), 1))
    empty = (written[:, 2:] < written[:, :2]).any(1)
    outside = ~empty & (clipped[:, 2:] <= clipped[:, :2]).any(1)
    again = np.ones(len(boxes), bool)
    again[np.unique(np.column_stack((picture, labels, written)), axis=0, return_index=True)[1]] = False
    again &= ~(empty | outside)
    stays = ~(empty | outside | again)
    from_zero = stays & (boxes[:, :2] < 0).any(1) & (boxes[:, :2] >= -1).all(1)
    cut = stays & ((boxes[:, 2:] > clipped[:, 2:]) | (boxes[:, :2] < -1)).any(1)
    thin = stays & ((clipped[:, 2:] - clipped[:, :2]) <= 1).any(1)
    counted = [
        (empty, "end before they begin (xmax < xmin or ymax < ymin) and were left out"),
        (outside, "lie outside their picture and were left out"),
        (again, "repeat another of the same picture, class and place and were left out"),
        (cut, "reached over the edge of their picture and were clipped"),
        (from_zero, "begin at pixel 0, but VOC counts from 1: perhaps all of the data lies a pixel off"),
        (thin, "are at most one pixel wide or high and stay"),
        (stays & difficult, "are marked difficult: they are neither trained on nor scored"),
    ]
    notes = [f"{flags.sum()} of {len(boxes)} boxes {what}" for flags, what in counted if flags.any()]
    counts = np.bincount(picture[stays], minlength=len(sizes))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return clipped[stays].astype(np.float32), labels[stays], difficult[stays], offsets, notes
