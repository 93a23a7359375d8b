"""Classification examples: items, their targets, mixing with keyed partners, batches, the built-in digits."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from rankless.data.builtin.digits import DigitImages, DigitScenes
from rankless.data.datasets.annotated import ClassificationImages
from rankless.data.datasets.classification import ClassificationExamples, collate, open_images
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import UserError
from rankless.recipe.schema import Augment, Data
from rankless.structures import Unreadable

OFF = Augment(flip=0, hue=0, saturation=0, value=0, scale=0, translate=0)


class Grays(ClassificationImages):
    """Image n is gray of level 10 n, its class n % 3."""

    class_names = ("a", "b", "c")
    notes = ("a note",)

    def __len__(self) -> int:
        return 20

    def read(self, index: int) -> Tensor:
        return torch.full((3, 12, 10), 10 * index, dtype=torch.uint8)

    def label(self, index: int) -> int:
        return index % 3

    def source(self, index: int) -> str:
        return str(index)


def examples(
    augmented: bool = True, seed: int = 0, epochs: int | None = None, **options
) -> ClassificationExamples:
    augment = Augment(**{**OFF.__dict__, **options})
    return ClassificationExamples(Grays(), (8, 8), seed, augment, augmented=augmented, epochs=epochs)


def test_an_item_is_a_placed_image_and_its_class():
    found = examples()
    assert len(found) == 20 and found.notes == ("a note",)
    item = found.item(4, 0)
    assert item.index == 4 and item.target.tolist() == [0, 1, 0]
    assert item.image.shape == (3, 8, 8) and item.image.eq(40).all()
    assert found.labels().tolist() == [n % 3 for n in range(20)]


class Damaged(Grays):
    def read(self, index: int) -> Tensor:
        if index == 4:
            raise UnreadableImage("four.jpg", "cut short")
        return super().read(index)


def damaged(augmented: bool, **options) -> ClassificationExamples:
    return ClassificationExamples(
        Damaged(), (8, 8), 0, Augment(**{**OFF.__dict__, **options}), augmented=augmented
    )


FOUR = Unreadable(4, "four.jpg", "cut short")


def test_an_unreadable_image_is_replaced_by_another_image_with_its_own_class():
    item = damaged(True).item(4, 0)
    assert item.index == 4 and item.unreadable == (FOUR,)
    number = int(item.image[0, 0, 0]) // 10
    assert number != 4 and item.target.argmax() == number % 3
    assert torch.equal(item.image, damaged(True).item(4, 7).image)  # the same in every epoch
    batch = collate([damaged(True).item(5, 0), item])
    assert batch.unreadable == [FOUR] and batch.to(torch.device("cpu")).unreadable == [FOUR]
    mixed = [damaged(True, mixup=1.0).item(5, epoch).unreadable for epoch in range(80)]
    assert {FOUR} == {one for each in mixed for one in each}  # as a partner, now and then
    assert 1 <= sum(map(len, mixed)) <= 16


def test_to_be_scored_an_unreadable_image_is_gray():
    item = damaged(False).item(4, 0)
    assert item.image.eq(114).all() and item.image.shape == (3, 8, 8)
    assert item.unreadable == (FOUR,) and item.target.tolist() == [0, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_partners_come_from_the_whole_data_by_key(options):
    found = examples(**options)
    items = [found.item(5, epoch) for epoch in range(60)]
    levels = set()
    for item in items:
        assert item.index == 5 and item.target.sum().item() == pytest.approx(1)
        shown = item.image.float()
        if shown.unique().numel() == 2:  # cut: the partner's level is seen
            levels |= set(item.image.unique().tolist()) - {50}
            share = (item.image[0] == 50).float().mean().item()
        else:
            continue
        (other,) = set(item.image.unique().tolist()) - {50}
        expected = torch.zeros(3)
        expected[5 % 3] += share
        expected[other // 10 % 3] += 1 - share
        torch.testing.assert_close(item.target, expected)
    if options == {"cutmix": 1.0}:
        assert len(levels) > 12  # of 19
    alone, order = examples(**options), np.random.default_rng(0).permutation(60)
    for epoch in order.tolist():  # whatever came before, in whatever copy
        again = pickle.loads(pickle.dumps(alone)).item(5, epoch)
        assert torch.equal(again.image, items[epoch].image) and torch.equal(again.target, items[epoch].target)
    assert not torch.equal(examples(seed=1, **options).item(5, 0).target, items[0].target)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mixup", "cutmix"])
def test_a_share_of_the_images_is_mixed_and_none_in_the_last_epochs(way):
    half = examples(**{way: 1.0}, mixup_probability=0.25)
    always = examples(**{way: 1.0})
    mixed = 0
    for epoch in range(200):
        item, full = half.item(4, epoch), always.item(4, epoch)
        if torch.equal(item.image, full.image) and torch.equal(item.target, full.target):
            mixed += 1
        else:
            assert item.image.eq(40).all() and item.target.tolist() == [0, 1, 0]
    assert 28 < mixed < 80  # 50; a partner may be the image itself, and a cut may be empty
    closed = examples(**{way: 1.0}, close_mosaic="3 epochs", epochs=10)
    for epoch in range(12):
        if epoch < 7:
            assert torch.equal(closed.item(4, epoch).image, always.item(4, epoch).image)
        else:
            assert closed.item(4, epoch).image.eq(40).all()
    assert not all(always.item(4, epoch).image.eq(40).all() for epoch in range(7, 12))


def test_both_ways_of_mixing_happen():
    kinds = [examples(mixup=1.0, cutmix=1.0).item(1, epoch).image.unique().numel() for epoch in range(60)]
    assert kinds.count(1) > 10 and kinds.count(2) > 10


def test_evaluation_neither_varies_nor_mixes():
    found = examples(augmented=False, mixup=1.0, cutmix=1.0, erase=1.0, value=0.5, policy="randaugment")
    for index in range(20):
        item = found.item(index, 3)
        assert item.image.eq(10 * index).all() and item.target[index % 3] == 1


def test_batches():
    batch = collate([examples().item(index, 0) for index in (3, 1)])
    assert batch.images.shape == (2, 3, 8, 8) and batch.images.is_contiguous()
    assert batch.targets.tolist() == [[1, 0, 0], [0, 1, 0]] and batch.indices == [3, 1]
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.images, batch.images) and moved.indices == [3, 1]


def test_the_digits_are_those_of_the_scenes():
    for split, count in (("train", 1438), ("val", 359)):
        digits, scenes = DigitImages(split), DigitScenes(split, 1)
        assert digits.class_names == tuple("0123456789") and len(digits) == count
        found = {(level.tobytes(), digits.label(index)) for index, level in enumerate(digits._levels)}
        assert found == {(d.tobytes(), label) for label, part in enumerate(scenes._digits) for d in part}
    image = DigitImages("val").read(7)
    assert image.shape == (3, 64, 64) and image.dtype == torch.uint8
    assert torch.equal(image[0], image[2]) and image.max() > 230 and image.min() == 0
    small = torch.nn.functional.avg_pool2d(image[:1].float(), 8)[0] / 255 * 16
    assert np.corrcoef(small.flatten(), DigitImages("val")._levels[7].ravel())[0, 1] > 0.95
    with pytest.raises(IndexError):
        DigitImages("val").read(359)


def test_opening(tmp_path):
    assert isinstance(open_images(Data(root="digits"), "val"), DigitImages)
    with pytest.raises(UserError, match="no split 'test'"):
        open_images(Data(root="digits"), "test")
    with pytest.raises(UserError, match="the model has the classes 'cat', 'dog'"):
        open_images(Data(root="digits"), "val", ("cat", "dog"))
    with pytest.raises(UserError, match="no such file or folder"):
        open_images(Data(root=str(tmp_path / "none")), "train")
