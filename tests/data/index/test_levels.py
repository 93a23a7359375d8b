"""16-bit images that would become nearly black, or nearly one gray, are reported."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.data.datasets.open_split import examine

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("limits", "count", "levels"),
    [
        ([(0, 4096)] * 3, 3, 16),  # 12 bits
        ([(29_000, 31_000)] * 40, 31, 9),  # a thermal camera; of a sample of 32, one has 8 bits
        ([(0, 65536)] * 3, 0, 0),
        ([(0, 65536)] * 3 + [(0, 4096)] * 2, 0, 0),  # dark images among others
    ],
)
def test_images_that_fill_few_levels_are_reported(tmp_path: Path, limits, count: int, levels: int) -> None:
    for number, (low, high) in enumerate(limits):
        file = tmp_path / "train" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RANDOM.integers(low, high, (32, 32)).astype(np.uint16)).save(file)
    Image.new("L", (8, 8)).save(file.with_name("black.png"))  # 8 bits
    findings = examine(str(tmp_path), "train", "image-folder").findings
    assert findings.counts.get("few levels", 0) == count
    if count:
        first = findings.first["few levels"][0]
        assert first.where.endswith("0.png") and f"become {levels} of 256 levels" in first.problem
