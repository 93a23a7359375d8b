"""What a task collects for the report of an evaluation: counts, curves and images; scores stay the same."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix

from rankless.recipe.load import default, load
from rankless.structures import Classification, Detections
from rankless.tasks import open_task
from rankless.tasks.report_details import EXAMPLES


@pytest.fixture(scope="module")
def detect(small_recipe: str) -> Any:
    return open_task(load(small_recipe))


def perfect(task: Any, index: int) -> Detections:
    truth = task.evaluation_data().ground_truth(index)
    return Detections(index, truth.boxes, torch.full((len(truth.labels),), 0.9), truth.labels)


def answers(task: Any) -> list[Detections]:
    """All right, but for image 2 where nothing is found, and image 5 where every class is wrong."""
    found = [perfect(task, index) for index in range(len(task.evaluation_data()))]
    none = slice(0, 0)
    found[2] = Detections(2, found[2].boxes[none], found[2].scores[none], found[2].labels[none])
    found[5] = Detections(5, found[5].boxes, found[5].scores, 1 - found[5].labels)
    return found


def test_details_of_detections_agree_with_the_scores_and_the_data(detect: Any) -> None:
    found = answers(detect)
    details = json.loads(json.dumps(detect.report_details(found)))
    scores = detect.score(found)
    curves = [np.mean(curve) for curve in details["pr"]]
    assert curves == pytest.approx([row["AP50"] for row in scores["per_class"].values()], abs=1e-5)
    truths = [detect.evaluation_data().ground_truth(index) for index in range(len(found))]
    labels = torch.cat([truth.labels for truth in truths])
    assert details["truths"] == labels.bincount(minlength=2).tolist()
    assert sum(details["sizes"]["truths"]) == len(labels) == np.sum(details["confusion"]) - 0
    missed, wrong = len(truths[2].labels), len(truths[5].labels)
    assert sum(row[-1] for row in details["confusion"]) == missed
    assert details["confusion"][0][1] + details["confusion"][1][0] == wrong
    right = len(labels) - missed - wrong
    expected = [right / (right + wrong), right / len(labels)]
    assert details["thresholds"]["at_best"][:2] == pytest.approx(expected)
    assert details["training"]["images"] == 21
    files = Path(detect.recipe.data.root).parent.glob("labels/train/*.txt")
    assert sum(details["training"]["truths"]) == sum(len(file.read_text().split("\n")) - 1 for file in files)


def test_the_worst_and_the_best_images_are_kept_with_their_boxes(detect: Any) -> None:
    examples = detect.report_details(answers(detect))["examples"]
    worst = [one for one in examples if one["kind"] == "worst"]
    assert {Path(one["name"]).stem for one in worst} == {"02", "05"}
    assert [one["score"] for one in worst] == [0, 0]
    best = [one for one in examples if one["kind"] == "best"]
    assert len(best) == EXAMPLES and {one["score"] for one in best} == {1}
    for one in examples:
        image = Image.open(io.BytesIO(base64.b64decode(one["jpeg"])))
        assert image.size == (one["width"], one["height"]) == (64, 64)
        truth = detect.evaluation_data().ground_truth(int(Path(one["name"]).stem))
        boxes = [[*(side * 64 for side in row[:4]), row[4]] for row in one["truth"]]
        assert np.array(boxes) == pytest.approx(np.column_stack([truth.boxes, truth.labels]), abs=0.01)
        assert {row[5] for row in one["truth"]} == {int(one["kind"] == "best")}
        assert {tuple(row[5:]) for row in one["found"]} <= {(0.9, int(one["kind"] == "best"))}
    assert not next(one for one in worst if Path(one["name"]).stem == "02")["found"]


def test_unreadable_images_are_left_out_and_missing_images_are_not_shown(small_recipe, tmp_path):
    data = shutil.copytree(Path(small_recipe).parent, tmp_path / "data") / "data.yaml"
    data.write_text(data.read_text().replace(str(Path(small_recipe).parent), str(data.parent)))
    task: Any = open_task(load(small_recipe, [f"data.root={data}"]))
    found = answers(task)
    found[0] = Detections(0, found[0].boxes, found[0].scores, found[0].labels, unreadable=True)
    (data.parent / "images/val/02.png").unlink()
    details = task.report_details(found)
    assert details["images"] == len(found) - 1
    assert "02" not in {Path(one["name"]).stem for one in details["examples"]}


def test_details_of_a_classifier_agree_with_its_scores() -> None:
    task = open_task(default(["task=classify", "model.name=resnet18", "data.root=digits"]))
    labels = task.evaluation_data().labels()
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(len(labels), 10, generator=rng)
    logits[torch.arange(len(labels)), labels] += 2
    found = [Classification(index, row) for index, row in enumerate(logits.log_softmax(1))]
    details, scores = json.loads(json.dumps(task.report_details(found))), task.score(found)
    assert details["truths"] == labels.bincount(minlength=10).tolist()
    expected = confusion_matrix(labels, logits.argmax(1))
    assert scores["confusion"] == expected.tolist()  # in the journal, so it is not kept twice
    assert "confusion" not in details
    # With every answer taken, precision is the share of right ones.
    assert details["thresholds"]["precision"][0] == pytest.approx(scores["top1"], abs=1e-5)
    of_truth = logits.softmax(1)[torch.arange(len(labels)), labels].sort().values
    shown = [one["score"] for one in details["examples"]]
    assert shown[:EXAMPLES] == pytest.approx(of_truth[:EXAMPLES].tolist())
    assert shown[EXAMPLES:] == pytest.approx(of_truth.flip(0)[:EXAMPLES].tolist())
    assert details["training"]["images"] == sum(details["training"]["truths"])
    for one in details["examples"]:
        probabilities: Sequence[float] = [probability for _, probability in one["likeliest"]]
        assert probabilities == sorted(probabilities, reverse=True)
