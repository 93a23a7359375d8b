"""Select and order the classes of a data set according to ``data.classes`` and ``data.ignore_class``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankless.data.datasets.class_matching import nearest_class
from rankless.data.formats.darknet_description import read_description
from rankless.data.formats.folders import read_names
from rankless.data.index.annotations import CROWD, Annotations, subset, with_boxes
from rankless.data.index.raw import Raw
from rankless.errors import UserError, counted, listed
from rankless.structures import IGNORED_LABEL

Classes = str | Sequence[str]
"""``auto`` for all classes, the path of a file with class names, or a sequence of class names."""


def class_list(classes: Classes, root: str) -> tuple[str, ...] | None:
    """Return the class names selected by ``data.classes``, or None for all classes.

    A file is looked up in the working directory, and then in the folder of the data.
    """
    if classes == "auto":
        return None
    names = _from_file(classes, root) if isinstance(classes, str) else tuple(classes)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"data.classes contains {listed(twice)} more than once; remove the duplicates")
    return names


def _from_file(name: str, root: str) -> tuple[str, ...]:
    top = Path(root).expanduser()
    places = [Path(name).expanduser(), (top if top.is_dir() else top.parent) / name]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        words = ", ".join(word.strip() for word in name.strip("[]").split(","))
        raise UserError(
            f"data.classes is '{name}': no such file in the working directory or in {places[1].parent}; "
            f"expected a file with one class name per line, or a list such as data.classes='[{words}]'"
        )
    if file.suffix.lower() in {".yaml", ".yml", ".data"}:
        described = read_description(file)
        if described.problems:
            raise UserError(described.problems)
        return described.class_names
    return read_names(file)


def refuse_classes(title: str, classes: object, ignore: Sequence[str] = ()) -> None:
    """Raise an error if ``data.classes`` or ``data.ignore_class`` is set for built-in data."""
    for key, given in (("data.classes", classes != "auto"), ("data.ignore_class", ignore)):
        if given:
            raise UserError(f"{key} is not supported for {title}; remove {key}, or set data.root")


def give_each_class_a_name(raw: Raw, chosen: Sequence[str] | None, where: str) -> None:
    """Join or rename classes of the same name as ``data.classes`` says; without it, raise an error.

    If ``chosen`` has one name for each class of the data, it names the classes. Otherwise, classes of the
    same name become one class.
    """
    names = list(dict.fromkeys(raw.names))
    if len(names) == len(raw.names):
        return
    twice = listed([name for name, count in Counter(raw.names).items() if count > 1])
    if chosen is None:
        shown = ", ".join(names[:8]) + ", …" * (len(names) > 8)
        raise UserError(
            f"{where}: several classes have the same name ({twice}); expected {len(raw.names)} different "
            "names; rename the classes, join those of the same name with "
            f"data.classes='[{shown}]' (`rankless data`: --classes), or list {len(raw.names)} new names in "
            "data.classes, in the order of the classes"
        )
    if len(chosen) == len(raw.names):
        raw.names = list(chosen)
        raw.about.append(
            f"class names from data.classes, because several classes have the same name ({twice})"
        )
        return
    numbers = np.array([names.index(name) for name in raw.names])
    known = (raw.labels >= 0) & (raw.labels < len(numbers))  # others are reported later
    raw.labels = np.where(known, numbers[np.where(known, raw.labels, 0)], raw.labels)
    raw.names = names
    raw.about.append(f"classes of the same name are joined: {twice}")


def with_classes(
    whole: Annotations, names: Sequence[str], where: str, elsewhere: Iterable[str] = ()
) -> Annotations:
    """Return the annotations with only the classes ``names``, in this order, and add a note to ``about``.

    For detection, boxes of other classes are dropped, but images are kept. For classification, images of
    other classes are dropped. ``names`` may include classes of other splits (``elsewhere``).
    """
    known = whole.class_names
    _refuse_unknown("data.classes", names, known, {*known, *elsewhere}, where)
    label_of = {name: label for label, name in enumerate(names)}
    labels = np.array([label_of.get(name, -1) for name in known], np.int64)[np.asarray(whole.labels)]
    selected = labels >= 0
    counts = np.bincount(np.asarray(whole.labels), minlength=len(known)).tolist()
    left_out = {name: count for name, count in zip(known, counts, strict=True) if name not in label_of}
    if whole.has_boxes:
        made = with_boxes(whole, selected)
    elif selected.any():
        made = replace(subset(whole, np.flatnonzero(selected)), findings=whole.findings)
    else:
        raise UserError(
            f"{where}: the split has no images of the selected classes ({listed(names)}); correct "
            "data.classes"
        )
    about = (*whole.about, *([_note(whole.has_boxes, len(names), left_out)] if left_out else ()))
    return replace(made, class_names=tuple(names), labels=labels[selected].astype(np.int32), about=about)


def with_ignored(whole: Annotations, names: Sequence[str], where: str) -> Annotations:
    """Return the annotations with the boxes of the classes ``names`` as regions to ignore, with a note.

    Such a box becomes a crowd with the label ``IGNORED_LABEL``.
    """
    known = whole.class_names
    _refuse_unknown("data.ignore_class", names, known, known, where)
    if not (kept := [name for name in known if name not in names]):
        raise UserError(
            f"data.ignore_class names all {counted(len(known), 'class', 'classes')} of {where} "
            f"({listed(known)}); expected at least one class to learn; remove a class from data.ignore_class"
        )
    label_of = {name: label for label, name in enumerate(kept)} | dict.fromkeys(names, IGNORED_LABEL)
    labels = np.array([label_of[name] for name in known], np.int32)[np.asarray(whole.labels)]
    regions = labels == IGNORED_LABEL
    note = f"data.ignore_class: {counted(int(regions.sum()), 'box', 'boxes')} of {listed(names)} to ignore"
    flags = np.where(regions, whole.flags | CROWD, whole.flags).astype(np.uint8)
    return replace(
        whole,
        class_names=tuple(kept),
        labels=labels,
        flags=flags,
        about=(*whole.about, note),
        folder=None,
    )


def _refuse_unknown(
    key: str, names: Sequence[str], known: Sequence[str], allowed: Collection[str], where: str
) -> None:
    """Raise an error about the ``names`` in a recipe's ``key`` that are not ``allowed``."""
    lacking = [
        f"{key}: the data has no class '{name}'{nearest_class(name, known)}"
        for name in names
        if name not in allowed
    ]
    if lacking:
        has = f"{where} has {counted(len(known), 'class', 'classes')}: {listed(known)}"
        raise UserError([*lacking[:8], f"{has}; correct the names in {key}"])


def _note(boxed: bool, names: int, left_out: dict[str, int]) -> str:
    most = sorted(left_out.items(), key=lambda one: -one[1])
    shown = ", ".join(f"'{name}' ({count:,})" for name, count in most[:8])
    more = f" and {len(most) - 8} more" if len(most) > 8 else ""
    lost = counted(sum(left_out.values()), *(("box", "boxes") if boxed else ("image", "images")))
    others = counted(len(left_out), "other class", "other classes")
    used = counted(names, "class", "classes")
    return f"data.classes selects {used}; dropped {lost} of {others}: {shown}{more}"
