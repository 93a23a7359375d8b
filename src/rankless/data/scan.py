"""Work on every file of a data set, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.data import pictures
from rankless.data.findings import Findings
from rankless.data.formats.raw import Raw, joined


def scan(work: Callable[[list[tuple[str, ...]]], Raw], items: Sequence[tuple[str, ...]], what: str) -> Raw:
    """``work`` on all items, joined in their order.

    Args:
        work: a function of a module's top level: from some items to their part of the split.
        items: files that belong together, such as (picture, label file); one item is one picture.
        what: several of them, for the bar: ``pictures``.
    """
    return joined([work(list(items))])


def headers(files: Sequence[str]) -> tuple[NDArray[np.int32], Findings]:
    """Height and width of upright pictures from their headers, (N, 2); unreadable ones are 0, 0 and found."""
    sizes, findings = np.zeros((len(files), 2), np.int32), Findings()
    for number, file in enumerate(files):
        try:
            sizes[number] = pictures.size(file)
        except pictures.UnreadablePicture as error:
            findings.add("unreadable picture", file, error.reason)
    return sizes, findings


def file_sizes(files: Sequence[str]) -> tuple[NDArray[np.int32], Findings]:
    """:func:`headers` of any number of files, for formats that keep everything in one file."""
    raw = scan(_headers_only, [(file,) for file in files], "pictures")
    return raw.sizes, raw.findings


def _headers_only(items: list[tuple[str, ...]]) -> Raw:
    sizes, findings = headers([file for (file,) in items])
    none: Any = np.zeros(0, np.int64)
    return Raw(
        paths=[file for (file,) in items],
        sizes=sizes,
        stated=np.zeros_like(sizes),
        places=[""] * len(items),
        picture=none,
        boxes=np.zeros((0, 4)),
        labels=none,
        flags=none.astype(np.uint8),
        areas=none.astype(np.float32),
        lines=none,
        findings=findings,
    )
