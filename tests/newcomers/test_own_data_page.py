"""The commands on the page about one's own images; HYPOTHESIS=thorough trains to the scores on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.thorough import THOROUGH

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rankless (.*)$", PAGE, re.MULTILINE)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, boxes: Callable[..., Path], folders: Callable[..., Path]
) -> Path:
    """A folder with the recipe and 200 images of each kind, or a few for one epoch."""
    place = tmp_path_factory.mktemp("place")
    boxes(place / "mydata", 160 if THOROUGH else 16, 40 if THOROUGH else 4)
    folders(place / "flowers", 200 if THOROUGH else 36)
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (place / "my.yaml").write_text(recipe)
    return place


def stated(score: str) -> float:
    (number,) = re.findall(rf"{score} (?:of )?(0\.\d+)", " ".join(PAGE.split()))
    return float(number)


def small(start: str) -> str:
    """The page's command to try it on a CPU, with its epochs or one."""
    (command,) = [one for one in COMMANDS if one.startswith(start) and "model.image_size" in one]
    return str(command) if THOROUGH else re.sub(r"epochs=\d+", "epochs=1", command)


def test_a_detector_and_its_fine_tuning(place: Path, forked: Any) -> None:
    def rankless(words: str) -> Any:
        done = forked("-m", "rankless", *words.split(), cwd=place, seconds=360)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "no errors found" in rankless("data check mydata")
    rankless(f"{small('train my.yaml')} evaluate.every=0 --run runs/my --devices 1")
    scores = json.loads(rankless("evaluate runs/my --devices 1 --json"))
    assert (scores["data"], scores["split"], scores["images"]) == ("mydata", "val", 40 if THOROUGH else 4)
    said = rankless("predict runs/my mydata/images/val/0000.jpg mydata/images/val")
    assert "results in predictions\n" in said
    assert "train my.yaml data.root=VOCdevkit" in COMMANDS
    rankless("train model.pretrained=runs/my data.root=mydata epochs=1 --devices 1")
    more = json.loads(rankless("evaluate runs/fine-tune/last.safetensors --devices 1 --json"))
    if THOROUGH:
        assert scores["AP50"] > stated("AP50")
        # The weights bring their network, and an epoch of the recipe for fine-tuning costs them nothing.
        assert more["AP50"] > 0.9 * scores["AP50"]


def test_a_classifier(place: Path, forked: Any) -> None:
    words = f"{small('train resnet18')} evaluate.every=0 --run runs/flowers --devices 1"
    done = forked("-m", "rankless", *words.split(), cwd=place, seconds=360)
    assert done.returncode == 0, done.stderr
    (score,) = re.findall(r"^best \(step \d+.*\):\n +top1 +(\d\.\d+)", done.stdout, re.MULTILINE)
    assert not THOROUGH or float(score) > stated("top-1 accuracy")
    assert "train resnet18 data.root=flowers" in COMMANDS
