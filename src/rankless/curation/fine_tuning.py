"""The values of fine-tuning that depend on the number of training images.

For some 200 images they are those of the shipped recipe ``fine-tune``. docs/weights.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rankless.recipe.commented import Setting
from rankless.recipe.recorded import classes_of

EPOCHS = 3
"""Least number of epochs, for data sets that are so large that few epochs have enough steps."""

_MANY = 10_000  # training images; with fewer, the batch is smaller
_STEPS = 300  # least number of steps
_LONG = 2000  # steps of a run that is long enough for an average of the last 500


def settings(images: int, *, known: bool = False) -> Iterator[Setting]:
    """Yield the settings for a number of training images, in the recipe's order.

    Args:
        images: number of training images.
        known: whether the weights have heads for the classes of the data.
    """
    batch = 8 if images < _MANY else 16
    least = max(math.ceil(_STEPS * batch / images), EPOCHS)
    epochs = max(round(30 * math.sqrt(200 / images)), least)
    steps = -(-epochs * images // batch)
    yield Setting("model.freeze", "10%", "Untrained heads would pull the backbone in random directions.")
    why = "More steps than with 16, which gave AP 0.19 instead of 0.25 on 205 images."
    why = why if batch == 8 else "An epoch has enough steps."
    yield Setting("batch.images", batch, why)
    yield Setting("batch.micro", batch // 2, "Up to 2 devices share a step, a micro-batch each.")
    why = "the minimum" if epochs == least else "with four times as many images, half the epochs are enough"
    yield Setting("epochs", epochs, f"{steps:,} steps; {why}.")
    if known:
        why = "Keeps the statistics of the original training; those of ten images gave AP 0.080, not 0.107."
        yield Setting("batch_norm", "frozen", why)
    yield Setting("optim.name", "adamw", "SGD at its usual rate destroys what the weights know.")
    if known:
        rate, why = 0.0002, "Keeps what the weights know about these classes; 0.002 lost most of it."
    else:
        rate, why = (
            0.002,
            "Teaches new classes in few steps; 0.001 gave AP 0.19 instead of 0.25 on 205 images.",
        )
    yield Setting("optim.lr", rate, why)
    yield Setting("optim.weight_decay", 0.02, "The same as for training from scratch.")
    yield Setting("schedule.name", "cosine", "The rate falls slowly over the whole run.")
    yield Setting("schedule.warmup", "5%", "Gives AdamW's averages time to settle before the rate is high.")
    yield Setting("schedule.final", 0.01, "Nearly zero, so that the weights settle.")
    decay = 0.99 if steps < _LONG else 0.998
    why = f"Scoring and prediction use an average of about the last {round(1 / (1 - decay))} steps."
    yield Setting("ema.decay", decay, why)


def knows(pretrained: str, classes: Iterable[str]) -> bool:
    """Return whether the weights that ``model.pretrained`` names have heads for all of the classes."""
    return set(classes) <= {*classes_of(pretrained)}


def words(images: int, *, known: bool = False) -> list[str]:
    """Return the settings as overrides of a recipe."""
    return [f"{each.key}={each.value}" for each in settings(images, known=known)]
