"""A run continues only with the classes that its weights know, in their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

import rankless
from rankless.recipe.schema import Batch, Checkpoint, Evaluate, Optim, Recipe
from support.small_task import Regression

RECIPE = Recipe(
    batch=Batch(images=8, micro=8),
    epochs=2,
    precision="fp32",
    optim=Optim(lr=0.01),
    evaluate=Evaluate(every=0),
    checkpoint=Checkpoint(every=1),
)


class Classes(Regression):
    """One output per class, so that a further class also changes the shapes of tensors."""

    class_names = ("cat", "dog")

    def __init__(self, _: Recipe) -> None:
        pass

    def model(self) -> nn.Module:
        return nn.Linear(4, len(self.class_names))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return model(batch).sum(1).tolist()


def test_a_run_continues_only_with_the_same_classes_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def resume(epochs: int) -> int:
        return rankless.train(
            replace(RECIPE, epochs=epochs), run, task=Classes, resume=epochs > 1, inline=True, devices=1
        )

    assert resume(1) == 0
    for names, first in (
        (("dog", "cat"), "class 0 was 'cat' and is now 'dog'"),
        (("cat", "dog", "eel"), "class 2 was missing and is now 'eel'"),
        (("cat",), "class 1 was 'dog' and is now missing"),
    ):
        monkeypatch.setattr(Classes, "class_names", names)
        with pytest.raises(rankless.UserError) as caught:
            resume(2)
        (problem,) = caught.value.problems
        now = ", ".join(f"'{name}'" for name in names)
        assert f"the run has 'cat', 'dog', but the data now has {now} ({first})" in problem
        assert f"model.pretrained={run}, which matches classes by name" in problem
    monkeypatch.setattr(Classes, "class_names", ("cat", "dog"))
    assert resume(2) == 0
