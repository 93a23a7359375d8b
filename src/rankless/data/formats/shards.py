"""Find tar shards and their samples, with the byte range of each file in a sample.

A sample consists of consecutive members with the same base name, which ends at the first dot of the file
name. As in the package webdataset, ``a/0001.jpg`` and ``a/0001.json`` form the sample ``a/0001`` with the
extensions ``jpg`` and ``json``.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import BinaryIO, NamedTuple

from rankless.data.formats import splits
from rankless.data.images import image_file
from rankless.data.index.byte_ranges import Ranged, Window, opened, path_in
from rankless.data.index.findings import Findings
from rankless.errors import UserError, printable
from rankless.files import reading
from rankless.files.remote import Location, RemotePath, content_of, is_remote, state_of

NAMES_FILES = ("classes.txt", "classnames.txt", "info.json", "_info.json")
"""Files with class names, next to the shards or at the start of the first shard."""
KINDS = ("cls", "json", "txt")  # extensions of labels, in order of precedence
_BLOCK = 512
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}
_ONE = "train"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_AT_ONCE = 16  # number of concurrent requests to a server
_LOOK = 20  # number of samples to examine to decide whether an archive is a shard
_NUMBERED = re.compile(r"(?:^|.*[-_.])\d{5,}$")


class Member(NamedTuple):
    """The name and byte range of a file in a shard."""

    name: str
    offset: int
    length: int


@dataclass
class Sample:
    """The members of a shard with the same base name, keyed by their lowercase extensions."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def image(self) -> Member | None:
        """First member with an image extension. ``jpg`` takes precedence over ``mask.png``."""
        images = [each for each in self.members if image_file.is_image(f"x.{each}")]
        plain = [each for each in images if "." not in each]
        return self.members[(plain or images)[0]] if images else None


def samples(shard: str, findings: Findings) -> Iterator[Sample]:
    """Yield the samples of a shard in order until an error occurs, and add errors to ``findings``."""
    try:
        with opened(shard) as ranges, io.BufferedReader(Window(ranges, 0, ranges.size)) as file:
            head = file.read(6)
            for magic, name in _PACKED.items():
                if head.startswith(magic):
                    problem = f"compressed with {name}, so single images cannot be read; decompress the shard"
                    findings.add("unreadable file", shard, problem)
                    return
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield from _grouped(_members(archive, file, ranges, shard, findings), shard, findings)
    except Exception as error:  # tarfile raises many types of errors for damaged headers, even MemoryError
        is_there = not (isinstance(error, OSError) and is_remote(shard))
        not_tar = "not a tar archive: " if is_there else ""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        findings.add("unreadable file", shard, f"{not_tar}{printable(reason)}")


def first_member(shard: str) -> tuple[str, bytes]:
    """Return the name and bytes of a shard's first file if it lists class names, otherwise empty values."""
    try:
        with (
            opened(shard) as ranges,
            io.BufferedReader(Window(ranges, 0, ranges.size)) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            info = archive.next()
            if info is None or not info.isreg() or _plain(info.name) not in NAMES_FILES:
                return "", b""
            if info.issparse() or info.size > reading.NAMES:  # a sparse file may expand to terabytes
                return "", b""
            content = archive.extractfile(info)
            return _plain(info.name), content.read() if content else b""
    except Exception:  # `samples` reports the error
        return "", b""


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _members(
    archive: tarfile.TarFile, file: BinaryIO, ranges: Ranged, shard: str, findings: Findings
) -> Iterator[tuple[str, str, Member]]:
    size, last = ranges.size, ""
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # saves a kilobyte per member
        name, last = _plain(info.name), info.name
        here = info.isreg() and not info.issparse()  # the size of a sparse file is its expanded size
        if info.offset_data + (info.size if here else 0) > size:
            problem = f"truncated after {size} bytes in the member '{printable(name)}'; copy the shard again"
            findings.add("unreadable file", shard, problem)
            return
        folder, slash, base = name.rpartition("/")
        key, _, ending = base.partition(".")
        if info.isdir() or name in NAMES_FILES:
            continue
        if not here:
            findings.add("left out", path_in(shard, name), "a link, a sparse file or a special file")
        elif not key or not ending:
            findings.add("left out", path_in(shard, name), "the name has no base or no extension")
        else:
            yield f"{folder}{slash}{key}", ending.lower(), Member(name, info.offset_data, info.size)
    # tarfile treats a damaged header as the end of the archive.
    file.seek(archive.offset)
    block = file.read(_BLOCK)
    if block != bytes(_BLOCK):
        what = "damaged" if len(block) == _BLOCK else "truncated"
        after = f" after the member '{printable(last)}'" if last else ""
        problem = f"{what} at byte {archive.offset}{after}; copy the shard again"
        findings.add("unreadable file", shard, problem)


def _grouped(members: Iterator[tuple[str, str, Member]], shard: str, findings: Findings) -> Iterator[Sample]:
    """Group consecutive members into samples; report samples that are repeated or not consecutive."""
    has_image: dict[str, bool] = {}
    for key, group in groupby(members, itemgetter(0)):
        sample, path = Sample(key), path_in(shard, key)
        for _, ending, member in group:
            if ending in sample.members:
                findings.add("listed twice", path_in(shard, member.name), "the member is repeated")
            else:
                sample.members[ending] = member
        if key not in has_image:
            has_image[key] = sample.image is not None
            yield sample
        elif sample.image and has_image[key]:
            findings.add("listed twice", path, "an earlier sample has the same name")
        else:
            problem = "the members are not consecutive; create the archive with `tar --sort=name`"
            findings.add("not understood", path, problem)


def shards_of(root: Location) -> dict[str, list[Location]]:
    """Return the shards of each split, sorted by name, including compressed shards.

    The split of a shard is the name of its folder or, for shards in ``root``, the file name before the
    number.
    """
    shards: dict[str, list[Location]] = {}
    if not root.is_dir():
        return shards
    for entry in _sorted(root):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() if isinstance(entry, RemotePath) else reading.is_folder(entry):
            if inside := [each for each in _sorted(entry) if _is_shard(each)]:
                shards.setdefault(entry.name, []).extend(inside)
        elif _is_shard(entry):
            # The split of train-000012 is train. A name that is only a number also means train.
            split = re.sub(r"(?:^|[-_.])\d+(?:-of-\d+)?$", "", _stem(entry.name)) or _ONE
            shards.setdefault(split, []).append(entry)
    order = splits.usual_order({_last(name) for name in shards})
    return dict(sorted(shards.items(), key=lambda item: (order.index(_last(item[0])), item[0])))


def known_as(split: str, names: list[str]) -> str:
    """Return the split in ``names`` that ``split`` refers to, such as ``imagenet-val`` for ``val``."""
    word = splits.known_as(split, [_last(name) for name in names])
    meant = [name for name in names if _last(name) == word]
    return meant[0] if split not in names and len(meant) == 1 else split


def is_compressed(shard: Location) -> bool:
    """Return whether the file name of a shard has the extension of a compressed archive."""
    return shard.name.lower().endswith(_COMPRESSED)


def looks_like_shards(root: Location) -> Location | None:
    """Return the first archive with the name or the samples of a shard, or None.

    Other archives are ignored, because data sets are often next to the archives that they came in.
    """
    for shards in shards_of(root).values():
        first = shards[0]
        if _NUMBERED.match(_stem(first.name)):
            return first
        head = [] if is_compressed(first) else islice(samples(str(first), Findings()), _LOOK)
        if any(each.image and set(KINDS) & set(each.members) for each in head):
            return first
    return None


def class_names(root: Location, shards: list[Location]) -> tuple[list[str] | None, str]:
    """Return the class names (None if there are none) and the path of their file ("" inside a shard)."""
    for folder in dict.fromkeys((shards[0].parent, root)):
        for name in NAMES_FILES:
            if (file := folder / name).is_file():
                try:
                    content = content_of(file, reading.NAMES)
                except OSError as error:
                    why = reading.reason(error)
                    raise UserError(f"{file}: {why}; expected one class name per line") from error
                if (names := _names_in(content, name, str(file))) is not None:
                    return names, str(file)
    name, content = first_member(str(shards[0]))
    return (_names_in(content, name, f"{shards[0]}, {name}") if name else None), ""


def _is_shard(path: Location) -> bool:
    return path.name.lower().endswith((".tar", *_COMPRESSED)) and path.is_file()


def _sorted(folder: Location) -> list[Location]:
    return sorted(folder.iterdir(), key=str)


def fingerprint(root: RemotePath) -> str:
    """Return a hash that changes if a shard or a file with class names changes."""
    entries = list(root.iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    entries += [inside for folder in folders for inside in folder.iterdir()]
    asked = sorted(str(each) for each in entries if _is_shard(each) or each.name in NAMES_FILES)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tags = [state.tag for state in pool.map(state_of, asked)]
    return hashlib.blake2b(repr(list(zip(asked, tags, strict=True))).encode(), digest_size=16).hexdigest()


def _stem(name: str) -> str:
    ending = next(each for each in (*_COMPRESSED, ".tar") if name.lower().endswith(each))
    return name[: -len(ending)]


def _last(split: str) -> str:
    return re.split(r"[-_.]", split)[-1]


def _names_in(content: bytes, name: str, where: str) -> list[str] | None:
    """Return the class names in a text or JSON file, or None if the JSON has no class names."""
    try:
        text = content.decode("utf-8-sig")
        value = text.strip().splitlines() if name.endswith(".txt") else json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: {error}; expected one class name per line") from error
    if isinstance(value, dict):
        value = next((value[key] for key in ("classes", "class_names", "names") if key in value), None)
    elif not isinstance(value, list):
        return None
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        shown = printable(repr(value))
        raise UserError(f"{where}: the classes are {shown}; expected a list of class names")
    names = [each.strip() for each in value] if name.endswith(".txt") else value
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    problems = [f"{where}: the class name '{name}' is repeated; expected distinct names" for name in twice]
    if "" in names and "" not in twice:
        problems.append(f"{where}: line {names.index('') + 1} is empty; expected a class name")
    if problems or not names:
        raise UserError(problems or f"{where}: no class names found; expected one class name per line")
    return names
