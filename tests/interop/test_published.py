"""Published files: their names say the beginning of their SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from rankless.interop.importing import import_weights
from rankless.models.classifiers.catalog import build_classifier
from rankless.recipe.schema import Model


@pytest.fixture
def unnamed(tmp_path: Path) -> Path:
    torch.save(build_classifier(Model(name="densenet-bc-100-12"), 2).state_dict(), tmp_path / "w.pth")
    return tmp_path / "w.pth"


def notes(source: Path) -> list[str]:
    return import_weights(source, source.with_name("out.safetensors"), model="densenet-bc-100-12").notes


@pytest.mark.slow
def test_the_digits_in_a_name_are_compared(unnamed: Path) -> None:
    sha = hashlib.sha256(unnamed.read_bytes()).hexdigest()[:8]
    right = unnamed.rename(unnamed.with_name(f"resnet18-{sha}.pth"))
    assert notes(right)[0] == f"the SHA-256 of the file starts with {sha}, as in its name"


@pytest.mark.slow
def test_a_difference_is_a_warning(unnamed: Path) -> None:
    (first, *_) = notes(unnamed.rename(unnamed.with_name("mine-20261122.pth")))
    assert (
        first.startswith("warning: the SHA-256 of the file starts with ")
        and "20261122 as in its name" in first
    )


@pytest.mark.slow
def test_other_names_say_nothing(unnamed: Path) -> None:
    assert not any("SHA-256" in note for note in notes(unnamed))
