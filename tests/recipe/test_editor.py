"""Recipes in an editor: what a checker of JSON schemas, as editors have one, says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from jsonschema.validators import validator_for

from rankless.files import yaml12
from rankless.recipe.installed import schema_text, shipped, shipped_text
from rankless.recipe.load import dump
from rankless.recipe.schema import Recipe

SCHEMA = json.loads(schema_text())


def underlined(text: str) -> list[str]:
    """The problems of a text, those of each alternative too."""

    def all_of(errors: Iterable[Any]) -> Iterator[str]:
        for error in errors:
            yield error.message
            yield from all_of(error.context)

    return [*all_of(validator_for(SCHEMA)(SCHEMA).iter_errors(yaml12.read(text, "my.yaml")[0]))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("optim:\n  lrr: 0.1\n", "'lrr' was unexpected"),
        ("optim:\n  lr: fast\n", "'fast' is not of type 'number'"),
        ("optim:\n  name: sdg\n", "'sdg' is not one of ['sgd', 'adam', 'adamw', 'muon']"),
        ("epochs: 0\n", "0 is less than the minimum of 1"),
        ("model:\n  name: yolov4\n  wdth: 2\n", "'wdth' was unexpected"),
    ],
)
def test_a_mistake_is_underlined(text: str, problem: str) -> None:
    assert any(problem in one for one in underlined(text)), underlined(text)


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_have_nothing_underlined(name: str) -> None:
    assert underlined(shipped_text(name)) == []


def test_a_recorded_recipe_has_nothing_underlined() -> None:
    assert underlined(dump(Recipe())) == []


def test_models_are_offered_as_values() -> None:
    named = [kind["properties"].get("name", {}) for kind in SCHEMA["$defs"].values()]
    offered = {example for name in named for example in name.get("examples", ())}
    assert {"yolov4", "yolov4-tiny-anchor-free", "resnet18"} <= offered
