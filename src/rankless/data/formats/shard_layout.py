"""Which shards a folder has, which split each is of, and what the classes are called."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

from rankless.data.formats import splits
from rankless.data.formats.shard_labels import KINDS
from rankless.data.formats.shard_members import NAMES_FILES, first_member, samples
from rankless.data.index.findings import Findings
from rankless.errors import UserError, printable
from rankless.files import reading

_ORDER = ("train", "val", "valid", "validation", "test")
_ONE = "train"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_LOOK = 20  # samples at the head of an archive, by which it is told from any other
_NUMBERED = re.compile(r"(?:^|.*[-_.])\d{5,}$")


def shards_of(root: Path) -> dict[str, list[Path]]:
    """Split to shards, sorted by name; compressed ones are among them.

    A folder of shards is a split. Of shards in ``root`` itself the split is the name before the number.
    """
    found: dict[str, list[Path]] = {}
    if not root.is_dir():
        return found
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if reading.is_folder(entry):
            inside = [each for each in sorted(entry.iterdir()) if _is_shard(each)]
            if inside:
                found.setdefault(entry.name, []).extend(inside)
        elif _is_shard(entry):
            found.setdefault(_split_of(_stem(entry.name)), []).append(entry)
    known = {name: place for place, name in enumerate(_ORDER)}
    return dict(sorted(found.items(), key=lambda item: (known.get(_last(item[0]), len(known)), item[0])))


def known_as(split: str, names: list[str]) -> str:
    """The split that is meant: ``val`` may be ``valid`` or ``imagenet-val``, if there is but one such."""
    word = splits.known_as(split, [_last(name) for name in names])
    meant = [name for name in names if _last(name) == word]
    return meant[0] if split not in names and len(meant) == 1 else split


def is_compressed(shard: Path) -> bool:
    """Whether it is a compressed archive, by its name."""
    return shard.name.lower().endswith(_COMPRESSED)


def looks_like_shards(root: Path) -> Path | None:
    """The first archive that is a shard, by its number or by the samples at its head.

    Data sets lie beside the archives they were unpacked from: an archive alone says nothing.
    """
    for shards in shards_of(root).values():
        first = shards[0]
        if _NUMBERED.match(_stem(first.name)):
            return first
        head = [] if is_compressed(first) else islice(samples(str(first), Findings()), _LOOK)
        if any(each.image and set(KINDS) & set(each.members) for each in head):
            return first
    return None


def class_names(root: Path, shards: list[Path]) -> tuple[list[str] | None, str]:
    """The class names beside the shards or at the head of the first, and the file they come from.

    Raises:
        UserError: they are not understood, or two are the same.
    """
    for folder in dict.fromkeys((shards[0].parent, root)):
        for name in NAMES_FILES:
            if (folder / name).is_file():
                try:
                    names = _parsed(reading.read_bytes(folder / name, reading.NAMES), name)
                except (OSError, ValueError) as error:
                    why = reading.reason(error) if isinstance(error, OSError) else error
                    raise UserError(f"{folder / name}: {why}, expected a class name per line.") from error
                if names is not None:
                    return _checked(names, str(folder / name)), str(folder / name)
    name, content = first_member(str(shards[0]))
    if not name:
        return None, ""
    try:
        names = _parsed(content, name)
    except ValueError as error:
        raise UserError(f"{shards[0]}, member {name}: {error}, expected a class name per line.") from error
    return (None, "") if names is None else (_checked(names, f"{shards[0]}, {name}"), "")


def _is_shard(path: Path) -> bool:
    return path.name.lower().endswith((".tar", *_COMPRESSED)) and path.is_file()


def _stem(name: str) -> str:
    ending = next(each for each in (*_COMPRESSED, ".tar") if name.lower().endswith(each))
    return name[: -len(ending)]


def _split_of(stem: str) -> str:
    """``train`` of ``train-000012``; numbers alone are of one split."""
    return re.sub(r"(?:^|[-_.])\d+(?:-of-\d+)?$", "", stem) or _ONE


def _last(split: str) -> str:
    return re.split(r"[-_.]", split)[-1]


def _parsed(content: bytes, name: str) -> list[str] | None:
    text = content.decode("utf-8-sig")
    if name.endswith(".txt"):
        return [line.strip() for line in text.strip().splitlines()]
    value = json.loads(text)
    names = value if isinstance(value, list) else None
    if isinstance(value, dict):
        names = next((value[key] for key in ("classes", "class_names", "names") if key in value), None)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"its classes are {printable(repr(names))}")
    return names


def _checked(names: list[str], where: str) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    faults = [f"{where}: the class name '{name}' is there twice: give each its own." for name in twice]
    if "" in names and "" not in twice:
        faults.append(f"{where}: line {names.index('') + 1} is empty, expected a class name.")
    if faults or not names:
        raise UserError(faults or f"{where}: no class names, expected one per line.")
    return names
