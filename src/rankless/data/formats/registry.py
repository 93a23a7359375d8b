"""The registry of data formats. Each format is a module in this package and an entry in ``_PAGES``."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

from rankless.data import builtin
from rankless.data.formats import label_files
from rankless.data.formats.darknet_description import description_in
from rankless.data.formats.folders import names_files
from rankless.data.formats.image_folder import without_classes
from rankless.data.formats.writing import ImageFiles
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw
from rankless.data.path_checks import missing_data
from rankless.errors import UserError, listed, printable
from rankless.files import range_cache, reading
from rankless.files.remote import Location, RemotePath, forget_states, is_remote, refuse_secrets
from rankless.printing import warn
from rankless.user_modules import absolute, load_module, refuse_lacking

_PAGES = {
    # Formats are tried in this order, the most specific first.
    "webdataset": "webdataset",
    "coco": "coco",
    "cvat": "cvat",
    "voc": "voc",
    "darknet": "darknet",
    "fiftyone": "fiftyone",
    "hugging-face": "hugging_face",
    "createml": "createml",
    "labelme": "labelme",
    "label-studio": "label_studio",
    "via": "via",
    "csv": "csv_table",
    "lines": "lines",
    "cifar": "cifar",
    "oxford-pets": "oxford_pets",
    "image-folder": "image_folder",
}
NAMES = tuple(_PAGES)
_MEMBERS = {
    "TITLE": "TITLE, the name of the format for messages",
    "LAYOUT": "LAYOUT, a description of the expected files",
    "recognize": "recognize(root) returns why the data has this format, or an empty text",
    "splits": "splits(root) returns the names of the splits",
    "read": "read(root, split) returns the annotations, a rankless.data.index.raw.Raw",
}
REMOTE = "webdataset"  # the only format that can be read from a URL
_PARTS = (
    *("images", "labels", "jpegimages", "annotations", "imagesets"),
    *("train", "training", "val", "valid", "validation", "dev", "test", "testing"),
)
"""Usual names of folders inside a data set."""
_ARCHIVES = (".zip", ".gz", ".tgz", ".7z", ".rar")
_LOOKED_AT = 10_000  # maximum number of files to count in a folder of unknown format


class Format(Protocol):
    """The interface of a format's module."""

    TITLE: str
    """Name of the format for messages, such as "Pascal VOC"."""
    LAYOUT: str
    """Description of the expected files for messages, which follows "expected"."""
    BOXES_IN: str
    """``folders`` if files with boxes may be in several folders, otherwise ``folder``. Formats without boxes
    lack this attribute, and those whose files never lie beside files of another format."""

    def recognize(self, root: Location) -> str:
        """Return why ``root`` looks like this format, such as "it has 'data.yaml'", or "" if it does not."""
        ...

    def splits(self, root: Location) -> list[str]:
        """Return the names of the splits, in the order train, val, test, others."""
        ...

    def read(self, root: Location, split: str) -> Raw:
        """Read one split; the root of shards may be a URL.

        Formats whose classes may be numbers without names also accept ``class_names``, the names of the
        classes 0, 1, …. Formats that do not tell polygons from boxes with key points also accept ``form``,
        the form of the boxes or ``polygon``. A user's format may accept ``options``, an instance of its
        dataclass ``Options`` with the values of ``data.options``. Built-in data has no files and lacks this
        method.
        """
        ...

    def undivided(self, root: Path, split: str) -> str:
        """Return the name of the data that the reader divides to create ``split``, or ``split`` itself.

        Formats that never divide data lack this method.
        """
        ...

    def write(self, out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
        """Write a data set to the empty folder ``out``, and return notes on information that is lost.

        Read-only formats lack this method. Their copies are written as COCO JSON or class folders.
        """
        ...


def format_named(name: str) -> Format:
    """Return the module of a format; ``name`` is one of :data:`NAMES`, built-in data, or a user's module."""
    if made := builtin.named(name):
        return cast(Format, made)
    if name not in _PAGES:
        what = f"data.format is '{name}'"
        own = load_module(name, what, "the format, such as my_format.py")
        refuse_lacking(own, what, _MEMBERS, "member")
        return cast(Format, own)
    return cast(Format, importlib.import_module(f"rankless.data.formats.{_PAGES[name]}"))


def writable() -> list[str]:
    """Return the names of the formats that can be written."""
    return [name for name in NAMES if hasattr(format_named(name), "write")]


def _with_boxes(*places: str) -> list[str]:
    return [name for name in NAMES if getattr(format_named(name), "BOXES_IN", None) in places]


def written_as(name: str, splits: Mapping[str, Annotations]) -> str:
    """Return the format in which :func:`write` writes data of the format ``name``."""
    if hasattr(format_named(name), "write"):
        return name
    return "coco" if any(data.has_boxes for data in splits.values()) else "image-folder"


def write(name: str, out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write a data set in the format ``name``; see :meth:`Format.write`."""
    page = format_named(written_as(name, splits))
    return page.write(out, splits, files)


def recognize(root: str, format: str = "auto") -> tuple[str, str]:
    """Return the name of the format of a data set, and the reason for recognizing it.

    The form of the boxes, after a colon in ``format``, is not part of the name. Built-in data names itself.
    """
    path = Path(root).expanduser()
    if builtin.is_built_in(root):
        if path.exists():
            warn(f"'{root}' is the built-in data; to use the folder or file of this name, write ./{root}")
        return root, "it is built in"
    format = format.partition(":")[0]
    if root.startswith("torchvision/") and not path.exists():
        raise UserError(
            f"{root}: this name is valid only in recipes (data.root={root} data.folder=FOLDER); give a "
            "folder such as data/cifar-10-batches-py"
        )
    if problems := missing_data(root):
        raise UserError(problems)
    if is_remote(root):
        return REMOTE, _recognize_remote(root, format)
    if format != "auto":
        return absolute(format), "data.format is set"
    name, why = _first_match(path, NAMES)
    if outer := _data_set_around(path, name):
        raise UserError(
            f"{root}: seems to be only part of the data set {outer}; use {outer}, or move the folder if it "
            "does not belong to it"
        )
    home = os.path.expanduser("~")  # noqa: PTH111 - there may be none
    if name == "image-folder" and path.resolve() in (Path("/"), Path(home).resolve()):
        raise UserError(
            f"{root}: this is the {'home folder' if path.resolve().name else 'root of the file system'}, "
            "where each folder would count as a class; use the folder of a data set or, if the classes are "
            "here, add data.format=image-folder (`rankless data`: --format)"
        )
    if name:
        return name, why
    titles = ", ".join(format_named(name).TITLE for name in NAMES)
    raise UserError(
        f"{root}: no known data format: {_what_is_there(path)}; expected one of these formats: {titles} "
        "(docs/formats.md lists their files)"
    )


def _recognize_remote(root: str, format: str) -> str:
    """Return why the data at a URL looks like shards; raise an error if it does not."""
    refuse_secrets(root)
    if format not in ("auto", REMOTE):
        raise UserError(
            f"{root}: data.format is '{format}', but only tar shards can be read from a URL; pack the data "
            "with `rankless data pack FOLDER --out shards`"
        )
    page = format_named(REMOTE)
    forget_states()
    range_cache.user_cache().trim()
    try:
        why = page.recognize(RemotePath(root))
    except OSError as error:
        raise UserError(f"{root}: {error.strerror or error}; expected {page.LAYOUT}") from error
    if not why:
        raise UserError(
            f"{root}: the server lists no tar shards; expected {page.LAYOUT}; see `rankless data pack --help`"
        )
    return why


def also(root: str, taken: str) -> Iterator[str]:
    """Yield notes on formats other than ``taken`` that match the data."""
    path = Path(root).expanduser()
    names = _with_boxes("folders", "folder")
    for name in names if taken in names and path.is_dir() else ():
        page = format_named(name)
        recognize: Callable[[Path], str] = getattr(page, "recognize_beside", page.recognize)
        with suppress(UserError):
            why = recognize(path) if name != taken else ""
            if why:
                yield f"it can also be read as {page.TITLE} with data.format={name} ({why})"


def _first_match(path: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the first of the given formats that matches, and the reason, or two empty strings."""
    return next(((name, why) for name in names if (why := format_named(name).recognize(path))), ("", ""))


def _data_set_around(path: Path, name: str) -> Path | None:
    """Return the data set that contains ``path`` if ``path`` is only a folder of images, labels or a split.

    On its own, a folder of images looks like class folders, and a Darknet split lacks class names.
    """
    full = path.resolve()
    stands = name not in ("", "image-folder", "darknet") or (
        name == "darknet" and (description_in(full) or names_files([full]))
    )
    if stands or not full.is_dir():
        return None
    outer = None
    for inner in (full, full.parent):
        if inner.name.lower() not in _PARTS:
            break
        outer = inner.parent if _first_match(inner.parent, _with_boxes("folders"))[0] else outer
    return outer


def _what_is_there(path: Path) -> str:
    if path.is_file():
        if what := label_files.looks_like(path):
            return f"it looks like {what}; use the folder that contains it"
        kind = "an image" if path.suffix.lower() in EXTENSIONS else f"a '{path.suffix}' file"
        kind = "an archive; unpack it" if path.suffix.lower() in _ARCHIVES else kind
        kind = f"it is {kind}" if path.suffix else "it is a file without an extension"
        return kind if path.stat().st_size else f"{kind}, and is empty (0 bytes)"
    entries = list(islice((each for each in path.rglob("*") if not reading.is_folder(each)), _LOOKED_AT + 1))
    if not entries:
        return "the folder is empty" if not any(path.iterdir()) else "the folder contains only folders"
    more = "at least " if len(entries) > _LOOKED_AT else ""
    endings = Counter(each.suffix.lower() for each in entries[:_LOOKED_AT])
    samples = sum(count for ending, count in endings.items() if ending in EXTENSIONS)
    if not samples:
        common = ", ".join(
            f"{count} {ending or 'without an extension'}" for ending, count in endings.most_common(3)
        )
        empty = next((each for each in sorted(entries[:_LOOKED_AT]) if not os.path.getsize(each)), None)  # noqa: PTH202
        but = f"; '{printable(str(empty.relative_to(path)))}' is empty (0 bytes)" if empty else ""
        return f"no images, but other files ({more}{endings.total()}: {common}){but}"
    rest = endings.total() - samples
    first = min((each for each in entries[:_LOOKED_AT] if each.suffix.lower() not in EXTENSIONS), default="")
    known = label_files.described(path)
    such = f", such as '{printable(str(Path(first).relative_to(path)))}'" if first and not known else ""
    labels = f"other files ({rest}) of no known layout{such}" if rest else "no labels"
    there = [f"images ({more}{samples}) and {labels}", known]
    if named := without_classes(path):
        there.insert(1, f"no class folders in {listed(named)}")
    return "; ".join(filter(None, there))
