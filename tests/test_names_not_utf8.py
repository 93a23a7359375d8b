"""Names that are not UTF-8, which Linux allows: every command takes them, or says that it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App
from PIL import Image

from rankless import cli

BAD = os.fsdecode(b"\xff")
RUN, DATA, IMAGE, RECIPE, OUT = (
    f"{BAD}/{name}" for name in ("run", "data", f"{BAD}.png", f"{BAD}.yaml", "out")
)
SMALL = (
    "epochs=1 data.train_images=4 data.val_images=4 batch.images=4 batch.micro=4 workers=0 precision=fp32 "
    "model.image_size=64 model.width=0.25"
)
THERE = {
    "DIR": BAD,
    "RECIPE KEY=VALUE": BAD,
    "TARGET": RUN,
    "RUN": RUN,
    "ROOT": DATA,
    "FILE": f"{RUN}/best.safetensors",
    "SOURCE KEY=VALUE": IMAGE,
}
"""What is there in an argument's place; a recipe is not, lest whole trainings begin."""
# Each is done to its end.
WORK = [
    f"data check {DATA} --fix --out {OUT}",
    f"data stats {DATA} --out {OUT}.svg",
    f"data show {DATA} --out {OUT}.html",
    f"data show {DATA} --out {OUT}.png",
    *(f"data convert {DATA} --to {name} --out {OUT}" for name in ("darknet", "coco", "voc", "csv", "lines")),
    f"data split {DATA} --val 0.3 --seed 1 --out {OUT}",
    f"data pack {DATA} --out {OUT}",
    f"train digits {SMALL} --inline --run {OUT} --sink csv",
    f"train --resume --run {RUN} epochs=2 --inline",
    f"watch {RUN}",
    f"predict {RUN} {IMAGE} --out {OUT} --confidence 0 "
    "--save annotated,json,jsonl,coco,yolo,voc,csv,counts,crops",
    f"evaluate {RUN} --devices 1",
    f"digest {RUN} {RUN}/last.safetensors --json",
    f"errors {RUN} --out {OUT}.html",
    f"report {RUN}",
    f"report {RUN} {RUN}/../run --out {OUT}.html",
    f"plot {RUN} --out {OUT}.svg",
    f"runs {BAD}",
    f"runs {BAD} --json",
    f"export {RUN} --format pth --out {OUT}",
    f"plan digits --step-ms 1 --devices 1x1 --out {OUT}.svg",
    f"tune digits {SMALL} --trials 1 --search optim.lr=0.001..0.002 --out {OUT}",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, a data set, an image and a recipe, all of them in a folder of such a name."""
    folder, before = tmp_path_factory.mktemp("names"), Path.cwd()
    os.chdir(folder)
    for number, split in enumerate(("train",) * 5 + ("val",) * 5):
        image, label = (Path(DATA, part, split, f"{BAD}{number}") for part in ("images", "labels"))
        for file in (image, label):
            file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 20 + 20 * number).convert("RGB").save(f"{image}.png")
        Path(f"{label}.txt").write_text("0 .5 .5 .4 .4\n")
    Path(DATA, "data.yaml").write_text("train: images/train\nval: images/val\nnames: [a]\n")
    shutil.copy(f"{DATA}/images/train/{BAD}0.png", IMAGE)
    Path(RECIPE).write_text("epochs: 1\n")
    assert cli.main(["train", "digits", *SMALL.split(), "--inline", "--run", RUN]) == 0
    yield folder
    os.chdir(before)


def no_traceback(capsys, words):
    """What a command says on stderr, which must be no traceback, and its exit code."""
    code = cli.main(words)
    said = capsys.readouterr().err
    assert "Traceback" not in said, said
    return code, said


@pytest.mark.processes
@pytest.mark.parametrize("line", WORK, ids=lambda line: line.replace(BAD, "+").partition(" epochs=1")[0])
def test_work_is_done(folder, capsys, line):
    for file in Path(BAD).glob("out*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert no_traceback(capsys, line.split())[0] == 0


def _commands(app: App, *before: str) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in app:
        if not name.startswith("-"):
            yield from list(_commands(app[name], *before, name)) or [((*before, name), app[name])]


@pytest.mark.processes
@pytest.mark.parametrize("command", [" ".join(words) for words, _ in _commands(cli.app)])
def test_every_argument_and_option_takes_or_refuses_it(folder, capsys, command):
    arguments = dict(_commands(cli.app))[tuple(command.split())].assemble_argument_collection()
    places = [one.name for one in arguments if one.index is not None]
    options = [one for one in arguments if one.index is None and one.hint is not bool]
    needed = {one.name: BAD for one in options if one.required}
    right = [THERE[place] for place in places if place in THERE]
    for words, more in [
        ([BAD] * len(places), needed),
        *((right, needed | {one.name: BAD}) for one in options),
    ]:
        line = [*command.split(), *words, *(word for pair in more.items() for word in pair)]
        assert no_traceback(capsys, line)[0] in (0, 1, 2)
