"""Find the images of each split of Darknet/YOLO data: by a description file, by lists, or in folders."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.formats.darknet_description import Description, description_in, read_description
from rankless.data.formats.folders import (
    FolderNames,
    ImageSearch,
    SplitFiles,
    numbered_names,
    read_text,
    subfolders,
)
from rankless.data.formats.lines import lines_of, list_kind
from rankless.data.formats.splits import chosen, is_for_tests, is_usual, usual_order
from rankless.data.images.image_file import EXTENSIONS, is_image
from rankless.errors import UserError, counted, printable
from rankless.files import reading

LAYOUT = (
    "a 'data.yaml' or '.data' file, or folders 'images/train' and 'labels/train' (or 'train/images' and "
    "'train/labels', or 'train' with both) with a 'classes.txt'"
)
REQUIRED = ("train", "val")  # splits that Ultralytics requires in a data.yaml
_TRIED = 20  # number of images in a list or folder that are checked for label files
_UNDIVIDED = "no splits found, so all images are 'train'; use `rankless data split` to create 'val'"


@dataclass
class Split(SplitFiles):
    class_names: tuple[str, ...] = ()
    key_points: int = 0  # number of numbers after a box, from kpt_shape
    paths: list[str] = field(default_factory=list)
    listed: dict[str, tuple[str, str]] = field(default_factory=dict)  # place and name of each listed image

    def add_folder(self, folder: str) -> None:
        images = []
        for entry in self.walk(folder):
            image = is_image(entry.name)
            if entry.name.startswith(".") and (image or reading.is_folder(entry)):
                self.findings.add("left out", entry.path, "hidden (the name starts with a dot)")
            elif image:
                images.append(entry.path)
        self.paths += sorted(images)


def label_folders(folder: str) -> list[str]:
    """Return the folders that may contain the labels of the images in ``folder``, the most likely first.

    As in Darknet, the last ``images`` or ``JPEGImages`` in the path is replaced with ``labels``. Labels may
    also be next to the images.
    """
    parts = folder.split("/")
    folders = []
    for name in ("images", "JPEGImages"):
        if name in parts:
            last = len(parts) - 1 - parts[::-1].index(name)
            folders.append("/".join([*parts[:last], "labels", *parts[last + 1 :]]))
    return [*folders, folder]


def splits(root: Path) -> list[str]:
    file = description_in(root)
    described = read_description(file) if file else None
    if described and described.splits:
        left_out = {*_without_tests(described), *_second_names(described)}
        return usual_order(described.splits.keys() - left_out)
    return usual_order(_folders(root.parent if root.is_file() else root))


def _without_tests(described: Description) -> list[str]:
    """Return the test splits that are listed but do not exist. Roboflow always lists one."""
    given = described.splits.items()
    return [name for name, paths in given if is_for_tests(name) and not any(map(described.resolve, paths))]


def _second_names(described: Description) -> list[str]:
    """Return ``train`` and ``val`` if another split has the same images under its own name."""
    others = [paths for name, paths in described.splits.items() if name not in REQUIRED]
    return [name for name in REQUIRED if described.splits.get(name) in others]


def find_split(root: Path, split: str, class_names: Sequence[str] | None = None) -> Split:
    """Find the class names and images of a split; ``root`` is a folder or a description file."""
    file = description_in(root)
    described = read_description(file) if file else None
    if described and described.splits:
        result = _from_description(described, split)
    elif described and described.problems:
        raise UserError(described.problems)
    else:
        result = _from_folders(root.parent if root.is_file() else root, split, described, class_names)
    unique = list(dict.fromkeys(result.paths))
    if twice := len(result.paths) - len(unique):
        result.findings.add_many("listed twice", twice, ())
    result.paths = unique
    looked = list(result.depends)
    if described and described.unnamed and class_names:
        result.class_names = tuple(class_names)
    elif described and described.unnamed:
        result.notes.append(
            f"'{described.file.name}' has 'nc' but no 'names', so the classes are called 0, 1, 2 …; "
            "to name the classes, add 'names: [cat, dog]'"
        )
    if described:
        result.depends += [os.fspath(described.file), *described.depends]
        result.key_points = described.key_points
    if not unique:
        raise UserError(
            [
                f"{root}: the split '{split}' has no images; looked in {', '.join(looked[:4])}"
                f"{' …' * (len(looked) > 4)} for files with the extensions {', '.join(sorted(EXTENSIONS))}",
                *(str(finding) for _, _, first in result.findings for finding in first[:3]),
            ]
        )
    return result


def _from_description(described: Description, wanted: str) -> Split:
    name = chosen(described.file, wanted, described.splits, f"'{wanted}: FOLDER' in {described.file}")
    result, problems = Split(class_names=described.class_names), list(described.problems)
    result.notes += [
        f"'{missing}: {described.splits[missing][0]}': no such file or folder, so this split is ignored"
        for missing in _without_tests(described)
        if missing != name
    ]
    for entry in described.splits[name]:
        path = described.resolve(entry)
        if not path:
            looked = " and ".join(dict.fromkeys(str(base) for base in described.bases[:2]))
            lost = f", because {described.lost}; correct or remove 'path'" if described.lost else ""
            problems.append(
                f"{described.file}: '{name}: {printable(entry)}': no such file or folder; looked in "
                f"{looked}{lost}"
            )
        elif Path(path).is_dir():
            result.add_folder(path)
        elif path.lower().endswith(".txt"):
            _add_list(Path(path), described.bases, result)
        elif is_image(path):
            result.paths.append(path)
        else:
            problems.append(
                f"{described.file}: '{name}: {printable(entry)}' is a file; expected a folder, an image or a "
                ".txt list"
            )
    if problems:
        raise UserError(problems[:20])
    return result


def _add_list(file: Path, bases: Iterable[Path], result: Split) -> None:
    """Add the images in a list; their paths may be relative to the list's folder or to ``bases``."""
    lines = read_text(file, "one image path per line").splitlines()
    search = ImageSearch([file.parent, *bases])
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        path = search.find(name)
        if not is_image(path or name):
            expected = f"expected one of the extensions {', '.join(sorted(EXTENSIONS))}"
            result.findings.add(
                "not understood", f"{file}:{number}", f"'{printable(name)}' is not an image; {expected}"
            )
        elif path:
            first, before = result.listed.setdefault(path, (f"{file}:{number}", name))
            if not _same_file(before, name):
                result.findings.add(
                    "shared file",
                    f"{file}:{number}",
                    f"'{printable(name)}' and '{printable(before)}' ({first}) both refer to {path}; expected "
                    "one entry per image file; correct the list, or add the missing image",
                )
            result.paths.append(path)
        else:
            looked = " and ".join(search.bases[:2])
            result.findings.add("no image", f"{file}:{number}", f"'{printable(name)}'; looked in {looked}")
    result.depends += [os.fspath(file), *search.listed]
    result.notes += search.notes()


def _same_file(*names: str) -> bool:
    """Return whether two listed paths differ only in the folders above the data set."""
    short, long = sorted((os.path.normpath(f"/{name}".replace("\\", "/")) for name in names), key=len)
    return long.endswith(short)


def _from_folders(
    root: Path, wanted: str, described: Description | None, class_names: Sequence[str] | None
) -> Split:
    splits = _folders(root)
    name = chosen(root, wanted, splits, LAYOUT)
    if described:
        result = Split(class_names=described.class_names)
    else:
        names, file = numbered_names(
            [root, root / "labels", splits[name], *mixed_splits(root).values()],
            class_names,
            f"{root}: no class names found; add a 'classes.txt' (one name per line, starting with class 0), "
            "a '*.names' file or a 'data.yaml' with 'names'",
        )
        result = Split(class_names=names, depends=[os.fspath(file)] if file else [])
    if splits[name] in (root, root / "images"):
        result.notes.append(_UNDIVIDED)
    elif loose := len(FolderNames(os.fspath(root / "images"), EXTENSIONS).files):
        result.findings.add(
            "left out", os.fspath(root / "images"), f"{counted(loose, 'image')} outside the split folders"
        )
    # A new folder in these folders is a new split.
    result.depends += [os.fspath(folder) for folder in (root, root / "images") if folder.is_dir()]
    if splits[name].is_dir():
        result.add_folder(os.fspath(splits[name]))
    else:
        _add_list(splits[name], _bases(root), result)
    return result


def _folders(root: Path) -> Mapping[str, Path]:
    found = split_lists(root) or folder_splits(root) or mixed_splits(root)
    return found or ({"train": root} if _beside(root) else {})


def split_lists(root: Path) -> dict[str, Path]:
    """Return each split's list of images, such as ``train.txt``, if the listed images have label files.

    Split folders take precedence over lists.
    """
    if any(folder != root / "images" for folder in folder_splits(root).values()):
        return {}
    texts = FolderNames(os.fspath(root), {".txt"}).files  # may include a label file for every image
    files = {stem: root / texts[stem] for stem in sorted(texts) if is_usual(stem)}
    lists = {name: file for name, file in files.items() if list_kind(file) == "images"}
    return lists if any(map(_has_labels, lists.values())) else {}


def _has_labels(file: Path) -> bool:
    search = ImageSearch([file.parent, *_bases(file.parent)])
    for _, line in itertools.islice(lines_of(file), _TRIED):
        image = search.find(line)
        name = f"{Path(image).stem}.txt"
        if image and any(Path(folder, name).is_file() for folder in label_folders(os.path.dirname(image))):  # noqa: PTH120
            return True
    return False


def _bases(root: Path) -> list[Path]:
    """Return folders that the image paths in lists may be relative to."""
    return [root / "images", root.parent, root.parent.parent]


def folder_splits(root: Path) -> dict[str, Path]:
    """Map each split to ``images/SPLIT`` or ``SPLIT/images``; without splits, map ``train`` to ``images``."""
    images = root / "images"
    beside = {each.name: each / "images" for each in subfolders(root) if (each / "images").is_dir()}
    inside = {each.name: each for each in subfolders(images)}
    return {**beside, **inside} or ({"train": images} if images.is_dir() else {})


def mixed_splits(root: Path) -> dict[str, Path]:
    """Map each split to ``SPLIT`` if it contains both images and labels, as in Roboflow's Darknet export."""
    return {each.name: each for each in subfolders(root) if is_usual(each.name) and _beside(each)}


def _beside(folder: Path) -> bool:
    return next(texts_beside(folder), None) is not None


def texts_beside(folder: Path) -> Iterator[Path]:
    """Yield the first text files that are named like an image in the same folder."""
    labels = FolderNames(os.fspath(folder), {".txt"}).files
    images = FolderNames(os.fspath(folder), EXTENSIONS).files if labels else {}
    return (folder / labels[stem] for stem in sorted(images.keys() & labels.keys())[:_TRIED])
