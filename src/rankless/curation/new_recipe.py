"""The first recipe for a data set: a value for each key that matters, with the reason as a comment.

The values are those of the shipped recipes ``blood-cells`` and ``resnet18``, adapted to the data and the
machine.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator

from rankless.curation import fine_tuning
from rankless.curation.facts import Facts
from rankless.errors import UserError, counted, in_gib, listed, printable
from rankless.models import published
from rankless.models.names import problem
from rankless.recipe.commented import Setting, commented

MICRO_BATCH = {"detect": 4, "classify": 8}
STEPS = {"detect": 1380, "classify": 950}
"""Minimum number of steps: about as many as in ``blood-cells``, and in ``resnet18`` on 610 images."""
EPOCHS = {"detect": 12, "classify": 30}
"""Least number of epochs, for data sets that are so large that few epochs have enough steps."""

_TASKS = {"detect": "The annotations are boxes.", "classify": "Each image has one class."}
_BOX = 20  # pixels that 95% of the boxes should exceed: 21 in blood-cells, 2.6 cells of the finest map
_SIDES = (320, 416, 640)  # longer side of a detector's input: minimum, and maximum on a CPU and on a GPU
_SMALL = 48  # pixels of an input that is so small that a crop would leave too little of the object
_MANY = 10_000  # training images
_BYTES = {"detect": 1200, "classify": 800}  # bytes of a micro-batch's memory per pixel of its images, in fp32
_PROCESS = 5 << 28  # bytes of a process with PyTorch, the weights and their gradients

_SIDED = re.compile(r"(?<![a-z])(left|right|texts?|words?|letters?|digits?|arrows?|plates?)(?![a-z])", re.I)


def text(facts: Facts, file: str, pretrained: str = "") -> str:
    """Return the recipe as YAML with a comment above each key.

    Args:
        facts: the facts about the data and the machine.
        file: the name that the recipe will have.
        pretrained: the weights to fine-tune, which determine the network; empty to train from scratch.

    Raises:
        UserError: the memory is too small.
    """
    what = "boxes" if facts.boxed else "a class for each image"
    images = counted(facts.train_images, "training image")
    head = (
        f"{printable(facts.root, 1000)}: {what}, {images}, {counted(len(facts.counts), 'class', 'classes')}.",
        f"For a machine with {facts.machine}.",
        "",
        f"  rankless train {shlex.quote(printable(file, 1000))}",
        "",
        "`rankless new` chose these values for the data as a starting point. All keys: docs/recipe.md.",
    )
    return commented(head, settings(facts, pretrained))


def settings(facts: Facts, pretrained: str = "") -> list[Setting]:
    """Return the recipe's keys in order; see :func:`text` for the arguments."""
    if pretrained:
        return list(_on_weights(facts, pretrained))
    return list(_detector(facts) if facts.boxed else _classifier(facts))


def _on_weights(facts: Facts, pretrained: str) -> Iterator[Setting]:
    first, *others = fine_tuning.settings(
        facts.train_images, known=fine_tuning.knows(pretrained, facts.counts)
    )
    yield Setting("task", facts.task, _TASKS[facts.task])
    if pretrained.startswith("published/"):
        network = published.named(pretrained.removeprefix("published/")).models[0]
        if wrong := problem(facts.task, network):
            raise UserError(f"model.pretrained is '{pretrained}': {wrong}")
        yield Setting("model.name", network, "The network that the weights are for.")
    yield Setting(
        "model.pretrained",
        pretrained,
        "Training starts from these weights, with their network and input size.",
    )
    yield first  # model.freeze
    yield from _data(facts)
    yield from _flip(facts)
    yield from others


def _detector(facts: Facts) -> Iterator[Setting]:
    size, why = _input_of_detector(facts)
    yield Setting("task", "detect", _TASKS["detect"])
    reason = (
        "Needs no anchors and learns from few images: AP 0.63 from 205 images of blood cells (blood-cells)."
    )
    if facts.train_images >= _MANY:
        reason += f" {facts.train_images:,} images may justify the larger yolov4-anchor-free."
    yield Setting("model.name", "yolov4-tiny-anchor-free", reason)
    if not facts.gpus:
        reason = "Saves time on a CPU; on blood cells, it scored as high as the full width."
        yield Setting("model.width", 0.75, reason)
    yield Setting(
        "model.dfl",
        16,
        "Predicts the distance to each side as a distribution, which added 0.006 AP on blood cells.",
    )
    yield Setting("model.image_size", size[0] if size[0] == size[1] else [*size], why)
    yield from _data(facts)
    yield from _flip(facts)
    yield Setting("data.augment.hue", 0.02, "Small, because color may distinguish the classes.")
    yield Setting("data.augment.saturation", 0.4, "Lighting and cameras differ.")
    yield Setting("data.augment.value", 0.3, "As above.")
    yield Setting("data.augment.scale", 0.4, "Objects may be nearer or farther than in the training images.")
    yield Setting("data.augment.translate", 0.15, "Objects may be anywhere in the image.")
    yield Setting(
        "data.augment.mosaic",
        0.5,
        "Half of the inputs combine four images, for more variety from few images.",
    )
    yield Setting("data.augment.close_mosaic", "15%", "The end of the run trains on single images.")
    images = 8 if facts.devices <= 2 else 16
    reason = (
        "As in blood-cells, where 16 gave 0.03 less AP after the same number of epochs."
        if images == 8
        else f"Lets more of the {facts.devices} devices share a step; with 8 images, only two could."
    )
    yield from _batch(facts, images, size[0] * size[1], reason)
    steps, setting = _epochs(facts, images)
    yield setting
    yield Setting(
        "optim.name", "muon", "On blood cells, it scored higher after 40 epochs than AdamW after 64."
    )
    yield Setting("optim.lr", 0.006, "The best value of those tried on blood cells.")
    yield Setting("optim.momentum", 0.95, "As published for Muon.")
    yield Setting("optim.weight_decay", 0.02, "As in blood-cells.")
    yield from _schedule("6%", "As in blood-cells, where this was 80 steps.", 0.01)
    yield from _end(0.99 if steps < 2 * STEPS["detect"] else 0.998)


def _classifier(facts: Facts) -> Iterator[Setting]:
    is_large = facts.train_images >= _MANY and facts.gpus > 0
    side = min(max(int(min(facts.height, facts.width)) // 32 * 32, 32), 224)
    yield Setting("task", "classify", _TASKS["classify"])
    yield Setting(
        "model.name",
        "resnet50" if is_large else "resnet18",
        f"{facts.train_images:,} images and a GPU suffice for this network."
        if is_large
        else "Small, so that it learns from few images: from 610 hand signs, it classified all of 150 others "
        "correctly (recipe resnet18).",
    )
    yield Setting(
        "model.image_size",
        side,
        f"Half of the images are at most {facts.width:.0f} × {facts.height:.0f} pixels; "
        + (
            "224 is the size that the network was published with."
            if side == 224
            else "a larger input would add nothing."
        ),
    )
    yield from _data(facts)
    yield from _flip(facts)
    if side < _SMALL:
        yield Setting("data.augment.scale", 0.15, "The images are small, and a crop would lose the object.")
        yield Setting("data.augment.translate", 0.1, "As above.")
    else:
        yield Setting("data.augment.crop", 0.35, "Random crops keep at least 35% of the area.")
        yield Setting("data.augment.scale", 0, "The crop already changes the scale.")
        yield Setting("data.augment.translate", 0, "The crop already shifts the image.")
    yield Setting("data.augment.saturation", 0.4, "Lighting and cameras differ.")
    yield Setting("data.augment.value", 0.4, "As above.")
    images = 64 if facts.train_images >= 256 else 16
    reason = (
        "As in resnet18." if images == 64 else "Small, because few images would give few steps per epoch."
    )
    yield from _batch(facts, images, side * side, reason)
    yield _epochs(facts, images)[1]
    yield Setting("loss.smoothing", 0.1, "Keeps the network from overconfidence in labels that may be wrong.")
    yield Setting("optim.name", "sgd", "As published for ResNets.")
    reason = "As in resnet18." if images == 64 else f"0.05 for batches of 64, scaled to {images}."
    yield Setting("optim.lr", 0.05 * images / 64, reason)
    yield Setting("optim.nesterov", True, "As in resnet18.")
    yield Setting("optim.weight_decay", 5e-4, "As in resnet18.")
    yield from _schedule("auto", "5% of the run, with a lower peak in a short run.", 0.001)
    yield from _end(0.998)


def _data(facts: Facts) -> Iterator[Setting]:
    yield Setting("data.root", facts.root, "Relative to the folder in which you start training.")
    if facts.format != "auto":
        yield Setting("data.format", facts.format, "As given to `rankless new`.")
    names = listed(list(facts.counts))
    if facts.classes != "auto":
        yield Setting("data.classes", facts.classes, f"As given to `rankless new`: {names}.")
    else:
        most, least = max(facts.counts.values()), min(facts.counts.values())
        count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        each = f"{count} {'boxes' if facts.boxed else 'images'} each"
        why = f"All classes of the data: {names}; {each}. To use only some, list them."
        yield Setting("data.classes", "auto", why)
    yield Setting("data.train", facts.train, f"{counted(facts.train_images, 'image')}.")
    yield Setting("data.val", facts.val, f"{counted(facts.val_images, 'image')}. {facts.split_note}")


def _flip(facts: Facts) -> Iterator[Setting]:
    names = list(facts.counts)
    characters = [name for name in names if len(name.strip()) == 1 or name.strip().isdecimal()]
    sided = [name for name in names if _SIDED.search(name.replace("_", " "))]
    if sided or 2 * len(characters) >= len(names):
        why = (
            f"Classes such as {listed((sided or characters)[:3])} may change when mirrored. "
            "If a mirrored image shows the same class, set 0.5."
        )
        yield Setting("data.augment.flip", 0, why)
    else:
        why = "Assumes that a mirrored image shows the same classes. If not, as with text, set 0."
        yield Setting("data.augment.flip", 0.5, why)
    why = "If your images have no fixed upright direction, as from a microscope or the air, set 0.5."
    yield Setting("data.augment.flip_vertical", 0, why)


def _batch(facts: Facts, images: int, pixels: int, why: str) -> Iterator[Setting]:
    task = facts.task
    micro = MICRO_BATCH[task]
    ranks = 1 if facts.gpus else min(facts.cores, images // micro)
    free = facts.memory // ranks

    def needed() -> int:
        return _PROCESS + micro * pixels * _BYTES[task]

    while not facts.gpus and micro > 2 and needed() > free:
        micro //= 2
    if not facts.gpus and needed() > free:
        raise UserError(
            f"memory: {in_gib(facts.memory)} are free for {counted(ranks, 'process', 'processes')}; expected "
            f"about {in_gib(needed())} for each; close other programs"
        )
    yield Setting("batch.images", images, why)
    room = "`rankless fit` finds the largest that fits" if facts.gpus else "it fits into the free memory"
    why = f"Up to {counted(images // micro, 'device')} share a step, with a micro-batch each; {room}."
    yield Setting("batch.micro", micro, why)


def _epochs(facts: Facts, images: int) -> tuple[int, Setting]:
    """Return the number of steps of the run, and the setting for it."""
    task = facts.task
    epochs = max(math.ceil(STEPS[task] * images / facts.train_images), EPOCHS[task])
    steps = epochs * facts.train_images // images
    other = "blood-cells" if facts.boxed else "resnet18 on 610 images"
    why = f"{steps:,} steps; {other} trains for about {STEPS[task]:,}. More epochs may score higher."
    return steps, Setting("epochs", epochs, why)


def _schedule(warmup: str, why: str, final: float) -> Iterator[Setting]:
    yield Setting("schedule.name", "cosine", "The rate falls slowly over the whole run.")
    yield Setting("schedule.warmup", warmup, why)
    yield Setting("schedule.final", final, "Nearly zero, so that the weights settle.")


def _end(decay: float) -> Iterator[Setting]:
    span = round(1 / (1 - decay))
    yield Setting(
        "ema.decay", decay, f"Scoring and prediction use an average of about the last {span} steps."
    )
    yield Setting("evaluate.every", "10%", "Ten evaluations; the best weights are kept.")


def _input_of_detector(facts: Facts) -> tuple[tuple[int, int], str]:
    """Return height and width of the input, and the reason."""
    longer = max(facts.height, facts.width)
    least, on_cpu, on_gpu = _SIDES
    largest = on_gpu if facts.gpus else on_cpu
    wanted = _BOX * longer / max(facts.box_side, 1e-6)
    side = min(max(wanted, least), largest)
    why = (
        f"At this size, 95% of the boxes are larger than {facts.box_side * side / longer:.0f} pixels"
        f" ({facts.box_side:.0f} in images of {facts.width:.0f} × {facts.height:.0f})"
    )
    if wanted > largest:
        why += f"; an input of {wanted:,.0f} pixels would make that {_BOX}, but training would take long"
    if facts.is_uniform:
        scale = side / longer
        return (_up(facts.height * scale), _up(facts.width * scale)), f"{why}."
    return (_up(side), _up(side)), f"{why}. Square, because the images have several aspect ratios."


def _up(side: float) -> int:
    return max(math.ceil(side / 32 - 1e-9), 1) * 32
