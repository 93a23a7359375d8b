"""Pascal VOC data from the recipe to the score: every split is there, difficult objects count neither way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.errors import UserError
from rankless.launch.local import evaluate
from rankless.models.weights_files import weights
from rankless.recipe.schema import Augment, Batch, Data, Model, Recipe
from rankless.structures import Detections
from rankless.tasks.detect import Detect


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Six images of 96 × 64 with two things each, the second one of every other image difficult."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    for number in range(6):
        image = np.random.default_rng(number).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / f"JPEGImages/{number}.jpg")
        things = "".join(
            f"<object><name>{name}</name><difficult>{hard}</difficult><bndbox><xmin>{x}</xmin><ymin>5</ymin>"
            f"<xmax>{x + 29}</xmax><ymax>34</ymax></bndbox></object>"
            for name, hard, x in (("pot", 0, 1 + number), ("cup", number % 2, 50))
        )
        (tmp_path / f"Annotations/{number}.xml").write_text(f"<annotation>{things}</annotation>")
    for split, numbers in (("train", "0123"), ("val", "4"), ("test", "345")):
        (tmp_path / f"ImageSets/Main/{split}.txt").write_text("\n".join(numbers))
    return Recipe(
        model=Model(name="yolov4-tiny", width=0.125, image_size=64),
        data=Data(root=str(tmp_path), augment=Augment(mosaic=1.0, close_mosaic="1 epoch")),
        batch=Batch(images=2, micro=2),
        epochs=3,
        precision="fp32",
    )


def test_difficult_objects_are_neither_missed_nor_wrong(recipe: Recipe) -> None:
    task = Detect(replace(recipe, data=replace(recipe.data, val="test")))
    data = task.evaluation_data()
    truths = [data.ground_truth(index) for index in range(len(data))]
    assert task.class_names == ("cup", "pot") and [len(truth.labels) for truth in truths] == [2, 2, 2]
    everything = [Detections(i, t.boxes, torch.ones(2), t.labels) for i, t in enumerate(truths)]
    assert task.score(everything)["AP"] == pytest.approx(1)
    without = [
        Detections(i, t.boxes[~t.difficult], torch.ones(2)[~t.difficult], t.labels[~t.difficult])
        for i, t in enumerate(truths)
        if t.difficult is not None
    ]
    assert [len(found.labels) for found in without] == [1, 2, 1]
    assert task.score(without)["AP"] == pytest.approx(1)
    missed = [Detections(i, t.boxes[:1], torch.ones(1), t.labels[:1]) for i, t in enumerate(truths)]
    scores = task.score(missed)["per_class"]
    assert (scores["pot"]["AP"], scores["cup"]["AP"]) == (pytest.approx(1), pytest.approx(0))


def test_the_last_epochs_know_the_whole_run(recipe: Recipe) -> None:
    data = Detect(recipe).training_data()
    plain = Detect(replace(recipe, data=replace(recipe.data, augment=Augment()))).training_data()
    same = [torch.equal(data.item(1, epoch).image, plain.item(1, epoch).image) for epoch in range(3)]
    assert same == [False, False, True]


@pytest.mark.processes
def test_evaluate_scores_any_split(recipe: Recipe, tmp_path: Path) -> None:
    task = Detect(recipe)
    torch.manual_seed(0)
    file = tmp_path / "weights.safetensors"
    weights.save(file, task.model().state_dict(), recipe=recipe, class_names=task.class_names)
    scores = evaluate(file, devices=1, split="test")
    assert set(scores["per_class"]) == {"cup", "pot"} and scores["AP"] is not None
    unknown = Detect(replace(recipe, data=replace(recipe.data, val="tset")))
    with pytest.raises(UserError, match="no split 'tset'; expected one of 'train', 'val', 'test'"):
        unknown.evaluation_data()
