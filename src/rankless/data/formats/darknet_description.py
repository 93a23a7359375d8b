"""Read the files that describe a Darknet/YOLO data set: ``data.yaml`` and Darknet's ``.data``."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankless.data.formats.folders import names_file, read_names, read_text
from rankless.errors import UserError, printable
from rankless.files import reading, yaml12

_FACTS = {"path", "names", "nc", "download", "kpt_shape", "flip_idx", "colors", "skeleton"}
_REMARKS = {"author", "date", "description", "license", "version", "task", "url", "roboflow"}
YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
"""Usual names of description files. FiftyOne writes ``dataset.yaml``."""
_DATA_SPLITS = ("train", "valid", "val", "test")


@dataclass
class Description:
    """The contents of a description file."""

    file: Path
    class_names: tuple[str, ...]
    splits: dict[str, list[str]]  # folders and lists of images of each split, as written in the file
    bases: tuple[Path, ...]  # folders that these paths may be relative to, the most likely first
    depends: tuple[str, ...] = ()  # other files that were read
    problems: tuple[str, ...] = ()  # problems with the class names, which matter only if the names are needed
    lost: str = ""  # a note on the folder in path if it does not exist, otherwise ""
    key_points: int = 0  # number of numbers for the key points of an object, from kpt_shape
    unnamed: bool = False  # whether the file has nc but no names, so that the classes are called 0, 1, 2 …

    def resolve(self, name: str) -> str:
        """Return the path of the file or folder that an entry refers to, or "" if there is none.

        An entry may be a path on another machine, or have the form ``../train/images``, as in Roboflow files.
        In these cases, leading folders are removed until the path exists in a base folder.
        """
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        last = max((number for number, part in enumerate(parts, 1) if part == ".."), default=0)
        cuts = [name, name.replace("\\", "/"), *("/".join(parts[cut:]) for cut in range(last, len(parts)))]
        for cut in cuts:
            for base in self.bases:
                path = os.path.join(base, os.path.expanduser(cut))  # noqa: PTH111, PTH118 - never raises
                if cut and os.path.exists(path):  # noqa: PTH110 - as above
                    return os.fspath(Path(path))
        return ""


def description_in(root: Path) -> Path | None:
    """Return the description file at ``root`` or in the folder ``root``, or None if there is none."""
    if root.is_file():
        return root if root.suffix.lower() in {".yaml", ".yml", ".data"} else None
    for name in YAML_NAMES:
        if (root / name).is_file():
            return root / name
    files = sorted(file for file in root.glob("*.data") if file.is_file()) if root.is_dir() else []
    if len(files) > 1:
        listed = ", ".join(f"'{file.name}'" for file in files)
        raise UserError(
            f"{root}: several .data files ({listed}); expected only one; use one of them as data.root"
        )
    return files[0] if files else None


def read_description(file: Path) -> Description:
    return _from_data(file) if file.suffix.lower() == ".data" else _from_yaml(file)


def _from_yaml(file: Path) -> Description:
    # As text, classes can be called 'no' or '007'.
    content, _ = yaml12.read(read_text(file, "text", reading.YAML), str(file), as_text=True)
    if not isinstance(content, dict):
        given = f"'{printable(content)}'" if isinstance(content, str) else "a list" if content else "nothing"
        raise UserError(f"{file}: contains {given}; expected keys such as train, val and names")
    splits: dict[str, list[str]] = {}
    problems = []
    for name, entry in content.items():
        if not isinstance(name, str) or name in _FACTS | _REMARKS or not entry or isinstance(entry, dict):
            continue
        entries = entry if isinstance(entry, list) else [entry]
        if not all(isinstance(each, str) for each in entries):
            problems.append(
                f"{file}: '{printable(name)}' contains nested values; expected a folder or a list of folders"
            )
            continue
        splits[name] = [each.strip() for each in entries if each.strip()]
    if problems:
        raise UserError(problems)
    described = _with_path(file, content, splits)
    described.key_points = _key_points(file, content.get("kpt_shape"))
    _expand(described)
    try:
        described.class_names = _yaml_names(file, content)
        described.unnamed = not content.get("names")
    except UserError as error:
        described.problems = error.problems
    return described


def _key_points(file: Path, shape: Any) -> int:
    if not shape:
        return 0
    numbers = shape if isinstance(shape, list) else []
    if len(numbers) != 2 or not all(isinstance(n, str) and n.isdecimal() for n in numbers) or "0" in numbers:
        raise UserError(
            f"{file}: 'kpt_shape' is {printable(str(shape))}; expected the number of key points and of the "
            "values of each, such as [17, 3]"
        )
    return int(numbers[0]) * int(numbers[1])


def _expand(described: Description) -> None:
    """Replace patterns such as ``images/train/*.png`` with the files and folders that match them."""
    for name, entries in described.splits.items():
        described.splits[name] = []
        for entry in entries:
            bases = described.bases if glob.has_magic(entry) and not described.resolve(entry) else ()
            matches = (sorted(glob.glob(f"{base}/{entry}", recursive=True)) for base in bases)  # noqa: PTH207
            found = next(filter(None, matches), [])
            described.splits[name] += found or [entry]
            described.depends += tuple(dict.fromkeys(os.path.dirname(each) for each in found))  # noqa: PTH120


def _with_path(file: Path, content: dict[Any, Any], splits: dict[str, list[str]]) -> Description:
    beside = file.absolute().parent
    stated = content.get("path")
    name = stated.strip() if isinstance(stated, str) else ""
    if path := Description(file, (), {}, (beside,)).resolve(name):
        return Description(file, (), splits, (Path(path), file.parent))
    # If the folder does not exist, the file was written for another machine.
    wanted = os.path.normpath(beside / name)
    lost = f"the folder in 'path: {printable(name)}' does not exist ({printable(wanted)})" if name else ""
    return Description(file, (), splits, (file.parent,), lost=lost)


def _yaml_names(file: Path, content: dict[Any, Any]) -> tuple[str, ...]:
    names, count = content.get("names"), content.get("nc")
    number = int(count) if isinstance(count, str) and count.isdecimal() else None
    if isinstance(names, dict):
        names = _numbered(file, names)
    if not names and names != [] and number is not None and 0 < number < 100_000:
        names = [str(each) for each in range(number)]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        if "names" not in content:
            what = "no class names"
        elif isinstance(names, str) and names:
            what = f"'names' is '{printable(names)}'"
        else:
            what = "'names' is nested" if names else "'names' is empty"
        raise UserError(
            f"{file}: {what}; expected a list of class names, starting with class 0; add, for example, "
            "'names: [cat, dog]'"
        )
    if count and number != len(names):
        raise UserError(
            f"{file}: 'nc' is {printable(count) if isinstance(count, str) else 'nested'}; expected "
            f"{len(names)}, the number of 'names'; correct 'nc' or 'names'"
        )
    return tuple(names)


def _numbered(file: Path, names: dict[Any, Any]) -> list[Any]:
    by_id = {int(key): name for key, name in names.items() if isinstance(key, str) and key.isdecimal()}
    if sorted(by_id) != list(range(len(names))):
        listed = ", ".join(f"'{printable(str(key), 20)}'" for key in list(names)[:20])
        raise UserError(f"{file}: the keys of 'names' are {listed}; expected 0 to {len(names) - 1}")
    return [by_id[number] for number in range(len(by_id))]


def _from_data(file: Path) -> Description:
    """Read a Darknet ``.data`` file with lines ``key = value``."""
    options: dict[str, str] = {}
    first: dict[str, int] = {}
    problems = []
    for number, line in enumerate(read_text(file, "text", reading.YAML).splitlines(), 1):
        written = line.strip()
        if not written or written[0] in "#;":
            continue
        key, equals, value = (part.strip() for part in written.partition("="))
        if not equals:
            problems.append(
                f"{file}:{number}: '{printable(written)}'; expected 'key = value', such as 'classes = 2'"
            )
        elif first.setdefault(key, number) != number:
            problems.append(f"{file}:{number}: {yaml12.given_twice(key, first[key])}")
        options[key] = value
    if problems:
        raise UserError(problems[:20])
    beside = file.absolute().parent
    # Paths are relative to the folder in which Darknet was started: this folder or one above.
    above = [beside, *list(beside.parents)[:3]]
    bases = (file.parent, *above, *(base / "data" for base in above))
    splits = {name: [options[name]] for name in _DATA_SPLITS if options.get(name)}
    described = Description(file, (), splits, bases)
    try:
        described.class_names, listed = _listed_names(described, options)
        described.depends = (os.fspath(listed),)
    except UserError as error:
        described.problems = error.problems
    return described


def _listed_names(described: Description, options: dict[str, str]) -> tuple[tuple[str, ...], Path]:
    file = described.file
    names = described.resolve(options["names"]) if options.get("names") else ""
    if options.get("names") and not names:
        raise UserError(
            f"{file}: 'names = {printable(options['names'])}': no such file in {file.parent} or in the "
            "folders above it; correct the path"
        )
    listed = Path(names) if names else names_file([file.parent])
    if listed is None:
        raise UserError(f"{file}: no 'names'; expected 'names = FILE' (one class name per line)")
    class_names = read_names(listed)
    if "classes" in options and options["classes"] != str(len(class_names)):
        raise UserError(
            f"{file}: 'classes' is {printable(options['classes'])}; expected {len(class_names)}, the number "
            f"of lines in {listed}; correct one of these files"
        )
    return class_names, listed
