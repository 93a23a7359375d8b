"""Decoding images ahead of a training, into the cache that ``data.cache: disk`` reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rankless.curation.progress import each
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.tasks import open_task


@dataclass(frozen=True)
class Filled:
    """What was done for one split.

    Attributes:
        split: its name.
        images: how many there are.
        unreadable: those that cannot be decoded, with the reason.
        notes: where the images lie and how large they are together.
    """

    split: str
    images: int
    unreadable: tuple[UnreadableImage, ...]
    notes: tuple[str, ...]


def fill(recipe: Recipe) -> list[Filled]:
    """Decode the images that a recipe trains and scores on, each as large as the recipe needs it.

    What is kept already is not decoded again, so an interrupted filling goes on.

    Raises:
        UserError: faulty data, no room, or images that come from no files.
    """
    recipe = replace(recipe, data=replace(recipe.data, cache="disk"))
    task = open_task(recipe)
    parts: dict[str, Any] = {recipe.data.train: task.training_data(), recipe.data.val: task.evaluation_data()}
    return [_filled(split, examples) for split, examples in parts.items()]


def _filled(split: str, examples: Any) -> Filled:
    samples: Any = getattr(examples, "images", None)
    cache = getattr(samples, "cache", None)
    if cache is None:
        raise UserError(
            f"The images of '{split}' come from no files, so none can be kept decoded; expected a data set "
            "of files or shards, for the task detect or classify."
        )
    of_boxes = isinstance(samples, BoxedImages)
    decode: Callable[[int, Any], object] = samples.decoded if of_boxes else samples.shown_image

    def work(index: int) -> UnreadableImage | None:
        try:
            decode(index, examples.shown)
        except UnreadableImage as error:
            return error
        return None

    faults = [fault for fault in each(work, range(len(examples)), f"decoding '{split}'") if fault]
    notes = tuple(note for note in examples.notes if str(cache.folder) in note)
    return Filled(split, len(examples), tuple(faults), notes)
