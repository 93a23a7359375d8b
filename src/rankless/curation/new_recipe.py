"""Write the first recipe for a data set, with a comment on each value.

The values are those of the shipped recipes ``blood-cells``, ``resnet18`` and ``fine-tune``, except where the
data or the machine decide.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankless.curation import fine_tuning
from rankless.curation.facts import Facts
from rankless.errors import UserError, counted, in_gib, listed, printable
from rankless.models import published
from rankless.recipe.commented import Setting, adapted, commented
from rankless.task_kinds import wrong_model

_BOX = 20  # side in pixels that 95% of the boxes should exceed; 21 in blood-cells
_SIDES = (320, 416, 640)  # longer side of a detector's input: minimum, maximum on a CPU, maximum on a GPU
_SMALL = 48  # side of an input in pixels below which crops would lose too much of the object
_MANY = 10_000  # number of training images that justifies a larger network
_PROCESS = 5 << 28  # bytes of memory of a process with PyTorch, the weights and their gradients

_SIDED = re.compile(r"(?<![a-z])(left|right|texts?|words?|letters?|digits?|arrows?|plates?)(?![a-z])", re.I)


class Advice(NamedTuple):
    """How to choose a recipe for a kind of task.

    Attributes:
        settings: returns the settings for a network that is trained from scratch.
        reason: why this task fits the data.
        example: what the numbers come from.
        steps: minimum number of steps: about as many as in the example.
        epochs: minimum number of epochs, even if fewer epochs of a large data set have enough steps.
        memory: bytes of memory per pixel of a micro-batch, in fp32.
    """

    settings: Callable[[Facts], list[Setting]]
    reason: str
    example: str
    micro_batch: int
    steps: int
    epochs: int
    memory: int


def text(facts: Facts, file: str, pretrained: str = "") -> str:
    """Return the recipe as YAML, with a comment above each key and the command that trains with ``file``.

    If ``pretrained`` is given, the recipe fine-tunes these weights.
    """
    images = counted(facts.train_images, "training image")
    classes = counted(len(facts.counts), "class", "classes")
    head = (
        f"{printable(facts.root, 1000)}: {facts.kind.annotations}, {images}, {classes}.",
        f"For a machine with {facts.machine}.",
        "",
        f"  rankless train {shlex.quote(printable(file, 1000))}",
        "",
        "`rankless new` chose these values for the data as a starting point. docs/recipe.md lists all keys.",
    )
    return commented(head, settings(facts, pretrained))


def settings(facts: Facts, pretrained: str = "") -> list[Setting]:
    """Return the settings of the recipe, in the order of its keys."""
    if pretrained:
        return adapted("fine-tune", _on_weights(facts, pretrained))
    return _advice(facts).settings(facts)


def _advice(facts: Facts) -> Advice:
    advice: Advice = facts.kind.advice.load()
    return advice


def _on_weights(facts: Facts, pretrained: str) -> Iterator[Setting]:
    known = fine_tuning.knows(pretrained, facts.counts)
    yield from fine_tuning.changes(facts.train_images, known=known)
    if pretrained.startswith("published/"):
        network = published.named(pretrained.removeprefix("published/")).models[0]
        if wrong := wrong_model(facts.kind.name, network):
            raise UserError(f"model.pretrained is '{pretrained}': {wrong}")
        yield Setting("model.name", network, "The network that these weights belong to.")
    why = "Training starts from these weights, which also determine the input size."
    yield Setting("model.pretrained", pretrained, why)
    yield from _data(facts)


def _for_detector(facts: Facts) -> list[Setting]:
    # Without a GPU, the width of blood-cells saves time.
    return adapted("blood-cells", _detector(facts), without=["model.width"] if facts.gpus else [])


def _detector(facts: Facts) -> Iterator[Setting]:
    size, why = _input_of_detector(facts)
    if facts.train_images >= _MANY:
        reason = "Needs no anchors and learns from few images: AP 0.63 with the 205 images of blood-cells."
        reason += f" {facts.train_images:,} images may justify the larger yolov4-anchor-free."
        yield Setting("model.name", "yolov4-tiny-anchor-free", reason)
    yield Setting("model.image_size", size[0] if size[0] == size[1] else [*size], why)
    yield from _data(facts)
    yield Setting("data.augment.close_mosaic", "15%")
    images = 8 if facts.devices <= 2 or facts.train_images < 16 else 16
    reason = f"Lets more of the {facts.devices} devices share a step. With 8 images, only two could."
    yield from _batch(facts, images, size[0] * size[1], "" if images == 8 else reason)
    steps, setting = _epochs(facts, images)
    yield setting
    yield Setting("schedule.warmup", "6%")
    yield from _end(0.99 if steps < 2 * DETECTOR.steps else 0.998)


def _for_classifier(facts: Facts) -> list[Setting]:
    is_small = _side_of_classifier(facts) < _SMALL
    return adapted("resnet18", _classifier(facts), without=["data.augment.crop"] if is_small else [])


def _side_of_classifier(facts: Facts) -> int:
    return min(max(int(min(facts.height, facts.width)) // 32 * 32, 32), 224)


def _classifier(facts: Facts) -> Iterator[Setting]:
    if facts.train_images >= _MANY and facts.gpus > 0:
        why = f"{facts.train_images:,} images and a GPU are enough for this network."
        yield Setting("model.name", "resnet50", why)
    side = _side_of_classifier(facts)
    why = (
        "The network was published with a size of 224."
        if side == 224
        else "A larger input would add no detail."
    )
    size = f"The median image size is {facts.width:.0f} × {facts.height:.0f} pixels."
    yield Setting("model.image_size", side, f"{size} {why}")
    yield from _data(facts)
    if side < _SMALL:
        why = "Used instead of crops, which could cut off the object in such small images."
        yield Setting("data.augment.scale", 0.15, why)
        yield Setting("data.augment.translate", 0.1, why)
    images = 64 if facts.train_images >= 256 else 16 if facts.train_images >= 16 else 8
    is_fewer = images < 64
    why = "Small, so that an epoch of few images has more steps." if is_fewer else ""
    yield from _batch(facts, images, side * side, why)
    yield _epochs(facts, images)[1]
    why = f"0.05 for a batch of 64, scaled linearly to {images}." if is_fewer else ""
    yield Setting("optim.lr", 0.05 * images / 64, why)
    yield from _end(0.998)


DETECTOR = Advice(_for_detector, "The annotations are boxes.", "blood-cells", 4, 1380, 12, 1200)
CLASSIFIER = Advice(_for_classifier, "Each image has one class.", "resnet18 on 610 images", 8, 950, 30, 800)


def _data(facts: Facts) -> Iterator[Setting]:
    yield Setting("task", facts.kind.name, _advice(facts).reason)
    yield Setting("data.root", facts.root, "A relative path refers to the folder where you start training.")
    if facts.format != "auto":
        yield Setting("data.format", facts.format, "Chosen with --format.")
    names = listed(list(facts.counts))
    if facts.classes != "auto":
        yield Setting("data.classes", facts.classes, f"Chosen with --classes: {names}.")
    else:
        most, least = max(facts.counts.values()), min(facts.counts.values())
        each = f"{least:,} to {most:,} {facts.kind.counted} each"
        yield Setting("data.classes", "auto", f"All classes: {names}, {each}. A list selects classes.")
    yield Setting("data.train", facts.train, f"{counted(facts.train_images, 'image')}.")
    yield Setting("data.val", facts.val, f"{counted(facts.val_images, 'image')}. {facts.split_note}")
    if facts.unknown_range:
        why = (
            f"The range of the values is unknown (the first image has {facts.unknown_range}). auto maps the "
            "lowest and highest value of each image to 0 and 255. [low, high] maps all images alike."
        )
        yield Setting("data.range", "auto", why)
    yield from _flip(list(facts.counts))


def _flip(names: list[str]) -> Iterator[Setting]:
    characters = [name for name in names if len(name.strip()) == 1 or name.strip().isdecimal()]
    sided = [name for name in names if _SIDED.search(name.replace("_", " "))]
    if sided or 2 * len(characters) >= len(names):
        why = (
            f"Mirroring may change classes such as {listed((sided or characters)[:3])}. "
            "If it does not, use 0.5."
        )
        yield Setting("data.augment.flip", 0, why)
    else:
        why = "Mirroring should not change the classes. If it does (text, left and right), use 0."
        yield Setting("data.augment.flip", 0.5, why)
    why = "If your images have no top and bottom, like microscope or aerial images, use 0.5."
    yield Setting("data.augment.flip_vertical", 0, why)


def _batch(facts: Facts, images: int, pixels: int, why: str) -> Iterator[Setting]:
    advice = _advice(facts)
    micro = min(advice.micro_batch, images // 2)  # two devices can share a step
    ranks = 1 if facts.gpus else min(facts.cores, images // micro)
    free = facts.memory // ranks

    def needed() -> int:
        return _PROCESS + micro * pixels * advice.memory

    while not facts.gpus and micro > 2 and needed() > free:
        micro //= 2
    if not facts.gpus and needed() > free:
        raise UserError(
            f"memory: {in_gib(facts.memory)} available for {counted(ranks, 'process', 'processes')}; "
            f"expected about {in_gib(needed())} for each process; close other programs"
        )
    yield Setting("batch.images", images, why)
    room = "`rankless fit` finds the largest micro-batch" if facts.gpus else "The available memory is enough"
    why = f"Up to {counted(images // micro, 'device')} can share a step. {room}."
    yield Setting("batch.micro", micro, why)


def _epochs(facts: Facts, images: int) -> tuple[int, Setting]:
    """Return the number of steps in the run, and the setting ``epochs``."""
    advice = _advice(facts)
    epochs = max(math.ceil(advice.steps * images / facts.train_images), advice.epochs)
    steps = epochs * facts.train_images // images
    why = f"{steps:,} steps ({advice.example}: about {advice.steps:,}). More epochs may improve the scores."
    return steps, Setting("epochs", epochs, why)


def _end(decay: float) -> Iterator[Setting]:
    span = round(1 / (1 - decay))
    why = f"Averages the weights of about the last {span} steps for evaluation."
    yield Setting("ema.decay", decay, why)
    yield Setting("evaluate.every", "10%", "The best weights of the ten evaluations are kept.")


def _input_of_detector(facts: Facts) -> tuple[tuple[int, int], str]:
    """Return the height and width of the input, and the reason."""
    longer = max(facts.height, facts.width)
    least, on_cpu, on_gpu = _SIDES
    largest = on_gpu if facts.gpus else on_cpu
    wanted = _BOX * longer / max(facts.box_side, 1e-6)
    side = min(max(wanted, least), largest)
    why = (
        f"95% of the boxes are larger than {facts.box_side * side / longer:.0f} pixels at this size "
        f"({facts.box_side:.0f} pixels in images of {facts.width:.0f} × {facts.height:.0f})."
    )
    if wanted > largest:
        why += f" {wanted:,.0f} would raise this to {_BOX} pixels, but would take much longer."
    if facts.is_uniform:
        scale = side / longer
        return (_up(facts.height * scale), _up(facts.width * scale)), why
    return (_up(side), _up(side)), f"{why} Square, because the aspect ratios of the images vary."


def _up(side: float) -> int:
    return max(math.ceil(side / 32 - 1e-9), 1) * 32
