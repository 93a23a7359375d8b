"""The loss on the evaluation data: against a plain loop, on any number of ranks, and choosing the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.evaluate import evaluate
from rankless.engine.validation_loss import FirstOutput, mean
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.randomness import torch_seed
from rankless.recipe.load import changed, default, load
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import Unreadable
from rankless.tasks import open_task, resolve_recipe
from rankless.world.process_group import World
from support.small_task import Regression, train
from support.thorough import THOROUGH

DIGITS = ["data.val_images=11", "data.train_images=12", "batch.images=8", "batch.micro=4", "precision=fp32"]
NETS = {
    "yolo": ["digits", "model.image_size=64", "model.width=0.125", *DIGITS],
    "anchor-free": [
        "model.name=yolov4-tiny-anchor-free", "model.image_size=64", "model.width=0.125",
        "loss.box=2.5", *DIGITS,
    ],
    "ssd": [
        "task=detect", "model.name=torchvision/ssdlite320_mobilenet_v3_large", "model.image_size=64", *DIGITS,
    ],
    "faster-rcnn": [
        "task=detect", "model.name=torchvision/fasterrcnn_resnet50_fpn_v2", "model.image_size=64",
        *DIGITS, "data.val_images=3", "batch.micro=2",
    ],
    "classifier": [
        "digits-classify", "model.name=resnet20-cifar", "model.image_size=16", "model.dropout=0.3",
        "loss.smoothing=0.2", "batch.images=64", "batch.micro=32", "precision=fp32",
    ],
}  # fmt: skip


def recipe_of(name: str) -> Recipe:
    words = NETS[name]
    return load(words[0], words[1:]) if "=" not in words[0] else default(words)


def net_of(recipe: Recipe) -> tuple[Any, nn.Module]:
    task = open_task(recipe)
    torch.manual_seed(0)
    return task, task.model()


def scored(world: World, name: str, extra: list[str]) -> dict[str, Any]:
    recipe = changed(recipe_of(name), extra)
    with computes_like(recipe):
        task, model = net_of(recipe)
        return dict(evaluate(task, model, recipe, world))


@pytest.mark.parametrize("name", [name for name in NETS if THOROUGH or name in ("yolo", "classifier")])
@pytest.mark.processes
def test_it_is_that_of_a_plain_loop_on_any_number_of_ranks(name: str, ranks: Any) -> None:
    (found,) = ranks(1, scored, name, [])
    recipe = recipe_of(name)
    total = count = 0.0
    with computes_like(recipe), torch.no_grad():
        task, model = net_of(recipe)
        model.eval()
        data, micro = task.evaluation_data(), recipe.batch.micro
        for first in range(0, len(data), micro):
            items = [data.item(index, 0) for index in range(first, min(first + micro, len(data)))]
            torch.manual_seed(torch_seed(recipe.seed, "validation", first))  # Faster R-CNN samples
            loss = task.loss(model, task.collate(items))
            total, count = total + loss.sum.item(), count + loss.count.item()
    assert found["loss"] == pytest.approx(total / count, rel=1e-6)
    assert count > 0 and found["loss"] > 0
    if name != "faster-rcnn":
        assert [one["loss"] for one in ranks(3, scored, name, [])] == [found["loss"]] * 3
        (again,) = ranks(1, scored, name, ["evaluate.tta=flip"])
        assert again["loss"] == found["loss"]  # of the image as it is


class Counter(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_an_equal_input_is_computed_once() -> None:
    net = Counter(3, 2)
    once, x = FirstOutput(net), torch.randn(4, 3)
    first = once(x)
    assert torch.equal(once(x.clone()), first) and net.calls == 1
    assert torch.equal(once(x[:2]), net(x[:2])) and torch.equal(once(x * 2), net(x * 2))
    assert once.weight is net.weight


def test_the_mean_does_not_depend_on_the_order() -> None:
    batches = [(1e16, 1.0), (1.0, 2.0), (-1e16, 3.0), (2.0, 4.0)]
    assert mean(batches) == mean(batches[::-1]) == 0.3
    assert mean([(float("nan"), 1.0), (1.0, 1.0)]) is None
    assert mean([(0.0, 0.0)]) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yolo", "classifier"])
def test_images_that_cannot_be_read_take_no_part(name: str) -> None:
    recipe = recipe_of(name)
    task, model = net_of(recipe)
    model.eval()
    data = task.evaluation_data()
    whole = task.collate([data.item(index, 0) for index in range(4)])
    whole.unreadable = [Unreadable(1, "1.png", "torn"), Unreadable(3, "3.png", "torn")]
    left = whole.readable()
    assert left is not None and left.indices == [0, 2] and not left.unreadable
    with torch.no_grad():
        expected = task.loss(model, task.collate([data.item(index, 0) for index in (0, 2)]))
        found = task.loss(model, left)
    torch.testing.assert_close(found.sum, expected.sum)
    assert found.count == expected.count
    whole.unreadable = [Unreadable(index, "", "") for index in range(4)]
    assert whole.readable() is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["digits", "evaluate.best=mAP"],
            "evaluate.best is 'mAP': expected one of auto, AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, "
            "ARs, ARm, ARl, loss; use AP50 for mAP at an IoU of 0.5 (Pascal VOC, Darknet)",
        ),
        (
            ["digits-classify", "evaluate.best=AP"],
            "evaluate.best is 'AP': expected one of auto, top1, top5, nll, precision, recall, f1, loss",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_those_there_are(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        open_task(resolve_recipe(load(words[0], words[1:])))
    assert caught.value.problems[0].startswith(expected.partition(";")[0])


class OwnTask(Regression):
    """By itself it says nothing of a validation loss."""

    images = 4
    score_name = "minus_error"

    def score(self, predictions: Sequence[float]) -> dict[str, Any]:
        return {"minus_error": -sum(abs(p - 1) for p in predictions), "note": "fine"}


class WithLoss(OwnTask):
    validation_loss = True


class Overflows(WithLoss):
    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        found = super().loss(model, batch)
        return found if torch.is_grad_enabled() else replace(found, sum=found.sum * torch.inf)


class WithoutNumber(OwnTask):
    def score(self, predictions: Any) -> dict[str, Any]:
        return {**super().score(predictions), self.score_name: math.nan}


class Draws(WithLoss):
    """Its loss samples, as that of Faster R-CNN does."""

    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        found = super().loss(model, batch)
        return replace(found, sum=found.sum * torch.rand(()))


def drawn(world: World) -> float:
    torch.manual_seed(world.rank)  # which changes nothing
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
    recipe = default(["batch.images=2", "batch.micro=2", "precision=fp32", "seed=5"])
    return float(evaluate(Draws(), model, recipe, world)["loss"])  # type: ignore[arg-type]


@pytest.mark.processes
def test_what_a_loss_samples_is_seeded_by_the_first_image_of_a_batch(ranks: Any) -> None:
    task, total = WithLoss(), 0.0
    for first in (0, 2):
        torch.manual_seed(torch_seed(5, "validation", first))
        batch = task.collate([task.item(index, 0) for index in (first, first + 1)])
        total += float((batch.sum(1) - 1).square().sum() * torch.rand(()))
    assert ranks(1, drawn) + ranks(2, drawn) == pytest.approx([total / 4] * 3)


def own(world: World, kind: str, best: str, folder: str) -> dict[str, Any]:
    words = [f"evaluate.best={best}", "epochs=1", "batch.images=2", "batch.micro=1", "evaluate.every=1"]
    recipe = load("digits-classify", words)
    tasks = {"plain": OwnTask, "with loss": WithLoss, "infinite": Overflows, "nan": WithoutNumber}
    task: Any = tasks[kind]()
    if (done := train(world, task, recipe, folder)) is not True:
        return {"problems": done}
    entries = list(journal.read(RunDirectory(Path(folder)).journal))
    if kind in ("infinite", "nan"):
        return {"warnings": [entry["text"] for entry in entries if entry.get("event") == "warning"]}
    return next(dict(entry["scores"]) for entry in reversed(entries) if "evaluation" in entry)


def swinging(world: World, folder: str) -> list[float]:
    """Train with a rate so high that the loss goes up and down; the loss of every evaluation."""
    words = ["epochs=4", "batch.images=2", "batch.micro=2", "evaluate.every=1", "evaluate.best=loss"]
    words += ["checkpoint.keep=1", "optim.name=sgd", "optim.lr=0.1", "schedule.warmup=0", "precision=fp32"]
    recipe, run = load("digits-classify", words), RunDirectory(Path(folder))
    assert train(world, WithLoss(), recipe, folder)
    return [entry["scores"]["loss"] for entry in journal.read(run.journal) if "evaluation" in entry]


@pytest.mark.processes
def test_the_best_is_that_of_the_lowest_loss(ranks: Any, tmp_path: Path) -> None:
    (losses,) = ranks(1, swinging, str(tmp_path / "run"))
    lowest = losses.index(min(losses))
    assert 0 < lowest < len(losses) - 1
    assert RunDirectory(tmp_path / "run").pointed("best") == lowest + 1


@pytest.mark.processes
def test_a_task_of_ones_own_has_it_where_it_says_so(ranks: Any, tmp_path: Path) -> None:
    plain, loss = [ranks(2, own, kind, "auto", str(tmp_path / kind))[0] for kind in ("plain", "with loss")]
    assert plain.keys() == {"minus_error", "note", "computed_in"}
    assert loss.keys() == {*plain, "loss"} and loss["loss"] > 0
    (infinite,) = ranks(1, own, "infinite", "loss", str(tmp_path / "infinite"))
    assert any(
        "not finite" in text and "there are no best weights yet" in text for text in infinite["warnings"]
    )
    (nan,) = ranks(1, own, "nan", "auto", str(tmp_path / "nan"))
    (said,) = [text for text in nan["warnings"] if "finite" in text]
    assert said.startswith(
        "the score 'minus_error' after step 1 is not a finite number and is ignored; there are"
    )
    for kind, best, expected in (
        ("plain", "loss", "auto, minus_error"),
        ("with loss", "note", "auto, minus_error, loss"),
    ):
        (answer, _) = ranks(2, own, kind, best, str(tmp_path / f"{kind} {best}"))
        assert answer["problems"][0].startswith(f"evaluate.best is '{best}': expected one of {expected}")
