"""What COCO's JSON holds, decoded entry by entry: a file of 600 MB never becomes a tree of Python objects.

msgspec splits the lists into entries without decoding them. What it refuses (NaN, which JSON does not have
but many programs write) goes through the standard library, which is slower but knows it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rankless.errors import UserError, printable
from rankless.files import reading

EXPECTED = "expected an object with 'images', 'annotations' and 'categories'"
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Image(msgspec.Struct, gc=False):
    """An entry of ``images``; what its fields hold is not checked."""

    id: Any = None
    file_name: Any = None
    width: Any = None
    height: Any = None


class Annotation(msgspec.Struct, gc=False):
    """An entry of ``annotations``. ``segmentation`` is not decoded yet, see :func:`decoded`."""

    id: Any = None
    image_id: Any = None
    category_id: Any = None
    bbox: Any = None
    area: Any = None
    iscrowd: Any = None
    ignore: Any = None
    segmentation: msgspec.Raw = msgspec.Raw(b"null")


class Category(msgspec.Struct, gc=False):
    """An entry of ``categories``."""

    id: Any = None
    name: Any = None
    supercategory: Any = None


class UsedCategory(msgspec.Struct, gc=False):
    """An entry of ``annotations``, of which only the class matters."""

    category_id: Any = None


class Parts(msgspec.Struct):
    """The three lists, their entries not yet decoded; a list that the file does not have is None."""

    images: list[msgspec.Raw] | None = None
    annotations: list[msgspec.Raw] | None = None
    categories: list[msgspec.Raw] | None = None


class _Categories(msgspec.Struct):
    categories: list[msgspec.Raw] | None = None


Entry = TypeVar("Entry", Image, Annotation, Category, UsedCategory)


def load(file: Path) -> Parts:
    """The lists of a file.

    Raises:
        UserError: it cannot be read, is no JSON, or is something else than an object with lists.
    """
    content = _content(file)
    try:
        return msgspec.json.decode(content, type=Parts)
    except _REFUSED:
        return _slowly(file, content)


def load_categories(file: Path) -> list[Any] | None:
    """The list ``categories`` of a file alone; see :func:`load`."""
    content = _content(file)
    try:
        return msgspec.json.decode(content, type=_Categories).categories
    except _REFUSED:
        return _slowly(file, content).categories


def entries(part: Sequence[Any], kind: type[Entry]) -> Iterator[Entry | None]:
    """The entries of a list, one after another; None in place of one that is no object."""
    decoder = msgspec.json.Decoder(kind)
    for each in part:
        try:
            yield decoder.decode(each) if isinstance(each, msgspec.Raw) else _entry(each, kind)
        except _REFUSED:
            yield _entry(decoded(each), kind)


def _entry(value: Any, kind: type[Entry]) -> Entry | None:
    if not isinstance(value, dict):
        return None
    return kind(**{name: value[name] for name in kind.__struct_fields__ if name in value})


def decoded(value: Any) -> Any:
    """A value that was left undecoded; None where it cannot be."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return json.loads(bytes(value))  # it knows numbers out of range, which msgspec refuses
    except (ValueError, RecursionError):
        return None


def _content(file: Path) -> bytes:
    try:
        content = reading.read_bytes(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}; {EXPECTED}.") from error
    return content.removeprefix(codecs.BOM_UTF8)


def _slowly(file: Path, content: bytes) -> Parts:
    """By the standard library, which says line and column of what is wrong."""
    try:
        whole = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = printable(str(error) or type(error).__name__)
        raise UserError(f"{file} cannot be read as JSON: {reason}; {EXPECTED}. Export it again.") from None
    if isinstance(whole, list):
        raise UserError(
            f"{file} holds a list, as files of results do; {EXPECTED}. Give the file of the annotations."
        )
    if not isinstance(whole, dict):
        raise UserError(f"{file} holds {printable(json.dumps(whole))}; {EXPECTED}.")
    parts = {name: whole.get(name) for name in Parts.__struct_fields__}
    problems = [
        f"{file}: '{name}' is {_kind(part)}, expected a list."
        for name, part in parts.items()
        if not isinstance(part, list | None)
    ]
    if problems:
        raise UserError(problems)
    return Parts(**parts)


def _kind(value: Any) -> str:
    return "an object" if isinstance(value, dict) else printable(json.dumps(value))


@dataclass(frozen=True)
class Classes:
    """The classes of all splits together, in the order of their ids.

    Attributes:
        names: a label is a position in this list.
        labels: id to label. Ids are numbers or, where they are no numbers, texts.
        notes: what was left out, as sentences.
    """

    names: tuple[str, ...]
    labels: dict[int | str, int]
    notes: tuple[str, ...] = ()


def read_classes(files: Mapping[str, Path]) -> Classes:
    """The classes that the files of all splits name together.

    Raises:
        UserError: no categories, invalid ones, or an id that means one thing here and another there.
    """
    categories: dict[int | str, Category] = {}
    where: dict[int | str, Path] = {}
    problems: list[str] = []
    for file in files.values():
        part = load_categories(file)
        if not part:
            problems.append(
                f"{file} has no 'categories', expected a list of objects with an 'id' and a 'name'."
            )
        for number, entry in enumerate(entries(part or [], Category)):
            problem = _problem(entry)
            if entry is None or problem:
                problems.append(f"{file}: category {number}: {problem}")
                continue
            key = identity(entry.id)
            if categories.setdefault(key, entry).name != entry.name:
                problems.append(
                    f"{file}: category {key} is called '{printable(str(entry.name))}', but "
                    f"'{printable(str(categories[key].name))}' in {where[key]}; a number must mean the same "
                    "class in all files."
                )
            where.setdefault(key, file)
    if problems:
        raise UserError(problems)
    order = sorted(
        categories, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0, str(key))
    )
    notes = []
    if (group := _mere_group(categories, order)) is not None and not _is_used(group, files):
        name = printable(str(categories[group].name))
        notes = [f"category {group} ('{name}') only groups the others, no box has it: it is no class"]
        order.remove(group)
    names = tuple(str(categories[key].name) for key in order)
    return Classes(names, {key: label for label, key in enumerate(order)}, tuple(notes))


def identity(value: object) -> int | str:
    """An id by which entries are matched: 7, 7.0 and "7" are the same, None is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    text = str(value)
    digits = text.isascii() and text.isdigit() and len(text) < 20 and (text == "0" or text[0] != "0")
    return int(text) if digits else text


def _problem(entry: Category | None) -> str:
    if entry is None:
        return "it is no object, expected one with an 'id' and a 'name'."
    if not isinstance(entry.id, int | str | float):
        return f"its 'id' is {printable(repr(entry.id))}, expected a number."
    if not isinstance(entry.name, int | str) or not str(entry.name).strip():
        return f"its 'name' is {printable(repr(entry.name))}, expected a text."
    try:
        str(entry.name).encode()
    except UnicodeEncodeError:
        return f"its 'name' is {entry.name!a}, which is no Unicode text."
    return ""


def _mere_group(categories: Mapping[int | str, Category], order: list[int | str]) -> int | str | None:
    """The category that all others name as the one above them, and that has none above it (Roboflow)."""
    if len(order) < 2:
        return None
    first, others = categories[order[0]], [categories[key] for key in order[1:]]
    above = {other.supercategory for other in others if isinstance(other.supercategory, str)}
    lone = first.supercategory in (None, "", "none", "None")
    return order[0] if lone and above == {first.name} else None


def _is_used(key: int | str, files: Mapping[str, Path]) -> bool:
    return any(
        entry is not None and identity(entry.category_id) == key
        for file in files.values()
        for entry in entries(load(file).annotations or [], UsedCategory)
    )


def outline_box(segmentation: Any) -> tuple[float, float, float, float] | None:
    """Return the bounds xyxy, in pixels, of a segmentation; None if it is none or has no extent.

    Not cocoapi's own code: a mask of size 0 or a text cut short crashes some of its versions.

    Args:
        segmentation: a list of polygons ``[x, y, x, y, …]``, or ``{"size": [h, w], "counts": …}`` with run
            lengths as a list of numbers or as cocoapi's text. A pixel of a mask reaches from its number to
            the next, as in cocoapi's ``toBbox``.
    """
    try:
        if isinstance(segmentation, list):
            polygons = segmentation if isinstance(segmentation[0], list) else [segmentation]
            xs = list(chain.from_iterable(polygon[0::2] for polygon in polygons))
            ys = list(chain.from_iterable(polygon[1::2] for polygon in polygons))
            return float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))
        if isinstance(segmentation, dict):
            counts = segmentation["counts"]
            runs = _runs(counts) if isinstance(counts, str) else [int(run) for run in counts]
            height, width = segmentation["size"]
            return _mask_box(runs, int(height), int(width))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        pass
    return None


def _runs(text: str) -> list[int]:
    """Run lengths from cocoapi's text: 5 bits a character from '0' on, the lowest first; 32 says that more
    follow, the last one's 16 is the sign. From the fourth on it is the difference to the last but one."""
    runs: list[int] = []
    at = 0
    while at < len(text):
        value = shift = 0
        more = True
        while more:
            bits = ord(text[at]) - 48
            if not 0 <= bits < 64:
                raise ValueError(text[at])
            value |= (bits & 31) << shift
            more, shift, at = bits & 32 > 0, shift + 5, at + 1
            if not more and bits & 16:
                value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs


def _mask_box(runs: Sequence[int], height: int, width: int) -> tuple[float, float, float, float] | None:
    """Bounds of runs of 0 and 1 in turn, down one column after another."""
    if height <= 0 or width <= 0 or min(runs, default=0) < 0 or sum(runs) > height * width:
        return None
    columns, rows, at = [], [], 0
    for number, run in enumerate(runs):
        if number % 2 and run:
            first, last = at, at + run - 1
            columns += [first // height, last // height]
            whole = first // height != last // height  # it goes on at the top of the next column
            rows += [0, height - 1] if whole else [first % height, last % height]
        at += run
    if not columns:
        return None
    return float(min(columns)), float(min(rows)), max(columns) + 1.0, max(rows) + 1.0
