"""Recipe settings for fine-tuning, depending on the number of training images.

For about 200 images, they are the same as in the shipped recipe ``fine-tune``. See docs/weights.md for
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rankless.recipe.commented import Setting
from rankless.recipe.recorded import classes_of

EPOCHS = 3
"""Minimum number of epochs, even if fewer epochs of a large data set have enough steps."""

_MANY = 10_000  # minimum number of training images for the larger batch
_STEPS = 300  # minimum number of steps
_LONG = 2000  # minimum number of steps for averaging the weights of the last 500


def settings(images: int, *, known: bool = False) -> Iterator[Setting]:
    """Yield the settings for ``images`` training images, in the order of the recipe's keys.

    If ``known``, the pretrained weights have heads for all classes of the data.
    """
    batch = 8 if images < _MANY else 16
    least = max(math.ceil(_STEPS * batch / images), EPOCHS)
    epochs = max(round(30 * math.sqrt(200 / images)), least)
    steps = -(-epochs * images // batch)
    yield Setting("model.freeze", "10%", "Untrained heads would disturb the backbone at the start.")
    why = "A small batch gives more steps. On 205 images, AP was 0.25, compared with 0.19 for batches of 16."
    yield Setting("batch.images", batch, why if batch == 8 else "An epoch has enough steps.")
    yield Setting("batch.micro", batch // 2, "Up to 2 devices can share a step.")
    why = "The minimum" if epochs == least else "Four times as many images would get half as many epochs"
    yield Setting("epochs", epochs, f"{steps:,} steps. {why}.")
    if known:
        why = "Keeps statistics of many images. With statistics of ten images, AP was 0.080 instead of 0.107."
        yield Setting("batch_norm", "frozen", why)
    why = "SGD at the learning rate for training from scratch destroys the pretrained weights."
    yield Setting("optim.name", "adamw", why)
    if known:
        rate, why = 0.0002, "Keeps what the weights have learned about these classes. 0.002 lost most of it."
    else:
        rate, why = (
            0.002,
            "Learns new classes fast. On 205 images, AP was 0.25, compared with 0.19 for 0.001.",
        )
    yield Setting("optim.lr", rate, why)
    yield Setting("optim.weight_decay", 0.02, "The same as for training from scratch.")
    yield Setting("schedule.name", "cosine", "Decreases slowly over the whole run.")
    yield Setting("schedule.warmup", "5%", "AdamW's moving averages need some steps at a low learning rate.")
    yield Setting("schedule.final", 0.01, "Close to zero, so that the weights settle.")
    decay = 0.99 if steps < _LONG else 0.998
    why = f"Averages the weights of about the last {round(1 / (1 - decay))} steps for evaluation."
    yield Setting("ema.decay", decay, why)


def knows(pretrained: str, classes: Iterable[str]) -> bool:
    """Return whether the weights of ``model.pretrained`` have heads for all of the given classes."""
    return set(classes) <= {*classes_of(pretrained)}


def overrides(images: int, *, known: bool = False) -> list[str]:
    """Return the result of :func:`settings` as ``key=value`` overrides."""
    return [f"{each.key}={each.value}" for each in settings(images, known=known)]
