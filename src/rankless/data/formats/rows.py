"""Boxes gathered one by one into the arrays of a :class:`~rankless.data.index.raw.Raw`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.data.index.scan import file_sizes

NO_AREA = float("nan")


@dataclass
class Rows:
    """The boxes so far, 41 bytes for each; see :class:`Raw` for what they are."""

    image: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    areas: array[float] = field(default_factory=lambda: array("f"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.image)

    def add(
        self,
        image: int,
        box: Iterable[float],
        label: int,
        line: int,
        flags: int = 0,
        area: float = NO_AREA,
    ) -> None:
        """One box more.

        Raises:
            TypeError, OverflowError: ``box`` holds what is no number; nothing is added.
        """
        try:
            self.boxes.extend(box)
        except (TypeError, OverflowError):
            del self.boxes[4 * len(self.image) :]
            raise
        self.image.append(image)
        self.labels.append(label)
        self.flags.append(flags)
        self.areas.append(area)
        self.lines.append(line)

    def raw(
        self,
        paths: list[str],
        places: Sequence[str],
        names: Sequence[str],
        stated: Sequence[tuple[int, int]] | None = None,
        depends: Iterable[str] = (),
        findings: Findings | None = None,
        about: Iterable[str] = (),
    ) -> Raw:
        """All of them as one split of boxed images, whose headers are read for their sizes."""
        sizes, found = file_sizes(paths)
        found.update(findings or Findings())
        return Raw(
            paths=paths,
            sizes=sizes,
            stated=np.array(stated, np.int32).reshape(-1, 2) if stated else np.zeros_like(sizes),
            places=places,
            image=np.array(self.image, np.int64),
            boxes=np.array(self.boxes, np.float64).reshape(-1, 4),
            labels=np.array(self.labels, np.int64),
            flags=np.array(self.flags, np.uint8),
            areas=np.array(self.areas, np.float32),
            lines=np.array(self.lines, np.int64),
            names=names,
            depends=list(dict.fromkeys(depends)),
            findings=found,
            about=list(about),
        )
