"""Writing Darknet's text labels: a ``data.yaml``, ``images/SPLIT`` and ``labels/SPLIT``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from rankless.data.formats.splits import as_file_name
from rankless.data.formats.writing import ImageFiles, file_names, names_of
from rankless.data.formats.written import number, plain_boxes
from rankless.data.index.annotations import Annotations


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write a data set into the empty folder ``out``; returns what has no place in it, with counts.

    What is marked difficult or a crowd is left out: as a plain label it would be trained on.
    """
    lost: list[str] = []
    content: dict[str, str | list[str]] = {}
    for split, data in splits.items():
        folder = as_file_name(split)
        kept, sentences = plain_boxes(data, split)
        lost += sentences
        names = list(file_names(data))
        if rounded := _write_split(out, folder, data, kept, names):
            lost.append(f"{split}: {rounded} boxes begin within a millionth of a pixel of the edge: rounded")
        for index, name in enumerate(names):
            files.put(data, index, out / "images" / folder / name)
        content[folder] = f"images/{folder}"
        if names != sorted(names):  # a folder is read by name, and the order decides what forms a batch
            content[folder] = f"{folder}.txt"
            listed = "".join(f"./images/{folder}/{name}\n" for name in names)
            (out / f"{folder}.txt").write_text(listed, encoding="utf-8")
    content["names"] = list(names_of(splits))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return lost


def _write_split(
    out: Path, folder: str, data: Annotations, kept: NDArray[np.bool_], names: Sequence[str]
) -> int:
    """Write a label file for every image; returns how many boxes will not read back bit for bit."""
    place, rounded = out / "labels" / folder, 0
    place.mkdir(parents=True)
    for index, name in enumerate(names):
        rows = data.rows(index)
        boxes, labels = data.boxes[rows][kept[rows]], data.labels[rows][kept[rows]]
        height, width = data.sizes[index].tolist()
        shares, exact = _shares(boxes.astype(np.float64), width, height)
        rounded += int((~exact).sum())
        lines = (
            " ".join([str(label), *map(number, row)]) + "\n"
            for label, row in zip(labels.tolist(), shares.tolist(), strict=True)
        )
        (place / Path(name).with_suffix(".txt")).write_text("".join(lines), encoding="utf-8")
    return rounded


def _shares(
    boxes: NDArray[np.float64], width: int, height: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Centers and sizes in shares of the image, (N, 4), and which of them give back the same float32, (N,).

    At the left and the upper edge the center is exactly half the size, which gives back 0.
    """
    sides = np.array([width, height], np.float64)
    low, high = boxes[:, :2], boxes[:, 2:]
    size = (high - low) / sides
    center = (low + high) / 2 / sides
    back = np.concatenate((center - size / 2, center + size / 2), 1) * np.tile(sides, 2)
    exact = (back.clip(0, np.tile(sides, 2)).astype(np.float32) == boxes).all(1)
    return np.concatenate((center, size), 1), exact
