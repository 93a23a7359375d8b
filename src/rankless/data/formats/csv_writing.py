"""Writing a data set as CSV: ``SPLIT.csv``, ``classes.csv`` and the images in ``images/SPLIT``."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankless.data.formats.splits import as_file_name
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.formats.written import fit_names, number, on_one_line
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write a row for each box, and one with an empty box for an image without.

    Of classification a row is ``filename,class``. ``classes.csv`` has the classes in their order, because
    some may have no box. Where no box of a split reaches beyond the second pixel, the columns say that it is
    pixels: ``xmin_px``.
    """
    known = next((annotations.class_names for annotations in splits.values()), ())
    names, changed = fit_names(known, distinct=True)
    for split, held in splits.items():
        name = as_file_name(split)
        made = _boxes(held, names) if held.has_boxes else _classes(held, names)
        with (out / f"{name}.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("filename", *next(made)))
            for index, given in enumerate(on_one_line(file_names(held))):
                files.put(held, index, out / "images" / name / given)
                writer.writerows((f"images/{name}/{given}", *row) for row in next(made))
    with (out / "classes.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((name, label) for label, name in enumerate(names))
    return changed


def _boxes(annotations: Annotations, names: Sequence[str]) -> Iterator[Any]:
    """The columns' names, then the rows of one image after another."""
    boxes: Any = annotations.boxes
    flags: Any = annotations.flags
    tiny = len(boxes) > 0 and bool((boxes <= 2).all())
    crowds, areas = bool((flags & CROWD).any()), bool((~np.isnan(annotations.areas)).any())
    more = (*(["crowd"] if crowds else []), *(["area"] if areas else []))
    yield "width", "height", "class", *(f"{c}_px" if tiny else c for c in _CORNERS), "difficult", *more
    for index in range(len(annotations)):
        height, width = annotations.sizes[index].tolist()
        made = []
        rows = annotations.rows(index)
        for row in range(rows.start, rows.stop):
            corners = (number(value) for value in boxes[row].tolist())
            flag, area = int(flags[row]), float(annotations.areas[row])
            cells = [width, height, names[annotations.labels[row]], *corners, int(flag & DIFFICULT > 0)]
            cells += [int(flag & CROWD > 0)] if crowds else []
            cells += ["" if area != area else number(area)] if areas else []
            made.append(cells)
        yield made or [[width, height, "", "", "", "", "", "", *("" for _ in more)]]


def _classes(annotations: Annotations, names: Sequence[str]) -> Iterator[Any]:
    yield ("class",)
    for label in annotations.labels.tolist():
        yield [[names[label]]]
