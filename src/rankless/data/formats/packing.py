"""Pack a data set into tar shards: a few large files for sequential or random access.

The images' bytes and order do not change, so training on the shards gives the same weights.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from rankless.data.formats.writing import file_names
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import UserError
from rankless.files.work_folder import new_folder
from rankless.printing import ProgressBar

SHARD_BYTES = 512 * 1024**2  # maximum size of a shard, unless a single image is larger
_JPEG = {"jpeg": "jpg", "jfif": "jpg"}  # webdataset's decoders know only jpg


def pack(splits: Mapping[str, Annotations], out: Path, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write shards such as ``SPLIT-000000.tar`` and a file with the class names; return the shards' names.

    The same data always gives the same bytes. Either all splits or none must have boxes. ``shard_bytes`` is
    the maximum size of a shard.
    """
    if len({annotations.has_boxes for annotations in splits.values()}) > 1:
        raise UserError("some splits have boxes, but others have one class per image; pack them separately")
    with new_folder(out) as made:
        names = list(dict.fromkeys(name for each in splits.values() for name in each.class_names))
        if all(name and name == name.strip() and len(name.splitlines()) == 1 for name in names):
            (made / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        else:
            (made / "info.json").write_text(json.dumps({"classes": names}), encoding="utf-8")
        shards = []
        with ProgressBar(sum(map(len, splits.values())), "packing images") as bar:
            for split, annotations in splits.items():
                shards += _write_split(made, split, annotations, names, shard_bytes, bar)
    return shards


def _write_split(
    folder: Path,
    split: str,
    annotations: Annotations,
    names: Sequence[str],
    shard_bytes: int,
    bar: ProgressBar,
) -> list[str]:
    numbers = [names.index(name) for name in annotations.class_names]
    shards: list[str] = []
    file: io.BufferedWriter | None = None
    try:
        for index, key in enumerate(_keys(annotations)):
            sample = _sample(annotations, index, numbers)
            blocks = b"".join(_blocks(f"{key}.{ending}", body) for ending, body in sample)
            if file is None or (
                file.tell() and file.tell() + len(blocks) + 2 * tarfile.BLOCKSIZE > shard_bytes
            ):
                if file is not None:
                    _finish(file)
                shards.append(f"{split.replace('/', '-')}-{len(shards):06}.tar")
                file = (folder / shards[-1]).open("wb")
            file.write(blocks)
            bar.advance()
        if file is not None:
            _finish(file)
    finally:
        if file is not None:
            file.close()
    return shards


def _finish(file: io.BufferedWriter) -> None:
    """Write the end-of-archive marker, and flush the archive to disk before its folder is renamed."""
    file.write(bytes(2 * tarfile.BLOCKSIZE))
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _blocks(name: str, body: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(body), 0o644
    return info.tobuf(tarfile.PAX_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE)


def _keys(annotations: Annotations) -> Iterator[str]:
    taken: set[str] = set()
    for name in file_names(annotations):
        stem = PurePosixPath(name).stem.replace(".", "_").strip("_") or "image"
        key, more = stem, 1
        while key in taken:
            more += 1
            key = f"{stem}_{more}"
        taken.add(key)
        yield key


def _sample(annotations: Annotations, index: int, numbers: Sequence[int]) -> list[tuple[str, bytes]]:
    ending = PurePosixPath(annotations.path(index)).suffix.lower().removeprefix(".")
    image = (_JPEG.get(ending, ending), content(annotations, index))
    if not annotations.has_boxes:
        return [image, ("cls", str(numbers[int(annotations.labels[index])]).encode())]
    rows = annotations.rows(index)
    height, width = annotations.sizes[index].tolist()
    areas = [None if area != area else area for area in annotations.areas[rows].tolist()]
    label = {
        "width": width,
        "height": height,
        "boxes": annotations.boxes[rows].tolist(),  # float64 values that convert back to the same float32
        "labels": [numbers[label] for label in annotations.labels[rows].tolist()],
    }
    if annotations.flags[rows].any():
        label["flags"] = annotations.flags[rows].tolist()
    if any(area is not None for area in areas):
        label["areas"] = areas
    return [image, ("json", json.dumps(label).encode())]
