"""The detector family and the data format on the page about one's own code run as they stand there."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rankless
from rankless.cli import main
from rankless.data.datasets.open_split import opened
from rankless.errors import UserError
from rankless.models import zoo
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import default, from_json, load, to_json
from rankless.tasks import resolve_recipe
from rankless.tasks.custom import with_absolute_names

PAGE = Path(__file__).parents[2] / "docs" / "own-task.md"
WORDS = "batch.images=4 batch.micro=2 epochs=1 workers=0 precision=fp32 data.root=shapes"
FAMILY, FORMAT = "model.name=ownpack.cells:Cells", "data.format=ownpack.boxes"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package of a family and a format, and with data."""
    text = PAGE.read_text(encoding="utf-8")
    _, family, format = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, code in (("__init__", ""), ("cells", family), ("boxes", format)):
        (tmp_path / "ownpack").mkdir(exist_ok=True)
        (tmp_path / "ownpack" / f"{name}.py").write_text(code)
    (tmp_path / "shapes").mkdir()
    drawn = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        lines = []
        for number in range(count):
            name = f"{split}{number}.png"
            Image.fromarray(drawn.integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "shapes" / name)
            lines += [f"{name};8;8;40;48;red", f"{name};30;30;60;62;green"][: 1 + number % 2]
        (tmp_path / "shapes" / f"{split}.boxes").write_text("\n".join(lines) + "\n")
    (tmp_path / "shapes" / "classes.txt").write_text("red\ngreen\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("ownpack", "ownpack.cells", "ownpack.boxes"):
        sys.modules.pop(name, None)


@pytest.mark.processes
def test_commands_know_a_family_and_a_format(package, capfd):
    recipe = default([*WORDS.split(), FAMILY, "model.options.channels=4", FORMAT])
    assert rankless.train(recipe, "one", inline=True) == 0
    assert f"next: rankless predict one IMAGES {FAMILY}" in capfd.readouterr().out
    assert rankless.train(recipe, "two", parallel="threads", devices=2) == 0
    digest, same = (digest_file(Path(run, "last.safetensors")) for run in ("one", "two"))
    assert digest == same

    def run(words: str, code: int = 0) -> str:
        assert main(shlex.split(words)) == code, capfd.readouterr().err
        printed = capfd.readouterr()
        return printed.out + printed.err

    # Code that only the weights name is not run.
    for command in ("predict one shapes/val0.png", "evaluate one", "errors one", "export one --format onnx"):
        refused = run(command, 2)
        assert f"the detector family 'ownpack.cells:Cells'; if you trust its code, add {FAMILY}" in refused
        assert (f"if you trust its code, add {FORMAT}" in refused) == (command[:3] != "pre")
    run(f"predict one shapes/val0.png {FAMILY} --out found")
    assert '"images": 3' in run(f"evaluate one {FAMILY} {FORMAT} --devices 1 --json")
    run(f"errors one {FAMILY} {FORMAT} --out errors.html")
    run(f"export one --format torchscript --out one.torchscript {FAMILY} {FORMAT}")
    fine_tuning = f"train fine-tune model.pretrained=one/last.safetensors data.root=shapes {FORMAT}"
    assert f"if you trust its code, add {FAMILY}" in run(fine_tuning, 2)
    # An error in the user's code is not a bug in Rankless.
    (package / "wrong.py").write_text(
        "from ownpack.boxes import *\n\n\ndef read(root, split):\n    return 1 / 0\n"
    )
    failed = run("data check shapes --format wrong.py", 1)
    assert "ZeroDivisionError" in failed and "wrong.py:5, in read" in failed and "bug" not in failed
    (package / "number.py").write_text(
        "from ownpack.boxes import *\n\n\ndef read(root, split):\n    return 1\n"
    )
    assert "returned int; expected a rankless.data.index.raw.Raw" in run(
        "data check shapes --format number.py", 2
    )
    # Commands for data read and write the format.
    for command in ("check shapes", "stats shapes"):
        assert "box lines" in run(f"data {command} --format ownpack.boxes")
    run("data show shapes --format ownpack.boxes --out sheet.png")
    run("data convert shapes --format ownpack.boxes --to coco --out as-coco")
    run("data convert as-coco --to ownpack.boxes --out again")
    assert len((package / "again" / "train.boxes").read_text().splitlines()) == 12


def test_a_format_has_options(package):
    for file in Path("shapes").glob("*.boxes"):
        file.write_text(file.read_text().replace(";", "|"))

    def read(*words):
        return opened(default(["data.root=shapes", *words]).data, "train")

    assert len(read(FORMAT, "data.options={separator: '|'}").boxes) == 12
    with pytest.raises(UserError, match=r"key 'data\.options\.sep': 'ownpack\.boxes' has no such option; "):
        read(FORMAT, "data.options.sep=/")
    with pytest.raises(UserError, match=r"'data\.options\.separator' is 1: expected text"):
        read(FORMAT, "data.options.separator=1")
    with pytest.raises(UserError, match=r"'digits' has no such option; it has no options"):
        resolve_recipe(load("digits", ["data.options.sep=/"]))
    with pytest.raises(UserError, match=r"'csv' has no such option; it has no options"):
        read("data.format=csv", "data.options.separator=/")
    # The options are part of the key of the cache.
    with pytest.raises(ValueError, match="not enough values"):
        read(FORMAT)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            f"{FAMILY} model.options.chanels=4",
            "key 'model.options.chanels': 'ownpack.cells:Cells' has no such option; expected channels; did "
            "you mean 'channels'?",
        ),
        (
            f"{FAMILY} model.options.channels=0",
            "'model.options.channels' is 0: expected a whole number from 1 to 512",
        ),
        (f"{FAMILY} model.options.channels=many", "'model.options.channels' is 'many': expected a whole"),
        ("model.name=ownpack.cells:Cell", "has no 'Cell'; expected one of Detector, Cells"),
        ("model.name=ownpack.cells:Detector", "lacks 2 required members; add:; size = "),
        ("model.name=nowhere.py:Cells", "no such file .*/nowhere.py; expected the file of the class"),
    ],
)
def test_mistakes_in_a_family(package, words, said):
    with pytest.raises(UserError) as caught:
        zoo.spec(default(shlex.split(words)).model)
    assert re.search(said.replace("?", r"\?"), "; ".join(caught.value.problems))


def test_names_and_options_are_recorded(package):
    words = [
        "model.name=ownpack/cells.py:Cells",
        "data.format=ownpack/boxes.py:xywh",
        "model.options={channels: 4}",
        "data.options.separator=/",
    ]
    recipe = with_absolute_names(default(words))
    assert recipe.model.name == f"{package}/ownpack/cells.py:Cells"
    assert recipe.data.format == f"{package}/ownpack/boxes.py:xywh"
    assert from_json(to_json(recipe)) == recipe
    assert zoo.build(recipe.model, 3).head.weight.shape == (7, 4, 1, 1)
