"""Images of a data set with what is annotated on them: as they are, or as the model will see them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from rankless.curation.data_set import known_format
from rankless.data.datasets.builtin import DIGITS, DigitScenes
from rankless.data.datasets.opening import examine
from rankless.data.formats.registry import format_named, recognize
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import UnreadableImage, read
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.byte_ranges import open_source
from rankless.errors import UserError
from rankless.randomness import generator
from rankless.recipe.schema import Recipe
from rankless.structures import ClassificationItem, DetectionItem
from rankless.tasks import open_task

_SCENES = 4096  # of the built-in data, from which those to show are drawn


RecipeFor = Callable[[str], Recipe]


class Shown(NamedTuple):
    """One image to show.

    Attributes:
        image: RGB; None if it cannot be read.
        marks: its boxes, in pixels.
        caption: what stands below it.
        classes: of everything on it.
    """

    image: Image.Image | None
    marks: list[Mark]
    caption: str
    classes: frozenset[int]


@dataclass(frozen=True)
class Selection:
    """The images to show.

    Attributes:
        title: what they are of.
        class_names: of the data set.
        shown: the images.
        files: all images that they were drawn from; none of the built-in data.
        root, format: the data set; no root of the built-in data.
    """

    title: str
    class_names: tuple[str, ...]
    shown: list[Shown]
    files: Sequence[str] = ()
    root: str | None = None
    format: str = "auto"


def select(
    root: str,
    format: str = "auto",
    *,
    split: str | None = None,
    count: int = 16,
    seed: int = 0,
    class_name: str | None = None,
    augmented: RecipeFor | None = None,
) -> Selection:
    """Draw images of a split.

    Args:
        root: ``digits``, a folder, or a file such as a ``data.yaml``.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``.
        split: its name; the first one if not given.
        count: how many images; all if there are fewer.
        seed: another one draws others.
        class_name: only images with this class.
        augmented: show them as a training by this recipe sees them in its first epoch; it is asked for the
            recipe by the task that the data is for, ``detect`` or ``classify``.

    Raises:
        UserError: nothing there, no such split or class, or a recipe that does not fit the data.
    """
    known_format(format)
    if root == DIGITS and not Path(root).exists():
        return _digits(split or "train", count, seed, class_name, augmented)
    name, _ = recognize(root, format)
    split = split or format_named(name).splits(Path(root).expanduser())[0]
    whole = examine(root, split, format)
    names = whole.class_names
    wanted = _label(class_name, names)
    candidates = np.arange(len(whole))
    if wanted is not None:
        sample = np.repeat(candidates, np.diff(whole.offsets))
        candidates = np.unique(sample[np.asarray(whole.labels) == wanted])
    drawn = generator(seed, "show").permutation(candidates)[:count].tolist()
    look: Callable[[int], Shown] = _AsItIs(whole)
    if augmented is not None:
        recipe = augmented("detect" if whole.has_boxes else "classify")
        where: dict[str, Any] = {"root": root, "format": format, "train": split}
        look = _AsTrained(replace(recipe, data=replace(recipe.data, **where)))
    title = f"{Path(root).expanduser().resolve().name} · {split} · {len(drawn)} of {len(candidates):,}"
    looked = list(_looked(look, sorted(drawn)))
    return Selection(title + _with(class_name, augmented), names, looked, whole.paths(), root, format)


def _digits(
    split: str, count: int, seed: int, class_name: str | None, augmented: RecipeFor | None
) -> Selection:
    """The built-in data, whose classes are known only once a scene is made."""
    scenes = DigitScenes(split, _SCENES)
    wanted = _label(class_name, scenes.class_names)
    look: Callable[[int], Shown] = _AsItIs(scenes)
    total = len(scenes)
    if augmented is not None:
        recipe = augmented("detect")
        look = _AsTrained(replace(recipe, data=replace(recipe.data, root=DIGITS, train=split)))
        total = len(look.examples)
    order = generator(seed, "show").permutation(total).tolist()
    found = (one for one in _looked(look, order) if wanted is None or wanted in one.classes)
    shown = list(itertools.islice(found, count))
    title = f"digits · {split} · {len(shown)} scenes" + _with(class_name, augmented)
    return Selection(title, scenes.class_names, shown)


def _looked(look: Callable[[int], Shown], order: Iterable[int]) -> Iterator[Shown]:
    for index in order:
        try:
            yield look(index)
        except UnreadableImage as fault:
            yield Shown(None, [], f"{Path(fault.path).name}: {fault.reason}", frozenset())


def _label(class_name: str | None, names: tuple[str, ...]) -> int | None:
    if class_name is None:
        return None
    if class_name not in names:
        listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise UserError(f"--class is '{class_name}': expected one of {listed}")
    return names.index(class_name)


def _with(class_name: str | None, augmented: RecipeFor | None) -> str:
    return (f" · with '{class_name}'" if class_name else "") + (" · as trained on" if augmented else "")


class _AsItIs:
    """Images as they lie on the disk, with every box, also those that are not trained on."""

    def __init__(self, source: Annotations | DigitScenes) -> None:
        self.source = source

    def __call__(self, index: int) -> Shown:
        if isinstance(self.source, DigitScenes):
            sample = self.source.read(index)
            return _shown(
                sample.image,
                sample.boxes.tolist(),
                sample.labels.tolist(),
                self.source.class_names,
                self.source.source(index),
            )
        whole, rows = self.source, self.source.rows(index)
        image = read(open_source(whole, index), name=whole.path(index))
        labels = whole.labels[rows].tolist()
        name = Path(whole.path(index)).name
        if not whole.has_boxes:
            return Shown(_image(image), [], f"{whole.class_names[labels[0]]} · {name}", frozenset(labels))
        made = _shown(image, whole.boxes[rows].tolist(), labels, whole.class_names, name)
        flags = whole.flags[rows].tolist()
        marks = [
            mark._replace(text=mark.text + _flagged(flag))
            for mark, flag in zip(made.marks, flags, strict=True)
        ]
        return made._replace(marks=marks)


class _AsTrained:
    """Images as the network gets them in the first epoch."""

    def __init__(self, recipe: Recipe) -> None:
        task = open_task(recipe)
        self.names = tuple(task.class_names)
        self.examples: Any = task.training_data()  # of the task's own kind

    def __call__(self, index: int) -> Shown:
        item = self.examples.item(index, 0)
        source = Path(self.examples.images.source(index)).name
        if isinstance(item, DetectionItem):
            return _shown(item.image, item.boxes.tolist(), item.labels.tolist(), self.names, source)
        if isinstance(item, ClassificationItem):
            shares = sorted(
                ((share, label) for label, share in enumerate(item.target.tolist()) if share), reverse=True
            )
            parts = [f"{self.names[label]}: {share:.0%}" for share, label in shares[:3]]
            classes = ", ".join(parts) if len(parts) > 1 else self.names[shares[0][1]]
            labels = frozenset(label for _, label in shares)
            return Shown(_image(item.image), [], f"{classes} · {source}", labels)
        raise UserError("--augmented shows the tasks detect and classify; this recipe has a task of its own.")


def _flagged(flag: int) -> str:
    return (" (difficult)" if flag & DIFFICULT else "") + (" (crowd)" if flag & CROWD else "")


def _shown(
    image: Tensor, boxes: list[list[float]], labels: list[int], names: tuple[str, ...], caption: str
) -> Shown:
    marks = [
        Mark((x1, y1, x2, y2), names[label], label)
        for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True)
    ]
    return Shown(_image(image), marks, caption, frozenset(labels))


def _image(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
