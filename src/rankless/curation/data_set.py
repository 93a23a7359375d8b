"""Open data sets with all their splits, join splits, and protect a data set's files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankless.data.builtin import is_built_in
from rankless.data.datasets.class_choice import Classes
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats.registry import NAMES, format_named, recognize
from rankless.data.index.annotations import Annotations, flat_paths, subset
from rankless.data.index.file_states import saved_names
from rankless.data.path_checks import missing_data
from rankless.errors import UserError, check_all, listed, nearest, one_of
from rankless.files.outputs import Outputs
from rankless.files.remote import is_remote, location
from rankless.recipe.schema import is_own_format

UNION = "trainval"
"""Name of the Pascal VOC list that joins the splits ``train`` and ``val``."""


@dataclass(frozen=True)
class DataSet:
    """An open data set and its splits, by default in the order train, val, test, others."""

    root: str
    format: str
    splits: dict[str, Annotations]

    @property
    def title(self) -> str:
        return format_named(self.format).TITLE

    @property
    def parts(self) -> dict[str, Annotations]:
        """The splits, without ``trainval`` if ``train`` and ``val`` exist."""
        union = UNION in self.splits and {"train", "val"} <= self.splits.keys()
        return {name: each for name, each in self.splits.items() if not (union and name == UNION)}

    @property
    def has_boxes(self) -> bool:
        """Whether the annotations are boxes. Otherwise, each image has one class."""
        return all(each.has_boxes for each in self.splits.values())


def open_data_set(
    root: str,
    format: str = "auto",
    splits: Sequence[str] = (),
    *,
    classes: Classes = "auto",
    examined: bool = False,
    rescan: bool = False,
) -> DataSet:
    """Open the given splits of a data set, or all splits.

    With ``examined``, data with errors is also accepted. With ``rescan``, all annotations and image headers
    are read again, even if they seem unchanged. ``classes`` is described in
    :mod:`rankless.data.datasets.class_choice`.
    """
    format = known_format(format)
    name, _ = recognize(root, format)
    page = format_named(name)
    read: Callable[..., Annotations] = examine if examined else open_annotations
    with suggest_format(root, format):
        wanted = list(splits) or page.splits(location(root))
        if not wanted:
            raise UserError(
                f"{root}: no split found; expected {page.LAYOUT}; add a split, or use another folder"
            )
        checks = (partial(read, root, one, format, classes=classes, rescan=rescan) for one in wanted)
        return DataSet(root, name, dict(zip(wanted, check_all(*checks), strict=True)))


@contextmanager
def suggest_format(root: str, format: str) -> Iterator[None]:
    """Add the format that ``--format auto`` would detect to errors raised inside the context."""
    try:
        yield
    except UserError as error:
        named, by_name = format.partition(":")[0], is_remote(root) or is_built_in(root)
        if named == "auto" or by_name or format_named(named).recognize(location(root)):
            raise
        hint = []
        with suppress(UserError):
            name, why = recognize(root)
            hint = [f"{root}: looks like {format_named(name).TITLE}, because {why}; remove --format"]
        raise UserError([*error.problems, *hint]) from None


def refuse_data_files(outputs: Outputs, root: str, format: str) -> None:
    """Raise an error if ``--force`` would replace a file of the data set or another file in its folder."""
    if not outputs.forced or is_remote(root):
        return  # reading all splits can take a long time
    path = Path(root).expanduser()
    top = Path(os.path.realpath(path))
    outputs.refuse_inputs(
        file for file in outputs.forced if Path(os.path.realpath(file.parent), file.name).is_relative_to(top)
    )
    name, _ = recognize(root, format)
    for split in format_named(name).splits(location(root)):
        try:
            annotations = examine(root, split, format)
        except UserError:  # other checks report an unreadable split
            continue
        outputs.refuse_inputs([*annotations.paths(), *saved_names(annotations.folder or "")])


def known_format(name: str, option: str = "--format", known: Sequence[str] = ()) -> str:
    """Check and return the name of a format, possibly with the form of the boxes after a colon.

    ``yolo`` becomes ``darknet``.
    """
    plain, colon, form = name.partition(":")
    if plain == "yolo":
        return f"darknet{colon}{form}"
    known = known or ("auto", *NAMES)
    if plain not in known and not is_own_format(plain):
        near = "; did you mean 'darknet'?" if "yolo" in plain.lower() else nearest(plain, (*known, "yolo"))
        raise UserError(f"{option} is '{name}': expected {one_of(known)}{near}")
    return name


def join_splits(splits: Sequence[Annotations]) -> Annotations:
    """Join several splits into one. An image that several splits share is included once."""
    first = splits[0]
    if any(each.class_names != first.class_names for each in splits):
        classes = "; ".join(listed(each.class_names) for each in splits)
        raise UserError(
            f"the splits have different class names ({classes}); expected the same class names in all splits"
        )
    counts = np.cumsum([0, *(len(each.labels) for each in splits)])
    path_bytes, path_ends = flat_paths([path for each in splits for path in each.paths()])
    offsets = [each.offsets[:-1] + start for each, start in zip(splits, counts[:-1], strict=True)]
    names = ("byte_ranges", "sizes", "boxes", "labels", "flags", "areas")
    flat: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in splits]) for name in names}
    whole = replace(
        first,
        path_bytes=path_bytes,
        path_ends=path_ends,
        offsets=np.concatenate([*offsets, counts[-1:]]).astype(np.int64),
        folder=None,
        **flat,
    )
    seen: dict[tuple[str, int], int] = {}
    starts = whole.byte_ranges[:, 0].tolist() if len(whole.byte_ranges) else [0] * len(whole)
    for index, source in enumerate(zip(whole.paths(), starts, strict=True)):
        seen.setdefault(source, index)
    return whole if len(seen) == len(whole) else subset(whole, list(seen.values()))


def left_out(splits: Mapping[str, Annotations]) -> list[str]:
    """Return notes on the annotations and files of each split that a copy lacks or that were changed."""
    return [
        f"{name}: {note}"
        for name, each in splits.items()
        for note in each.findings.notes(but=("difficult", "crowd"))
    ]


def names_below(root: str, annotations: Annotations) -> list[str]:
    """Return each image's path relative to the data set's folder.

    These names stay the same if the data set is moved or extended.
    """
    path = Path(root).expanduser()
    top = (path if path.is_dir() else path.parent).resolve()
    names = []
    for file in annotations.paths():
        folder, base = os.path.split(file)
        name = os.path.relpath(os.path.join(os.path.realpath(folder), base), top)  # noqa: PTH118
        names.append((base if name.startswith("..") else name).replace(os.sep, "/"))
    return names


def must_be_outside(root: str, out: Path) -> None:
    path = Path(root).expanduser()
    inner = Path(os.path.realpath(out.expanduser()))
    if path.is_dir() and Path(os.path.realpath(path)) in inner.parents:
        raise UserError(
            f"--out {out}: this folder is inside the data set {root}; choose a folder outside the data set, "
            f"such as {folder_beside(root, 'new')}"
        )


def folder_beside(root: str, ending: str) -> Path:
    """Return a folder next to the data set, such as ``cells-fixed`` next to ``cells``."""
    path = Path(root).expanduser()
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    if not folder.name:
        if problems := missing_data(root):
            raise UserError(problems)
        raise UserError(f"{root}: this is the root of the file system; use the folder of the data set")
    return folder.with_name(f"{folder.name}-{ending}")
