"""Use a map-style torch data set as the data of a task.

Transforms use global random generators, whose state depends on earlier items and therefore on ranks and
loader processes. This module seeds the generators for every item with the recipe's seed, the epoch and the
index.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from rankless.errors import UserError
from rankless.randomness import GENERATORS, kept_generators, key, seed_generators, words

_DEEPEST, _LONGEST, _MOST = 8, 64, 10_000
"""Limits of the search for generators: depth, items per list, and total number of objects."""


@contextmanager
def seeded(seed: int, epoch: int, index: int, *generators: Any) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch for one item, as a context manager.

    Random numbers inside the context depend only on (seed, epoch, index). The states of the three global
    generators are restored on exit.

    Args:
        seed: the recipe's seed.
        epoch: the epoch, from 0.
        index: the index of the item.
        generators: additional generators to seed without restoring them: ``random.Random``,
            ``numpy.random.Generator`` and ``RandomState``, ``torch.Generator``, and objects with
            ``set_random_state(generator, random)`` or ``set_random_seed(seed)``, such as Albumentations
            transforms.
    """
    with GENERATORS, kept_generators():
        seed_generators(seed, "item", epoch, index)
        for number, generator in enumerate(generators):
            _seed(generator, key(seed, "item", epoch, index, number))
        yield


def _seed(generator: Any, number: int) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(number).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(words(number))
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(number % 2**63)
    elif callable(to_state := getattr(generator, "set_random_state", None)):
        # set_random_seed would mix the seed with the number of the loader process.
        to_state(np.random.default_rng(number), random.Random(number))
    elif callable(to_seed := getattr(generator, "set_random_seed", None)):
        to_seed(number % 2**32)
    else:
        generator.seed(number)


def from_dataset(dataset: Any, *, seed: int, digest: str | None = None) -> FromDataset:
    """Use a map-style torch data set as the training or evaluation data of a task.

    Every item is loaded inside :func:`seeded`, which also seeds generators found in the data set's attributes
    and transforms. Other sources of randomness and state kept between items are not supported. To detect
    them, the first item is loaded twice, and the results must be equal.

    Args:
        dataset: an object with ``__len__`` and ``__getitem__``. Loader processes require it to be picklable.
        seed: the recipe's seed.
        digest: a text that identifies the data. Resuming a run with a different digest is reported.

    Returns:
        A :class:`rankless.Examples`.

    Raises:
        UserError: If the data set is not map-style, is empty, or returns two different first items.
    """
    return FromDataset(dataset, seed, digest)


class FromDataset:
    """Examples from a map-style torch data set; see :func:`from_dataset`.

    Attributes:
        dataset: the data set.
        seed: the recipe's seed.
        digest: a text that identifies the data, or None.
        loader_imports: modules to import in advance for loader processes.
    """

    def __init__(self, dataset: Any, seed: int, digest: str | None) -> None:
        self.dataset, self.seed, self.digest = dataset, seed, digest
        self.loader_imports = frozenset({type(dataset).__module__} - {"__main__"})
        _check(dataset)
        if not _same(self.item(0, 0), self.item(0, 0)):
            raise UserError(
                f"{_name_of(dataset)}: item 0 differs when loaded again with the same seed; expected random "
                "numbers only from Python, NumPy or torch generators, and no state between items; store "
                "other generators as attributes, or seed them with rankless.seeded"
            )

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, index: int, epoch: int) -> Any:
        """Return item ``index`` with the random numbers of the given epoch."""
        with seeded(self.seed, epoch, index, *self._generators):
            return self.dataset[index]

    @cached_property
    def _generators(self) -> list[Any]:
        return list(_generators_in(self.dataset, _DEEPEST, set()))

    def __getstate__(self) -> dict[str, Any]:
        # Other processes have their own copies of the generators.
        return {name: value for name, value in vars(self).items() if name != "_generators"}


def _check(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not all(
        callable(getattr(dataset, name, None)) for name in ("__len__", "__getitem__")
    ):
        raise UserError(
            f"{_name_of(dataset)}: the data set is not map-style; expected __len__ and __getitem__, because "
            "any rank can load any item; make items accessible by index"
        )
    if not len(dataset):
        raise UserError(
            f"{_name_of(dataset)}: the data set is empty; expected at least one item; check its files"
        )


def _name_of(dataset: Any) -> str:
    return f"from_dataset({type(dataset).__name__})"


def _generators_in(value: Any, deepest: int, seen: set[int]) -> Iterator[Any]:
    plain = str | bytes | np.ndarray | torch.Tensor | type | ModuleType
    if id(value) in seen or not deepest or len(seen) > _MOST or isinstance(value, plain):
        return
    seen.add(id(value))
    kinds = random.Random, np.random.Generator, np.random.RandomState, torch.Generator
    own = [getattr(value, name, None) for name in ("set_random_state", "set_random_seed")]
    if isinstance(value, kinds) or any(map(callable, own)):
        yield value  # seeds its own parts
        return
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    attributes = getattr(value, "__dict__", {}) if not callable(getattr(value, "__get__", None)) else {}
    for each in itertools.chain(itertools.islice(inner, _LONGEST), attributes.values()):
        yield from _generators_in(each, deepest - 1, seen)


def _same(one: Any, other: Any) -> bool:
    """Return whether two items are equal. Values that cannot be compared count as equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        without_nan = [torch.nan_to_num(each) if each.is_floating_point() else each for each in (one, other)]
        return one.dtype == other.dtype and torch.equal(*without_nan)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float | int | str | bytes) or hasattr(one, "tobytes"):
        return bool(one == other) or one != one
    return True
