"""Which label file belongs to which image, and which belongs to none.

Every folder is listed once, so a million files in one folder cost two listings and no question per file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankless.data.formats.folders import Names, composed
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.findings import Findings

# What lies beside labels and is none: class names, lists of images, notes.
_OTHERS = {"classes", "labels", "license", "list", "readme", "test", "train", "trainval", "val", "valid"}


@dataclass
class Paired:
    """Images and their label files.

    Attributes:
        items: image and label file, the latter empty where there is none; (N,).
        expected: where the first missing label file was looked for.
        folders: every folder that was listed, there or not.
        findings: label files without an image.
    """

    items: list[tuple[str, str]] = field(default_factory=list)
    expected: str = ""
    folders: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)


def label_folders(folder: str) -> list[str]:
    """Where labels of the images in ``folder`` may lie, the likeliest first.

    The last folder ``images`` becomes ``labels``, or else the last ``JPEGImages``, as Darknet itself does;
    without either they lie beside the images.
    """
    parts = folder.split("/")
    found = []
    for name in ("images", "JPEGImages"):
        if name in parts:
            last = len(parts) - 1 - parts[::-1].index(name)
            found.append("/".join([*parts[:last], "labels", *parts[last + 1 :]]))
    return [*found, folder]


def paired(samples: Sequence[str]) -> Paired:
    """The label file of every image, whichever of :func:`label_folders` has it."""
    made = Paired()
    places: dict[str, list[Names]] = {}
    for image in samples:
        folder, name = image.rsplit("/", 1)
        if folder not in places:
            places[folder] = _label_names(folder, made)
        stem = os.path.splitext(name)[0]  # noqa: PTH122 - Path takes ten times as long, a million times
        label = next((found for names in places[folder] if (found := names.find(stem))), "")
        if not label and not made.expected:
            made.expected = f"{places[folder][0].folder}/{stem}.txt"
        made.items.append((image, label))
    return made


def _label_names(folder: str, made: Paired) -> list[Names]:
    """The listings of one folder's labels; tells those whose image is missing."""
    names = [Names(place, {".txt"}) for place in label_folders(folder)]
    made.folders += [folder, *(each.folder for each in names)]
    known = {composed(stem) for stem in Names(folder, EXTENSIONS).files}
    for each in names:
        if each.folder == folder and len(names) > 1:
            continue
        for stem, file in each.files.items():
            if composed(stem) not in known and stem.lower() not in _OTHERS:
                made.findings.add("label without image", f"{each.folder}/{file}")
    return names
