"""Tar shards in the conventions of the package webdataset.

``train-000000.tar`` holds images, and beside each its label: ``0001.jpg`` and ``0001.cls`` (the number or
name of its class), or ``0001.json`` or ``0001.txt`` (its boxes). Shards are indexed once; then every image
is read alone, by its place in its shard, so the order of training is drawn as of any other data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankless.data.formats import packing, shard_layout
from rankless.data.formats.shard_index import index
from rankless.data.formats.shard_labels import KINDS, is_number
from rankless.data.formats.shard_members import samples
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.data.index.scan import scan
from rankless.errors import UserError, listed

TITLE = "tar shards (WebDataset)"
LAYOUT = "'train-000000.tar' and so on, or a folder of tar files per split, with images and '.cls' or '.json'"
_MUCH = 1024**3  # bytes; reading less at once takes no longer than to start other processes


def recognize(root: Path) -> str:
    """Why ``root`` holds shards; empty if not."""
    first = shard_layout.looks_like_shards(root)
    return f"it has tar shards such as '{first.relative_to(root)}'" if first else ""


def splits(root: Path) -> list[str]:
    """By the names of shards or of folders of shards."""
    return list(shard_layout.shards_of(root))


def read(root: Path, split: str) -> Raw:
    """One split: shards by name, in each the members' order.

    Raises:
        UserError: no such split, compressed shards, or no image with a label.
    """
    found = shard_layout.shards_of(root)
    split = shard_layout.known_as(split, list(found))
    if split not in found:
        there = f"it has {listed(list(found))}: name one of these" if found else f"expected {LAYOUT}"
        raise UserError(f"{root} has no shards of a split '{split}'; {there}.")
    shards = found[split]
    _refuse(root, split, shards)
    names, names_file = shard_layout.class_names(root, shards)
    kind = _kind(shards)
    raw = _scanned(shards, kind, names)
    if not raw.paths:
        raise UserError([*map(str, _first(raw.findings)), f"{root}: the split '{split}' has no images."])
    others: list[list[Path]] = []
    if names is None:
        if kind != "cls":  # a class of an image has a name in every split; boxes need one numbering
            others = [each for name, each in found.items() if name != split]
            others = [each for each in others if not any(map(shard_layout.is_compressed, each))]
        _name(raw, [_scanned(each, kind, None).names for each in others])
    scanned = [shard for each in (shards, *others) for shard in each]
    folders = dict.fromkeys(str(place) for shard in scanned for place in (root, shard.parent))
    raw.depends = [*folders, *([names_file] if names_file else []), *map(str, scanned)]
    return raw


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """See :func:`rankless.data.formats.packing.pack`; images are always copied."""
    packing.pack(splits, out)
    return []


def _refuse(root: Path, split: str, shards: list[Path]) -> None:
    packed = [shard.name for shard in shards if shard_layout.is_compressed(shard)]
    if packed:
        raise UserError(
            f"{root}: {len(packed)} shards are compressed ({listed(packed)}), so no image can be read "
            "alone: decompress them; images are compressed already."
        )
    if len({shard.parent for shard in shards}) > 1:
        raise UserError(
            f"{root}: the split '{split}' is both a folder of shards and shards by its name: move one away."
        )


def _kind(shards: list[Path]) -> str:
    """How the split is labeled: as the first sample with a label is."""
    findings = Findings()
    for shard in shards:
        for sample in samples(str(shard), findings):
            if sample.image and (here := [kind for kind in KINDS if kind in sample.members]):
                return here[0]
    raise UserError(
        [
            *map(str, _first(findings)),
            f"{shards[0]}: no image with a label; expected members of one name such as '0001.jpg' and "
            "'0001.cls' (a class), or '0001.json' or '0001.txt' (boxes), one after another.",
        ]
    )


def _first(findings: Findings) -> list[object]:
    return [one for _, _, first in findings for one in first[:3]]


def _scanned(shards: list[Path], kind: str, names: list[str] | None) -> Raw:
    much = sum(shard.stat().st_size for shard in shards) > _MUCH
    items = [(str(shard), kind, json.dumps(names)) for shard in shards]
    return scan(index, items, "shards", chunk=1 if much else len(items))


def _name(raw: Raw, others: list[Sequence[str]]) -> None:
    """Number classes that nothing names: numbers are their own names, names are sorted."""
    names = sorted({name for each in (raw.names, *others) for name in each})
    if all(map(is_number, names)):
        names = [str(number) for number in range(max(map(int, names), default=-1) + 1)]
    places = {name: number for number, name in enumerate(names)}
    raw.labels = np.array([places[name] for name in raw.names], np.int64)[raw.labels]
    raw.names = names
