"""The promise as far as data goes: what is read and augmented is a function of images and recipe alone.

One small data set with some dirt in it, everything on that varies images. The same weights come from any
number of loader processes and ranks, from kept images, from tar shards, from other formats, and from a run
that was stopped amid an epoch and went on elsewhere.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rankless import cli
from rankless.runs.directory import RunDirectory
from support import whole_runs

pytestmark = pytest.mark.processes

IMAGES, SCORED, STEPS = 19, 5, 8  # 8 images a step: epochs end inside steps 3 and 5
CUT, SIDEWAYS, LARGE, OVER_THE_EDGE = 2, 4, 5, 6

RECIPE = """\
model: {name: yolov4-tiny, width: 0.125, image_size: 64}
data:
  multi_scale: 0.5
  multi_scale_every: 2
  max_bad: 0.1
  augment:
    {mosaic: 0.5, mixup: 8, mixup_probability: 0.5, copy_paste: 0.5, perspective: 0.05, rotate: 5, blur: 0.5}
batch: {images: 8, micro: 2}
optim: {lr: 0.02}
ema: {decay: 0.9}
epochs: 3
precision: fp32
evaluate: {every: 0}
checkpoint: {every: 100}
"""


@dataclass(frozen=True)
class Way:
    """A way to the same weights.

    Attributes:
        data: the format that the images are read from.
        ranks: so many processes train.
        more: what is changed in the recipe.
        stop: after this step the run is stopped, and goes on with ``goes_on``: ranks, loader processes.
    """

    data: str = "voc"
    ranks: int = 1
    more: tuple[str, ...] = ()
    stop: int = 0
    goes_on: tuple[int, int] = (1, 0)


WAYS = {
    "coco, kept in memory": Way("coco", more=("data.cache=ram",)),
    "tar shards, kept on the disk, two ranks": Way("shards", 2, ("data.cache=disk", "workers=1")),
    "darknet, two ranks stopped": Way("darknet", 2, stop=4, goes_on=(1, 2)),
}


def annotation(name: str, boxes: list[tuple[str, int, int, int, int]]) -> str:
    objects = "".join(
        f"<object><name>{kind}</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for kind, x1, y1, x2, y2 in boxes
    )
    return f"<annotation><filename>{name}</filename>{objects}</annotation>"


def put_image(root: Path, rng: np.random.Generator, number: int, stem: str) -> None:
    """An image with bright rectangles, and its annotation; some numbers have a fault."""
    width, height = (320, 240) if number == LARGE else (int(rng.integers(60, 90)), 72)
    pixels = rng.integers(0, 90, (height, width, 3), dtype=np.uint8)
    boxes = []
    for _ in range(rng.integers(1, 4)):
        label = int(rng.integers(2))
        x, y = (int(value) for value in rng.integers(0, 36, 2))
        w, h = (int(value) for value in rng.integers(12, 24, 2))
        pixels[y : y + h, x : x + w, label] = 250
        boxes.append((("red", "green")[label], x, y, x + w, y + h))
    exif = Image.Exif()
    if number == SIDEWAYS:  # stored lying on its side; upright it is what was drawn
        pixels, exif[0x0112] = np.rot90(pixels), 6
    if number == OVER_THE_EDGE:
        boxes.append(("red", 40, 50, width + 9, height + 5))
    name = f"{stem}.{'png' if number % 3 == 0 else 'jpg'}"
    buffer = io.BytesIO()
    form: dict[str, Any] = {"format": "PNG"} if number % 3 == 0 else {"format": "JPEG", "quality": 90}
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, exif=exif, **form)
    # The header stays whole: only who decodes it meets the damage.
    data = buffer.getvalue()
    (root / "JPEGImages" / name).write_bytes(data[: len(data) // 2] if number == CUT else data)
    (root / "Annotations" / f"{stem}.xml").write_text(annotation(name, boxes))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The data set as Pascal VOC, and what the commands make of it: format to root."""
    folder = tmp_path_factory.mktemp("sources")
    root = folder / "voc"
    for each in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / each).mkdir(parents=True)
    rng = np.random.default_rng(3)
    for split, count in (("train", IMAGES), ("val", SCORED)):
        # Not in the order of their names, which another format has to keep all the same.
        stems = [f"{split}-{number * 7 % count:02}" for number in range(count)]
        for number, stem in enumerate(stems):
            put_image(root, rng, number if split == "train" else -1, stem)
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(stems) + "\n")
    for name in ("coco", "darknet"):
        assert cli.main(["data", "convert", str(root), "--to", name, "--out", str(folder / name)]) == 0
    assert cli.main(["data", "pack", str(root), "--out", str(folder / "shards")]) == 0
    (folder / "recipe.yaml").write_text(RECIPE)
    return {name: str(folder / name) for name in ("recipe.yaml", "voc", "coco", "darknet", "shards")}


def outcome(
    ranks: Any, sources: dict[str, str], way: Way, folder: Path
) -> tuple[list[str], list[dict[str, Any]]]:
    """The SHA-256 of weights, average and optimizer after the last step; the journal's numbers."""
    words = [sources["recipe.yaml"], f"data.root={sources[way.data]}", *way.more]
    done = ranks(way.ranks, whole_runs.work, words, str(folder), False, way.stop)
    run = RunDirectory(folder)
    if way.stop:
        assert done == [["False"]] * way.ranks
        assert way.stop <= (run.pointed("last") or 0) < STEPS
        size, workers = way.goes_on
        done = ranks(size, whole_runs.work, [*words, f"workers={workers}"], str(folder), True)
    assert all(answer[0] == "True" for answer in done)
    last, digests, numbers = whole_runs.outcome(run)
    assert last == STEPS
    return digests, numbers


@pytest.fixture(scope="module")
def first(ranks: Any, sources: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of the plainest way: one rank that reads files itself."""
    return outcome(ranks, sources, Way(), tmp_path_factory.mktemp("first") / "run")


@pytest.mark.parametrize("name", WAYS)
def test_the_weights_do_not_know_how_images_came(ranks, sources, first, tmp_path, name):
    digests, numbers = outcome(ranks, sources, WAYS[name], tmp_path / "run")
    assert numbers == first[1]
    assert digests == first[0]


def test_the_data_is_as_dirty_as_it_should_be(first: Any, sources: dict[str, str], capsys: Any) -> None:
    """Else equal weights would say less: the damaged image was drawn, sizes changed, the rest is there."""
    _, numbers = first
    steps = [entry for entry in numbers if "step" in entry]
    assert len(steps) == STEPS
    assert sum(entry.get("replaced", 0) for entry in steps)
    assert len({tuple(entry["size"]) for entry in steps}) > 1
    assert cli.main(["data", "check", sources["voc"]]) == 1
    report = capsys.readouterr().out
    assert "unreadable image: 1 image cannot be read" in report
    assert "over the edge: 1 box extends beyond the edge of the image" in report


def test_other_images_give_other_weights(ranks, sources, first, tmp_path):
    """Else equal digests would say nothing."""
    found, _ = outcome(ranks, sources, Way(more=("data.augment.blur=0",)), tmp_path / "run")
    assert all(one != other for one, other in zip(found, first[0], strict=True))
