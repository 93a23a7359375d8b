"""Presets of the augmentation: a name becomes values, what is written wins, and only values are recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.recipe.load import dump, from_json, load, to_json
from rankless.recipe.schema import Augment

OFF = Augment(flip=0, hue=0, saturation=0, value=0, scale=0, translate=0)


def augment(tmp_path: Path, text: str, *overrides: str) -> Augment:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    return load(file, overrides).data.augment


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("data: {augment: yolov4}", []),
        ("data: {augment: {preset: yolov4}}", []),
        ("epochs: 3", ["data.augment=yolov4"]),
        ("epochs: 3", ["data.augment.preset=yolov4"]),
        ("epochs: 3", ["data.augment={preset: yolov4}"]),
        ("data: {augment: heavy}", ["data.augment=yolov4"]),
        ("data: {augment: {flip: 0.1, blur: 1}}", ["data.augment=yolov4"]),
    ],
)
def test_a_preset_is_named_in_the_file_or_on_the_command_line(tmp_path, text, overrides):
    made = augment(tmp_path, text, *overrides)
    # yolov4.cfg: mosaic=1, hue=.1, saturation=1.5, exposure=1.5 (the largest factors), jitter=.3
    assert (made.mosaic, made.hue, 1 + made.saturation, 1 + made.value) == (1, 0.1, 1.5, 1.5)
    assert (made.flip, made.scale, made.translate, made.blur) == (0.5, 0.6, 0.3, 0)


def test_what_is_written_wins_over_the_preset_wherever_it_stands(tmp_path):
    assert augment(tmp_path, "data: {augment: {flip: 0, preset: heavy}}").flip == 0
    for overrides in (
        ["data.augment=heavy", "data.augment.rotate=1"],
        ["data.augment.rotate=1", "data.augment=heavy"],
    ):
        made = augment(tmp_path, "data: {augment: {rotate: 3}}", *overrides)
        assert made.rotate == 1 and made.mosaic == 1
    assert augment(tmp_path, "data: {augment: heavy}", "data.augment.mosaic=0").rotate == 5


def test_none_is_all_off_and_light_is_the_default():
    assert Augment(preset="none") == OFF
    assert Augment(preset="light") == Augment()
    assert Augment(preset="yolov3").mosaic == 0
    assert replace(Augment(preset="heavy"), flip=0.25) == Augment(preset="heavy", flip=0.25)


def test_only_values_are_recorded(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("data: {augment: heavy}")
    recipe = load(file)
    assert "preset" not in dump(recipe) and "heavy" not in to_json(recipe)
    file.write_text(dump(recipe))
    assert load(file) == recipe == from_json(to_json(recipe))
    assert load(file, ["data.augment=none"]).data.augment == OFF  # not hidden by the recorded values


@pytest.mark.parametrize("text", ["data: {augment: havy}", "data: {augment: {preset: havy, flip: 0}}"])
def test_an_unknown_preset_is_reported_with_those_that_there_are(tmp_path, text):
    with pytest.raises(UserError) as caught:
        augment(tmp_path, text)
    assert str(caught.value).endswith(
        "r.yaml:1: 'data.augment.preset' is 'havy': expected one of none, light, yolov3, yolov4, heavy; "
        "did you mean 'heavy'?"
    )


def test_a_preset_hides_no_error(tmp_path):
    with pytest.raises(UserError) as caught:
        augment(tmp_path, "data: {augment: {preset: heavy, flip: 7, rotatee: 3}}")
    assert len(caught.value.problems) == 2
    with pytest.raises(UserError, match=r"'data\.augment\.preset' is 3: expected one of none"):
        augment(tmp_path, "data: {augment: 3}")
