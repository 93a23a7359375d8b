"""A torch data set as a task's data: every item is a function of (seed, epoch, index), whoever draws it."""

from __future__ import annotations

import functools
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from torchvision.transforms import v2

import rankless
from rankless.data.torch_dataset import from_dataset, seeded
from rankless.errors import UserError


def draws() -> tuple[Any, ...]:
    return tuple(
        (random.random(), float(np.random.random()), float(torch.rand(())))  # noqa: NPY002
        for _ in range(2)
    )


def test_inside_it_is_seeded_and_outside_nothing_changes():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    plain = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    with seeded(0, 2, 3):
        first = draws()
    assert draws() == plain
    with seeded(0, 2, 3):
        assert draws() == first
    with pytest.raises(KeyError), seeded(0, 2, 3):
        assert draws() == first
        raise KeyError
    others = []
    for key in ((1, 2, 3), (0, 3, 2), (0, 2, 4), (0, 1, 3)):
        with seeded(*key):
            others.append(draws())
    assert len({first, *others}) == 5


def test_no_two_generators_draw_the_same_numbers():
    with seeded(0, 2, 3):
        python = [random.random() for _ in range(1000)]
        numpy = np.random.random(1000)  # noqa: NPY002
        torch_ = torch.rand(1000, dtype=torch.float64).numpy()
    correlations = np.corrcoef([python, numpy, torch_])
    assert np.abs(correlations - np.eye(3)).max() < 0.15  # 5 standard deviations


class Own:
    def __init__(self) -> None:
        self.python, self.numpy = random.Random(1), np.random.default_rng(1)
        self.state, self.torch = np.random.RandomState(1), torch.Generator()

    def __call__(self) -> tuple[Any, ...]:
        return (
            self.python.random(),
            float(self.numpy.random()),
            float(self.state.random_sample()),
            float(torch.rand((), generator=self.torch)),
        )


class Draws(Dataset[Any]):
    def __init__(self, **more: Any) -> None:
        self.own, self.more = Own(), more
        self.both = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(8), v2.ColorJitter(0.5)])

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        image = torch.arange(3 * 12 * 12, dtype=torch.float32).view(3, 12, 12) / 432
        return {"draws": draws(), "own": self.own(), "image": self.both(image), "index": index}


def same(one: Any, other: Any) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


def test_an_item_is_the_same_in_any_order_and_process():
    data = from_dataset(Draws(), seed=3)
    assert len(data) == 5
    items = {(index, epoch): data.item(index, epoch) for index in range(5) for epoch in range(2)}
    for _ in range(7):
        draws()
    other = pickle.loads(pickle.dumps(from_dataset(Draws(), seed=3)))
    for index, epoch in reversed(items):
        found = other.item(index, epoch)
        assert torch.equal(found["image"], items[index, epoch]["image"])
        assert {**found, "image": 0} == {**items[index, epoch], "image": 0}
    assert len({str(item) for item in items.values()}) == 10
    changed = from_dataset(Draws(), seed=4).item(0, 0)
    assert all(changed[name] != items[0, 0][name] for name in ("draws", "own"))


class WithASeed:
    """As Albumentations' transforms: generators of its own, and a method that sets them."""

    def __init__(self, method: str) -> None:
        self.generator = np.random.default_rng()
        setattr(self, method, getattr(self, f"_{method}"))

    def _set_random_seed(self, seed: int) -> None:
        assert 0 <= seed < 2**32
        self.generator = np.random.default_rng(seed)

    def _set_random_state(self, generator: np.random.Generator, python: random.Random) -> None:
        assert 0 <= python.random() < 1
        self.generator = generator

    def draw(self) -> float:
        return float(self.generator.random())


class Holding(Dataset[float]):
    def __init__(self, transform: Any) -> None:
        self.transforms = [{"train": (transform,)}]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return float(self.transforms[0]["train"][0].draw())


@pytest.mark.parametrize("method", ["set_random_seed", "set_random_state"])
def test_a_transform_with_a_seed_of_its_own_is_found(method):
    one, other = (from_dataset(Holding(WithASeed(method)), seed=0) for _ in range(2))
    assert one.item(1, 0) == other.item(1, 0) != one.item(0, 0)


@dataclass(slots=True)
class Slots:
    generator: random.Random

    def draw(self) -> float:
        return self.generator.random()


class Calling(Holding):
    def __getitem__(self, index: int) -> float:
        return float(self.transforms[0]["train"][0]())


def of_argument(generator: Any) -> float:
    return float(generator.random())


def of_closure(generator: Any) -> Callable[[], float]:
    def draw(own: Any = None) -> float:
        return float(generator.random())

    return draw


@pytest.mark.parametrize(
    "of",
    [
        lambda generator: functools.partial(of_argument, generator),
        lambda generator: functools.partial(of_argument, generator=generator),
        lambda generator: Slots(generator).draw,
        lambda generator: generator.random,
        of_closure,
    ],
)
def test_a_generator_is_found_wherever_a_transform_keeps_it(of):
    for generator in (random.Random(1), np.random.default_rng(1)):
        data = from_dataset(Calling(of(generator)), seed=0)
        with seeded(0, 0, 1, generator):
            expected = float(generator.random())
        assert [data.item(index, 0) for index in (1, 0, 1)] == [expected, data.item(0, 0), expected]


def test_the_global_generators_are_seeded_once_even_as_an_attribute():
    for draw in (random.random, np.random.random):
        with seeded(0, 0, 1):
            expected = float(draw())
        assert from_dataset(Calling(draw), seed=0).item(1, 0) == expected


class Hidden(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"noise": [torch.tensor(list(os.urandom(8)), dtype=torch.float32)]}


class Counts(Dataset[int]):
    count = 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count


class Later(Counts):
    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index) if index else 0


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Hidden(), r"from_dataset\(Hidden\): item 0 differs when loaded again"),
        (Counts(), r"from_dataset\(Counts\): item 0 differs when loaded again"),
        (Later(), r"from_dataset\(Later\): item 1 differs when loaded again"),
        (Endless(), r"from_dataset\(Endless\): the data set is not map-style"),
        ([], r"from_dataset\(list\): the data set is empty"),
        (7, r"from_dataset\(int\): the data set is not map-style"),
    ],
)
def test_what_cannot_keep_the_promise_is_refused(dataset, sentence):
    with pytest.raises(UserError, match=sentence):
        from_dataset(dataset, seed=0)


def test_a_list_serves_as_well():
    data = from_dataset([(torch.tensor([float("nan")]), "a"), (torch.ones(1), "b")], seed=0, digest="x")
    assert data.item(1, 5)[1] == "b"
    assert data.digest == "x"


def test_albumentations_keeps_the_promise():
    albumentations = pytest.importorskip("albumentations", reason="albumentations is not installed")

    class Augmented(Holding):
        def __getitem__(self, index: int) -> Any:
            image = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3)
            return self.transforms[0]["train"][0](image=image)["image"]

    def made() -> rankless.Examples:
        both = [albumentations.RandomCrop(8, 8), albumentations.RandomBrightnessContrast(p=0.5)]
        return from_dataset(Augmented(albumentations.Compose(both)), seed=0)

    one, other = made(), made()
    items = [one.item(index, epoch) for index in range(2) for epoch in range(8)]
    found = [other.item(index, epoch) for index in (1, 0) for epoch in range(8)]
    assert all(np.array_equal(a, b) for a, b in zip(items, [*found[8:], *found[:8]], strict=True))
    assert any(not np.array_equal(items[0], item) for item in items)


def train(world: Any, folder: str, workers: int) -> str:
    from rankless.engine import loop
    from rankless.hardware.computing import computes_like
    from rankless.models.weights_files.weights import digest_file
    from rankless.recipe.schema import Recipe
    from rankless.runs.directory import RunDirectory, weights_of
    from rankless.tasks import open_task

    example = Path(__file__).parents[2] / "examples" / "own_dataset.py"
    keys = {"images": 32, "micro": 8}
    recipe = Recipe(
        task=f"{example}:Read", epochs=2, workers=workers, batch=keys, precision="fp32", evaluate={"every": 0}
    )
    task = open_task(recipe)
    data: Any = task.training_data()
    few = data.dataset
    few.images, few.labels = few.images[:40], few.labels[:40]
    assert len({str(few[0]) for _ in range(9)}) > 1  # otherwise, equal weights would prove nothing
    with pytest.MonkeyPatch.context() as patch, computes_like(recipe):
        # Of the class: an attribute of the task's own would be sent to loader processes.
        patch.setattr(type(task), "training_data", lambda self: data)
        assert loop.train(recipe, RunDirectory(Path(folder)), world, resume=False, task=task)
        world.barrier()
    return digest_file(weights_of(Path(folder)))


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_the_weights_are_the_same_on_any_number_of_ranks_and_loader_processes(ranks, tmp_path):
    digests = [ranks(size, train, str(tmp_path / f"{size}"), 2 * (size == 1)) for size in (1, 2)]
    assert len({digest for found in digests for digest in found}) == 1
