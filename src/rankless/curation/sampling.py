"""Sample images of a data set with their annotations, as stored or as augmented for training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from rankless.curation.data_set import known_format
from rankless.data.builtin import named
from rankless.data.datasets.annotated import DetectionImages
from rankless.data.datasets.class_choice import Classes, refuse_classes
from rankless.data.datasets.open_split import examine
from rankless.data.formats.registry import format_named, recognize
from rankless.data.images import image_file
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import UnreadableImage, Values
from rankless.data.images.sources import FileImages
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError, counted, listed, nearest
from rankless.files.remote import location
from rankless.randomness import generator
from rankless.recipe.schema import Recipe
from rankless.structures import IGNORED_LABEL, ClassificationItem, DetectionItem
from rankless.task_kinds import BUILT_IN, kind_for, kind_of
from rankless.tasks import open_task

_SCENES = 4096  # number of built-in scenes to sample from
RecipeFor = Callable[[str], Recipe]


class Shown(NamedTuple):
    """One image of a contact sheet, with the boxes to draw and the ids of the classes in the image."""

    image: Image.Image | None
    """The RGB image, or None if it cannot be read."""
    marks: list[Mark]
    caption: str
    classes: frozenset[int]
    heading: str = ""
    """Title of a group of images, set only for the first one."""


@dataclass(frozen=True)
class Selection:
    """The images of a contact sheet. ``files`` are the paths of all images in the split."""

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
    classes: Classes = "auto",
    augmented: RecipeFor | None = None,
    values: Values = "full",
) -> Selection:
    """Sample random images of a split. The default is the first split.

    ``values`` is a value of ``data.range``; with ``augmented``, the recipe's is used.

    With ``class_name``, only images with an object of this class are sampled. ``augmented`` returns a recipe
    for a task. If it is given, images are augmented as in the first epoch of training with this recipe.
    """
    format = known_format(format)
    name, _ = recognize(root, format)
    page = format_named(name)
    if (split := split or next(iter(page.splits(location(root))), None)) is None:
        raise UserError(f"{root}: no split found; expected {page.LAYOUT}")
    data: dict[str, Any] = {"root": root, "format": format, "train": split, "classes": classes}
    if made := named(root):
        refuse_classes(made.TITLE, classes)
        scenes = made.detection(split, _SCENES, 0, made.SIZE)
        return _generated(scenes, data, count, seed, class_name, augmented)
    whole = examine(root, split, format, classes=classes)
    if augmented is not None:
        recipe = augmented(kind_for(boxes=whole.has_boxes).name)
        chosen = classes if recipe.data.classes == "auto" else recipe.data.classes
        whole = examine(root, split, format, classes=chosen, ignore=recipe.data.ignore_class)
        recipe = replace(recipe, data=replace(recipe.data, **(data | {"classes": chosen})))
    candidates = np.arange(len(whole))
    if (wanted := _label(class_name, whole.class_names)) is not None:
        image_of = np.repeat(candidates, np.diff(whole.offsets))
        candidates = np.unique(image_of[np.asarray(whole.labels) == wanted])
    drawn = generator(seed, "show").permutation(candidates)[:count].tolist()
    sample: Callable[[int], Shown] = partial(_as_stored, whole, values)
    if augmented is not None:
        sample, _ = _augmented(recipe)
    title = f"{Path(root).expanduser().resolve().name} · {split} · {len(drawn)} of {len(candidates):,}"
    shown = list(_read(sample, sorted(drawn)))
    if shown and all(one.image is None and image_file.GIVE_RANGE in one.caption for one in shown):
        first = shown[0].caption.replace(image_file.GIVE_RANGE, "use --range LOW,HIGH or --range auto")
        raise UserError(f"{root}: no image can be shown: {first}")
    return Selection(
        title + _suffix(class_name, augmented), whole.class_names, shown, whole.paths(), root, format
    )


def _generated(
    scenes: DetectionImages,
    data: dict[str, Any],
    count: int,
    seed: int,
    class_name: str | None,
    augmented: RecipeFor | None,
) -> Selection:
    """Sample built-in scenes, whose classes are known only after rendering."""
    wanted = _label(class_name, scenes.class_names)
    sample: Callable[[int], Shown] = partial(_scene, scenes)
    total = len(scenes)
    if augmented is not None:
        recipe = augmented(kind_for(boxes=True).name)
        sample, total = _augmented(replace(recipe, data=replace(recipe.data, **data)))
    order = generator(seed, "show").permutation(total).tolist()
    matching = (one for one in _read(sample, order) if wanted is None or wanted in one.classes)
    shown = list(itertools.islice(matching, count))
    title = f"{data['root']} · {data['train']} · {counted(len(shown), 'scene')}"
    return Selection(title + _suffix(class_name, augmented), scenes.class_names, shown)


def _read(sample: Callable[[int], Shown], order: Iterable[int]) -> Iterator[Shown]:
    for index in order:
        try:
            yield sample(index)
        except UnreadableImage as error:
            yield Shown(None, [], f"{Path(error.path).name}: {error.reason}", frozenset())


def _label(class_name: str | None, names: tuple[str, ...]) -> int | None:
    if class_name is not None and class_name not in names:
        raise UserError(
            f"--class is '{class_name}': expected {'one of ' * (len(names) > 1)}{listed(names)}"
            f"{nearest(class_name, names)}"
        )
    return None if class_name is None else names.index(class_name)


def _suffix(class_name: str | None, augmented: RecipeFor | None) -> str:
    return (f" · with '{class_name}'" if class_name else "") + (" · augmented" if augmented else "")


def _scene(scenes: DetectionImages, index: int) -> Shown:
    sample = scenes.read(index)
    names = [scenes.class_names[label] for label in sample.labels.tolist()]
    return _shown(sample.image, sample.boxes.tolist(), sample.labels.tolist(), names, scenes.source(index))


def _as_stored(whole: Annotations, values: Values, index: int) -> Shown:
    unreduced = image_file.Shown((0, 0), detail=0, values=values)
    image, rows = FileImages(whole, unreduced).read(index).image, whole.rows(index)
    labels, caption = whole.labels[rows].tolist(), Path(whole.path(index)).name
    names = [whole.class_names[label] for label in labels]
    if not whole.has_boxes:
        return Shown(pil_image(image), [], f"{names[0]} · {caption}", frozenset(labels))
    flags = whole.flags[rows].tolist()
    texts = [
        name + (" (difficult)" if flag & DIFFICULT else "") + (" (crowd)" if flag & CROWD else "")
        for name, flag in zip(names, flags, strict=True)
    ]
    return _shown(image, whole.boxes[rows].tolist(), labels, texts, caption, [flag > 0 for flag in flags])


def _augmented(recipe: Recipe) -> tuple[Callable[[int], Shown], int]:
    """Return a function that augments an image as in the first epoch, and the number of images."""
    task = open_task(recipe)
    examples: Any = task.training_data()  # the type depends on the task
    if recipe.task not in BUILT_IN:
        raise UserError(
            f"--augmented works only for the tasks {' and '.join(BUILT_IN)}, but this recipe has a custom "
            "task; remove --augmented"
        )

    def as_trained(index: int) -> Shown:
        source = Path(examples.images.source(index)).name
        shown: Shown = kind_of(recipe.task).show(examples.item(index, 0), tuple(task.class_names), source)
        return shown

    return as_trained, len(examples)


def of_detector(item: DetectionItem, names: tuple[str, ...], source: str) -> Shown:
    """Show an image with boxes as a detector is trained with it."""
    labels = item.labels.tolist()
    texts = [names[label] if label != IGNORED_LABEL else "ignored" for label in labels]
    dashed = [label == IGNORED_LABEL for label in labels]
    return _shown(item.image, item.boxes.tolist(), labels, texts, source, dashed)


def of_classifier(item: ClassificationItem, names: tuple[str, ...], source: str) -> Shown:
    """Show an image as a classifier is trained with it; augmentation may mix classes."""
    target = {label: weight for label, weight in enumerate(item.target.tolist()) if weight}
    first = sorted(target, key=lambda label: (target[label], label), reverse=True)
    parts = [f"{names[label]}: {target[label]:.0%}" for label in first[:3]]
    classes = ", ".join(parts) if len(parts) > 1 else names[first[0]]
    return Shown(pil_image(item.image), [], f"{classes} · {source}", frozenset(target))


def _shown(
    image: Tensor,
    boxes: Sequence[Sequence[float]],
    labels: list[int],
    texts: Sequence[str],
    caption: str,
    dashed: Sequence[bool] = (),
) -> Shown:
    """Mark the boxes. The outlines of boxes to ignore are ``dashed``."""
    each = zip(boxes, texts, labels, dashed or [False] * len(labels), strict=True)
    marks = [
        Mark((x1, y1, x2, y2), text, label, dashed=is_dashed)
        for (x1, y1, x2, y2), text, label, is_dashed in each
    ]
    return Shown(pil_image(image), marks, caption, frozenset(labels))


def pil_image(image: Tensor) -> Image.Image:
    """Convert an image, uint8 (3, H, W), to a Pillow image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
