"""Settings of the other task are refused, all at once, and a plain recipe is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.recipe import shipped
from rankless.recipe.load import load
from rankless.recipe.schema import Augment, Data, Evaluate, Recipe
from rankless.tasks.without_effect import refuse_without_effect


def test_every_foreign_setting_of_a_classifier_is_named() -> None:
    recipe = Recipe(
        task="classify",
        data=Data(
            fit="stretch",
            multi_scale=0.5,
            train_images=7,
            augment=Augment(mosaic=1, copy_paste=0.5, partners="batch"),
        ),
        evaluate=Evaluate(iou=0.5, multi_label=False, rectangular=True, tta="full"),
    )
    with pytest.raises(UserError) as caught:
        refuse_without_effect(recipe, "classify")
    faults = caught.value.faults
    assert "data.fit is 'stretch', which only detection knows: leave it out." in faults
    assert "evaluate.rectangular is true, which only detection knows: leave it out." in faults
    named = {fault.split(" is ")[0] for fault in faults}
    assert named == {
        "data.fit",
        "data.multi_scale",
        "data.train_images",
        "data.augment.mosaic",
        "data.augment.copy_paste",
        "data.augment.partners",
        "evaluate.iou",
        "evaluate.multi_label",
        "evaluate.rectangular",
        "evaluate.tta",
    }
    refuse_without_effect(Recipe(task="classify", evaluate=Evaluate(tta="flip")), "classify")


def test_the_last_epochs_of_a_classifier_are_without_what_it_has() -> None:
    with pytest.raises(UserError, match="close_mosaic is 2, but neither mixup nor cutmix"):
        refuse_without_effect(Recipe(data=Data(augment=Augment(close_mosaic=2))), "classify")
    refuse_without_effect(Recipe(data=Data(augment=Augment(close_mosaic=2, mixup=0.2))), "classify")


def test_every_foreign_setting_of_a_detector_is_named() -> None:
    recipe = Recipe(data=Data(augment=Augment(policy="randaugment", erase=0.1, cutmix=1.0, mosaic=1.0)))
    with pytest.raises(UserError) as caught:
        refuse_without_effect(recipe, "detect", ["and another"])
    assert len(caught.value.faults) == 4 and caught.value.faults[-1] == "and another"
    assert all("only classification knows" in fault for fault in caught.value.faults[:3])


@pytest.mark.parametrize(
    "file", sorted(Path(shipped.__file__).parent.glob("*.yaml")), ids=lambda file: file.stem
)
def test_what_comes_with_the_package_is_accepted(file: Path) -> None:
    recipe = load(str(file))
    assert recipe.task in ("detect", "classify")
    refuse_without_effect(recipe, recipe.task)  # type: ignore[arg-type]
