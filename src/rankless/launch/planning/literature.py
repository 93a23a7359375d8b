"""What the literature says about the global batch that a number of devices needs."""

from __future__ import annotations

from collections.abc import Iterator

from rankless.errors import counted


def advice(devices: int, micro_batches: int, micro: int) -> Iterator[str]:
    """Sentences for ``devices`` that are more than the micro-batches of a step; none where they are not.

    Args:
        devices: how many.
        micro_batches: of a step of the recipe.
        micro: images of one.
    """
    if devices <= micro_batches:
        return
    needed = devices * micro
    yield (
        f"a step has {counted(micro_batches, 'micro-batch', 'micro-batches')}, so at most "
        f"{counted(micro_batches, 'device')} can share it; {counted(devices, 'device')} need "
        f"batch.images={needed} (or a smaller batch.micro), which trains other weights"
    )
    if needed <= 8192:
        yield (
            "up to some 8,000 images, a learning rate in proportion to the batch, after a warm-up of some "
            "epochs, kept the accuracy of ResNet-50 on ImageNet (Goyal et al. 2017); detectors have been "
            "trained like that with 256 images (Peng et al. 2018)"
        )
    elif needed <= 32768:
        yield (
            "beyond some 8,000 images a learning rate in proportion to the batch lost accuracy (Goyal et al. "
            "2017); rates by layer went to some 32,000: LARS for ResNet-50 (You et al. 2017), LAMB for BERT "
            "(You et al. 2020); Rankless has neither"
        )
    else:
        yield (
            "beyond the 32,000 images of LARS and LAMB (You et al. 2017, 2020) few results are known; "
            "use a smaller batch.micro, or fewer devices"
        )
    yield (
        "a batch larger than the task's gradient noise scale hardly saves steps: that critical batch is "
        "larger for harder tasks and grows during training (McCandlish et al. 2018)"
    )
