"""Find tar shards by their names, and the samples in them by the byte ranges of their members.

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
"""Files of class names beside the shards or at the start of the first shard. They are not samples."""
KINDS = ("cls", "json", "txt")
"""The extensions of labels, in order of precedence."""
_BLOCK = 512
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


_ONE = "train"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_AT_ONCE = 16  # concurrent requests to a server
_LOOK = 20  # number of samples to read to decide whether an archive is a shard
_NUMBERED = re.compile(r"(?:^|.*[-_.])\d{5,}$")


class Member(NamedTuple):
    """The name and byte range of a file in a shard."""

    name: str
    offset: int
    length: int


@dataclass
class Sample:
    """The members of a shard that have the same base name.

    Attributes:
        key: the base name.
        members: the members by lowercase extension, in the order of the shard.
    """

    key: str
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def image(self) -> Member | None:
        """The first member with an image extension. ``jpg`` takes precedence over ``mask.png``."""
        images = [each for each in self.members if image_file.is_image(f"x.{each}")]
        plain = [each for each in images if "." not in each]
        return self.members[(plain or images)[0]] if images else None


def samples(shard: str, findings: Findings) -> Iterator[Sample]:
    """Yield a shard's samples in order, as far as they can be read, and add errors to the findings."""
    try:
        with opened(shard) as ranges, io.BufferedReader(Window(ranges, 0, ranges.size)) as file:
            head = file.read(6)
            for magic, name in _PACKED.items():
                if head.startswith(magic):
                    problem = f"it is compressed with {name}, so single images cannot be read; decompress it"
                    findings.add("unreadable file", shard, problem)
                    return
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield from _grouped(_members(archive, file, ranges, shard, findings), shard, findings)
    except Exception as error:  # tarfile raises errors of many types for damaged headers, even MemoryError
        is_there = not (isinstance(error, OSError) and is_remote(shard))
        findings.add("unreadable file", shard, f"{'no tar archive: ' * is_there}{printable(_reason(error))}")


def first_member(shard: str) -> tuple[str, bytes]:
    """Return the name and content of a shard's first member if it lists class names, or empty values."""
    try:
        with (
            opened(shard) as ranges,
            io.BufferedReader(Window(ranges, 0, ranges.size)) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            info = archive.next()
            if info is None or not info.isreg() or _plain(info.name) not in NAMES_FILES:
                return "", b""
            if info.issparse() or info.size > reading.NAMES:  # sparse files may expand to terabytes
                return "", b""
            content = archive.extractfile(info)
            return _plain(info.name), content.read() if content else b""
    except Exception:  # as above; `samples` reports it
        return "", b""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _members(
    archive: tarfile.TarFile, file: BinaryIO, ranges: Ranged, shard: str, findings: Findings
) -> Iterator[tuple[str, str, Member]]:
    """Yield the (key, extension, member) of every file that belongs to a sample."""
    size, last = ranges.size, ""
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep a kilobyte per member
        name, last = _plain(info.name), info.name
        here = info.isreg() and not info.issparse()  # a sparse file's size is its expanded size
        if info.offset_data + (info.size if here else 0) > size:
            problem = f"cut short: its {size} bytes end inside the member '{printable(name)}'; copy it again"
            findings.add("unreadable file", shard, problem)
            return
        folder, slash, base = name.rpartition("/")
        key, _, ending = base.partition(".")
        if info.isdir() or name in NAMES_FILES:
            continue
        if not here:
            findings.add("left out", path_in(shard, name), "it is a link, a sparse or a special file")
        elif not key or not ending:
            findings.add("left out", path_in(shard, name), "its name has no base or no extension")
        else:
            yield f"{folder}{slash}{key}", ending.lower(), Member(name, info.offset_data, info.size)
    # tarfile mistakes a damaged header for the end of the archive.
    file.seek(archive.offset)
    block = file.read(_BLOCK)
    if block != bytes(_BLOCK):
        what = "damaged" if len(block) == _BLOCK else "cut short"
        after = f" after the member '{printable(last)}'" if last else ""
        problem = (
            f"{what}: no member and no end of the archive at byte {archive.offset}{after}; copy it again"
        )
        findings.add("unreadable file", shard, problem)


def _grouped(members: Iterator[tuple[str, str, Member]], shard: str, findings: Findings) -> Iterator[Sample]:
    """Group members into samples; report samples that are repeated or scattered."""
    has_image: dict[str, bool] = {}
    for key, group in groupby(members, itemgetter(0)):
        sample, path = Sample(key), path_in(shard, key)
        for _, ending, member in group:
            if ending in sample.members:
                findings.add("listed twice", path_in(shard, member.name), "the same member again")
            else:
                sample.members[ending] = member
        if key not in has_image:
            has_image[key] = sample.image is not None
            yield sample
        elif sample.image and has_image[key]:
            findings.add("listed twice", path, "an earlier sample has the same name")
        else:
            problem = "its members do not follow one another; make the archive with `tar --sort=name`"
            findings.add("not understood", path, problem)


def shards_of(root: Location) -> dict[str, list[Location]]:
    """Return the shards of each split, including compressed shards, sorted by name.

    A folder of shards is a split. For shards in ``root`` itself, the split is the name before the number.
    """
    shards: dict[str, list[Location]] = {}
    if not root.is_dir():
        return shards
    for entry in _sorted(root):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() if isinstance(entry, RemotePath) else reading.is_folder(entry):
            inside = [each for each in _sorted(entry) if _is_shard(each)]
            if inside:
                shards.setdefault(entry.name, []).extend(inside)
        elif _is_shard(entry):
            # train-000012 is of the split train, and so is a name that is only a number.
            split = re.sub(r"(?:^|[-_.])\d+(?:-of-\d+)?$", "", _stem(entry.name)) or _ONE
            shards.setdefault(split, []).append(entry)
    order = splits.usual_order({_last(name) for name in shards})
    return dict(sorted(shards.items(), key=lambda item: (order.index(_last(item[0])), item[0])))


def known_as(split: str, names: list[str]) -> str:
    """Return the name of the split that ``split`` refers to, such as ``imagenet-val`` for ``val``."""
    word = splits.known_as(split, [_last(name) for name in names])
    meant = [name for name in names if _last(name) == word]
    return meant[0] if split not in names and len(meant) == 1 else split


def is_compressed(shard: Location) -> bool:
    """Return whether a shard is compressed, according to its file name."""
    return shard.name.lower().endswith(_COMPRESSED)


def looks_like_shards(root: Location) -> Location | None:
    """Return the first archive that is a shard, according to its number or first samples, or None.

    Other archives do not count, because data sets often lie next to the archives they were unpacked from.
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
    """Return the class names and the file beside the shards that lists them, or "" if it is in a shard."""
    for folder in dict.fromkeys((shards[0].parent, root)):
        for name in NAMES_FILES:
            if (file := folder / name).is_file():
                try:
                    content = content_of(file, reading.NAMES)
                except OSError as error:
                    why = reading.reason(error)
                    raise UserError(f"{file}: {why}; expected a class name per line") from error
                if (names := _names_in(content, name, str(file))) is not None:
                    return names, str(file)
    name, content = first_member(str(shards[0]))
    return (_names_in(content, name, f"{shards[0]}, {name}") if name else None), ""


def _is_shard(path: Location) -> bool:
    return path.name.lower().endswith((".tar", *_COMPRESSED)) and path.is_file()


def _sorted(folder: Location) -> list[Location]:
    return sorted(folder.iterdir(), key=str)


def fingerprint(root: RemotePath) -> str:
    """Return a hash that changes if a shard or a file of class names changes."""
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
    """Return the class names in a file called ``name``, or None if it is JSON without class names."""
    try:
        text = content.decode("utf-8-sig")
        value = text.strip().splitlines() if name.endswith(".txt") else json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: {error}; expected a class name per line") from error
    if isinstance(value, dict):
        value = next((value[key] for key in ("classes", "class_names", "names") if key in value), None)
    elif not isinstance(value, list):
        return None
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        shown = printable(repr(value))
        raise UserError(f"{where}: its classes are {shown}; expected a class name per line")
    names = [each.strip() for each in value] if name.endswith(".txt") else value
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    problems = [f"{where}: the class name '{name}' appears twice; expected each once" for name in twice]
    if "" in names and "" not in twice:
        problems.append(f"{where}: line {names.index('') + 1} is empty; expected a class name")
    if problems or not names:
        raise UserError(problems or f"{where}: no class names; expected one per line")
    return names
