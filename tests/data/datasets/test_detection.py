"""Items, batches and the choice of the data source."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.data.datasets.annotated import GroundTruth
from rankless.data.datasets.detection import DetectionExamples, collate, open_images
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import UserError
from rankless.geometry.letterbox import letterbox, to_input, to_source
from rankless.recipe.schema import Augment, Data
from rankless.structures import DetectionItem, Letterbox, Sample, Unreadable, network_input, stacked
from support.examples_for_loader import Made


def drawn(index: int) -> Sample:
    rng = np.random.default_rng(index)
    height, width = 60 + 10 * index, 90 - 5 * index
    corner = rng.uniform(0, 30, (index, 2))
    boxes = np.concatenate((corner, corner + rng.uniform(5, 25, (index, 2))), 1).astype(np.float32)
    image = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
    return Sample(image, torch.from_numpy(boxes), torch.arange(index) % 2)


SIZE = (64, 96)
DRAWN = Made(drawn, 6)


def test_evaluation_items_are_letterboxed_whatever_the_epoch() -> None:
    examples = DetectionExamples(DRAWN, SIZE, seed=3, augment=None)
    for index in range(len(examples)):
        source, item = drawn(index), examples.item(index, epoch=index)
        image, where = letterbox(source.image, SIZE)
        assert torch.equal(item.image, image) and item.letterbox == where and item.index == index
        assert torch.equal(item.boxes, to_input(source.boxes, where))
        assert torch.allclose(to_source(item.boxes, where), source.boxes, atol=1e-4)
        truth = examples.ground_truth(index)
        assert torch.equal(truth.boxes, source.boxes) and torch.equal(truth.labels, source.labels)
        assert (truth.height, truth.width) == source.image.shape[1:]


def test_training_items_depend_on_seed_epoch_and_index_alone() -> None:
    def image(seed: int, index: int, epoch: int) -> torch.Tensor:
        return DetectionExamples(DRAWN, SIZE, seed, Augment()).item(index, epoch).image

    examples = DetectionExamples(DRAWN, SIZE, 1, Augment())
    backwards = [examples.item(index, 2).image for index in reversed(range(6))][::-1]
    assert all(torch.equal(backwards[index], image(1, index, 2)) for index in range(6))
    assert not torch.equal(image(1, 4, 2), image(1, 4, 3))
    assert not torch.equal(image(1, 4, 2), image(2, 4, 2))
    copy = pickle.loads(pickle.dumps(examples))
    assert torch.equal(copy.item(4, 2).image, image(1, 4, 2))


def damaged(index: int) -> Sample:
    if index == 4:
        raise UnreadableImage("four.jpg", "cut short")
    return drawn(index)


class Damaged(Made):
    def ground_truth(self, index: int) -> GroundTruth:
        if index == 4:
            return GroundTruth(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, 0)
        return super().ground_truth(index)


FOUR = Unreadable(4, "four.jpg", "cut short")
DAMAGED = Damaged(damaged, 6)


def test_an_unreadable_image_is_replaced_by_another_image() -> None:
    options = Augment(flip=0, hue=0, saturation=0, value=0, scale=0, translate=0)
    examples = DetectionExamples(DAMAGED, SIZE, 1, options)
    item = examples.item(4, 0)
    assert item.index == 4 and item.unreadable == (FOUR,)
    others = [examples.item(index, 0) for index in (0, 1, 2, 3, 5)]
    assert any(torch.equal(item.image, other.image) for other in others)
    assert torch.equal(item.image, examples.item(4, 9).image)  # the same in every epoch
    assert all(other.unreadable == () for other in others)
    batch = collate([others[0], item, item])
    assert batch.unreadable == [FOUR, FOUR] and batch.to(torch.device("cpu")).unreadable == [FOUR, FOUR]


def test_a_mosaic_tells_of_every_partner_that_cannot_be_read() -> None:
    examples = DetectionExamples(DAMAGED, SIZE, 1, Augment(mosaic=1.0))
    met = [len(examples.item(index, epoch).unreadable) for index in (0, 1, 2) for epoch in range(7)]
    assert 0 < sum(met) < 21 and max(met) <= 4


def test_to_be_scored_an_unreadable_image_is_gray() -> None:
    examples = DetectionExamples(DAMAGED, SIZE, 1, None)
    item = examples.item(4, 0)
    assert (item.image == 114).all() and item.image.shape == (3, *SIZE)
    assert item.unreadable == (FOUR,) and not len(item.labels)


def test_images_of_like_aspect_share_a_small_input() -> None:
    whole = DetectionExamples(DAMAGED, (128, 128), 1, None)
    examples = DetectionExamples(DAMAGED, (128, 128), 1, None, rectangular=True)
    assert whole.evaluation_order() is None
    # Height to width of number i is (60 + 10 i) / (90 - 5 i), which rises; number 2 is
    # square, and what cannot be read counts as such.
    assert examples.evaluation_order().tolist() == [0, 1, 2, 4, 3, 5]
    items = examples.items([(0, 0), (0, 1), (0, 4)], 0)
    # 60 × 90 and 70 × 85 are 85 and 105 high where they are 128 wide.
    assert {item.image.shape for item in items} == {(3, 128, 128)}
    assert {item.image.shape for item in examples.items([(0, 0)], 0)} == {(3, 96, 128)}
    alone, usual = examples.items([(0, 0)], 0)[0], whole.item(0, 0)
    assert torch.equal(alone.image, usual.image[:, 16:112])
    assert (alone.letterbox.top, alone.letterbox.scale) == (usual.letterbox.top - 16, usual.letterbox.scale)


def test_collate_pads_to_the_longest() -> None:
    examples = DetectionExamples(DRAWN, SIZE, 0, None)
    items = [examples.item(index, 0) for index in (2, 0, 5, 1)]
    batch = collate(items)
    assert batch.images.shape == (4, 3, *SIZE) and batch.images.dtype == torch.uint8
    assert batch.boxes.shape == (4, 5, 4) and batch.boxes.dtype == torch.float32
    assert batch.labels.dtype == torch.int64 and batch.valid.dtype == torch.bool
    assert batch.valid.sum(1).tolist() == [2, 0, 5, 1] and batch.indices == [2, 0, 5, 1]
    for row, item in enumerate(items):
        assert torch.equal(batch.boxes[row][batch.valid[row]], item.boxes)
        assert torch.equal(batch.labels[row][batch.valid[row]], item.labels)
        assert torch.equal(batch.images[row], item.image)
        assert batch.letterboxes[row] == item.letterbox
    assert not batch.boxes[~batch.valid].any() and not batch.labels[~batch.valid].any()


def test_the_memory_format_of_the_images_does_not_reach_the_network() -> None:
    images = torch.randint(256, (3, 3, 32, 64), dtype=torch.uint8)
    decoded = [image.permute(1, 2, 0).contiguous().permute(2, 0, 1) for image in images]
    plain = (images.double() / 255).float()
    for batch in (stacked(list(images)), stacked(decoded), stacked([decoded[0], *images[1:]])):
        seen = network_input(batch)
        assert torch.equal(seen, plain) and seen.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_without_boxes_still_has_a_place_for_one() -> None:
    image, where = torch.zeros(3, 32, 32, dtype=torch.uint8), Letterbox(1.0, 0.0, 0.0, 32, 32)
    empty = DetectionItem(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 7, where)
    for count in (1, 3):
        batch = collate([empty] * count)
        assert batch.boxes.shape == (count, 1, 4) and not batch.valid.any()


def test_a_folder_and_a_yaml_and_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "val"
    folder.mkdir(parents=True)
    Image.new("RGB", (40, 20)).save(folder / "a.png")
    (tmp_path / "labels" / "val").mkdir(parents=True)
    (tmp_path / "labels" / "val" / "a.txt").write_text("0 .5 .5 .5 .5")
    (tmp_path / "data.yaml").write_text("val: images/val\nnames: [x]\n")
    for root in (tmp_path, tmp_path / "data.yaml"):
        samples = open_images(Data(root=str(root)), "val", 9)
        assert samples.class_names == ("x",) and len(samples) == 1
        (folder / "a.png").touch()
        truth = DetectionExamples(samples, (64, 64), 0, None).ground_truth(0)
        assert (truth.boxes.tolist(), truth.height, truth.width) == ([[10, 5, 30, 15]], 20, 40)
    with pytest.raises(UserError, match="'digits'"):
        open_images(Data(root=str(tmp_path / "nothing")), "val", 9)
    (tmp_path / "val.csv").write_text("filename,label\nimages/val/a.png,x\n")
    with pytest.raises(UserError, match=r"read as CSV .* no boxes.*; train a classifier with"):
        open_images(Data(root=str(tmp_path), format="csv"), "val", 9)
    assert len(open_images(Data(root=str(tmp_path), format="darknet"), "val", 9)) == 1
