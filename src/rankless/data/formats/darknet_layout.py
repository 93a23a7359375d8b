"""Where a Darknet/YOLO data set keeps the pictures of a split: its ``data.yaml`` or its folders.

Understood are a ``data.yaml`` (``path``, one entry per split: a folder, a list of folders, or a ``.txt`` list
of pictures; ``names`` and ``nc``) and the two common folder layouts, ``images/train`` beside ``labels/train``
and ``train/images`` beside ``train/labels``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rankless.data.pictures import EXTENSIONS, is_picture
from rankless.errors import UserError

_FACTS = {"path", "names", "nc", "download", "kpt_shape", "flip_idx"}
_REMARKS = {"author", "date", "description", "license", "version"}
_LAYOUT = "expected a 'data.yaml', or folders 'images/{split}' and 'labels/{split}' with a 'classes.txt'"


@dataclass
class Split:
    """The pictures of one split, in an order that does not depend on the file system."""

    class_names: tuple[str, ...]
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_split(root: str, split: str) -> Split:
    """Class names and picture files of ``split``; ``root`` is a folder or a ``data.yaml``.

    Raises:
        UserError: nothing there, no such split, faulty YAML, no class names, or no picture.
    """
    place = Path(root).expanduser()
    if place.is_dir():
        candidates = (place / "data.yaml", place / "data.yml")
        described = next((file for file in candidates if file.is_file()), None)
        return _from_yaml(described, split) if described else _from_folders(place, split)
    if place.is_file() and place.suffix.lower() in {".yaml", ".yml"}:
        return _from_yaml(place, split)
    found = "a file that is no .yaml" if place.is_file() else "no such file or folder"
    raise UserError(
        f"The data '{root}': {found} at {place.absolute()}, expected a folder, a 'data.yaml', or 'digits' "
        "for the built-in data."
    )


def label_path(picture: str) -> str:
    """A picture's label file: its last folder ``images`` becomes ``labels``; without one, beside it."""
    path = Path(picture)
    parts = list(path.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            break
    return str(Path(*parts).with_suffix(".txt"))


def _load(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        found = type(content).__name__
        raise UserError(f"{file}: found a {found}, expected keys such as train, val and names.")
    return content


def _splits_of(content: dict[str, Any]) -> list[str]:
    named = ((str(name), entry) for name, entry in content.items() if isinstance(entry, str | list) and entry)
    return [name for name, _ in named if name not in _FACTS | _REMARKS]


def _from_yaml(file: Path, split: str) -> Split:
    content = _load(file)
    class_names = _class_names(file, content)
    if not _splits_of(content):
        return _from_folders(file.parent, split, class_names)
    if split not in _splits_of(content):
        raise UserError(
            f"{file} has no split '{split}'; it has {_listed(_splits_of(content))}. Name one of these in the "
            f"recipe (data.train, data.val), or add '{split}: FOLDER' to the file."
        )
    base = _resolve([file.parent], str(content.get("path") or "."))
    if base is None:
        # Files written for another trainer often name a folder of that trainer's; this is the better guess.
        base = file.parent
    entries = content[split] if isinstance(content[split], list) else [content[split]]
    result, faults = Split(class_names), []
    for entry in entries:
        name = str(entry).strip().replace("\\", "/")
        # Roboflow writes '../train/images' for what lies beside the file.
        candidates = [name, name.removeprefix("../")]
        place = next((p for c in candidates if (p := _resolve([base, file.parent], c)) is not None), None)
        if place is None:
            faults.append(f"{file}: '{split}: {entry}' is not there; looked for {base / name}.")
        elif place.is_dir():
            _gather(place, result)
        elif place.suffix.lower() == ".txt":
            faults += _gather_list(place, base, result)
        else:
            faults.append(f"{file}: '{split}: {entry}' is a file, expected a folder or a .txt list.")
    if faults:
        raise UserError(_shortened(faults))
    return _not_empty(result, split, [str(entry) for entry in entries], str(file))


def _class_names(file: Path, content: dict[str, Any]) -> tuple[str, ...]:
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        try:
            by_id = {int(key): str(name) for key, name in names.items()}
        except (TypeError, ValueError):
            by_id = {}
        if sorted(by_id) != list(range(len(names))):
            expected = f"0 to {len(names) - 1}, each once"
            raise UserError(f"{file}: the keys of 'names' are {_listed(names)}, expected {expected}.")
        names = [by_id[number] for number in range(len(by_id))]
    if names is None and isinstance(count, int) and count > 0:
        names = [str(number) for number in range(count)]
    if not isinstance(names, list) or not names:
        raise UserError(f"{file}: 'names' is {names!r}, expected the list of class names.")
    if count is not None and count != len(names):
        expected = f"{len(names)}, as many as 'names' has"
        raise UserError(f"{file}: 'nc' is {count!r}, expected {expected}; correct one of the two.")
    return tuple(str(name) for name in names)


def _from_folders(root: Path, split: str, class_names: tuple[str, ...] | None = None) -> Split:
    splits = _folder_splits(root)
    if split not in splits:
        if splits:
            what = f"{root} has no split '{split}'; it has {_listed(splits)}"
            what += ". Name one of these in the recipe (data.train, data.val)"
        elif (root / "images").is_dir():
            what = f"{root / 'images'} is not divided into splits: move its pictures to 'images/train' and"
            what += " 'images/val', and their labels to 'labels/train' and 'labels/val'"
        else:
            what = f"{root}: found no pictures laid out as a data set, {_LAYOUT.format(split=split)}"
            what += "; folders of pictures, one for each class, are for task: classify"
        raise UserError(what + ".")
    result = Split(class_names or _names_file(root))
    _gather(splits[split], result)
    return _not_empty(result, split, [str(splits[split])], str(root))


def _folder_splits(root: Path) -> dict[str, Path]:
    """Split names and their picture folders: ``images/NAME`` and ``NAME/images``."""
    inside = root / "images"
    found = {p.name: p for p in sorted(inside.iterdir()) if p.is_dir()} if inside.is_dir() else {}
    beside = {p.name: p / "images" for p in sorted(root.iterdir()) if (p / "images").is_dir()}
    return {**beside, **found}


def _names_file(root: Path) -> tuple[str, ...]:
    fixed = [root / "classes.txt", root / "labels" / "classes.txt"]
    file = next((f for f in [*fixed, *sorted(root.glob("*.names"))] if f.is_file()), None)
    if file is None:
        raise UserError(
            f"{root}: found no class names, expected a 'classes.txt' (one name a line, the first is class 0),"
            " a '*.names' file or a 'data.yaml' with 'names'."
        )
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        expected = "expected one class name a line in UTF-8"
        raise UserError(f"{file} cannot be read: {error}; {expected}.") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise UserError(f"{file} is empty, expected one class name a line.")
    return names


def _gather(folder: Path, result: Split) -> None:
    """Adds all pictures under ``folder``, sorted by name."""
    found, hidden = [], 0
    for place, _, files in os.walk(folder, followlinks=True):
        pictures = [file for file in files if is_picture(file)]
        shown = [file for file in pictures if not file.startswith(".")]
        hidden += len(pictures) - len(shown)
        found += [f"{place}/{file}" for file in shown]
    result.paths += sorted(found)
    if hidden:
        result.notes.append(
            f"{hidden} hidden files under {folder} were left out (their names begin with a dot)"
        )


def _gather_list(file: Path, base: Path, result: Split) -> list[str]:
    """Adds the pictures of a ``.txt`` list in its order; returns what is wrong with it."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [f"{file} cannot be read: {error}; expected one picture path a line in UTF-8."]
    faults, endings = [], ", ".join(sorted(EXTENSIONS))
    for number, line in enumerate(lines, 1):
        name = line.strip().replace("\\", "/")
        if not name:
            continue
        place = _resolve([file.parent, base], name)
        if place is None:
            faults.append(f"{file}:{number}: no picture '{name}'; looked in {file.parent} and {base}.")
        elif not is_picture(place):
            faults.append(f"{file}:{number}: '{name}' is no picture; its ending should be {endings}.")
        else:
            result.paths.append(str(place))
    return faults


def _resolve(bases: Sequence[Path], name: str) -> Path | None:
    """The first of the places that exists; an absolute ``name`` is looked for as it is."""
    places = (base / Path(name).expanduser() for base in bases)
    return next((place for place in places if place.exists()), None)


def _not_empty(result: Split, split: str, looked: Sequence[str], origin: str) -> Split:
    if not result.paths:
        raise UserError(
            f"{origin}: the split '{split}' has no pictures; looked in {', '.join(looked)} for files that "
            f"end in {', '.join(sorted(EXTENSIONS))}."
        )
    twice = len(result.paths) - len(set(result.paths))
    if twice:
        result.notes.append(f"{twice} pictures of the split '{split}' are listed more than once")
    return result


def _shortened(faults: list[str]) -> list[str]:
    return faults if len(faults) <= 20 else [*faults[:20], f"… and {len(faults) - 20} more of the same list."]


def _listed(items: Any) -> str:
    return ", ".join(f"'{item}'" for item in items) or "none"
