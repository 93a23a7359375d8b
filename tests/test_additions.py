"""What the table "Where to add things" promises: a copy of the package with few files changed, and a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

SOURCE = Path(__file__).parents[1] / "src" / "rankless"

FAMILY = '''
"""A detector that predicts one box in each cell of 32 × 32 pixels."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from rankless.models.detectors.protocol import Exports, Published
from rankless.structures import LossSum

MODELS = {"toy-1": Published("nobody, 2026")}


class Toy(nn.Module):
    head_names = ("head.",)

    def __init__(self, classes, channels):
        super().__init__()
        self.body = nn.Conv2d(3, channels, 32, 32)
        self.head = nn.Conv2d(channels, 4 + classes, 1)

    def forward(self, images):
        return self.head(self.body(images).relu()).flatten(2).mT  # (B, P, 4 + C)

    def decode(self, raw):
        center, side = 64 * raw[..., :2].float().sigmoid(), 32 * raw[..., 2:4].float().exp()
        return torch.cat((center - side / 2, center + side / 2), -1), raw[..., 4:].float().sigmoid()

    def loss(self, raw, batch):
        boxes, scores = self.decode(raw)
        wanted = torch.zeros_like(scores)
        wanted[:, 0] = functional.one_hot(batch.labels[:, 0], scores.shape[-1]) * batch.valid[:, :1]
        classes = functional.binary_cross_entropy(scores, wanted, reduction="sum")
        away = (boxes[:, 0] - batch.boxes[:, 0]).abs() * batch.valid[:, :1]
        return LossSum(classes + away.sum() / 64, float(len(raw)))

    def backbone(self):
        return [self.body]


@dataclass(frozen=True)
class ToySpec:
    model: object
    size = (64, 64)
    anchors = ()
    exports = Exports()

    def build(self, classes):
        return Toy(classes, self.model.channels)

    def activations(self, size):
        return [size[0] * size[1]]

    def self_contained(self):
        return self.model


def spec(model, loss):
    return ToySpec(model)
'''

KIND = '''
@dataclass(frozen=True, config=config)
class ToyModel(ModelKeys):
    """A toy."""

    label: ClassVar[str] = "a toy"
    pattern: ClassVar[str] = r"^toy"
    losses: ClassVar[tuple[str, ...]] = ("published",)

    channels: Annotated[Int, Field(ge=1, le=64)] = 8
    """Channels between the two layers."""


'''

SINK = '''
"""Writes the losses into a text file."""

from rankless.engine.sinks.sink import Sink


class ToySink(Sink):
    def start(self, run):
        self.file = open(run.run / "toy.txt", "w")

    def step(self, entry):
        print(entry["step"], entry["loss"], file=self.file)

    def close(self):
        self.file.close()
'''

FORMAT = '''
"""All boxes in one file, toy.json."""

import json
from pathlib import Path

from rankless.data.index.raw import RawBuilder
from rankless.data.index.scan import with_sizes

TITLE = "a toy"
LAYOUT = "'toy.json'"


def recognize(root):
    return "it has 'toy.json'" if (Path(root) / "toy.json").is_file() else ""


def splits(root):
    return list(json.loads((Path(root) / "toy.json").read_text()))


def read(root, split, class_names=None):
    file, made = Path(root) / "toy.json", RawBuilder()
    for name, box, label in json.loads(file.read_text())[split]:
        made.add_box(made.add_image(str(Path(root) / name), str(file)), box, label, 1)
    return with_sizes(made.raw(names=["a", "b"], depends=[str(file)]))
'''

KIND_OF_TASK = """
TAG = dataclasses.replace(
    CLASSIFY, name="tag", model="a tagger", score="hits", open=Later("tasks.tag:Tag"), hub="tagging"
)

"""

TASK = '''
"""Images with one tag."""

from rankless.tasks.classify import Classify


class Tag(Classify):
    score_name = "hits"

    def score(self, predictions):
        scores = super().score(predictions)
        return {**scores, "hits": scores["top1"]}
'''

LAUNCHER = """
class Toy(Environment):
    name = "Toy"

    @classmethod
    def is_here(cls, variables):
        return is_set(variables, ("TOY_RANK", "TOY_SIZE"))

    def _read(self):
        self.rank = self.local_rank = self.number("TOY_RANK")
        self.world_size = self.local_world_size = self.number("TOY_SIZE")

    def _address(self):
        return "127.0.0.1"

    def _port_seed(self):
        return "toy"
"""


def add(package: Path, changes: dict[str, str | tuple[str, ...]]) -> None:
    """Write new files, and put a text before the first match of a pattern in others; three at most."""
    assert len(changes) <= 3
    for name, change in changes.items():
        file = package / name
        if isinstance(change, str):
            assert not file.exists()
            file.write_text(change, "utf-8")
            continue
        pairs = zip(change[::2], change[1::2], strict=True)
        for pattern, text in pairs:
            before = file.read_text("utf-8")
            place = re.search(pattern, before, re.MULTILINE)
            assert place, f"{name}: {pattern}"
            file.write_text(before[: place.start()] + text + before[place.start() :], "utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a detector family, a sink, a data format, a launcher and a task more."""
    copy = tmp_path_factory.mktemp("src") / "rankless"
    shutil.copytree(SOURCE, copy)  # with bytecode, which is that of files of these times and sizes
    add(
        copy,
        {
            "models/detectors/toy.py": FAMILY,
            "models/zoo.py": (
                r"^Validate = ", "from rankless.models.detectors import toy\n\n",
                r"^    \(torchvision\.MODELS", "    (toy.MODELS, toy.spec),\n",
            ),
            "recipe/model_kinds.py": (
                r"^@dataclass\(frozen=True, config=config\)\nclass CustomModel", KIND,
                r"^    \| Annotated\[CustomModel, ", '    | Annotated[ToyModel, Tag("toy")]\n',
            ),
        },
    )  # fmt: skip
    add(
        copy,
        {
            "engine/sinks/toy.py": SINK,
            "engine/sinks/sink.py": (r'^    "csv": ', '    "toy": _Known("toy", "ToySink"),\n'),
        },
    )
    add(
        copy,
        {
            "data/formats/toy.py": FORMAT,
            "data/formats/registry.py": (r'^    "webdataset": "webdataset",', '    "toy": "toy",\n'),
            "recipe/schema.py": (r'"auto", "webdataset", ', '"toy", '),
        },
    )
    add(
        copy,
        {
            "launch/environments.py": (r"^_KINDS: ", f"{LAUNCHER}\n\n", r"(?<=\()Ray, ", "Toy, "),
        },
    )  # fmt: skip
    add(
        copy,
        {
            "tasks/tag.py": TASK,
            "task_kinds.py": (
                r"^import importlib", "import dataclasses\n",
                r"^KINDS = ", KIND_OF_TASK,
                r"(?<=^KINDS = \(DETECT, CLASSIFY)\)", ", TAG",
            ),
        },
    )  # fmt: skip
    return copy


@pytest.fixture
def data(tmp_path: Path) -> Path:
    drawn = torch.Generator().manual_seed(0)
    for name in "abcdefgh":
        pixels = torch.randint(0, 256, (64, 64, 3), generator=drawn, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{name}.png")
    boxes = [[f"{name}.png", [8, 8, 40, 48], n % 2] for n, name in enumerate("abcdefgh")]
    (tmp_path / "toy.json").write_text(json.dumps({"train": boxes[:6], "val": boxes[6:]}))
    return tmp_path


@pytest.mark.processes
def test_a_family_a_sink_a_format_and_a_launcher_are_added_in_three_files_each(package, data, tmp_path):
    words = f"train model.name=toy-1 model.channels=4 data.root={data} data.format=toy epochs=2 workers=0 "
    words += "batch.images=4 batch.micro=2 optim.lr=0.001 --sink toy"
    lines = (
        f"{words} model.width=2 --run refused",
        f"{words} --run run",
        "export run --format torchscript --out toy.torchscript",
    )
    code = "import sys; from rankless.cli import main; print(*(main(x.split()) for x in sys.argv[1:]))"
    place = {"PYTHONPATH": str(package.parent), "RANKLESS_CPU": "1", "TOY_RANK": "0", "TOY_SIZE": "1"}
    command = [sys.executable, "-c", code, *lines]
    done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["2 0 0"], done
    assert "only a YOLO model or an anchor-free model has it" in done.stderr
    assert "'toy-1' is a toy" in done.stderr
    steps = (tmp_path / "run" / "toy.txt").read_text().split("\n")
    assert [one.partition(" ")[0] for one in steps] == ["1", "2", "3", ""]
    assert '"Toy"' in (tmp_path / "run" / "environment.json").read_text()
    assert (tmp_path / "toy.torchscript").is_file()


@pytest.mark.processes
def test_commands_know_a_kind_of_task_that_one_record_adds(package, data, tmp_path):
    for number, image in enumerate(sorted(data.glob("*.png"))):
        place = tmp_path / "tagged" / ("val" if number > 5 else "train") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, place / image.name)
    words = "train task=tag model.name=resnet20-cifar data.root=tagged epochs=1 workers=0 batch.images=4"
    lines = (
        f"{words} batch.micro=2 precision=fp32 model.cfg=a.cfg",
        f"{words} batch.micro=2 precision=fp32 data.augment.crop=0.5 loss.smoothing=0.1 --run run",
        "evaluate run --devices 1",
        "predict run tagged/val --out found --save json,csv",
        "predict run tagged/val --classes a --out no",
        "errors run --out errors.html",
        "export run --format torchscript --out tagger.torchscript",
        "export run --format torchscript --nms --out no.torchscript",
        "export run --format folder --out shared",
        "runs run",
    )
    code = "import sys; from rankless.cli import main; print(*(main(x.split()) for x in sys.argv[1:]))"
    place = {"PYTHONPATH": str(package.parent), "RANKLESS_CPU": "1"}
    command = [sys.executable, "-c", code, *lines]
    done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["2 0 0 0 2 0 0 2 0 0"], done
    assert "--nms is for detectors, but these weights belong to a tagger" in done.stderr
    assert "--classes a: is only for detectors, but the task is 'tag'" in done.stderr
    assert "pipeline_tag: tagging" in (tmp_path / "shared" / "README.md").read_text()
    assert '"classes": [' in (tmp_path / "found" / "predictions.json").read_text()
    assert "hits" in done.stdout
