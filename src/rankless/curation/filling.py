"""Fill the image cache for ``data.cache: disk`` before training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rankless.curation.progress import thread_map
from rankless.data.datasets.annotated import BoxedImages, ClassifiedImages
from rankless.data.images.image_cache import CachedImages
from rankless.data.images.image_file import UnreadableImage
from rankless.data.images.sources import ImageExamples
from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.tasks import open_task


@dataclass(frozen=True)
class Filled:
    """The result for one split. The notes give the location and size of the cache."""

    split: str
    images: int
    unreadable: tuple[UnreadableImage, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        failed = [[one.path, one.reason] for one in self.unreadable]
        return {"split": self.split, "images": self.images, "unreadable": failed}


def fill(recipe: Recipe) -> list[Filled]:
    """Decode a recipe's training and validation images into the cache, at the resolution the recipe needs.

    Images that are already in the cache are skipped.
    """
    recipe = replace(recipe, data=replace(recipe.data, cache="disk"))
    task = open_task(recipe)
    parts: dict[str, Any] = {recipe.data.train: task.training_data()}
    if recipe.data.val != "none":
        parts[recipe.data.val] = task.evaluation_data()
    return [_fill_split(split, examples) for split, examples in parts.items()]


def _fill_split(split: str, examples: Any) -> Filled:
    source = examples.images if isinstance(examples, ImageExamples) else None
    images = source.images if isinstance(source, BoxedImages | ClassifiedImages) else None
    if not isinstance(images, CachedImages):
        raise UserError(
            f"'{split}': these images are generated, so they cannot be cached; expected a detection or "
            "classification data set in files or shards"
        )

    def work(index: int) -> UnreadableImage | None:
        try:
            examples.images.read(index)
        except UnreadableImage as error:
            return error
        return None

    unreadable = [error for error in thread_map(work, range(len(examples)), f"decoding '{split}'") if error]
    notes = tuple(note for note in examples.notes if str(images.folder) in note)
    return Filled(split, len(examples), tuple(unreadable), notes)
