"""Recipe settings for fine-tuning, depending on the number of training images.

For about 200 images, they are the same as in the shipped recipe ``fine-tune``. See docs/weights.md for
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rankless.recipe.commented import Setting, adapted
from rankless.recipe.recorded import classes_of

EPOCHS = 3
"""Minimum number of epochs, even if fewer epochs of a large data set have enough steps."""

_MANY = 10_000  # minimum number of training images for the larger batch
_STEPS = 300  # minimum number of steps
_LONG = 2000  # minimum number of steps for averaging the weights of the last 500


def changes(images: int, *, known: bool = False) -> Iterator[Setting]:
    """Yield what differs from ``fine-tune`` for ``images`` training images.

    If ``known``, the pretrained weights have heads for all classes of the data.
    """
    batch = 8 if images < _MANY else 16
    least = max(math.ceil(_STEPS * batch / images), EPOCHS)
    epochs = max(round(30 * math.sqrt(200 / images)), least)
    steps = -(-epochs * images // batch)
    yield Setting("batch.images", batch, "" if batch == 8 else "An epoch has enough steps.")
    yield Setting("batch.micro", batch // 2)
    why = "The minimum" if epochs == least else "Four times as many images would get half as many epochs"
    yield Setting("epochs", epochs, f"{steps:,} steps. {why}.")
    if known:
        why = "Keeps statistics of many images. With statistics of ten images, AP was 0.080 instead of 0.107."
        yield Setting("batch_norm", "frozen", why)
        why = "Keeps what the weights have learned about these classes. 0.002 lost most of it."
        yield Setting("optim.lr", 0.0002, why)
    decay = 0.99 if steps < _LONG else 0.998
    why = f"Averages the weights of about the last {round(1 / (1 - decay))} steps for evaluation."
    yield Setting("ema.decay", decay, why)


def settings(images: int, *, known: bool = False) -> list[Setting]:
    """Return the settings of ``fine-tune`` with these changes, without those that the user chooses."""
    return adapted("fine-tune", changes(images, known=known), without=("model.pretrained", "data.root"))


def knows(pretrained: str, classes: Iterable[str]) -> bool:
    """Return whether the weights of ``model.pretrained`` have heads for all of the given classes."""
    return set(classes) <= {*classes_of(pretrained)}


def overrides(images: int, *, known: bool = False) -> list[str]:
    """Return the result of :func:`settings` as ``key=value`` overrides."""
    return [f"{each.key}={each.value}" for each in settings(images, known=known)]
