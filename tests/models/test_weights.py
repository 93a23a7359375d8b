"""Weights files: what is saved comes back, in equal bytes; what is broken is a clear error."""

from __future__ import annotations

import binascii
import hashlib
import json
import struct
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from rankless.errors import UserError
from rankless.models.weights_files import tensor_file, weights
from rankless.recipe.schema import Model, Recipe

RECIPE = Recipe(model=Model(image_size=(192, 320)), seed=5)
NAMES = ("Katze", "犬", 'a "quoted" name')
EXTRA = {"step": "12", "kind": "ema"}


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    wide = torch.randn(6, 4)
    return {
        "stem.weight": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
        "view.transposed": wide.T,
        "view.part": wide[1:3],
        "same.memory": wide,
        "half": torch.randn(5).bfloat16(),
        "norm.num_batches_tracked": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights.save(tmp_path / "w.safetensors", state(), recipe=RECIPE, class_names=NAMES, extra=EXTRA)
    return tmp_path / "w.safetensors"


def test_everything_comes_back(path):
    loaded = weights.load(path)
    assert (loaded.recipe, loaded.class_names, loaded.extra) == (RECIPE, NAMES, EXTRA)
    assert loaded.state.keys() == state().keys()
    for name, tensor in state().items():
        assert loaded.state[name].dtype == tensor.dtype and torch.equal(loaded.state[name], tensor), name


def test_the_library_reads_the_file_alone(path):
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "rankless 1"
        assert json.loads(file.metadata()["class_names"]) == list(NAMES)
        assert torch.equal(file.get_tensor("view.transposed"), state()["view.transposed"])


@pytest.mark.processes
def test_equal_weights_give_equal_bytes_in_other_processes(path):
    # Another process has other hash seeds, the library's included.
    program = (
        "import sys; from pathlib import Path; from rankless.models.weights_files import weights\n"
        "w = weights.load(Path(sys.argv[1]))\n"
        "state = dict(reversed(w.state.items()))\n"
        "extra = {'step': '12', 'kind': 'ema'}\n"
        "weights.save(Path(sys.argv[2]), state, recipe=w.recipe, class_names=w.class_names, extra=extra)\n"
        "extra = {'kind': 'ema', 'step': '12'}\n"
        "weights.save(Path(sys.argv[3]), state, recipe=w.recipe, class_names=w.class_names, extra=extra)"
    )
    again, turned = path.with_name("again.safetensors"), path.with_name("turned.safetensors")
    subprocess.run([sys.executable, "-c", program, path, again, turned], check=True, timeout=120)
    assert again.read_bytes() == turned.read_bytes() == path.read_bytes()


def summed(path: Path, key: str, checksum: Callable[[bytes], str]) -> bytes:
    """The file with the checksum ``key`` in place of its own, as another program would write it."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header["__metadata__"].pop("crc32")

    def encoded() -> bytes:
        return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    header["__metadata__"][key] = checksum(encoded() + data)
    padded = encoded() + b" " * (-len(encoded()) % 8)
    return struct.pack("<Q", len(padded)) + padded + data


def test_the_checksum_in_the_header_by_hand(path):
    assert summed(path, "crc32", lambda content: f"{binascii.crc32(content):08x}") == path.read_bytes()


def test_a_flipped_bit_is_found(path):
    whole = path.read_bytes()
    loaded = weights.load(path)
    assert loaded.extra == EXTRA and torch.equal(loaded.state["same.memory"], state()["same.memory"])
    for at in range(len(whole) - 1, len(whole) - 400, -7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(UserError, match="is damaged, or was changed by another program"):
            weights.load(path)


def test_writing_copies_one_tensor_at_a_time(tmp_path, monkeypatch):
    """Where no tensor lies as in the file: a net twice in memory would be too much."""
    alive: list[int] = []
    copies: list[weakref.ref[Any]] = []
    raw = tensor_file.raw

    def counting(tensor: torch.Tensor) -> Any:
        copies.append(weakref.ref(copy := raw(tensor)))
        alive.append(sum(one() is not None for one in copies))
        return copy

    monkeypatch.setattr(tensor_file, "raw", counting)
    tensor_file.write(tmp_path / "w", {str(n): torch.zeros(9, 9).T for n in range(20)})
    assert len(alive) == 20 and max(alive) <= 2  # the one before goes when the next is there


def test_reserved_keys_are_refused(tmp_path):
    with pytest.raises(ValueError, match="recipe"):
        weights.save(tmp_path / "w", {}, recipe=RECIPE, class_names=(), extra={"recipe": ""})


def test_digest_by_hand():
    tensors = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor([[258]], dtype=torch.int16)}
    text = b'["a", "int16", [1, 1]]\n' + b"\x02\x01"
    text += b'["b", "float32", [2]]\n' + struct.pack("<ff", 1, -2)
    assert weights.digest(tensors) == hashlib.sha256(text).hexdigest()
    half = b'["h", "bfloat16", [1]]\n\x80\x3f'  # bf16 is the upper half of 0x3f800000
    assert weights.digest({"h": torch.tensor([1.0]).bfloat16()}) == hashlib.sha256(half).hexdigest()


def test_digest_knows_values_only(path):
    whole = weights.digest(state())
    assert weights.digest(dict(reversed(state().items()))) == whole
    assert weights.digest({name: tensor.contiguous() for name, tensor in state().items()}) == whole
    assert weights.digest_file(path) == whole
    other = path.with_name("other.safetensors")
    weights.save(other, state(), recipe=replace(RECIPE, seed=6), class_names=())
    assert weights.digest_file(other) == whole
    safetensors.torch.save_file({"x": torch.ones(2)}, other)  # without a recipe
    assert weights.digest_file(other) == weights.digest({"x": torch.ones(2)})


@pytest.mark.parametrize("name", state())
def test_digest_sees_a_flipped_bit_a_name_a_shape_and_a_dtype(name):
    whole, changed = weights.digest(state()), state()
    tensor = changed.pop(name).clone(memory_format=torch.contiguous_format)
    if tensor.numel():
        flipped = tensor.clone()
        flipped.view(-1)[-1:].view(torch.uint8)[0] ^= 1
        assert weights.digest(changed | {name: flipped}) != whole
    assert weights.digest(changed | {name + "x": tensor}) != whole
    assert weights.digest(changed | {name: tensor.unsqueeze(0)}) != whole
    other = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.float64}[tensor.element_size()]
    assert weights.digest(changed | {name: tensor.view(other)}) != whole


def test_nothing_is_loaded_if_not_everything_fits():
    model = nn.Linear(2, 3)
    before = weights.digest(model.state_dict())
    with pytest.raises(UserError, match=r"w: .*model.width\n  shape .*: scalar in the file, 3 in"):
        weights.load_into(model, {"weight": torch.zeros(3, 2), "bias": torch.tensor(0.0)}, "w")
    assert weights.digest(model.state_dict()) == before


def test_another_programs_file_is_reported_apart(tmp_path):
    path = tmp_path / "w"
    safetensors.torch.save_file({"x": torch.ones(2)}, path)
    with pytest.raises(UserError, match="no recipe"):
        weights.load(path)
    safetensors.torch.save_file({"x": torch.ones(2)}, path, metadata={"format": "rankless 2"})
    with pytest.raises(UserError, match=r"'rankless 2'.*update"):
        weights.load(path)
    safetensors.torch.save_file({"x": torch.ones(2)}, path, metadata={"format": "rankless 1"})
    with pytest.raises(UserError, match="lacks class_names, recipe"):
        weights.load(path)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("recipe", "{"),
        ("recipe", '{"optim": {"lrr": 1}}'),
        ("class_names", "[1]"),
        ("class_names", "[" * 9999),
    ],
)
def test_altered_metadata_is_reported(tmp_path, key, text):
    metadata = {"format": "rankless 1", "recipe": "{}", "class_names": "[]"} | {key: text}
    safetensors.torch.save_file({"x": torch.ones(2)}, tmp_path / "w", metadata=metadata)
    with pytest.raises(UserError, match=f"w: .*{key}"):
        weights.load(tmp_path / "w")


class Poison:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_never_opened(tmp_path, zipped):
    torch.save({"x": Poison(tmp_path / "ran")}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match="pickle"):
        weights.load(tmp_path / "w.pt")
    assert not (tmp_path / "ran").exists()


def test_missing_directory_and_empty_are_reported(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        weights.load(tmp_path / "none")
    with pytest.raises(UserError, match="directory"):
        weights.load(tmp_path)
    (tmp_path / "w").touch()
    with pytest.raises(UserError, match="it is empty"):
        weights.load(tmp_path / "w")


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match="w: "):
        weights.load(path)
    with pytest.raises(UserError, match="w: "):
        weights.digest_file(path)


fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(content=st.binary(max_size=200))
@example(content=b"")
@example(content=struct.pack("<Q", 2**64 - 1) + b"{}")
@example(content=struct.pack("<Q", 2**40) + b"{}")
@example(content=struct.pack("<Q", 2**60) + b"{}")
@example(content=struct.pack("<Q", 2**63 - 8) + b"{}")
@example(content=struct.pack("<Q", 2**27) + b"{" + b" " * 200)
@example(content=struct.pack("<Q", 20000) + b'{"a":' * 4000)
def test_random_bytes_are_refused(tmp_path, content):
    refused(tmp_path / "w", content)


@fuzz
@given(share=st.floats(0, 1, exclude_max=True))
def test_cut_files_are_refused(path, share):
    content = path.read_bytes()
    refused(path.with_name("cut.w"), content[: int(share * len(content))])
    refused(path.with_name("long.w"), content + b"\0")


@fuzz
@given(
    begin=st.integers(-9, 99),
    end=st.integers(-9, 2**63),
    shape=st.lists(st.integers(-1, 2**40), max_size=4),
    dtype=st.sampled_from(["F32", "F8_E4M3", "F99", "", 3]),
)
@example(begin=0, end=8, shape=[2**62, 4, 2**62], dtype="F32")  # the product overflows 64 bits
@example(begin=0, end=8, shape=[3], dtype="F32")
@example(begin=0, end=8, shape=[-2], dtype="F32")
def test_wrong_headers_are_refused(tmp_path, begin, end, shape, dtype):
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8)
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(UserError):
        weights.load(path)  # at the latest for want of a recipe


@pytest.mark.parametrize(
    ("offsets", "size"),
    [
        ([(0, 8), (4, 12)], 12),  # overlapping
        ([(0, 8), (0, 8)], 8),  # the same
        ([(0, 8), (12, 20)], 20),  # a hole
        ([(0, 8), (8, 16)], 12),  # beyond the end
        ([(0, 8), (2**60, 2**60 + 8)], 16),
        ([(0, 8), (2**64 - 8, 2**64)], 16),
        ([(8, 0), (8, 16)], 16),
        ([(0, 8), (8, 16)], 24),  # bytes of no tensor
    ],
)
def test_tensors_that_do_not_lie_side_by_side_are_refused(path, offsets, size):
    """In a file that is whole in all else, wherever it is read."""
    metadata = tensor_file.metadata_of(path)
    metadata.pop("crc32")
    header = {"__metadata__": metadata}
    for name, place in zip("ab", offsets, strict=True):
        header[name] = {"dtype": "F32", "shape": [2], "data_offsets": list(place)}
    encoded = json.dumps(header).encode()
    other = path.with_name("other.safetensors")
    other.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(size))
    for look in (weights.load, tensor_file.read, weights.digest_file):
        with pytest.raises(UserError, match=r"other\.safetensors: is not a readable weights file"):
            look(other)


@pytest.mark.parametrize("length", [2**27, 2**40, 2**60, 2**63 - 1, 2**64 - 1])
def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path, length):
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", length) + b'{"a":' + b" " * 1000)
    tracemalloc.start()
    try:
        for look in (weights.load, weights.recipe_in, tensor_file.metadata_of):
            with pytest.raises(UserError, match=r"a\.safetensors: is not a readable weights file"):
                look(file)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@fuzz
@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_changed_byte_is_reported_or_changes_values_only(path, at, value):
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] = value
    other = path.with_name("changed")
    other.write_bytes(content)
    try:
        loaded = weights.load(other)
    except UserError as error:
        assert str(error).startswith(str(other))
    else:
        assert len(loaded.state) == len(state())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpus_weights_have_the_same_digest():
    moved = {name: tensor.cuda() for name, tensor in state().items()}
    assert weights.digest(moved) == weights.digest(state())
