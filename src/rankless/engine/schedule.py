"""Steps and epochs, computed from the recipe and the number of images.

Steps cut one endless stream of images into global batches, so an epoch's boundary may fall inside a step
and no image is dropped or doubled. The step that finishes an epoch's last image belongs to that epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankless.data.order import Line, micro_batch
from rankless.errors import counted
from rankless.recipe.schema import Recipe


@dataclass(frozen=True)
class StepSchedule:
    """What every step of a run is.

    Attributes:
        recipe: the recipe.
        images: how many training images there are.
    """

    recipe: Recipe
    images: int

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.end_of_epoch(self.recipe.epochs)

    def end_of_epoch(self, epochs: int) -> int:
        """The number of steps after which ``epochs`` epochs have been seen whole."""
        return -(-epochs * self.images // self.recipe.batch.images)

    def epoch(self, step: int) -> float:
        """Epochs seen after ``step`` steps."""
        return step * self.recipe.batch.images / self.images

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights after ``step`` steps are to be scored."""
        every = self.recipe.evaluate.every
        if step == self.steps:
            return True
        if not every:
            return False
        # The epochs that end with this step: more than one when the data is smaller than a batch.
        ended = step * self.recipe.batch.images // self.images
        before = (step - 1) * self.recipe.batch.images // self.images
        return ended // every > before // every

    def warnings(self) -> list[str]:
        """What of the recipe can hardly be meant with so few images, as sentences."""
        found, batch, warmup = [], self.recipe.batch.images, self.recipe.schedule.warmup
        if batch > self.images:
            found.append(
                f"batch.images is {batch:,}, but the data has {counted(self.images, 'training image')}, so "
                f"each step takes every image {batch / self.images:.1f} times; use a smaller batch.images"
            )
        if warmup >= self.steps:
            found.append(
                f"the whole run ({counted(self.steps, 'step')}) lies within the warm-up of the learning rate "
                f"(schedule.warmup is {warmup:,}); use a smaller schedule.warmup, or more epochs"
            )
        return found

    def lines(self, start: int, mine: range) -> Iterator[Line]:
        """Yield the images of each of this rank's micro-batches of every step from ``start`` on."""
        recipe = self.recipe
        for step in range(start, self.steps):
            for micro in mine:
                yield Line(step, micro_batch(self.images, recipe.seed, step, micro, recipe.batch))
