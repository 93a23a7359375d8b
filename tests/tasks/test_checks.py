"""What a task gives and should not give is reported with the task's name and what was expected."""

from __future__ import annotations

from types import SimpleNamespace
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


class Empty:
    def __len__(self) -> int:
        return 0

    def item(self, index: int, epoch: int) -> int:
        return index


def unsendable() -> Any:
    return lambda: 0


ONE = torch.ones(())
LOSS = torch.ones((), requires_grad=True) * 2
WRONG = {
    checks.check_loss: [
        (ONE, r"^loss\(\) of the task Mine returned a tensor of shape \(\); expected rankless.LossSum\("),
        (3.0, "returned float; expected rankless.LossSum"),
        (None, "returned NoneType; expected rankless.LossSum"),
        (LossSum(torch.ones(3), ONE), r"sum is a tensor of shape \(3,\); expected a scalar tensor"),
        (LossSum(ONE, ONE), "sum has no gradient; expected a tensor computed from the model's outputs"),
        (LossSum(LOSS, "8"), "count is '8'; expected a scalar tensor, such as torch.tensor"),
        (LossSum(LOSS, torch.ones(1)), r"count is a tensor of shape \(1,\); expected a scalar"),
        (LossSum(LOSS, ONE, {"a": ONE, "b": 2.0}), r"parts\['b'\] is 2.0; expected a scalar"),
        (LossSum(LOSS, ONE, [ONE]), r"parts is \[tensor"),
        (LossSum(ONE, "3", {"a": 1}), "sum has no gradient.*\n.*count is '3'.*\n.*'a'"),
    ],
    lambda task, given: checks.check_predictions(task, given, 2): [
        ([1], r"predict\(\) of the task Mine returned 1 prediction for a batch of 2 images; expected a list"),
        (torch.ones(2), "returned Tensor for a batch of 2"),
        (None, "returned NoneType for a batch of 2"),
    ],
    checks.check_sendable: [
        ([unsendable()], r": a value of type function \(prediction\[0\]\); expected None, bool, .* tensors"),
        (
            [{"box": [torch.ones(1, device="meta")]}],
            r"returned a tensor on meta \(prediction\[0\]\['box'\]\[0\]\); move predictions to the CPU",
        ),
    ],
    checks.check_scores: [
        (0.5, r"score\(\) of the task Mine returned float; expected a dict"),
        ({"top5": 0.5}, "returned top5, but score_name is 'top1'"),
        ({}, "returned an empty dict, but score_name is 'top1'"),
        ({"top1": torch.ones(())}, "'top1' is a tensor of shape .*; expected a float"),
        ({"top1": 1}, "'top1' is 1; expected a float"),
        ({"top1": 0.5, "more": torch.ones(1)}, "that JSON cannot represent .*Tensor"),
    ],
    lambda task, given: checks.check_data(task, "training_data", given): [
        ([1, 2], r"training_data\(\) of the task Mine returned list, which lacks item; expected"),
        (iter([]), "lacks __len__ and item"),
        (Empty(), "has no images; expected at least one"),
    ],
    checks.check_model: [
        (unsendable(), r"of the task Mine returned function; expected a torch.nn.Module"),
        (nn.ReLU(), "returned ReLU without trainable parameters"),
    ],
    checks.check_batch: [((1, 2), r"of the task Mine returned tuple, which has no method to")],
    lambda _, given: checks.check_attributes(given): [
        (SimpleNamespace(class_names="cat", score_name=None), "has class_names 'cat'.*\n.*score_name None"),
    ],
}


@pytest.mark.parametrize(
    ("check", "given", "said"), [(check, *row) for check, rows in WRONG.items() for row in rows]
)
def test_what_is_wrong_is_said(check: Any, given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(Mine(), given)


def test_what_is_right_passes() -> None:
    task = Mine()
    checks.check_attributes(task)
    checks.check_loss(task, LossSum(LOSS, ONE, {"part": LOSS}))
    checks.check_predictions(task, [1, 2], 2)
    checks.check_sendable(task, [{"box": [torch.ones(1)]}, 3.0])
    assert checks.check_scores(task, {"top1": None, "list": [1]}) == {"top1": None, "list": [1]}
    checks.check_model(task, nn.Linear(1, 1))
    checks.check_batch(task, torch.ones(1))


@pytest.mark.parametrize("count", [8, 8.0])
def test_a_number_is_a_count(count: float) -> None:
    loss = LossSum(LOSS, count)
    checks.check_loss(Mine(), loss)
    assert loss.count.dtype == torch.float32 and loss.count.item() == 8
