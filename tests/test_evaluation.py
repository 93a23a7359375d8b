"""Scoring on several ranks: each picture once, in order, the same numbers to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rankless.evaluation import evaluate, fingerprint
from rankless.recipe import Batch, Recipe
from rankless.world.join import World


class Numbers:
    """Examples that are their own number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, index: int, epoch: int) -> tuple[int, int]:
        return index, epoch


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
            "pictures": [index for index, _, _ in predictions],
            "batches": [size for _, size, _ in predictions],
            # adding floats: another order would show
            "sum": float(torch.tensor([x for *_, x in predictions]).cumsum(0)[-1]) if predictions else 0.0,
        }


def scores(world: World, count: int, micro: int, limit: int | None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 1)).train()
    recipe = Recipe(batch=Batch(images=micro, micro=micro), precision="fp32")
    return evaluate(Counting(count), model, recipe, world, limit=limit)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize(("count", "micro"), [(11, 2), (7, 3), (12, 4), (2, 2), (1, 4)])
def test_each_picture_once_and_the_same_scores(ranks: Any, count: int, micro: int) -> None:
    """With 2 or 1 pictures, some ranks have nothing to do."""
    (alone,) = ranks(1, scores, count, micro, None)
    assert alone["pictures"] == list(range(count))
    whole = count // micro * micro
    assert alone["batches"] == [micro] * whole + [count - whole] * (count - whole)
    for size in (2, 3):
        assert ranks(size, scores, count, micro, None) == [alone] * size


@pytest.mark.processes
def test_a_limit_gives_a_digest_of_the_first(ranks: Any) -> None:
    (alone,) = ranks(1, scores, 11, 2, 5)
    assert alone.keys() == {"predictions"}
    assert ranks(3, scores, 11, 2, 5) == [alone] * 3
    assert ranks(1, scores, 5, 2, None)[0]["pictures"] == list(range(5))
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
