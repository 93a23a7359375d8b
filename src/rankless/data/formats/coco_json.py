"""Decode and encode COCO JSON entry by entry, to avoid converting a whole file to Python objects at once.

msgspec splits the lists into entries without decoding them. The slower standard library decodes content that
msgspec rejects. For example, many programs write NaN, although it is not valid JSON.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError, printable
from rankless.files import reading

EXPECTED = "expected an object with 'images', 'annotations' and 'categories'"
_encode = msgspec.json.encode
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Image(msgspec.Struct, gc=False):
    """An entry of the list ``images``; the fields are not validated."""

    id: Any = None
    file_name: Any = None
    width: Any = None
    height: Any = None


class Annotation(msgspec.Struct, gc=False):
    """An entry of the list ``annotations``; :func:`decode` decodes the ``segmentation``."""

    id: Any = None
    image_id: Any = None
    category_id: Any = None
    bbox: Any = None
    area: Any = None
    iscrowd: Any = None
    ignore: Any = None
    attributes: Any = None
    segmentation: msgspec.Raw = msgspec.Raw(b"null")


class Category(msgspec.Struct, gc=False):
    """An entry of the list ``categories``."""

    id: Any = None
    name: Any = None
    supercategory: Any = None


class Parts(msgspec.Struct):
    """The lists in a COCO file, with undecoded entries; None for a missing list."""

    images: list[msgspec.Raw] | None = None
    annotations: list[msgspec.Raw] | None = None
    categories: list[msgspec.Raw] | None = None


Entry = TypeVar("Entry", Image, Annotation, Category)


def load(file: Path) -> Parts:
    """Load the lists in a COCO file."""
    try:
        content = reading.read_bytes(file).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}; {EXPECTED}") from error
    try:
        return msgspec.json.decode(content, type=Parts)
    except _REFUSED:
        return _slowly(file, content)


def entries(part: Sequence[Any], kind: type[Entry]) -> Iterator[Entry | None]:
    """Yield the decoded entries of a list, or None for an entry that is not a JSON object."""
    decoder = msgspec.json.Decoder(kind)
    for each in part:
        try:
            yield decoder.decode(each) if isinstance(each, msgspec.Raw) else _entry(each, kind)
        except _REFUSED:
            yield _entry(decode(each), kind)


def _entry(value: Any, kind: type[Entry]) -> Entry | None:
    if not isinstance(value, dict):
        return None
    return kind(**{name: value[name] for name in kind.__struct_fields__ if name in value})


def decode(value: Any) -> Any:
    """Decode a JSON value; return None if it is invalid."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return json.loads(bytes(value))  # accepts numbers out of range, unlike msgspec
    except (ValueError, RecursionError):
        return None


def _slowly(file: Path, content: bytes) -> Parts:
    """Load a file with the standard library, which reports the line and column of an error."""
    try:
        whole = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = printable(str(error) or type(error).__name__)
        raise UserError(
            f"{file}: cannot be read as JSON: {reason}; {EXPECTED}; export the file again"
        ) from None
    if isinstance(whole, list):
        raise UserError(f"{file}: contains a list, so it may be a results file; {EXPECTED}")
    if not isinstance(whole, dict):
        raise UserError(f"{file}: contains {printable(json.dumps(whole))}; {EXPECTED}")
    parts = {name: whole.get(name) for name in Parts.__struct_fields__}
    problems = [
        f"{file}: '{name}' is {'an object' if isinstance(part, dict) else printable(json.dumps(part))}; "
        "expected a list"
        for name, part in parts.items()
        if not isinstance(part, list | None)
    ]
    if problems:
        raise UserError(problems)
    return Parts(**parts)


@dataclass(frozen=True)
class Classes:
    """The classes of all splits: names sorted by id, the label of each id, and notes."""

    names: tuple[str, ...]
    labels: dict[int | str, int]
    notes: tuple[str, ...] = ()


def read_classes(files: Mapping[str, Path]) -> Classes:
    """Read the classes in the files of all splits."""
    categories: dict[int | str, Category] = {}
    where: dict[int | str, Path] = {}
    problems: list[str] = []
    for file in files.values():
        part = load(file).categories
        if not part:
            problems.append(
                f"{file}: 'categories' is missing or empty; expected objects with an 'id' and a 'name'"
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
                    f"'{printable(str(categories[key].name))}' in {where[key]}; expected the same name in "
                    "all files"
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
        notes = [f"category {group} ('{name}') is ignored, because it groups all other categories"]
        order.remove(group)
    names = tuple(str(categories[key].name) for key in order)
    return Classes(names, {key: label for label, key in enumerate(order)}, tuple(notes))


def identity(value: object) -> int | str:
    """Return an id in canonical form, so that 7, 7.0 and "7" are the same id."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    text = str(value)
    digits = text.isascii() and text.isdigit() and len(text) < 20 and (text == "0" or text[0] != "0")
    return int(text) if digits else text


def _problem(entry: Category | None) -> str:
    if entry is None:
        return "not an object; expected an object with an 'id' and a 'name'"
    if not isinstance(entry.id, int | str | float):
        return f"the 'id' is {printable(repr(entry.id))}; expected a number"
    if not isinstance(entry.name, int | str) or not str(entry.name).strip():
        return f"the 'name' is {printable(repr(entry.name))}; expected text"
    try:
        str(entry.name).encode()
    except UnicodeEncodeError:
        return f"the 'name' is {entry.name!a}, which is not valid Unicode; expected text"
    return ""


def _mere_group(categories: Mapping[int | str, Category], order: list[int | str]) -> int | str | None:
    """Return the id of a category that only groups all other categories, as in Roboflow files, or None."""
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
        for entry in entries(load(file).annotations or [], Annotation)
    )


def save(path: Path, annotations: Annotations, names: Sequence[str], image: int, box: int) -> None:
    """Write the COCO file of one split, with consecutive ids starting at ``image`` and ``box``."""
    categories = [
        {"id": number, "name": name, "supercategory": ""}
        for number, name in enumerate(annotations.class_names, 1)
    ]
    with path.open("wb") as file:
        file.write(b'{"categories": ' + _encode(categories) + b',\n"images": [')
        _write_list(file, _images(annotations, names, image))
        file.write(b'],\n"annotations": [')
        _write_list(file, _boxes(annotations, image, box))
        file.write(b"]}\n")


def _write_list(file: BinaryIO, entries: Iterator[dict[str, Any]]) -> None:
    for number, entry in enumerate(entries):
        file.write((b",\n" if number else b"\n") + _encode(entry))


def _images(annotations: Annotations, names: Sequence[str], first: int) -> Iterator[dict[str, Any]]:
    for number, (name, (height, width)) in enumerate(
        zip(names, annotations.sizes.tolist(), strict=True), first
    ):
        yield {"id": number, "file_name": name, "width": width, "height": height}


def _boxes(annotations: Annotations, image: int, first: int) -> Iterator[dict[str, Any]]:
    for index, row in enumerate(annotations.offsets[:-1].tolist()):
        for number, ((x1, y1, x2, y2), label, flags, area) in enumerate(annotations.objects(index), row):
            # The float64 sum of x and width rounds to the original float32.
            width, height = x2 - x1, y2 - y1
            entry = {
                "id": first + number,
                "image_id": image + index,
                "category_id": label + 1,
                "bbox": [_plain(x1), _plain(y1), _plain(width), _plain(height)],
                "area": _plain(width * height if area != area else area),
                "iscrowd": int(flags & CROWD > 0),
            }
            yield entry | {"ignore": 1} if flags & DIFFICULT else entry


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value
