"""One COCO JSON file, decoded entry by entry: a file of 600 MB never becomes a tree of Python objects.

msgspec splits the lists into entries without decoding them. What it refuses (NaN, which JSON does not have
but many programs write) goes through the standard library, which is slower but knows it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
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
        raise UserError(f"{file} cannot be read as JSON: {reason}; {EXPECTED}. Write it anew.") from None
    if isinstance(whole, list):
        raise UserError(
            f"{file} holds a list, as files of results do; {EXPECTED}. Give the file of the annotations."
        )
    if not isinstance(whole, dict):
        raise UserError(f"{file} holds {printable(json.dumps(whole))}; {EXPECTED}.")
    parts = {name: whole.get(name) for name in Parts.__struct_fields__}
    faults = [
        f"{file}: '{name}' is {_kind(part)}, expected a list."
        for name, part in parts.items()
        if not isinstance(part, list | None)
    ]
    if faults:
        raise UserError(faults)
    return Parts(**parts)


def _kind(value: Any) -> str:
    return "an object" if isinstance(value, dict) else printable(json.dumps(value))
