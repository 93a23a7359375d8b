"""Scoring on several ranks: each image once, in order, the same numbers to the last bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rankless.engine.evaluate import evaluate, fingerprint
from rankless.errors import UserError
from rankless.randomness import torch_seed
from rankless.recipe.schema import Batch, Data, Evaluate, Recipe
from rankless.structures import Unreadable
from rankless.tasks.checks import check_order
from rankless.world.process_group import World
from support.small_task import Regression
from support.thread_ranks import together


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, index: int, epoch: int) -> tuple[int, int]:
        return index, epoch


class Sorted(Numbers):
    """Examples that want the odd numbers before the even ones."""

    def evaluation_order(self) -> Any:
        return np.argsort(1 - np.arange(self.count) % 2, kind="stable")


class Numbered(list[tuple[int, int]]):
    unreadable: Sequence[Unreadable] = ()

    def to(self, device: torch.device) -> Numbered:
        return self


class Counting:
    """A task whose predictions and scores tell what was asked of it."""

    score_name = "sum"

    def __init__(self, count: int) -> None:
        self.count = count

    def evaluation_data(self) -> Numbers:
        return Numbers(self.count)

    def collate(self, items: Sequence[tuple[int, int]]) -> Tensor:
        return torch.tensor(items)

    def predict(self, model: nn.Module, batch: Tensor) -> list[tuple[int, int, float]]:
        assert not model.training and not torch.is_grad_enabled()
        found = model(torch.sin(batch[:, :1].float()).expand(-1, 64)).squeeze(1)
        return [(int(index), len(batch), float(x)) for (index, _), x in zip(batch, found, strict=True)]

    def score(self, predictions: Sequence[tuple[int, int, float]]) -> dict[str, Any]:
        return {
            "images": [index for index, _, _ in predictions],
            "batches": [size for _, size, _ in predictions],
            # adding floats: another order would show
            "sum": float(torch.tensor([x for *_, x in predictions]).cumsum(0)[-1]) if predictions else 0.0,
        }


class CountingSorted(Counting):
    """The same with :class:`Sorted` examples, of which the multiples of ``bad`` are missing."""

    def __init__(self, count: int, bad: int) -> None:
        super().__init__(count)
        self.bad = bad

    def evaluation_data(self) -> Sorted:
        return Sorted(self.count)

    def collate(self, items: Sequence[tuple[int, int]]) -> Any:
        batch = Numbered(items)
        missing = [index for index, _ in items if index % self.bad == 0]
        batch.unreadable = [Unreadable(index, f"{index}.jpg", "gone") for index in missing]
        return batch

    def predict(self, model: nn.Module, batch: Any) -> list[tuple[int, int, float]]:
        return [(index, 10 * min(batch)[0] + len(batch), 0.0) for index, _ in batch]


class Blurred(Regression):
    """Its data and its batches do arithmetic, and its predictions and scores are drawn."""

    def item(self, index: int, epoch: int) -> Tensor:
        assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
        return super().item(index, epoch) @ torch.full((4, 4), 1 / 3)

    def collate(self, items: Any) -> Tensor:
        return torch.stack(items) @ torch.full((4, 4), 1 / 3)

    def predict(self, model: nn.Module, batch: Tensor) -> list[Any]:
        assert torch.is_autocast_enabled("cpu") and model(batch).dtype == torch.bfloat16
        return torch.cat([batch, torch.rand(len(batch), 1)], 1).tolist()

    def score(self, predictions: Any) -> dict[str, Any]:
        return {"score": random.random(), "predictions": predictions}


def blurred_scores(world: World) -> Any:
    if not world.transport.in_process:
        random.seed(world.rank), torch.manual_seed(world.rank)  # which changes nothing
    recipe = Recipe(batch=Batch(images=4, micro=4), precision="bf16", workers=0, seed=5)
    return evaluate(Blurred(), nn.Linear(4, 1), recipe, world)  # type: ignore[arg-type]


@pytest.mark.processes
def test_only_the_model_uses_the_precision_and_its_random_numbers_depend_on_the_first_image(
    ranks: Any,
) -> None:
    task, expected = Regression(), []
    for first in range(0, 16, 4):
        torch.manual_seed(torch_seed(5, "predict", first))
        items = [task.item(index, 0) @ torch.full((4, 4), 1 / 3) for index in range(first, first + 4)]
        expected += torch.cat([torch.stack(items) @ torch.full((4, 4), 1 / 3), torch.rand(4, 1)], 1).tolist()
    ((alone,),) = [ranks(1, blurred_scores)]
    assert alone["predictions"] == expected
    assert ranks(2, blurred_scores) == [alone] * 2
    assert together(2, blurred_scores) == [alone] * 2


def scores_in_order(
    world: World, count: int, bad: int, share: float, limit: int | None
) -> tuple[dict[str, Any], list[Unreadable]]:
    recipe = Recipe(batch=Batch(images=2, micro=2), data=Data(max_bad=share), precision="fp32")
    reported: list[Unreadable] = []
    task: Any = CountingSorted(count, bad)
    try:
        found = evaluate(task, nn.Identity(), recipe, world, limit=limit, unreadable=reported.extend)
    except UserError as error:
        return {"problems": list(error.problems)}, reported
    return found, reported


@pytest.mark.processes
def test_examples_may_choose_their_order_and_are_scored_in_the_order_of_their_numbers(ranks: Any) -> None:
    ((alone, reported),) = ranks(1, scores_in_order, 7, 100, 0.5, None)
    assert alone["images"] == list(range(7))
    # Predicted together: 1 and 3, 5 and 0, 2 and 4, 6: ten times the smallest, plus their number.
    assert alone["batches"] == [2, 12, 22, 12, 22, 2, 61]
    assert alone["unreadable"] == 1 and reported == [Unreadable(0, "0.jpg", "gone")]
    for size in (2, 3):
        assert ranks(size, scores_in_order, 7, 100, 0.5, None) == [(alone, reported)] * size
    # Of the first five alone: 1 and 3, 0 and 2, 4.
    first = ranks(1, scores_in_order, 7, 100, 0.5, 5)[0][0]
    assert first.keys() == {"predictions", "unreadable"}
    assert ranks(2, scores_in_order, 7, 100, 0.5, 5)[1][0] == first


@pytest.mark.processes
def test_too_many_unreadable_images_are_an_error_on_every_rank(ranks: Any) -> None:
    answers = ranks(2, scores_in_order, 9, 3, 0.3, None)
    assert answers == [answers[0]] * 2
    assert answers[0][0]["problems"] == [
        "0.jpg cannot be read: gone",
        "3.jpg cannot be read: gone",
        "6.jpg cannot be read: gone",
        "data.max_bad is 0.3, but 3 of the 9 evaluation images cannot be read; replace them, or remove them "
        "from the data",
    ]
    assert ranks(2, scores_in_order, 9, 3, 0.34, None)[0][0]["unreadable"] == 3
    nothing = ranks(1, scores_in_order, 3, 1, 1.0, None)[0][0]["problems"]
    assert nothing[-1] == "none of the 3 evaluation images can be read; replace them"


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0.0, 1.0, 2.0]])
def test_an_order_that_is_none_is_reported(order: list[float]) -> None:
    check_order(None, np.array([2, 0, 1]), 3)
    with pytest.raises(UserError, match=r"evaluation_order\(\) .* expected None, or an int64 array"):
        check_order(None, np.array(order), 3)


def scores(
    world: World, count: int, micro: int, limit: int | None, batch: int | Literal["auto"] = "auto"
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 1)).train()
    recipe = Recipe(batch=Batch(images=micro, micro=micro), evaluate=Evaluate(batch=batch), precision="fp32")
    return evaluate(Counting(count), model, recipe, world, limit=limit)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("count", "micro", "batch"), [(11, 2, "auto"), (7, 3, "auto"), (2, 2, "auto"), (1, 4, "auto"), (11, 2, 3)]
)
def test_each_image_once_and_the_same_scores(
    ranks: Any, count: int, micro: int, batch: int | Literal["auto"]
) -> None:
    """With 2 or 1 images, some ranks have nothing to do."""
    (alone,) = ranks(1, scores, count, micro, None, batch)
    assert alone["images"] == list(range(count))
    size = micro if batch == "auto" else batch
    whole = count // size * size
    assert alone["batches"] == [size] * whole + [count - whole] * (count - whole)
    for ranks_ in (2, 3):
        assert ranks(ranks_, scores, count, micro, None, batch) == [alone] * ranks_


@pytest.mark.processes
def test_a_limit_gives_a_digest_of_the_first(ranks: Any) -> None:
    (alone,) = ranks(1, scores, 11, 2, 5)
    assert alone.keys() == {"predictions"}
    assert ranks(3, scores, 11, 2, 5) == [alone] * 3
    assert ranks(1, scores, 5, 2, None)[0]["images"] == list(range(5))
    assert ranks(1, scores, 5, 2, 5) == [alone]
    assert ranks(1, scores, 11, 2, 6) != [alone]
    assert ranks(1, scores, 5, 2, 99) == [alone]


@dataclass
class Found:
    boxes: Tensor
    name: str


@dataclass
class Other:
    boxes: Tensor
    name: str


values = st.recursive(
    st.integers() | st.floats() | st.text() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values, values)
def test_equal_values_have_equal_digests_and_others_do_not(one: Any, other: Any) -> None:
    assert fingerprint(one) == fingerprint(one)
    if repr(one) != repr(other):
        assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.ones(2), torch.ones(2).nextafter(torch.zeros(2))),
        (torch.zeros(0, 4), torch.zeros(0, 5)),
        ([torch.zeros(1), torch.ones(1)], [torch.ones(1), torch.zeros(1)]),
        (Found(torch.zeros(1), "a"), Found(torch.zeros(1), "b")),
        (Found(torch.zeros(1), "a"), Other(torch.zeros(1), "a")),
        (["ab", "c"], ["a", "bc"]),
        ({"a": 1}, {"b": 1}),
        (1, "1"),
        ([[1], [2]], [[1, 2]]),
    ],
)
def test_the_smallest_difference_shows(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_how_a_tensor_lies_in_memory_does_not() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert fingerprint(x) == fingerprint(x.contiguous(memory_format=torch.channels_last))
    assert fingerprint(Found(x, "a")) == fingerprint(Found(x.clone().requires_grad_(), "a"))
    assert fingerprint(torch.tensor(2.5, dtype=torch.bfloat16)) == fingerprint(
        torch.tensor(2.5, dtype=torch.bfloat16)
    )


def test_it_is_shown_how_many_of_the_batches_are_predicted() -> None:
    shown: list[tuple[int, int]] = []
    world = World(0, 1, torch.device("cpu"), inline=True)
    task: Any = CountingSorted(7, 100)
    recipe = Recipe(batch=Batch(images=2, micro=2), data=Data(max_bad=0.5), precision="fp32")
    progress = lambda done, total: shown.append((done, total))  # noqa: E731
    evaluate(task, nn.Identity(), recipe, world, progress=progress)
    assert shown == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
