"""The public names are a list that changes on purpose, and importing them stays quick."""

import importlib
import re
from importlib import metadata
from pathlib import Path

import pytest

import rankless


def test_every_public_name_is_there_and_says_what_it_is():
    for name in rankless.__all__:
        assert getattr(rankless, name).__doc__, name


def test_every_public_name_is_the_one_that_its_page_defines():
    for name, home in rankless._HOMES.items():
        module, attribute = home.split(":")
        assert getattr(rankless, name) == getattr(importlib.import_module(module), attribute), name


def test_no_public_name_is_hidden_by_a_room_of_its_name():
    inside = {place.stem for place in Path(rankless.__path__[0]).iterdir()}
    assert not inside & set(rankless.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rankless' has no attribute 'tarin'"):
        _ = rankless.tarin


def test_version_is_the_installed_ones_and_stands_in_the_changelog():
    assert metadata.version("rankless") == rankless.__version__
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == rankless.__version__
