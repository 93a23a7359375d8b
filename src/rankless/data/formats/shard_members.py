"""What lies in a tar shard: samples, and where each of their members begins.

A sample is a run of members of one base name, which goes up to the first dot of the name's last part:
``a/0001.jpg`` and ``a/0001.json`` are the sample ``a/0001`` with the endings ``jpg`` and ``json``, as in the
package webdataset.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from rankless.data.images import image_file
from rankless.data.index.byte_ranges import path_in
from rankless.data.index.findings import Findings
from rankless.errors import printable
from rankless.files import reading

NAMES_FILES = ("classes.txt", "classnames.txt", "info.json", "_info.json")
"""Files of class names, beside the shards or at the head of the first; no samples."""
_BLOCK = 512
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


class Member(NamedTuple):
    """A file in a shard: its name, and its place in bytes."""

    name: str
    offset: int
    length: int


@dataclass
class Sample:
    """Members of one base name.

    Attributes:
        key: the base name.
        members: by ending, in lower case, in their order.
    """

    key: str
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def image(self) -> Member | None:
        """The first that is one by its ending; ``jpg`` goes before ``mask.png``."""
        found = [each for each in self.members if image_file.is_image(f"x.{each}")]
        plain = [each for each in found if "." not in each]
        return self.members[(plain or found)[0]] if found else None


def samples(shard: str, findings: Findings) -> Iterator[Sample]:
    """The samples of a shard in their order, as far as it can be read; what is wrong is added to findings."""
    try:
        with io.BufferedReader(reading.opened(shard)) as file:
            head = file.read(6)
            for magic, name in _PACKED.items():
                if head.startswith(magic):
                    found = f"it is compressed with {name}, so no image can be read alone: decompress it"
                    findings.add("unreadable file", shard, found)
                    return
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield from _grouped(_members(archive, file, shard, findings), shard, findings)
    except Exception as error:  # of damaged headers tarfile raises anything, from ValueError to MemoryError
        findings.add("unreadable file", shard, f"no tar archive: {printable(_reason(error))}")


def first_member(shard: str) -> tuple[str, bytes]:
    """Name and content of a shard's first member, if it is a file of class names; else nothing."""
    try:
        with (
            io.BufferedReader(reading.opened(shard)) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            info = archive.next()
            if info is None or not info.isreg() or _plain(info.name) not in NAMES_FILES:
                return "", b""
            if info.issparse() or info.size > reading.NAMES:  # a few bytes may stand for terabytes of zeros
                return "", b""
            content = archive.extractfile(info)
            return _plain(info.name), content.read() if content else b""
    except Exception:  # see above; whoever reads the samples tells it
        return "", b""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _members(
    archive: tarfile.TarFile, file: BinaryIO, shard: str, findings: Findings
) -> Iterator[tuple[str, str, Member]]:
    """(key, ending, member) of every file that is part of a sample."""
    size, last = os.fstat(file.fileno()).st_size, ""
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep a kilobyte for each
        name, last = _plain(info.name), info.name
        here = info.isreg() and not info.issparse()  # the size of a sparse one is that of what it stands for
        if info.offset_data + (info.size if here else 0) > size:
            found = f"cut short: its {size} bytes end inside the member '{printable(name)}': copy it again"
            findings.add("unreadable file", shard, found)
            return
        folder, slash, base = name.rpartition("/")
        key, _, ending = base.partition(".")
        if info.isdir() or name in NAMES_FILES:
            continue
        if not here:
            findings.add("left out", path_in(shard, name), "it is a link, a sparse or a special file")
        elif not key or not ending:
            findings.add("left out", path_in(shard, name), "its name has no base or no ending")
        else:
            yield f"{folder}{slash}{key}", ending.lower(), Member(name, info.offset_data, info.size)
    # tarfile takes a damaged header for the end.
    file.seek(archive.offset)
    block = file.read(_BLOCK)
    if block != bytes(_BLOCK):
        what = "damaged" if len(block) == _BLOCK else "cut short"
        after = f" after the member '{printable(last)}'" if last else ""
        found = f"{what}: no member and no end of the archive at byte {archive.offset}{after}: copy it again"
        findings.add("unreadable file", shard, found)


def _grouped(members: Iterator[tuple[str, str, Member]], shard: str, findings: Findings) -> Iterator[Sample]:
    sample, seen = Sample(""), dict[str, bool]()
    for key, ending, member in members:
        if key != sample.key:
            if _is_new(sample, seen, shard, findings):
                yield sample
            sample = Sample(key)
        if ending in sample.members:
            findings.add("listed twice", path_in(shard, member.name), "the same member once more")
        else:
            sample.members[ending] = member
    if _is_new(sample, seen, shard, findings):
        yield sample


def _is_new(sample: Sample, seen: dict[str, bool], shard: str, findings: Findings) -> bool:
    """Whether a finished sample is one of its own, and not a part of, or the same as, one before."""
    if not sample.members:
        return False
    has = sample.image is not None
    if sample.key not in seen:
        seen[sample.key] = has
        return True
    place = path_in(shard, sample.key)
    if has and seen[sample.key]:
        findings.add("listed twice", place, "another sample of this name comes before it")
    else:
        found = "its members do not follow one another; make the archive with `tar --sort=name`"
        findings.add("not understood", place, found)
    return False
