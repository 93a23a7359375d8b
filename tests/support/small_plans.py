"""Steps for the tests of predictions, and a small recipe."""

from rankless.launch.planning.prediction import Step

SMALL = [
    "data.train_images=8", "data.val_images=4", "batch.images=4", "batch.micro=2", "model.image_size=64",
    "precision=fp32", "model.width=0.1",
]  # fmt: skip


def step(micro_batches: int = 8, **changes) -> Step:
    given = {"load": 0.002, "compute": 0.06, "update": 0.005, "gradients": 32 << 20}
    return Step(micro_batches, 4, 10_000, **{**given, **changes})
