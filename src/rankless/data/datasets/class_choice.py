"""Select and order the classes of a data set according to ``data.classes``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankless.data.datasets.class_matching import nearest_class
from rankless.data.formats.darknet_description import read_description
from rankless.data.formats.folders import read_names
from rankless.data.index.annotations import Annotations, subset, with_boxes
from rankless.errors import UserError, counted, listed

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


def refuse_classes(classes: object) -> None:
    """Raise an error if ``data.classes`` is set for the built-in digits."""
    if classes != "auto":
        raise UserError(
            "data.classes is not supported for the built-in digits; remove data.classes, or set data.root"
        )


def with_classes(
    whole: Annotations, names: Sequence[str], where: str, elsewhere: Iterable[str] = ()
) -> Annotations:
    """Return the annotations with only the classes ``names``, in this order, and add a note to ``about``.

    For detection, boxes of other classes are dropped, but images are kept. For classification, images of
    other classes are dropped. ``names`` may include classes of other splits (``elsewhere``).
    """
    known = whole.class_names
    anywhere = {*known, *elsewhere}
    if unknown := [name for name in names if name not in anywhere]:
        lacking = [
            f"data.classes: the data has no class '{name}'{nearest_class(name, known)}" for name in unknown
        ]
        has = f"{where} has {counted(len(known), 'class', 'classes')}: {listed(known)}"
        raise UserError([*lacking[:8], f"{has}; correct the names in data.classes"])
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


def _note(boxed: bool, names: int, left_out: dict[str, int]) -> str:
    most = sorted(left_out.items(), key=lambda one: -one[1])
    shown = ", ".join(f"'{name}' ({count:,})" for name, count in most[:8])
    more = f" and {len(most) - 8} more" if len(most) > 8 else ""
    lost = counted(sum(left_out.values()), *(("box", "boxes") if boxed else ("image", "images")))
    others = counted(len(left_out), "other class", "other classes")
    used = counted(names, "class", "classes")
    return f"data.classes selects {used}; dropped {lost} of {others}: {shown}{more}"
