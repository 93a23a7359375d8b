"""Workloads for the tests of the model, and a small recipe."""

from rankless.launch.planning.model import Bucket, Workload

SMALL = [
    "data.train_images=8", "data.val_images=4", "batch.images=4", "batch.micro=2", "model.image_size=64",
    "precision=fp32", "model.width=0.1",
]  # fmt: skip


def work(micro_batches: int = 8, *, buckets: int = 4, size: int = 8 << 20, **changes) -> Workload:
    given = {
        "load": 0.002,
        "forward": 0.02,
        "backward": 0.04,
        "last": 0.045,
        "update": 0.005,
        "add": 1e-10,
        "totals": 4096,
        "buckets": tuple(Bucket(size, (number + 1) / buckets) for number in range(buckets)),
    }
    return Workload(micro_batches, 4, 10_000, **{**given, **changes})
