"""The prediction pipeline: threads read images ahead, devices compute batches, and results keep their order.

Only a few batches are in memory at a time. The result for an image depends neither on the other images nor on
the number of devices. On a GPU, where the shape of the batch determines the kernels, the last batch is filled
with copies of its last image.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch

from rankless.data.images.image_file import Decoded, UnreadableImage
from rankless.hardware.cores import usable_cores
from rankless.inference.finder import Finder
from rankless.inference.model_loading import Opened

_MOST_THREADS = 8
One = TypeVar("One")
Other = TypeVar("Other")


class Source(NamedTuple):
    """An image or a video frame to predict on.

    Attributes:
        read: function that returns the image to draw on, uint8 (3, H, W), and a copy for the network.
        frame: number of the frame in its video, from 0, or None for an image.
        time: time of the frame in seconds from the start of the video, or None for an image.
        position: index of the image or video among all sources.
    """

    name: str
    read: Callable[[Finder], tuple[torch.Tensor, Decoded]]
    frame: int | None = None
    time: float | None = None
    position: int = 0


class Outcome(NamedTuple):
    """A model's result for one image, or the reason why the image could not be read.

    ``image`` is uint8 (3, H, W). For a custom task, ``answer`` is the prediction and the drawing. Before the
    prediction, it is the input.
    """

    source: Source
    image: torch.Tensor | None
    answer: Any
    reason: str = ""


def reading() -> int:
    """Return the number of threads that read and draw images."""
    return min(usable_cores(), _MOST_THREADS)


@contextmanager
def threads() -> Iterator[Executor]:
    """Yield a pool of threads that read and draw images, and cancel its pending tasks at the end."""
    pool = ThreadPoolExecutor(reading(), "rankless-images")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def ordered(
    pool: Executor, function: Callable[[One], Other], items: Iterable[One], ahead: int
) -> Iterator[Other]:
    """Call a function on every item in threads, and yield the results in the order of the items.

    At most ``ahead`` items are processed ahead. An error in the function is raised in place of its result.
    """
    waiting: deque[Future[Other]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def outcomes(opened: Opened, sources: Iterable[Source], pool: Executor, size: int) -> Iterator[Outcome]:
    """Predict in batches of ``size`` images, and yield the results in the order of the images."""
    finder = opened.finders[0]

    def read(source: Source) -> Outcome:
        try:
            image, view = source.read(finder)
        except UnreadableImage as error:
            return Outcome(source, None, None, error.reason)
        return Outcome(source, image, finder.item(view))

    batches = _batched(ordered(pool, read, sources, size + reading()), size)
    if len(opened.finders) == 1:
        for batch in batches:
            yield from _predict_batch(opened, 0, batch)
        return
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(opened.finders)):
        free.put(number)

    def predict_on_free_device(batch: list[Outcome]) -> list[Outcome]:
        number = free.get()
        try:
            return _predict_batch(opened, number, batch)
        finally:
            free.put(number)

    with ThreadPoolExecutor(len(opened.finders), "rankless-devices") as devices:
        for answers in ordered(devices, predict_on_free_device, batches, 2 * len(opened.finders)):
            yield from answers


def _batched(items: Iterable[Outcome], size: int) -> Iterator[list[Outcome]]:
    """Yield lists with ``size`` readable images each, and the unreadable images between them."""
    batch: list[Outcome] = []
    for item in items:
        batch.append(item)
        if sum(one.image is not None for one in batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _predict_batch(opened: Opened, number: int, batch: Sequence[Outcome]) -> list[Outcome]:
    finder, device = opened.finders[number], opened.devices[number]
    items = [one.answer for one in batch if one.image is not None]
    with opened.computing(number):
        found = finder.answers(items, opened.batch if device.type == "cuda" else 1) if items else []
    answers = iter(found)
    return [one if one.image is None else one._replace(answer=next(answers)) for one in batch]
