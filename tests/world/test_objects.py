"""What ranks send each other comes back bit for bit, and nothing that is sent can run code."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import pickle
import struct
import tracemalloc
from collections import OrderedDict, defaultdict
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor, nn

from rankless.structures import Classification, Unreadable
from rankless.world.objects import UnsendableError, check, pack, unpack
from rankless.world.process_group import World


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Found:
    index: int
    mask: Any
    kept: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class Color(enum.Enum):
    RED = 1


TORCH = [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32]
TORCH += [torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint64]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits, NaNs with payloads among them; not always contiguous."""
    dtype, shape = draw(st.sampled_from(TORCH)), draw(st.lists(st.integers(0, 3), max_size=3))
    raw = draw(st.binary(min_size=(size := math.prod(shape) * dtype.itemsize), max_size=size))
    if dtype == torch.bool:
        raw = bytes(byte % 2 for byte in raw)
    made = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    made = made.reshape(shape)
    if made.dim() > 1 and draw(st.booleans()):
        made = made.transpose(0, 1)
    return made.requires_grad_() if dtype == torch.float32 and draw(st.booleans()) else made


ARRAYS = st.one_of(
    npst.arrays(
        st.one_of(
            npst.boolean_dtypes(),
            npst.integer_dtypes(endianness="?"),
            npst.floating_dtypes(endianness="?"),
            npst.complex_number_dtypes(),
            npst.datetime64_dtypes(),
            npst.unicode_string_dtypes(max_len=3),
        ),
        npst.array_shapes(min_dims=0, min_side=0, max_side=3),
    ),
    npst.floating_dtypes().flatmap(npst.from_dtype).map(np.asarray).map(lambda array: array[()]),
)
FLOATS = st.one_of(
    st.floats(), st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0])
)
TEXTS = st.one_of(st.text(), st.text(st.characters(categories=["Cs"])), st.just("\ud83d\ude00"))
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.tuples(st.integers(), st.binary()))
LEAVES = st.one_of(KEYS, FLOATS, TEXTS, st.binary(), st.binary().map(bytearray), tensors(), ARRAYS)


@st.composite
def values(draw: st.DrawFn) -> Any:
    return draw(NESTED)


NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.dictionaries(KEYS, inner),
        st.builds(Pair, inner, inner),
        st.builds(Found, st.integers(), inner),
        st.builds(Slotted, inner),
        st.builds(lambda sides: torch.Size(sides), st.lists(st.integers(0, 9))),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        return alike and bytes_of(one) == bytes_of(other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return one == other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@given(values())
def test_everything_comes_back_bit_for_bit(value: Any) -> None:
    check(value)
    assert same(unpack(pack(value)), value)


def test_what_is_made_of_it_can_be_written_to_and_goes_on() -> None:
    value = unpack(pack([torch.ones(3), np.ones(3, np.float32), b"x", torch.zeros(2, dtype=torch.float64)]))
    value[0].add_(1)
    value[1] += 1
    value[3].add_(1)
    assert (value[0].tolist(), value[1].tolist(), value[3].tolist()) == ([2.0] * 3, [2.0] * 3, [1.0] * 2)
    assert same(unpack(pack(value)), value)


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        a: int = 1

    return Local()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal(1), "it is a value of type decimal.Decimal"),
        ([{"mask": (1, Decimal(1))}], r"\[0\]\['mask'\]\[1\] is a value of type decimal.Decimal"),
        (Found(1, [0, Pair(1, 2j)]), r"\.mask\[1\]\.right is a value of type complex"),
        (lambda: 0, "it is a value of type function"),
        (Color.RED, "Color"),
        (OrderedDict(), "of type collections.OrderedDict"),
        (defaultdict(list), "of type collections.defaultdict"),
        (torch.ones(1, device="meta"), "a tensor on meta"),
        (torch.eye(2).to_sparse(), r"a tensor of torch.float32, torch.sparse_coo"),
        (nn.Parameter(torch.ones(1)), "of type torch.nn.parameter.Parameter"),
        (np.array([{}]), "a NumPy array of object"),
        (np.zeros(2, [("a", "O")]), "a NumPy array of "),
        (np.ma.masked_array([1]), "of type numpy.ma.*MaskedArray"),
        (local_class(), "of class .*Local, which is not defined at the top level of a module"),
        (Found, "of type type"),
        (OSError(), "of type OSError"),
    ],
)
def test_what_is_not_sent_is_named_with_its_place(value: Any, said: str) -> None:
    for refused in (check, pack):
        with pytest.raises(UnsendableError, match=said):
            refused(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnsendableError, match="contains itself"):
        pack(loop)


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch stranger-was-here",)


def packed(classes: Any, node: Any) -> Tensor:
    head = json.dumps([classes, node]).encode()
    return torch.frombuffer(bytearray(struct.pack("<Q", len(head)) + head), dtype=torch.uint8)


@pytest.mark.parametrize(
    "sent",
    [
        torch.frombuffer(bytearray(pickle.dumps(Trap())), dtype=torch.uint8),
        packed([["os", "system"]], ["object", 0, "touch stranger-was-here"]),
        packed([["subprocess", "Popen", "args"]], ["object", 0, "true"]),
        packed([["antigravity", "anything"]], ["object", 0]),  # importing it would open a browser
        packed([["rankless.structures", "Unreadable.__class__"]], ["object", 0]),
        packed([["rankless.structures", "Detections", "__class__"]], ["object", 0, 1]),
        packed([], ["array", "O", 1]),
        packed([], ["array", "<f4", -1]),
        packed([], ["tensor", "float32", False, 1 << 40]),
        packed([], ["tensor", "__class__", False, 0]),
        packed([], ["eval", "1"]),
        packed([], ["object", 0]),
    ],
)
def test_what_a_stranger_sends_makes_an_error_and_runs_nothing(
    sent: Tensor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, LookupError, TypeError)):
        unpack(sent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_predictions_take_little_more_memory_than_their_bytes() -> None:
    images, classes = 4_000, 1000
    scores = torch.arange(images * classes, dtype=torch.float32).reshape(images, classes)
    predictions = [(index, Classification(index, row)) for index, row in enumerate(scores)]
    tracemalloc.start()
    sent = pack(predictions)
    _, peak = tracemalloc.get_traced_memory()  # of Python's own; the bytes lie in torch's memory
    tracemalloc.stop()
    size = scores.numel() * 4
    assert sent.numel() < 1.05 * size
    assert peak < size
    found = unpack(sent)
    assert sum(row.log_probabilities.untyped_storage().nbytes() for _, row in found) <= sent.numel()
    assert all(torch.equal(row.log_probabilities, scores[at]) for at, (_, row) in enumerate(found))


def exchange(world: World) -> list[Any]:
    """Unequal lengths, NaNs, nothing at all, and several of each in a row."""
    sent = [Unreadable(world.rank, "a" * world.rank, "ü"), torch.full((1000 * world.rank,), float("nan"))]
    gathered = world.gather(sent)
    reported = world.broadcast({"of": world.rank, (1, 2): np.arange(world.rank + 3)})
    world.barrier()
    empty = world.gather(None)
    shapes = [[one, tuple(row.shape), bool(row.isnan().all())] for one, row in gathered or ()]
    return [shapes, reported["of"], reported[1, 2].tolist(), empty]


@pytest.mark.processes
def test_ranks_exchange_objects(ranks: Any) -> None:
    first, *others = ranks(3, exchange)
    shapes = [[Unreadable(rank, "a" * rank, "ü"), (1000 * rank,), True] for rank in range(3)]
    assert first == [shapes, 0, [0, 1, 2], [None] * 3]
    assert others == [[[], 0, [0, 1, 2], None]] * 2
