"""The classification task: one preprocessing, class names, faults, the same bits on any number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rankless.data.datasets.classification import collate
from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats.packing import pack
from rankless.engine import loop
from rankless.engine.evaluate import fingerprint
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Augment, Batch, Data, Ema, Evaluate, Loss, Model, Optim, Recipe, Schedule
from rankless.runs.directory import RunDirectory
from rankless.structures import Classification
from rankless.tasks import open_task
from rankless.tasks.classify import Classify
from rankless.world.process_group import World

NAMES = tuple("0123456789")


def digits(**options: Any) -> Recipe:
    augment = options.pop("augment", Augment())
    model = Model(name="resnet18", image_size=options.pop("image_size", 32))
    return Recipe(task="classify", model=model, data=Data(augment=augment), **options)


class Constant(nn.Module):
    """Says the same of every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(images), -1).bfloat16()


def test_the_input_is_normalized_as_the_network_expects():
    assert Classify(digits(image_size="auto"), NAMES).size == (224, 224)
    task = Classify(digits(), NAMES)
    images = torch.arange(2 * 3 * 4 * 4).remainder(256).to(torch.uint8).view(2, 3, 4, 4)
    found = task.network_input(images)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's
    torch.testing.assert_close(found.permute(0, 2, 3, 1), (images.permute(0, 2, 3, 1) / 255 - mean) / std)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [32, (24, 40)])
@pytest.mark.parametrize("crop", [1.0, 0.5])
def test_a_image_to_predict_is_placed_as_in_evaluation(size, crop):
    task = Classify(digits(image_size=size, augment=Augment(crop=crop)))
    data = task.evaluation_data()
    item = task.item(data.images.read(5), 7)
    assert torch.equal(item.image, data.item(5, 3).image) and item.index == 7
    assert item.image.shape == (3, *task.size)
    cropped = Classify(digits(image_size=size, augment=Augment(crop=1.5 - crop))).item(data.images.read(5))
    assert not torch.equal(item.image, cropped.image)


@pytest.mark.slow
def test_a_batch_has_a_loss_that_reaches_every_weight():
    task = open_task(digits(augment=Augment(mixup=0.2), loss=Loss(class_weights="balanced", smoothing=0.1)))
    assert isinstance(task, Classify) and task.class_names == NAMES
    torch.manual_seed(0)
    model, data = task.model(), task.training_data()
    assert len(data) == 1438 and len(task.evaluation_data()) == 359
    found = task.loss(model, task.collate([data.item(index, 0) for index in (0, 700, 1400)]))
    found.sum.backward()
    assert found.count.item() == pytest.approx(3, abs=0.2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_predictions_are_logarithms_that_sum_to_one_and_share_no_memory():
    task = Classify(digits(), NAMES)
    batch = task.collate([task.item(torch.zeros(3, 9, 9, dtype=torch.uint8), index) for index in (4, 2)])
    found = task.predict(Constant([float(x) for x in range(10)]), batch)
    assert [one.index for one in found] == [4, 2]
    for one in found:
        assert one.log_probabilities.dtype == torch.float32 and not one.log_probabilities.requires_grad
        assert one.log_probabilities.exp().sum().item() == pytest.approx(1, abs=1e-6)
        assert one.log_probabilities.untyped_storage().nbytes() == 40


def test_true_answers_score_one():
    task = Classify(digits(), NAMES)
    labels = task.evaluation_data().labels()
    logs = torch.full((len(labels), 10), -20.0)
    logs[torch.arange(len(labels)), labels] = 0
    right = [Classification(index, row) for index, row in enumerate(logs)]
    assert task.score(right)[task.score_name] == 1
    turned = task.score([*right[1:], right[0]])[task.score_name]
    assert turned == pytest.approx(349 / 359)  # 9 borders and the last
    wrong = replace(right[0], log_probabilities=-labels.new_ones(10).double() * torch.arange(10, 0, -1))
    assert wrong.log_probabilities.argmax() == 9 != labels[0]
    assert task.score([wrong, *right[1:]])[task.score_name] < 1
    assert task.score([replace(wrong, unreadable=True), *right[1:]])[task.score_name] == 1  # left out


def folders(root: Path, splits: dict[str, dict[str, int]]) -> Path:
    """Images whose class is a color."""
    rng = np.random.default_rng(0)
    for split, classes in splits.items():
        for label, (name, count) in enumerate(classes.items()):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                image = rng.integers(0, 120, (24, 20, 3), dtype=np.uint8)
                image[..., label % 3] += 120
                Image.fromarray(image).save(root / split / name / f"{number}.png")
    return root


def test_labels_mean_the_same_in_every_split(tmp_path):
    root = folders(tmp_path, {"train": {"cat": 2, "dog": 3, "owl": 2}, "val": {"owl": 1}})
    recipe = Recipe(task="classify", model=Model(name="resnet18", image_size=32), data=Data(root=str(root)))
    task = Classify(recipe)
    assert task.class_names == ("cat", "dog", "owl")
    assert task.evaluation_data().labels().tolist() == [2]
    assert any("'cat', 'dog'" in note for note in task.evaluation_data().notes)
    with pytest.raises(UserError, match="the model has no class 'owl'"):
        Classify(recipe, ("cat", "dog")).evaluation_data()
    assert Classify(recipe, ("a", "b")).class_names == ("a", "b")  # opens no data


def test_errors_of_the_recipe():
    with pytest.raises(UserError, match=r".model.name. is 'yolov4-tiny'.*resnet18"):
        open_task(Recipe(task="classify"))
    with pytest.raises(UserError, match="has 2 numbers; expected 10"):
        Classify(digits(loss=Loss(class_weights=(1.0, 2.0))))
    with pytest.raises(UserError, match="expected 'detect', 'classify'"):
        open_task(Recipe(task="clasify"))


# --- on several ranks -------------------------------------------------------------------------------------

EVERYTHING = Augment(
    hue=0.05, crop=0.5, policy="trivialaugment", erase=0.5, mixup=0.2, cutmix=1.0, flip_vertical=0.2
)


class Small(Classify):
    """A network that a test has time for."""

    collate = staticmethod(collate)  # a method would take this module into loader processes, where it is not

    def model(self) -> nn.Module:
        classes = len(self.class_names)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(8 * 3 * 3, classes),
        )  # fmt: skip


def trained(world: World, text: str, folder: str) -> list[str]:
    """Train, and the digest of every tensor on this rank and of the scores."""
    recipe = from_json(text)
    found: list[str] = []

    def observe(step: int, state: Any, scores: Any) -> None:
        found.append(fingerprint(dict(state.tensors())))
        if scores is not None:
            found.append(fingerprint(scores))

    run = RunDirectory(Path(folder))
    with computes_like(recipe):
        loop.train(recipe, run, world, resume=False, task=Small(recipe), observe=observe)
        world.barrier()
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = folders(tmp_path_factory.mktemp("data"), {"": {f"class {n}": 7 + n for n in range(7)}})
    recipe = Recipe(
        task="classify",
        model=Model(name="resnet18", image_size=16),
        data=Data(root=str(root), augment=EVERYTHING),
        batch=Batch(images=12, micro=2),
        epochs=1,
        evaluate=Evaluate(every=0),
        loss=Loss(name="focal", smoothing=0.1, class_weights="balanced"),
        optim=Optim(name="adamw", lr=0.01),
        schedule=Schedule(warmup=2),
        ema=Ema(decay=0.9),
        precision="fp32",
    )
    return to_json(recipe)


@pytest.fixture(scope="module")
def alone(ranks: Any, small: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What a training on one rank from files gives, and its run directory."""
    run = tmp_path_factory.mktemp("alone") / "run"
    (found,) = ranks(1, trained, small, str(run))
    return found, run


@pytest.mark.processes
def test_the_weights_do_not_know_the_number_of_ranks(ranks, small, alone, tmp_path):
    """Nor of loader processes; with every variation, mixing, dropout, and unequal counts to divide by."""
    found, run = alone
    assert len(found) == 6 and len(set(found)) == 6  # 5 steps and the scores
    with_workers = small.replace('"workers":"auto"', '"workers":1')
    assert with_workers != small
    assert ranks(2, trained, with_workers, str(tmp_path / "2")) == [found] * 2
    last = [RunDirectory(path) for path in (run, tmp_path / "2")]
    digests = [digest_file(one.step_directory(one.pointed("last")) / "ema.safetensors") for one in last]
    assert len(set(digests)) == 1


@pytest.mark.processes
def test_the_weights_do_not_know_files_from_shards(ranks, small, alone, tmp_path):
    root = from_json(small).data.root
    packed = {split: open_annotations(root, split, "image-folder") for split in ("train", "val")}
    assert len(pack(packed, tmp_path / "shards", shard_bytes=20_000)) > 4
    shards = small.replace(json.dumps(root), json.dumps(str(tmp_path / "shards")))
    with_workers = shards.replace('"workers":"auto"', '"workers":2')
    assert shards != small != with_workers
    assert ranks(1, trained, with_workers, str(tmp_path / "3")) == [alone[0]]
