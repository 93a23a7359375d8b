"""Base class for readers of files that list images by name: COCO, CSV and annotation lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankless.data.formats.folders import ImageSearch
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_sizes
from rankless.errors import UserError, printable


@dataclass
class ListedImages:
    """Base class for readers of one annotation file.

    Attributes:
        file: the annotation file.
        search: finds the images.
        made: images and boxes read so far.
        numbers: maps an image's path to its number.
        missing: name of the first missing image.
    """

    file: Path
    search: ImageSearch
    made: RawBuilder = field(default_factory=RawBuilder)
    numbers: dict[str, int] = field(default_factory=dict)
    missing: str = ""

    def report(self, kind: str, where: str, problem: str = "") -> None:
        """Add a finding; ``where`` follows the file's name, as in ``:3`` or ``: annotation 7``."""
        self.made.findings.add(kind, f"{self.file}{where}", problem)

    def locate(self, name: str, where: str) -> str:
        """Return the path of the image listed as ``name``; report it and return "" if it is missing."""
        path = self.search.find(name)
        if not path:
            self.missing = self.missing or name
            self.report("no image", where, f"no file '{printable(name)}'")
        return path

    def image(self, path: str, stated: tuple[int, int] = (0, 0)) -> int:
        """Return the number of the image at ``path``; add the image if it is new."""
        if path not in self.numbers:
            self.numbers[path] = self.made.add_image(path, str(self.file), stated)
        return self.numbers[path]

    def raw(
        self, names: Sequence[str], depends: Iterable[str], about: Iterable[str], nothing: str, **rest: Any
    ) -> Raw:
        """Return the split, with image sizes read from the image headers.

        Args:
            names: class names.
            depends: files and folders that were read, except those of the search.
            about: sentences about how the split was read.
            nothing: the error message if the file lists no image.
            rest: see :meth:`RawBuilder.raw`.
        """
        if not self.made.paths:
            looked = ", ".join(self.search.bases[:4])
            what = f"none of its images exists; the first: '{printable(self.missing)}'; looked in {looked}"
            raise UserError(f"{self.file}: {what if self.missing else nothing}")
        raw = self.made.raw(names=names, depends=list(dict.fromkeys([*depends, *self.search.listed])), **rest)
        raw.about = [*about, *self.search.notes()]
        return with_sizes(raw)
