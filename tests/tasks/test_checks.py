"""What a task gives and should not give is reported with the task's name and what was expected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rankless.errors import UserError
from rankless.structures import LossSum
from rankless.tasks import checks


class Mine:
    class_names: Any = ("a", "b")
    score_name: Any = "top1"


ONE = torch.ones(())
LOSS = torch.ones((), requires_grad=True) * 2


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (ONE, r"^loss\(\) of the task Mine returned a tensor of shape \(\); expected rankless.LossSum\("),
        (3.0, "returned float; expected rankless.LossSum"),
        (None, "returned NoneType; expected rankless.LossSum"),
        (LossSum(torch.ones(3), ONE), r"sum is a tensor of shape \(3,\); expected a scalar tensor"),
        (LossSum(ONE, ONE), "sum has no gradient; expected a tensor computed from the model's outputs"),
        (LossSum(LOSS, "8"), "count is '8'; expected a scalar tensor, such as torch.tensor"),  # type: ignore[arg-type]
        (LossSum(LOSS, torch.ones(1)), r"count is a tensor of shape \(1,\); expected a scalar"),
        (LossSum(LOSS, ONE, {"a": ONE, "b": 2.0}), r"parts\['b'\] is 2.0; expected a scalar"),  # type: ignore[dict-item]
        (LossSum(LOSS, ONE, [ONE]), r"parts is \[tensor"),  # type: ignore[arg-type]
    ],
)
def test_a_loss(loss: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        checks.check_loss(Mine(), loss)


def test_a_right_loss() -> None:
    checks.check_loss(Mine(), LossSum(LOSS, ONE, {"part": LOSS}))


@pytest.mark.parametrize("count", [8, 8.0])
def test_a_number_is_a_count(count: float) -> None:
    loss = LossSum(LOSS, count)
    checks.check_loss(Mine(), loss)
    assert loss.count.dtype == torch.float32 and loss.count.item() == 8


def test_all_errors_of_a_loss_at_once() -> None:
    with pytest.raises(UserError) as caught:
        checks.check_loss(Mine(), LossSum(ONE, "3", {"a": 1}))  # type: ignore[arg-type, dict-item]
    assert len(caught.value.problems) == 3


def unsendable() -> Any:
    return lambda: 0


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        ([1], r"predict\(\) of the task Mine returned 1 prediction for a batch of 2 images; expected a list with one"),
        (torch.ones(2), "returned Tensor for a batch of 2"),
        (None, "returned NoneType for a batch of 2"),
    ],
)
def test_predictions(predictions: Any, said: str) -> None:
    checks.check_predictions(Mine(), [1, 2], 2)
    with pytest.raises(UserError, match=said):
        checks.check_predictions(Mine(), predictions, 2)


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (
            unsendable(),
            r": a value of type function \(prediction\[0\]\); expected None, bool, int, .* tensors",
        ),
        (
            {"box": [torch.ones(1, device="meta")]},
            r"returned a tensor on meta \(prediction\[0\]\['box'\]\[0\]\); expected .* CPU",
        ),
    ],
)
def test_predictions_that_cannot_be_sent(prediction: Any, said: str) -> None:
    checks.check_sendable(Mine(), [{"box": [torch.ones(1)]}, 3.0])
    with pytest.raises(UserError, match=said):
        checks.check_sendable(Mine(), [prediction])


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (0.5, r"score\(\) of the task Mine returned float; expected a dict"),
        ({"top5": 0.5}, "returned top5, but score_name is 'top1'"),
        ({}, "returned an empty dict, but score_name is 'top1'"),
        ({"top1": torch.ones(())}, "'top1' is a tensor of shape .*; expected a float"),
        ({"top1": 1}, "'top1' is 1; expected a float"),
        ({"top1": 0.5, "more": torch.ones(1)}, "that JSON cannot represent .*Tensor"),
    ],
)
def test_scores(scores: Any, said: str) -> None:
    assert checks.check_scores(Mine(), {"top1": None, "list": [1]}) == {"top1": None, "list": [1]}
    with pytest.raises(UserError, match=said):
        checks.check_scores(Mine(), scores)


class Sized:
    def __len__(self) -> int:
        return 0

    def item(self, index: int, epoch: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1, 2], r"training_data\(\) of the task Mine returned list, which lacks item; expected"),
        (iter([]), "lacks __len__ and item"),
        (Sized(), "has no images; expected at least one"),
    ],
)
def test_data(data: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        checks.check_data(Mine(), "training_data", data)


def test_models_and_batches() -> None:
    checks.check_model(Mine(), nn.Linear(1, 1))
    checks.check_batch(Mine(), torch.ones(1))
    with pytest.raises(UserError, match=r"of the task Mine returned function; expected: .*nn.Module"):
        checks.check_model(Mine(), unsendable())
    with pytest.raises(UserError, match="returned a ReLU without trainable parameters"):
        checks.check_model(Mine(), nn.ReLU())
    with pytest.raises(UserError, match=r"of the task Mine returned tuple, which has no method to"):
        checks.check_batch(Mine(), (1, 2))


def test_attributes() -> None:
    checks.check_attributes(Mine())
    wrong = Mine()
    wrong.class_names, wrong.score_name = "cat", None
    with pytest.raises(UserError) as caught:
        checks.check_attributes(wrong)
    assert ["has class_names 'cat'" in caught.value.problems[0], len(caught.value.problems)] == [True, 2]
