"""Use a map-style torch data set as the data of a task.

Transforms use global random generators, whose state depends on earlier items and therefore on ranks and
loader processes. This module seeds the generators for every item with the recipe's seed, the epoch and the
index.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from types import BuiltinMethodType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from rankless.errors import UserError
from rankless.randomness import GENERATORS, kept_generators, key, seed_generators, words

_DEEPEST, _LONGEST, _MOST = 8, 64, 10_000
"""Limits of the search for generators: depth, items per list, and total number of objects."""
_READ_TWICE = 8
"""Number of items that are loaded twice, spread over the data set."""
_GLOBAL: Any = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]


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
    them, eight items are loaded twice, in reverse order the second time, and the results must be equal.

    Args:
        dataset: an object with ``__len__`` and ``__getitem__``. Loader processes require it to be picklable.
        seed: the recipe's seed.
        digest: a text that identifies the data. Resuming a run with a different digest is reported.

    Returns:
        A :class:`rankless.Examples`.

    Raises:
        UserError: If the data set is not map-style, is empty, or returns two different items for an index.
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
        some = sorted({number * len(dataset) // _READ_TWICE for number in range(_READ_TWICE)})
        items = {index: self.item(index, 0) for index in some}
        if differing := [index for index in reversed(some) if not _same(items[index], self.item(index, 0))]:
            raise UserError(
                f"{_name_of(dataset)}: item {differing[-1]} differs when loaded again with the same seed; "
                "expected random numbers only from Python, NumPy or torch generators, and no state between "
                "items; store other generators as attributes, or seed them with rankless.seeded"
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
    if any(value is one for one in _GLOBAL):  # of the bound method random.random
        return
    seen.add(id(value))
    kinds = random.Random, np.random.Generator, np.random.RandomState, torch.Generator
    own = [getattr(value, name, None) for name in ("set_random_state", "set_random_seed")]
    if isinstance(value, kinds) or any(map(callable, own)):
        yield value  # seeds its own parts
        return
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in itertools.chain(itertools.islice(inner, _LONGEST), _attributes(value)):
        yield from _generators_in(each, deepest - 1, seen)


def _attributes(value: Any) -> Iterator[Any]:
    """Yield the values of attributes and slots, and what a function, bound method or partial contains."""
    if isinstance(value, FunctionType):
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # of a variable without a value
                yield cell.cell_contents
        return
    if not callable(getattr(value, "__get__", None)):
        yield from getattr(value, "__dict__", {}).values()
    if isinstance(value, BuiltinMethodType):  # such as random.Random(1).random
        yield value.__self__
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType):  # also those of bound methods and partials
                yield getattr(value, name, None)


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
