"""What Python callers give: a lone text is one value, and paths may stand for texts."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankless
from rankless.arguments import classes_of, several


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a.jpg", ["a.jpg"]),
        (Path("a.jpg"), ["a.jpg"]),
        (["a.jpg", Path("b.jpg"), 3], ["a.jpg", "b.jpg", "3"]),
        ((), []),
    ],
)
def test_one_or_several(given, texts):
    assert several(given) == texts


def test_a_lone_class_is_no_sequence_of_letters():
    assert classes_of("cat") == ("cat",) and classes_of(["cat", 3]) == ("cat", 3)


def test_a_lone_override_is_one():
    assert rankless.load_recipe("digits", "epochs=3").epochs == 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda folder: rankless.digest(folder), r"expected a state dict; .*rankless.digest_file\(path\)"),
        (lambda folder: rankless.digest_file(str(folder)), "is a folder; expected a weights file, such as"),
        (
            lambda folder: rankless.train(rankless.load_recipe("digits"), folder / "run", devices="0,1"),
            "devices is '0,1'; expected a number, or a list of GPUs",
        ),
        (
            lambda folder: rankless.predict(str(folder / "run"), "a.jpg", out=str(folder / "out")),
            "run: no such",
        ),
    ],
)
def test_mistakes_are_sentences(call, said, tmp_path):
    with pytest.raises(rankless.UserError, match=said):
        call(tmp_path)
    assert not [*tmp_path.iterdir()]
