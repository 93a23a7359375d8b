"""An image's result has the same bits whatever the size of its batch and its place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import rankless
from rankless.engine.evaluate import evaluate
from rankless.hardware.batch_invariant import batch_invariant
from rankless.hardware.precision import autocast
from rankless.models import zoo
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier
from rankless.recipe.load import changed
from rankless.recipe.model_kinds import Model
from rankless.runs.directory import weights_of
from rankless.tasks import trained
from rankless.tasks.detect import Detect
from rankless.world.process_group import World

CPU = torch.device("cpu")
MODELS = {
    "yolov4-tiny": {"width": 0.5},
    "yolov4-tiny-anchor-free": {"width": 0.5},
    "torchvision/ssdlite320_mobilenet_v3_large": {},
    "resnet18": {},
    "densenet-40-12": {},
    "timm/mobilenetv3_small_100": {},
}


def outputs(model: torch.nn.Module, images: torch.Tensor, precision: str) -> list[torch.Tensor]:
    with torch.no_grad(), autocast(precision, CPU), batch_invariant(CPU):
        found = model(images)
    rows = [one for one in pytree.tree_leaves(found) if torch.is_tensor(one) and len(one) == len(images)]
    assert rows
    return rows


@pytest.fixture
def set_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread(set_threads: None):
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in MODELS), ("yolov4-tiny", "bf16"), ("resnet18", "bf16")],
)
def test_a_batch_of_any_size_gives_the_same_bits(name: str, precision: str, one_thread: None) -> None:
    torch.manual_seed(0)
    model = Model(name=name, **MODELS[name])
    is_classifier = name in CLASSIFIERS or name.startswith("timm/")
    network = (build_classifier(model, 10) if is_classifier else zoo.build(model, 3)).eval()
    images = torch.rand(17, 3, side := 32 if is_classifier else 64, side)
    expected = outputs(network, images[:5], precision)
    for batch in (images[:1], images[:2], images[:16], images):
        for one, other in zip(expected, outputs(network, batch, precision), strict=True):
            rows = min(len(batch), 5)
            assert torch.equal(one[:rows], other[:rows]), f"{len(batch)} images"
    for one, other in zip(expected, outputs(network, images[:5].flip(0), precision), strict=True):
        assert torch.equal(one, other.flip(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps in float32."""
    folder = tmp_path_factory.mktemp("invariance") / "run"
    data = ["data.train_images=32", "data.val_images=17"]
    model = ["model.width=0.25", "model.image_size=64", "precision=fp32"]
    recipe = rankless.load_recipe("digits", ["epochs=1", *data, *model])
    rankless.train(recipe, folder, inline=True)
    return folder


@pytest.mark.slow
def test_predict_gives_the_same_bits_in_any_batch(run: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (64, 64, 3), np.uint8) for _ in range(17)]

    def found(batch: int, those: list[Any]) -> list[tuple[bytes, bytes]]:
        model = rankless.load(run, confidence=0.001, device="cpu", batch=batch)
        return [(one.xyxy.tobytes(), one.scores.tobytes()) for one in model.predict(those)]

    expected = found(1, images)
    assert any(boxes for boxes, _ in expected)
    assert found(4, images) == expected
    assert found(17, images) == expected
    assert found(5, images[::-1]) == expected[::-1]


@pytest.mark.slow
def test_evaluate_gives_the_same_bits_in_batches_of_any_size(run: Path) -> None:
    loaded = trained.load(weights_of(run))

    def digest(batch: int) -> object:
        recipe = changed(loaded.recipe, [f"evaluate.batch={batch}"])
        task = Detect(recipe, loaded.class_names)
        model = trained.model(task, loaded, str(run))
        return evaluate(task, model, recipe, World(0, 1, CPU, inline=True), limit=17)["predictions"]

    assert len({digest(1), digest(7), digest(16), digest(17)}) == 1


def test_layers_without_a_batch_are_left_alone() -> None:
    torch.manual_seed(0)
    image, row = torch.rand(1, 28, 28), torch.rand(384)
    convolution, linear = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(384, 10)
    expected = convolution(image), linear(row)
    with batch_invariant(CPU):
        assert torch.equal(convolution(image), expected[0]) and torch.equal(linear(row), expected[1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("features", "outputs"), [(8, 10), (64, 4), (100, 7), (384, 384), (512, 10), (1024, 10), (1634, 31)]
)
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    features: int, outputs: int, threads: int, set_threads: None
) -> None:
    """On Intel CPUs, MKL changes its kernel at 2, 3, 4, 5, 10, 16, 20 and 384 of these rows."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    rows, linear = torch.rand(400, features), torch.nn.Linear(features, outputs)
    with torch.no_grad(), batch_invariant(CPU):
        expected = linear(rows)
        for count in (1, 2, 3, 4, 6, 10, 15, 16, 17, 24, 383):
            assert torch.equal(linear(rows[:count]), expected[:count]), f"{count} rows"
            assert torch.equal(linear(rows[-count:]), expected[-count:]), f"last {count} rows"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("side", "keys"),
    [(1, {}), (1, {"stride": 2}), (3, {"padding": 1}), (3, {"stride": 2}), (3, {"groups": 32})],
)
def test_an_image_has_the_same_bits_among_any_number_of_images(
    side: int, keys: dict[str, int], threads: int, set_threads: None
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    images, convolution = torch.rand(33, 32, 8, 8), torch.nn.Conv2d(32, 64, side, **keys)
    with torch.no_grad(), batch_invariant(CPU):
        expected = convolution(images)
        for count in (1, 2, 5, 15, 16, 17):
            assert torch.equal(convolution(images[:count]), expected[:count]), f"{count} images"


def test_a_slice_of_tokens_has_the_same_bits_in_any_batch() -> None:
    """The slice of a single image is contiguous, but the slice of two images is not."""
    torch.manual_seed(0)
    tokens, linear = torch.rand(2, 20, 1536)[:, 1:], torch.nn.Linear(1536, 64)
    with torch.no_grad(), batch_invariant(CPU):
        assert torch.equal(linear(tokens[:1]), linear(tokens)[:1])


def test_a_single_token_of_an_image_counts_as_a_row() -> None:
    torch.manual_seed(0)
    tokens, linear = torch.rand(2, 1, 384), torch.nn.Linear(384, 384)
    with batch_invariant(CPU):
        assert torch.equal(linear(tokens[:1]), linear(tokens)[:1])
