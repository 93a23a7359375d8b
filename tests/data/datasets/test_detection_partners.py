"""Partners from the micro-batch: a function of it, the seed and the epoch; each image is read once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from rankless.data.datasets.detection import DetectionExamples
from rankless.recipe.schema import Augment
from rankless.structures import DetectionItem, Sample
from support.examples_for_loader import Made

SIZE = (64, 96)
HEAVY = Augment(
    preset="heavy", close_mosaic=0, mosaic=0.8, mixup_probability=0.5, copy_paste=0.5, partners="batch"
)
LINE = [(0, 3), (0, 17), (0, 8), (1, 11)]


def gray(index: int) -> Sample:
    """An image of one gray with one box of its own number."""
    image = torch.full((3, 60, 90), 10 * index, dtype=torch.uint8)
    return Sample(image, torch.tensor([[30.0, 20, 50, 40]]), torch.tensor([index]))


def drawn(
    options: Augment, line: list[tuple[int, int]], seed: int = 0, epochs: int | None = None
) -> tuple[list[DetectionItem], Counter[int]]:
    asked: Counter[int] = Counter()

    def counted(index: int) -> Sample:
        asked[index] += 1
        return gray(index)

    return DetectionExamples(Made(counted), SIZE, seed, options, epochs).items(line, 0), asked


def same(one: DetectionItem, other: DetectionItem) -> bool:
    pairs = ((one.image, other.image), (one.boxes, other.boxes), (one.labels, other.labels))
    return all(torch.equal(*pair) for pair in pairs) and one.index == other.index


@pytest.mark.slow
@pytest.mark.parametrize("part", [{"mosaic": 1.0}, {"mixup": 8.0}, {"copy_paste": 1.0}])
def test_partners_are_of_the_line_or_of_the_data(part: dict[str, float]) -> None:
    options = Augment(preset="none", **part)
    inside, outside = set(), set()
    for seed in range(15):
        items, _ = drawn(replace(options, partners="batch"), LINE, seed)
        for item in items:
            labels = set(item.labels.tolist()) - {item.index}
            assert labels <= {3, 17, 8, 11}
            inside |= {(item.index, label) for label in labels}
        for item in drawn(options, LINE, seed)[0]:
            outside |= set(item.labels.tolist())
    assert len(inside) == 12  # every one with every other
    assert len(outside) > 12


@pytest.mark.slow
def test_each_image_of_the_line_is_read_once_and_no_other() -> None:
    for seed in range(10):
        _, asked = drawn(HEAVY, LINE, seed)
        assert asked == {3: 1, 17: 1, 8: 1, 11: 1}
        _, asked = drawn(replace(HEAVY, partners="data"), LINE, seed)
        assert sum(asked.values()) > 8


@pytest.mark.slow
def test_a_mosaic_of_a_micro_batch_shows_no_image_twice() -> None:
    options = Augment(preset="none", mosaic=1.0, partners="batch")
    for seed in range(20):
        for item in drawn(options, LINE, seed)[0]:
            assert len(item.image.unique()) >= 4  # four grays, and perhaps 114
        for few in (2, 3):
            for item in drawn(options, LINE[:few], seed)[0]:
                assert set(item.image.unique().tolist()) - {114} == {10 * index for _, index in LINE[:few]}


def test_the_order_of_a_line_changes_no_item_but_its_images_do() -> None:
    forwards, _ = drawn(HEAVY, LINE)
    backwards, _ = drawn(HEAVY, LINE[::-1])
    assert all(same(one, other) for one, other in zip(forwards, backwards[::-1], strict=True))
    longer, _ = drawn(HEAVY, [*LINE, (0, 5)])
    assert not all(same(one, other) for one, other in zip(forwards, longer, strict=False))
    for changed in (drawn(HEAVY, LINE, 1)[0], drawn(HEAVY, [(epoch + 5, index) for epoch, index in LINE])[0]):
        assert not any(same(one, other) for one, other in zip(forwards, changed, strict=True))


def test_one_image_alone_has_partners_of_the_data() -> None:
    (alone,), _ = drawn(HEAVY, [(0, 3)])
    usual = DetectionExamples(Made(gray), SIZE, 0, replace(HEAVY, partners="data")).item(3, 0)
    assert same(alone, usual)


def test_a_line_across_two_epochs_closes_the_mosaic_for_the_last_alone() -> None:
    closed = replace(HEAVY, close_mosaic="1 epoch")
    items, _ = drawn(closed, LINE, epochs=2)
    unclosed, _ = drawn(HEAVY, LINE, epochs=2)
    alone = DetectionExamples(Made(gray), SIZE, 0, replace(closed, partners="data"), 2).item(11, 1)
    assert same(items[3], alone) and alone.labels.tolist() == [11]
    assert all(same(one, other) for one, other in zip(items[:3], unclosed[:3], strict=True))
