"""Time the layers that ignore the size of the batch against PyTorch's own choice of kernels, on this CPU.

    python benchmarks/batch_invariant.py

Each row is one network in float32 with one thread: milliseconds of a forward pass as PyTorch computes it, and
the ratio with :mod:`rankless.hardware.batch_invariant`, best and median of passes in turns.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn

from rankless.hardware.batch_invariant import batch_invariant
from rankless.models import zoo
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier
from rankless.recipe.model_kinds import Model

PASSES = 15
CPU = torch.device("cpu")
NETWORKS = (
    ({"name": "yolov4-tiny", "width": 0.5}, 96),
    ({"name": "yolov4-tiny"}, 416),
    ({"name": "resnet18"}, 64),
    ({"name": "resnet50"}, 224),
)


def seconds(network: nn.Module, images: torch.Tensor, *, invariant: bool) -> float:
    """Return the CPU time of a forward pass."""
    with torch.no_grad(), batch_invariant(CPU) if invariant else nullcontext():
        began = time.process_time()
        network(images)
        return time.process_time() - began


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'network':12} {'side':>4} {'images':>6} {'ms':>8} {'best':>6} {'median':>6}")
    for keys, side in NETWORKS:
        model = Model(**keys)
        build = build_classifier if model.name in CLASSIFIERS else zoo.build
        network = build(model, 10).eval().to(memory_format=torch.channels_last)
        for count in (1, 4, 16):
            images = torch.rand(count, 3, side, side).contiguous(memory_format=torch.channels_last)
            turns = [
                [seconds(network, images, invariant=each) for each in (False, True)] for _ in range(PASSES)
            ]
            plain, ours = zip(*turns, strict=True)
            best, median = min(ours) / min(plain), statistics.median(ours) / statistics.median(plain)
            print(f"{model.name:12} {side:4} {count:6} {1000 * min(plain):8.1f} {best:6.2f} {median:6.2f}")
