"""COCO's categories, whose numbers have gaps, as a list of classes that is the same for every split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankless.data.formats.coco_file import Category, UsedCategory, entries, load, load_categories
from rankless.errors import UserError, printable


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
        UserError: no categories, faulty ones, or an id that means one thing here and another there.
    """
    found: dict[int | str, Category] = {}
    where: dict[int | str, Path] = {}
    faults: list[str] = []
    for file in files.values():
        part = load_categories(file)
        if not part:
            faults.append(
                f"{file} has no 'categories', expected a list of objects with an 'id' and a 'name'."
            )
        for number, entry in enumerate(entries(part or [], Category)):
            fault = _faulty(entry)
            if entry is None or fault:
                faults.append(f"{file}: category {number}: {fault}")
                continue
            key = identity(entry.id)
            if found.setdefault(key, entry).name != entry.name:
                faults.append(
                    f"{file}: category {key} is called '{printable(str(entry.name))}', but "
                    f"'{printable(str(found[key].name))}' in {where[key]}; a number must mean the same class "
                    "in all files."
                )
            where.setdefault(key, file)
    if faults:
        raise UserError(faults)
    order = sorted(
        found, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0, str(key))
    )
    notes = []
    if (group := _mere_group(found, order)) is not None and not _is_used(group, files):
        name = printable(str(found[group].name))
        notes = [f"category {group} ('{name}') only groups the others, no box has it: it is no class"]
        order.remove(group)
    names = tuple(str(found[key].name) for key in order)
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


def _faulty(entry: Category | None) -> str:
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


def _mere_group(found: Mapping[int | str, Category], order: list[int | str]) -> int | str | None:
    """The category that all others name as the one above them, and that has none above it (Roboflow)."""
    if len(order) < 2:
        return None
    first, others = found[order[0]], [found[key] for key in order[1:]]
    above = {other.supercategory for other in others if isinstance(other.supercategory, str)}
    lone = first.supercategory in (None, "", "none", "None")
    return order[0] if lone and above == {first.name} else None


def _is_used(key: int | str, files: Mapping[str, Path]) -> bool:
    return any(
        entry is not None and identity(entry.category_id) == key
        for file in files.values()
        for entry in entries(load(file).annotations or [], UsedCategory)
    )
