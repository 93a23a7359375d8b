"""Every way to compute in bf16 keeps away from memory that nobody wrote (conftest.py fills it with NaN)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import rankless
from rankless.curation import model_errors
from rankless.engine.accumulate import make_accumulator
from rankless.engine.evaluate import evaluate
from rankless.engine.statistics import RunningStatistics, batch_norms
from rankless.engine.totals import Flags
from rankless.inference.model_loading import PredictOptions, open_finders
from rankless.inference.predictor import Predictor
from rankless.launch.planning.bare_process import BareLoop
from rankless.launch.planning.bench import steady
from rankless.models.checkpoints import weights
from rankless.recipe.load import load
from rankless.recipe.schema import Batch, Recipe
from rankless.tasks import open_task
from rankless.world.process_group import World, join

CPU = torch.device("cpu")
SMALL = [
    "batch.images=4",
    "batch.micro=2",
    "model.name=resnet20-cifar",
    "model.image_size=16",
    "precision=bf16",
]


class Probe:
    """Computes an unsound convolution (recipe/convolutions.py) in the forward passes of a network."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.Conv2d(16, 32, 3, (1, 2), 1, groups=16).to(memory_format=torch.channels_last)
        image = torch.randn(2, 16, 5, 2).contiguous(memory_format=torch.channels_last)
        self.seen: list[Tensor] = []
        self.expected = layer.double()(image.double()).detach()
        layer.float()

        def compute(*_: object) -> None:  # a function is shared by the copies of a network
            self.seen.append(layer(image).detach())

        self.compute = compute

    def into(self, network: nn.Module) -> nn.Module:
        network.register_forward_pre_hook(self.compute)
        return network

    def check(self) -> None:
        """It was computed, and each time from its operands alone."""
        assert self.seen
        for one in self.seen:
            assert one.dtype == torch.bfloat16
            torch.testing.assert_close(one.double(), self.expected, rtol=0.05, atol=0.05)


@pytest.fixture
def probe() -> Probe:
    return Probe()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def maps(count: int) -> Tensor:
    return torch.randn(count, 16, 1, 1, generator=torch.Generator().manual_seed(1))


def loss(model: nn.Module, batch: Any) -> rankless.LossSum:
    return rankless.LossSum(model(batch[0]).float().square().sum(), len(batch[0]))


def test_the_steps_of_a_loop_of_ones_own(probe: Probe) -> None:
    model = probe.into(network())
    with join() as world:
        data = TensorDataset(maps(8))
        steps = list(rankless.Steps(world, model, loss, data, batch=4, micro=2, precision="bf16").epochs(1))
    assert len(steps) == 2
    probe.check()


class Alone:
    """A task with this network alone."""

    class_names, score_name = (), "score"

    def __init__(self, model: nn.Module) -> None:
        self.network = model

    def __len__(self) -> int:
        return 4

    def model(self) -> nn.Module:
        return self.network

    def training_data(self) -> Alone:
        return self

    evaluation_data = training_data

    def item(self, index: int, epoch: int) -> Tensor:
        return maps(4)[index]

    def collate(self, items: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(items))

    def loss(self, model: nn.Module, batch: Tensor) -> rankless.LossSum:
        return loss(model, (batch,))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return model(batch).float().sum(1).tolist()

    def score(self, predictions: list[float]) -> dict[str, float]:
        return {"score": sum(predictions)}


RECIPE = Recipe(batch=Batch(images=4, micro=2), precision="bf16")


@pytest.mark.parametrize("norms", ["micro", "sync"])
def test_a_training(probe: Probe, norms: Any) -> None:
    task: Any = Alone(probe.into(network()))
    statistics = RunningStatistics(batch_norms(task.network), CPU)
    with join() as world:
        passes = make_accumulator(
            task, task.network.train(), statistics, replace(RECIPE, batch_norm=norms), world
        )
        passes.run(0, iter(maps(4).split(2)), lambda loss: loss, Flags())
    probe.check()


def test_an_evaluation(probe: Probe) -> None:
    task: Any = Alone(probe.into(network()))
    evaluate(task, task.network, RECIPE, World(0, 1, CPU, 0))
    probe.check()


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    recipe = load("digits-classify", SMALL)
    names = tuple(map(str, range(10)))
    path = tmp_path / "w.safetensors"
    task: Any = open_task(recipe, names)
    weights.save(path, task.model().state_dict(), recipe=recipe, class_names=names)
    return path


def test_a_prediction(probe: Probe, classifier: Path) -> None:
    opened = open_finders(classifier, PredictOptions(device="cpu"))
    probe.into(opened.finders[0].model)
    assert len(Predictor(opened).predict(["digits:val:0"])) == 1
    probe.check()


def test_a_search_for_a_models_errors(probe: Probe, classifier: Path) -> None:
    opened = model_errors.open_model(classifier)
    probe.into(opened.model)
    assert model_errors.find_errors(opened).looked_at > 0
    probe.check()


def test_the_plain_loop_of_a_benchmark(probe: Probe) -> None:
    loop = BareLoop(steady(load("digits-classify", SMALL)), CPU)
    probe.into(loop.model)
    loop.step(2, "bf16")
    probe.check()
