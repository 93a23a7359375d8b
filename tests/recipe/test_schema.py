"""A recipe built in Python refuses what cannot be trained."""

import math

import pytest
from pydantic import ValidationError

from rankless.errors import UserError
from rankless.recipe.loss_kinds import Yolov4Loss
from rankless.recipe.schema import (
    Augment,
    Batch,
    Checkpoint,
    Data,
    Evaluate,
    Loss,
    Model,
    Optim,
    Recipe,
    Schedule,
)


def test_lists_are_accepted_as_tuples_and_whole_numbers_as_floats():
    assert Model(image_size=[192, 320]).image_size == (192, 320)
    assert Schedule(milestones=[10, 20]).milestones == (10, 20)
    assert repr(Optim(lr=1, betas=[0.8, 0.9])).startswith("Optim(name='sgd', lr=1.0")


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Schedule(name="step", milestones=(5, 5)), "durations in increasing order"),
        (lambda: Schedule(milestones=("80%", "8%")), "durations in increasing order"),
        (lambda: Schedule(milestones=("101%",)), "milestones"),
        (lambda: Evaluate(every="5 min"), "every"),
        (lambda: Evaluate(every="0 epochs"), "every"),
        (lambda: Checkpoint(every="0 steps"), "every"),
        (lambda: Schedule(milestones=[1, "2"]), "milestones"),
        (
            lambda: Recipe(optim=Optim(name="adamw", nesterov=True)),
            "'optim.nesterov' is true, but 'optim.name' is 'adamw'; 'optim.nesterov' has an effect only with",
        ),
        (lambda: Recipe(optim=Model()), "key 'optim.name'|'optim.name' is 'yolov4-tiny'"),
        (lambda: Recipe(ema=Data()), "'ema' is Data"),
        *((lambda lr=lr: Optim(lr=lr), "lr") for lr in (math.nan, math.inf, 0.0)),
        (lambda: Batch(images=True), "images"),
        (lambda: Model(image_size=[416, 416, 416]), "image_size"),
        (lambda: Model(name=""), "name"),
        (lambda: Checkpoint(every="10 minutes"), "every"),
        (lambda: Checkpoint(every="0 min"), "every"),
        (lambda: Checkpoint(every="00.0min"), "every"),
        (lambda: Checkpoint(every=0), "every"),
        (lambda: Evaluate(iou=1.1), "iou"),
        (lambda: Recipe(loss=Loss(class_weights="balanced")), "only the losses cross-entropy and focal"),
        (lambda: Recipe(model=Model(name="resnet18"), loss=Yolov4Loss()), "'loss.name' is"),
        (lambda: Model(name="resnet18", anchors="kmeans"), "anchors"),
        (
            lambda: Recipe(task="classify", data=Data(augment=Augment(mosaic=1.0)), evaluate=Evaluate(iou=1)),
            "key 'data.augment.mosaic': it has an effect only with task 'detect', .*\nRecipe: key 'evaluate",
        ),
        (lambda: Recipe(data=Data(augment=Augment(erase=0.5))), "only with task 'classify'"),
    ],
)
def test_refused(build, sentence):
    with pytest.raises((ValidationError, UserError), match=sentence):
        build()


def test_checkpoint_every():
    for every in ("10 min", "10min", "0.5 min", "00.05 min", "1.0 min", 1, "2.5 epochs", "5%"):
        assert Checkpoint(every=every).every == every


@pytest.mark.parametrize(
    ("images", "micro", "nearest"),
    [(64, 7, "4 and 8"), (20, 8, "5 and 10"), (10, 16, "10"), (7, 2, "1 and 7"), (1, 2, "1")],
)
def test_nearest_divisors(images, micro, nearest):
    with pytest.raises(UserError, match=f"'batch.micro' is {micro}, .*{images}.* (is|are) {nearest}$"):
        Recipe(batch=Batch(images=images, micro=micro))


def test_mappings_serve_as_sections():
    made = Recipe(epochs=2, data={"root": "x", "augment": "heavy"}, batch=Batch(images=4, micro=2))
    assert (made.epochs, made.data.root, made.data.augment.mosaic, made.batch.micro) == (2, "x", 1.0, 2)
    classifier = Recipe(task="classify", model={"name": "resnet18"}, data=made.data.__class__(root="y"))
    assert classifier.model == Model(name="resnet18") and classifier.loss.name == "cross-entropy"
    assert made == Recipe(epochs=2, data=made.data, batch=made.batch)


def test_mistakes_in_python_are_sentences():
    with pytest.raises(UserError) as caught:
        Recipe(data={"rooot": "x"}, seed=-1)
    assert caught.value.problems == (
        "Recipe: key 'data.rooot': no such key; did you mean 'data.root'?",
        "Recipe: 'seed' is -1: expected a whole number of at least 0",
    )
