"""The loop on the page about labeling tools, by its commands: label, train, predict, correct, train again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "label-tools.md").read_text(encoding="utf-8")
LOOP = re.findall(
    r"^ +rankless (.*)$", PAGE.partition("## Labeling with the help of a model")[2], re.MULTILINE
)
SMALL = "model.width=0.125 model.image_size=64 epochs=2 evaluate.every=0 --devices 1"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_loop(tmp_path: Path, boxes: Callable[..., Path], forked: Any) -> None:
    whole = boxes(tmp_path / "whole", 30, 0)
    folder = tmp_path / "folder"
    folder.mkdir()

    def label(root: Path, count: int) -> None:
        """Export the first images as Label Studio does."""
        (root / "images").mkdir(parents=True)
        (root / "labels").mkdir()
        for image in sorted((whole / "images/train").iterdir())[:count]:
            shutil.copy(image, root / "images")
            shutil.copy(whole / "labels/train" / f"{image.stem}.txt", root / "labels")
        (root / "classes.txt").write_text("cat\ndog\n")
        (root / "notes.json").write_text('{"categories": []}')

    def rankless(words: str, more: str) -> str:
        done = forked("-m", "rankless", *words.split(), *more.split(), cwd=tmp_path, seconds=300)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    train, label_studio, cvat, again = LOOP
    label(tmp_path / "mydata", 20)
    new = sorted((whole / "images/train").iterdir())[20:]
    for image in new:
        shutil.copy(image, folder)
    rankless(train, SMALL)

    unsure = "--confidence 0.001 --device cpu"  # two epochs are few
    said = rankless(label_studio.replace("--confidence 0.2", unsure), "")
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={tmp_path}," in said
    tasks = json.loads((tmp_path / "found/label_studio.json").read_text())
    addresses = [unquote(task["data"]["image"].partition("?d=")[2]) for task in tasks]
    assert addresses == [f"folder/{image.name}" for image in new]
    assert any(task["predictions"][0]["result"] for task in tasks)
    rankless(cvat.replace("--confidence 0.2", unsure), "")
    images = ElementTree.parse(tmp_path / "found-cvat/cvat.xml").getroot().findall("image")
    assert [image.attrib["name"] for image in images] == [image.name for image in new]
    assert [len(image) for image in images] == [len(task["predictions"][0]["result"]) for task in tasks]

    label(tmp_path / "mydata-2", 30)  # corrected
    rankless(again, SMALL)
    assert "cat" in rankless("evaluate runs/my-2 --json", "--device cpu")
