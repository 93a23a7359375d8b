"""Read and write class folders: each image is in a folder named after its class.

Either each split has class folders (``ROOT/train/CAT/1.jpg``, ``ROOT/val/CAT/2.jpg``), or the root contains
the class folders (``ROOT/CAT/1.jpg``). In the second case, a fifth of each class is set aside for validation,
based only on the file names, and the split ``all`` contains every image. Names are compared and sorted in
Unicode's composed form (NFC), so copies on other file systems are the same data.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.formats.folders import composed, subfolders, walk
from rankless.data.formats.label_files import label_files
from rankless.data.formats.splits import chosen, is_usual, set_aside, usual_order
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.images import image_file
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_sizes
from rankless.errors import UserError, counted, listed
from rankless.files import reading
from rankless.recipe.schema import IN_RECIPE

TITLE = "class folders"
LAYOUT = "one folder per class, or one folder per split ('train', 'val') that contains one folder per class"

_USUAL = ("train", "val")
_ALL = "all"
_OF_DETECTION = frozenset({"images", "labels", "annotations", "jpegimages", "imagesets"})
_ENOUGH = 1000  # maximum number of folders to search for an image


def recognize(root: Path) -> str:
    """Return why ``root`` looks like class folders, or "" if it does not.

    Folders with names from detection formats, such as ``images`` and ``labels``, are not class folders. The
    same is true for folders with label files, and for splits that contain images directly.
    """
    if not root.is_dir() or without_classes(root):
        return ""
    splits = _named_splits(root)
    for folder in (root, *(root / name for name in splits)):
        if any(each.name.casefold() in _OF_DETECTION for each in subfolders(folder)):
            return ""
    below = itertools.chain.from_iterable(map(os.walk, subfolders(root)))
    if not any(
        image_file.is_image(file) for _, _, files in itertools.islice(below, _ENOUGH) for file in files
    ) or any(label_files(root)):
        return ""
    if splits:
        return f"the folders {listed(splits)} contain folders with images"
    return f"its folders contain images: {listed([each.name for each in subfolders(root)])}"


def splits(root: Path) -> list[str]:
    """Return the names of the splits; ``train`` and ``val`` if the root contains the class folders."""
    if not _named_splits(root):
        return list(_USUAL)
    return usual_order(_split_folders(root))


def undivided(root: Path, split: str) -> str:
    """Return ``all`` if the reader divides the images to create ``split``, otherwise ``split``."""
    return _ALL if split in _USUAL and root.is_dir() and _is_divided(root, split) else split


def read(root: Path, split: str) -> Raw:
    """Read one split class by class, in the order of file names.

    The class names are the sorted names of the folders with images. Splits may have different class names.
    """
    if not root.is_dir():
        raise UserError(f"{root}: this is a file; expected {LAYOUT}")
    divided = _is_divided(root, split)
    if divided and split not in (*_USUAL, _ALL):
        raise UserError(
            f"{root}: no split '{split}', because the folders are classes; expected 'train', 'val' or 'all'; "
            f"choose one of these{IN_RECIPE}, or create a folder '{split}' that contains one folder per class"
        )
    if not divided:
        expected = f"a folder '{split}' that contains one folder per class"
        split = chosen(root, split, _split_folders(root), expected)
    top = root if divided else root / split
    contents = _class_folders(top)
    names = _class_names(contents, top)
    about = _left_out(contents)
    if divided and split == _ALL:
        about.append(f"{root} has no folders 'train' and 'val'; the split 'all' contains every image")
    elif divided:
        aside = {name: set_aside(files, "image folder") for name, files in contents.classes.items()}
        part = {
            name: {each: path for each, path in files.items() if (each in aside[name]) == (split == "val")}
            for name, files in contents.classes.items()
        }
        count, total = (sum(map(len, each.values())) for each in (part, contents.classes))
        train, val = (total - count, count) if split == "val" else (count, total - count)
        about.append(  # the same for both splits, so that it is printed once
            f"{root} has no folders 'train' and 'val', so its {total} images are divided by a hash of the "
            f"file names: {train} 'train', {val} 'val'; use data.val=none to train on all images without "
            "evaluations"
        )
        contents.classes = part
    made = RawBuilder()
    for label, name in enumerate(names):
        for path in contents.classes[name].values():
            made.add_label(made.add_image(path, path), label)
    depends = [os.fspath(root), *(os.fspath(root / name) for name in _USUAL if (root / name).exists())]
    depends = list(dict.fromkeys([*depends, *contents.listed]))
    return with_sizes(made.raw(boxed=False, names=names, depends=depends, about=about))


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    names = {name for each in splits.values() for name in each.class_names}
    odd = {name for name in names if not name or name.startswith(".") or set(name) & {"/", "\0"}}
    problems = [f"class '{name}': not a valid folder name; rename the class" for name in sorted(odd)]
    if any(each.has_boxes for each in splits.values()):
        problems.append("images with boxes cannot be written as class folders; choose a detection format")
    if problems:
        raise UserError(problems)
    for split, data in splits.items():
        for index, name in enumerate(file_names(data)):
            label = data.class_names[int(data.labels[index])]
            files.put(data, index, out / split / label / name)
    return []


def _is_divided(root: Path, split: str) -> bool:
    return not _named_splits(root) and not subfolders(root / split)


def _named_splits(root: Path) -> list[str]:
    return usual_order(each.name for each in subfolders(root) if is_usual(each.name) and subfolders(each))


def without_classes(root: Path) -> list[str]:
    """Return the splits in ``root`` that contain images instead of class folders."""
    folders = [] if _named_splits(root) else subfolders(root)
    return _splits_among([each.name for each in folders if any(map(image_file.is_image, each.iterdir()))])


def _splits_among(classes: Sequence[str]) -> list[str]:
    """Return the names of splits among the names of class folders.

    A single such name next to other names is a class, such as ``train`` next to ``bus``.
    """
    named = [name for name in classes if is_usual(name)]
    return named if len(named) > 1 or len(named) == len(classes) else []


def _split_folders(root: Path) -> list[str]:
    return [each.name for each in subfolders(root) if subfolders(each)]


@dataclass
class _Contents:
    classes: dict[str, dict[str, str]] = field(default_factory=dict)  # sorted paths by name in each class
    odd: dict[str, list[str]] = field(default_factory=dict)  # ignored paths by reason, such as "empty file"
    listed: list[str] = field(default_factory=list)  # folders and files that these contents depend on

    def leave_out(self, reason: str, path: str) -> None:
        self.odd.setdefault(reason, []).append(path)

    def add(self, top: str) -> None:
        def fail(path: str, _: OSError) -> None:
            self.listed.append(path)
            self.leave_out("folder that cannot be opened", path)

        def again(path: str) -> None:
            self.leave_out("link to a folder that is read elsewhere", path)
            self.classes.pop(composed(path[len(top) + 1 :]), None)  # not an empty class folder as well

        real = os.path.realpath(top)
        for entry in walk(top, self.listed, fail, again):
            name, _, rest = entry.path[len(top) + 1 :].partition("/")
            if not rest:
                if reading.is_folder(entry):
                    self.leave_out("hidden folder", entry.path)
                elif image_file.is_image(entry.name):
                    self.leave_out("outside the class folders", entry.path)
            elif entry.name.startswith("."):
                self.leave_out("hidden", entry.path)
            elif not image_file.is_image(entry.name):
                self.leave_out("not an image", entry.path)
            elif reason := _unusable(entry) or _of_another_class(entry, real, name):
                self.leave_out(reason, entry.path)
                self.listed.append(entry.path)
            else:
                self.classes.setdefault(composed(name), {})[composed(rest)] = entry.path


def _class_folders(top: Path) -> _Contents:
    contents = _Contents(classes={composed(each.name): {} for each in subfolders(top)})
    contents.add(os.fspath(top))
    contents.classes = {
        name: dict(sorted(contents.classes[name].items())) for name in sorted(contents.classes)
    }
    return contents


def _unusable(entry: os.DirEntry[str]) -> str:
    """Return why a file cannot be an image, or "" if it can, without reading the file."""
    try:
        status = entry.stat()
    except OSError:
        return "broken link"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return "" if status.st_size else "empty file"


def _of_another_class(entry: os.DirEntry[str], top: str, name: str) -> str:
    """Return why a link to an image in the class folder of another class is left out, or ""."""
    if not entry.is_symlink():
        return ""
    target = os.path.realpath(entry.path)
    other, _, rest = target[len(top) + 1 :].partition("/") if target.startswith(f"{top}/") else ("", "", "")
    linked = rest and other != name and not other.startswith(".")
    return "link to an image of another class" if linked else ""


def _class_names(contents: _Contents, top: Path) -> list[str]:
    names = [name for name, files in contents.classes.items() if files]
    if not names:
        endings = ", ".join(sorted(image_file.EXTENSIONS))
        raise UserError(
            f"{top}: no images found in {counted(len(contents.classes), 'class folder')}; expected files "
            f"with one of the extensions {endings}"
        )
    if split := _splits_among(names):
        are = "has the name of a split" if len(split) == 1 else "have the names of splits"
        raise UserError(
            f"{top}: {listed(split)} {are}, so these are not classes; expected one folder per class in each "
            "split; move the images into folders named after their classes"
        )
    if odd := [name for name in names if name.encode(errors="replace").decode() != name]:
        raise UserError(
            f"{top}: the name of the class folder {os.fsencode(name)!r} is not valid UTF-8; rename the folder"
            for name in odd
        )
    return names


def _left_out(contents: _Contents) -> list[str]:
    sentences = []
    if empty := [name for name, files in contents.classes.items() if not files]:
        sentences.append(f"ignored: {counted(len(empty), 'folder')} without images: {listed(empty)}")
    for reason, paths in sorted(contents.odd.items()):
        sentences.append(f"ignored: {len(paths):,} ({reason}); the first: {min(paths)}")
    return sentences
