"""Annotations as read from files, before :mod:`rankless.data.index.validation` checks them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.data.index.findings import Findings

NO_AREA = float("nan")
NO_SIZE = -1, -1


def stated_size(height: float | None, width: float | None) -> tuple[int, int]:
    """Return the annotated (height, width) of an image for :class:`Raw`.

    The result is 0, 0 if both are missing (None), or :data:`NO_SIZE` if they are invalid.
    """
    if height is None and width is None:
        return 0, 0
    sides = height or 0, width or 0
    return (int(sides[0]), int(sides[1])) if all(1 <= side < 2**31 for side in sides) else NO_SIZE


@dataclass
class Raw:
    """Annotations of a split, or a part of it, as read from files.

    Attributes:
        paths: paths of the images, (N,).
        sizes: height and width of each upright image from its header, int32, (N, 2); 0, 0 if the image cannot
            be read.
        stated: height and width according to the annotations, int32, (N, 2); see :func:`stated_size`.
        annotated_in: path of the file that contains each image's annotations, (N,).
        image: index of each box's image, int64, (T,).
        boxes: float64 xyxy, (T, 4), in pixels (the first pixel spans 0 to 1) or normalized by the image size;
            None for classification, where ``labels`` is (N,).
        labels: indices into ``names``, or numbers as in the file, int64, (T,).
        flags, areas: as in :class:`rankless.data.index.annotations.Annotations`, (T,).
        lines: position of each box in its file, in units of ``counted``, int64, (T,).
        names: class names.
        counted: unit of ``lines``: ``line`` or the format's equivalent, such as ``object``.
        normalized: whether boxes are normalized by the image size.
        one_based: whether the format counts pixels from 1.
        form: form in which the files give a box, a key of :data:`rankless.data.index.box_forms.FORMS`; "" if
            it is the only possible one.
        unsure: whether ``form`` is only an assumption, because the format does not define it.
        byte_ranges: offset and length of each image in a tar shard, (N, 2), or None.
        depends: paths of the folders, lists and label files (not images) that the annotations depend on.
        findings: problems that the reader found.
        about: notes on how the data was read.
        tallies: numbers of cases that only the reader counts.
    """

    paths: list[str]
    sizes: NDArray[np.int32]
    stated: NDArray[np.int32]
    annotated_in: Sequence[str]
    image: NDArray[np.int64]
    boxes: NDArray[np.float64] | None
    labels: NDArray[np.int64]
    flags: NDArray[np.uint8]
    areas: NDArray[np.float32]
    lines: NDArray[np.int64]
    names: Sequence[str] = ()
    counted: str = "line"
    normalized: bool = False
    one_based: bool = False
    form: str = ""
    unsure: bool = False
    byte_ranges: NDArray[np.int64] | None = None
    depends: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    about: list[str] = field(default_factory=list)
    tallies: dict[str, int] = field(default_factory=dict)

    def only(self, images: Sequence[int]) -> None:
        """Keep only the given images, in the given order, and their boxes. The findings do not change."""
        numbers = np.full(len(self.paths), -1, np.int64)
        numbers[list(images)] = np.arange(len(images))
        rows = np.flatnonzero(numbers[self.image] >= 0)
        self.image = numbers[self.image[rows]]
        for name in ("labels", "flags", "areas", "lines", "boxes"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, values[rows])
        self.paths = [self.paths[image] for image in images]
        self.annotated_in = [self.annotated_in[image] for image in images]
        self.sizes, self.stated = self.sizes[list(images)], self.stated[list(images)]
        if self.byte_ranges is not None:
            self.byte_ranges = self.byte_ranges[list(images)]

    def rename(self, names: Sequence[str]) -> None:
        """Renumber the labels as indices into ``names``, which must contain all current names."""
        labels = {name: label for label, name in enumerate(names)}
        self.labels = np.array([labels[name] for name in self.names], np.int64)[self.labels]
        self.names = names


@dataclass
class RawBuilder:
    """A builder for :class:`Raw`. Each box takes 41 bytes."""

    findings: Findings = field(default_factory=Findings)
    paths: list[str] = field(default_factory=list)
    annotated_in: list[str] = field(default_factory=list)
    stated: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    byte_ranges: list[tuple[int, int]] = field(default_factory=list)
    image: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    areas: array[float] = field(default_factory=lambda: array("f"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def add_image(
        self,
        path: str,
        annotated_in: str = "",
        stated: tuple[int, int] = (0, 0),
        *,
        size: tuple[int, int] = (0, 0),
        byte_range: tuple[int, int] | None = None,
    ) -> int:
        """Add an image and return its index; see :class:`Raw` for the arguments."""
        self.paths.append(path)
        self.annotated_in.append(annotated_in)
        self.stated.append(stated)
        self.sizes.append(size)
        if byte_range is not None:
            self.byte_ranges.append(byte_range)
        return len(self.paths) - 1

    def add_box(
        self, image: int, box: Iterable[float], label: int, line: int, flags: int = 0, area: float = NO_AREA
    ) -> None:
        """Add a box, xyxy, to the image with index ``image``; see :class:`Raw` for the other arguments."""
        self.boxes.extend(array("d", box))  # adds nothing if a number is invalid
        self.image.append(image)
        self.labels.append(label)
        self.flags.append(flags)
        self.areas.append(area)
        self.lines.append(line)

    def add_label(self, image: int, label: int, line: int = 0) -> None:
        self.add_box(image, (0.0, 0.0, 0.0, 0.0), label, line)

    def raw(self, *, boxed: bool = True, **rest: Any) -> Raw:
        """Return the annotations as a :class:`Raw`; ``rest`` contains the values of its other fields.

        With ``boxed=False``, each image has one class instead of boxes.
        """
        made: dict[str, Any] = {
            "paths": self.paths,
            "sizes": np.array(self.sizes, np.int32).reshape(-1, 2),
            "stated": np.array(self.stated, np.int32).reshape(-1, 2),
            "byte_ranges": np.array(self.byte_ranges, np.int64) if self.byte_ranges else None,
            "annotated_in": self.annotated_in,
            "boxes": np.array(self.boxes).reshape(-1, 4) if boxed else None,
            "findings": self.findings,
        }
        made |= {
            name: np.array(getattr(self, name)) for name in ("image", "labels", "flags", "areas", "lines")
        }
        return Raw(**(made | rest))


def joined(parts: Sequence[Raw]) -> Raw:
    """Join parts of a split. If their class names differ, the result has the sorted union of the names."""
    first = parts[0]
    made: dict[str, Any] = {}
    for name in (each.name for each in fields(Raw)):
        values = [getattr(part, name) for part in parts]
        if arrays := [value for value in values if isinstance(value, np.ndarray)]:
            made[name] = np.concatenate(arrays)  # a part without images has no byte ranges
        elif name in ("paths", "annotated_in", "depends", "about"):
            made[name] = [one for value in values for one in value]
        elif name == "tallies":
            made[name] = dict(sum(map(Counter, values), Counter()))
        else:
            made[name] = values[0]
    starts = np.cumsum([0, *(len(part.paths) for part in parts[:-1])])
    made["image"] = np.concatenate([part.image + at for part, at in zip(parts, starts, strict=True)])
    made["findings"] = Findings()
    for part in parts:
        made["findings"].update(part.findings)
    if any(part.names != first.names for part in parts):
        made["names"] = sorted({name for part in parts for name in part.names})
        for part in parts:
            part.rename(made["names"])
        made["labels"] = np.concatenate([part.labels for part in parts])
    return Raw(**made)
