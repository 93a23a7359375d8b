"""Inputs of other sizes than the recipe's: training at several scales and rectangular evaluation."""

from __future__ import annotations

import pytest
import torch

from rankless.errors import UserError
from rankless.recipe.schema import Augment, Data, Evaluate, Loss, Model, Recipe
from rankless.structures import DetectionItem, Letterbox
from rankless.tasks.detect import Detect
from support.finds_rectangles import Finds, painted

NAMES = ("red", "green", "blue")
OFF = Augment(flip=0, hue=0, saturation=0, value=0, scale=0, translate=0)


def recipe(**data) -> Recipe:
    return Recipe(
        model=Model(name="yolov3-tiny", width=0.25, image_size=64),
        data=Data(root=data.pop("root", "nowhere"), augment=OFF, **data),
        evaluate=Evaluate(confidence=0.3),
        loss=Loss(box_loss="ciou"),  # of which nothing is left when a box is right
    )


@pytest.mark.parametrize("size", [(64, 64), (96, 128), (32, 64)])
def test_boxes_and_losses_are_in_pixels_of_the_input_there_is(size: tuple[int, int]):
    """A model that is right has no box loss, on whatever size; the recipe says 64 × 64."""
    task = Detect(recipe(), NAMES)
    model = Finds(task.model().heads, criterion=task.model().criterion)
    box = (5, 2, 26, 29)
    boxes, place = torch.tensor([box], dtype=torch.float32), Letterbox(1.0, 0.0, 0.0, *size)
    item = DetectionItem(painted(*size, {1: box}), boxes, torch.tensor([1]), 0, place)
    batch = task.collate([item])
    (found,) = task.predict(model, batch)
    assert found.boxes.tolist() == [pytest.approx(box, abs=1e-3)]
    assert task.loss(model, batch).parts["box"] == pytest.approx(0, abs=1e-5)
    wrong = task.collate([DetectionItem(item.image, item.boxes + 2, item.labels, 0, item.letterbox)])
    assert task.loss(model, wrong).parts["box"] > 1e-3


@pytest.mark.slow
def test_training_items_have_the_size_of_their_step_and_evaluation_items_that_of_the_recipe():
    task = Detect(recipe(root="digits", train_images=4, val_images=2, multi_scale=0.5, multi_scale_every=2))
    data = task.training_data()
    sizes = []
    for step in range(12):
        batch = task.collate(data.items([(0, 1), (0, 2)], step))
        sizes.append(tuple(batch.images.shape[-2:]))
        assert data.facts(step) == {"size": list(sizes[-1])}
        # The image as large as this input: the 64 pixels of a scene on 64 or 96.
        truth = data.ground_truth(1).boxes * sizes[-1][0] / 64
        assert torch.allclose(batch.boxes[0][batch.valid[0]], truth, atol=1e-3)
    assert set(sizes) == {(64, 64), (96, 96)}
    assert sizes[::2] == sizes[1::2]
    evaluated = task.evaluation_data().items([(0, 0)], 0)[0]
    assert evaluated.image.shape == (3, 64, 64)
    assert Detect(recipe(root="digits", train_images=4)).training_data().facts(3) == {}


def test_what_can_have_no_effect_is_reported():
    with pytest.raises(UserError, match=r"data.multi_scale is 0.2, but no other size .* of 64 × 64 pixels"):
        Detect(recipe(root="digits", multi_scale=0.2))
    made = recipe(root="digits", fit="stretch")
    both = Recipe(model=made.model, data=made.data, evaluate=Evaluate(rectangular=True))
    with pytest.raises(UserError, match=r"evaluate.rectangular is true, but data.fit is 'stretch'"):
        Detect(both)
