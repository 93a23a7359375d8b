"""The detection task: source pixels, NMS, order, and the score of perfect answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.geometry.letterbox import to_input
from rankless.recipe.schema import Data, Evaluate, Model, Recipe
from rankless.structures import DetectionBatch, Detections, Letterbox
from rankless.tasks.detect import Detect

NAMES = ("cat", "dog", "owl")
PLACE = Letterbox(scale=0.5, left=0.0, top=8.0, height=96, width=128)  # 128×96 on 64×64


def recipe(**evaluate) -> Recipe:
    return Recipe(
        model=Model(name="yolov3-tiny", width=0.25, image_size=64),
        data=Data(root="nowhere"),
        evaluate=Evaluate(**evaluate),
    )


class Decoded(nn.Module):
    """A model whose decoded outputs are given, in pixels of the input."""

    def __init__(self, boxes: Tensor, scores: Tensor) -> None:
        super().__init__()
        self.boxes, self.scores = boxes, scores

    def forward(self, images: Tensor) -> Tensor:
        assert images.dtype == torch.float32 and images.is_contiguous(memory_format=torch.channels_last)
        assert torch.all(images == 200 / 255)  # of the batch's image
        return images

    def decode(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self.boxes[None], self.scores[None]


def batch_of_one() -> DetectionBatch:
    labels, valid = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.bool)
    images = torch.full((1, 3, 64, 64), 200, dtype=torch.uint8)
    return DetectionBatch(images, torch.zeros(1, 0, 4), labels, valid, [10], [PLACE])


def find(*candidates: tuple[list[float], list[float]], **evaluate) -> Detections:
    """What the task makes of boxes and their scores by class."""
    boxes, scores = (torch.tensor([one[part] for one in candidates]) for part in (0, 1))
    (found,) = Detect(recipe(**evaluate), NAMES).predict(Decoded(boxes, scores), batch_of_one())
    return found


def test_boxes_come_back_in_source_pixels_with_their_scores():
    found = find(([10.0, 18, 30, 38], [0.0, 0.72, 0.0]), confidence=0.05)
    assert found.index == 10
    assert found.labels.tolist() == [1]
    assert found.scores.tolist() == pytest.approx([0.72])
    assert found.boxes[0].tolist() == pytest.approx([20, 20, 60, 60], abs=1e-3)


def test_boxes_are_clipped_to_the_source_and_the_margins_hold_none():
    cat = [0.81, 0, 0]
    found = find(([-6.0, 2, 14, 31], cat), ([40.0, 1, 52, 7], cat), confidence=0.05)
    (box,) = found.boxes.tolist()  # the other lies above the source
    assert box == pytest.approx([0, 0, 28, 46], abs=1e-3)


def test_the_recipe_chooses_how_duplicates_are_dropped():
    near = ([10.0, 18, 30, 38], [0.81, 0.45, 0]), ([11.0, 18, 31, 38], [0.72, 0.765, 0])
    settings = {"confidence": 0.05, "iou": 0.5}
    # NMS works class by class. The best class of the first box is 0, of the second 1.
    for found in (find(*near, **settings), find(*near, **settings | {"multi_label": False, "iou": 0.99})):
        assert found.labels.tolist() == [0, 1]
        assert found.scores.tolist() == pytest.approx([0.81, 0.765])
        assert found.boxes[:, 0].tolist() == pytest.approx([20, 22], abs=1e-3)
    assert len(find(*near, confidence=0.05, iou=0.95).labels) == 4  # their IoU is 0.905
    assert find(*near, **settings, class_agnostic=True).labels.tolist() == [0]
    # IoU 0.905; the centers are 2 px apart on a hull of 42 × 40: less (4 / 3364) ** 0.6 = 0.0175.
    assert len(find(*near, **settings | {"iou": 0.89}, nms="diou").labels) == 4
    assert len(find(*near, **settings | {"iou": 0.89}, nms="iou").labels) == 2


def test_a_best_class_below_the_threshold_is_not_replaced_by_another():
    one = [10.0, 18, 30, 38], [0.45, 0.36, 0]
    assert find(one, confidence=0.3).labels.tolist() == [0, 1]
    assert find(one, confidence=0.3, multi_label=False).labels.tolist() == [0]
    assert len(find(one, confidence=0.46, multi_label=False).labels) == 0


def test_the_confidence_threshold_and_the_largest_number():
    row = [([8.0 + 16 * n, 20, 20 + 16 * n, 30], [0.5 + 0.1 * n, 0, 0]) for n in range(3)]
    assert len(find(*row, confidence=0.55).labels) == 2
    best = find(*row, confidence=0.001, detections=2)
    assert best.scores.tolist() == pytest.approx([0.7, 0.6])
    assert best.scores.dtype == torch.float32 and best.labels.dtype == torch.int64
    assert find(*row, confidence=0.9).boxes.shape == (0, 4)


def test_equal_scores_stay_in_the_order_of_the_candidates():
    order = (2, 0, 3, 1)
    found = find(*(([16.0 * n + 2, 18, 16 * n + 13, 30], [0.25, 0, 0.25]) for n in order), confidence=0.05)
    assert found.boxes[::2, 0].tolist() == [2 * (16 * n + 2) for n in order]
    assert found.labels.tolist() == [0, 2] * 4


@pytest.mark.parametrize("options", [{}, {"nms": "diou"}, {"class_agnostic": True}])
@pytest.mark.parametrize("wanted", [1, 3, 20])
def test_fewer_detections_are_the_best_of_all(wanted, options):
    generator = torch.Generator().manual_seed(wanted)
    corner = torch.rand(400, 2, generator=generator) * torch.tensor([30.0, 58.0])
    boxes = torch.cat((corner, corner + 3 + torch.rand(400, 2, generator=generator) * 20), 1)
    boxes[:60, 1::2] = torch.tensor([0.5, 7.5])  # many of the best are in the margin alone
    scores = torch.rand(400, len(NAMES), generator=generator).sort(0, descending=True).values
    model = Decoded(boxes, scores)
    some, every = (
        Detect(recipe(detections=count, **options), NAMES).predict(model, batch_of_one())[0]
        for count in (wanted, 1000)
    )
    assert len(every.scores) > 20 and len(some.scores) == wanted
    assert torch.equal(some.boxes, every.boxes[:wanted])
    assert torch.equal(some.scores, every.scores[:wanted])
    assert torch.equal(some.labels, every.labels[:wanted])


def digits(**data) -> Recipe:
    return Recipe(
        model=Model(name="yolov4-tiny", width=0.25, image_size=(96, 128)),
        data=Data(train_images=5, val_images=4, **data),
        seed=3,
    )


@pytest.mark.slow
def test_a_batch_of_digits_has_a_loss_that_reaches_every_weight():
    task = Detect(digits())
    assert task.class_names == tuple("0123456789")
    torch.manual_seed(0)
    model = task.model()
    examples = task.training_data()
    assert len(examples) == 5
    found = task.loss(model, task.collate([examples.item(index, 0) for index in (0, 3)]))
    found.sum.backward()
    assert found.count.item() == 2
    names = {"box", "objectness", "classes"}
    assert set(found.parts) == names | {f"{level}/{name}" for level in ("P4", "P5") for name in names}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_true_boxes_score_one_and_wrong_ones_nothing():
    task = Detect(digits())
    data = task.evaluation_data()
    truths = [data.ground_truth(index) for index in range(len(data))]
    right = [Detections(i, t.boxes, torch.ones(len(t.labels)), t.labels) for i, t in enumerate(truths)]
    assert task.score(right)[task.score_name] == pytest.approx(1)
    wrong = [replace(one, labels=(one.labels + 1) % 10) for one in right]
    assert task.score(wrong)[task.score_name] == pytest.approx(0)


def test_targets_follow_the_letterbox():
    task = Detect(digits())
    data = task.evaluation_data()
    item, truth = data.item(2, 0), data.ground_truth(2)
    assert item.image.shape == (3, 96, 128)
    torch.testing.assert_close(item.boxes, to_input(truth.boxes, item.letterbox))


@pytest.mark.slow
def test_validation_scenes_are_every_seeds_and_training_scenes_are_not():
    first, second = Detect(digits()), Detect(replace(digits(), seed=4))

    def scene(examples):
        return examples.images.read(1).image

    assert torch.equal(scene(first.evaluation_data()), scene(second.evaluation_data()))
    assert not torch.equal(scene(first.training_data()), scene(second.training_data()))


def test_given_class_names_open_no_data():
    task = Detect(recipe(), NAMES)  # its data root does not exist
    assert task.class_names == NAMES
    with pytest.raises(UserError):
        Detect(recipe())
    with pytest.raises(UserError, match="no such model"):
        Detect(Recipe(model=Model(name="yolov9")), NAMES)


def test_data_with_other_classes_than_the_model_is_an_error():
    task = Detect(digits(), NAMES)
    with pytest.raises(UserError, match=r"digits, split 'val': the model has no class '0'") as found:
        task.evaluation_data()
    assert "the model has the classes 'cat', 'dog', 'owl'" in found.value.problems[-1]
    assert "--classes-map '0=cat, 9='" in found.value.problems[-1]


def test_boxes_are_clipped_behind_nms():
    # On the input IoU is 18 / 38; clipped to the source it would be 18 / 20.
    wide = ([-18.0, 18, 20, 38], [0.81, 0, 0]), ([2.0, 18, 20, 38], [0.72, 0, 0])
    for kind in ("iou", "diou"):
        found = find(*wide, confidence=0.05, iou=0.5, nms=kind)
        assert found.boxes.tolist() == [pytest.approx(box) for box in ([0, 20, 40, 60], [4, 20, 40, 60])]
