"""A data set is built in by one package: nothing else in Rankless has to know its name."""

import sys

import pytest

from rankless.curation.data_set import open_data_set
from rankless.curation.sampling import select
from rankless.data import builtin
from rankless.data.formats.registry import NAMES
from rankless.data.path_checks import missing_data
from rankless.engine.loader_count import loader_processes
from rankless.errors import UserError
from rankless.inference.sources import find
from rankless.recipe.schema import Data, Model, Recipe
from rankless.tasks import data_digest, open_task, resolve_recipe, split_names

DOTS = """
import torch
from rankless.data.datasets.annotated import ClassificationImages, DetectionImages
from rankless.structures import Sample

TITLE = "dots for a test"
SIZE = 40, 48


def splits(root=None):
    return ["few", "more"]


class Dots:
    class_names = ("dark", "light")

    def __init__(self, split, images=8, seed=0, size=SIZE):
        self.split, self.images, self.size = split, images, size

    def __len__(self):
        return self.images

    def source(self, index):
        return f"dots/{self.split}/{index}"

    def image(self, index):
        image = torch.zeros(3, *self.size, dtype=torch.uint8)
        image[:, 8:16, 4:24] = 100 + 100 * (index % 2)
        return image


class detection(Dots, DetectionImages):
    def read(self, index):
        return Sample(self.image(index), torch.tensor([[4.0, 8, 24, 16]]), torch.tensor([index % 2]))


class classification(Dots, ClassificationImages):
    def read(self, index):
        return self.image(index)

    def label(self, index):
        return index % 2
"""


@pytest.fixture
def dots(tmp_path, monkeypatch):
    (tmp_path / "dots").mkdir()
    (tmp_path / "dots" / "__init__.py").write_text(DOTS)
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("rankless.data.builtin.dots", None)


def test_the_names_of_built_in_data_are_not_names_of_formats():
    assert builtin.names() == ["digits"] and not {*builtin.names()} & {*NAMES}


@pytest.mark.usefixtures("dots")
@pytest.mark.parametrize("task", ["detect", "classify"])
def test_a_new_built_in_data_set_is_one_package(task):
    counts = {"train_images": 6, "val_images": 4} if task == "detect" else {}
    data = Data(root="dots", train="more", val="few", **counts)
    model = Model(name="resnet18") if task == "classify" else Model(image_size=(64, 96))
    recipe = resolve_recipe(Recipe(task=task, data=data, model=model))
    opened = open_task(recipe)
    assert opened.class_names == ("dark", "light") and split_names(recipe) == ["few", "more"]
    assert [len(one()) for one in (opened.training_data, opened.evaluation_data)] == (
        [6, 4] if task == "detect" else [8, 8]
    )
    # Images with boxes have the size of the network's input, others their own.
    shapes = [one().images.read(1) for one in (opened.training_data, opened.evaluation_data)]
    assert {getattr(one, "image", one).shape for one in shapes} == (
        {(3, 64, 96)} if task == "detect" else {(3, 40, 48)}
    )
    assert data_digest(recipe) is None and loader_processes(recipe, 1, "cpu", 8) == 0
    wrong = Recipe(task=task, data=Data(root="dots", classes=("dark",)), model=model)
    with pytest.raises(UserError, match=r"^data\.classes is not supported for dots for a test"):
        open_task(wrong).training_data()


@pytest.mark.usefixtures("dots")
def test_commands_know_a_new_built_in_data_set(capsys):
    shown = select("dots", split="few", count=3, class_name="light")
    assert shown.title == "dots · few · 3 scenes · with 'light'" and len(shown.shown) == 3
    assert "'dots' is the built-in data; to use the folder" in capsys.readouterr().err
    assert find(["dots:few:2-4"]) == ["dots:few:2", "dots:few:3", "dots:few:4"] and not missing_data("dots")
    for wrong in ("dots:lots:1", "dots:few:0-10000", f"dots:few:{'9' * 30}", "dots:few"):
        with pytest.raises(UserError, match="expected built-in scenes such as dots:more:3"):
            find([wrong])
    for format in ("auto", "coco"):
        with pytest.raises(UserError, match=r"^'dots': this data is generated, so it has no files") as caught:
            open_data_set("dots", format)
        assert len(caught.value.problems) == 1
