"""Checkpoints as others write them load and compute the same; what is hostile or broken is a sentence."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from rankless.errors import UserError
from rankless.models.weights_files.foreign import read_checkpoint
from rankless.models.weights_files.matching import fit
from support.fuzz.hostile_checkpoints import HARM, STORED, archive, tensor


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        collections.OrderedDict(
            conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4), flat=nn.Flatten(), head=nn.Linear(4 * 36, 5)
        )
    )
    net(torch.randn(4, 3, 8, 8))  # statistics of its own
    return net.eval()


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def loaded(path: Path, key: str | None = None, **options: Any) -> nn.Module:
    model = network(9)
    model.load_state_dict(fit(model.state_dict(), read_checkpoint(path, key).state, **options).state)
    return model


def same(source: nn.Module, model: nn.Module) -> bool:
    with torch.no_grad():
        return torch.equal(source(IMAGES), model(IMAGES))


def renamed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {prefix + name: tensor for name, tensor in state.items()}


def lightning(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "epoch": 3,
        "global_step": 12,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": renamed(state, "model."),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {},
        "optimizer_states": [{"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": []}],
        "lr_schedulers": [{"milestones": collections.Counter({10: 1}), "gamma": 0.1}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "widths": {1, 2}, "raw": b"\x00\xff"},
    }


WRAPPINGS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda net: net.state_dict(),
    "plain dict": lambda net: dict(net.state_dict()),
    "parameters": lambda net: {
        name: nn.Parameter(t) if t.is_floating_point() else t for name, t in net.state_dict().items()
    },
    "model": lambda net: {"epoch": 3, "model": net.state_dict(), "best": 0.5, "done": torch.tensor(1.0)},
    "state_dict": lambda net: {"arch": "resnet18", "model": "resnet18", "state_dict": net.state_dict()},
    "net": lambda net: {"net": net.state_dict(), "acc": 93.1},
    "weights": lambda net: {"weights": net.state_dict()},
    "its own": lambda net: {"my_part": net.state_dict(), "optimizer": {"a": torch.ones(2)}, "step": 1},
    "DataParallel": lambda net: nn.DataParallel(net).state_dict(),
    "DDP": lambda net: {"model": renamed(net.state_dict(), "module.")},
    "compile": lambda net: torch.compile(net).state_dict(),
    "compile in DataParallel": lambda net: nn.DataParallel(torch.compile(net)).state_dict(),
    "DataParallel in compile": lambda net: torch.compile(nn.DataParallel(net)).state_dict(),
    "Lightning": lambda net: lightning(net.state_dict()),
    "Lightning and compile": lambda net: lightning(torch.compile(net).state_dict()),
    "Apex": lambda net: {
        "model": renamed(net.state_dict(), "module."),
        "optimizer": torch.optim.AdamW(net.parameters()).state_dict(),
        "amp": {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 3}},
    },
    "averaged": lambda net: torch.optim.swa_utils.AveragedModel(net).state_dict(),
    "nested": lambda net: {
        "ema": {"module": renamed(net.state_dict(), "module."), "updates": 4},
        "model": {},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "zipped"),
    [*((name, True) for name in WRAPPINGS), *((name, False) for name in ("plain", "Lightning", "Apex"))],
)
def test_wrapped_weights_compute_the_same(tmp_path, name, zipped):
    net = network()
    torch.save(WRAPPINGS[name](net), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    assert same(net, loaded(tmp_path / "w.pt"))


def test_safetensors_compute_the_same(tmp_path):
    net = network()
    safetensors.torch.save_file(renamed(net.state_dict(), "module."), tmp_path / "w")
    assert same(net, loaded(tmp_path / "w"))


def test_the_average_is_preferred_and_the_other_named(tmp_path):
    net, average = network(0), network(1)
    torch.save({"model": net.state_dict(), "ema": average.state_dict()}, tmp_path / "w")
    assert same(average, loaded(tmp_path / "w"))
    facts = " ".join(read_checkpoint(tmp_path / "w").facts)
    assert "under 'ema' (averaged weights)" in facts and "'model'; use --key" in facts
    assert same(net, loaded(tmp_path / "w", key="model"))


def test_a_key_may_lie_deeper_and_have_dots(tmp_path):
    net = network()
    torch.save({"a.b": {"c": {"d": net.state_dict()}}, "model": {"x": torch.ones(1)}}, tmp_path / "w")
    assert same(net, loaded(tmp_path / "w", key="a.b.c.d"))
    for key in ("a", "a.b", "no", "a.b.c.d.e", "a.b.c.d.head.bias", "model.x"):
        with pytest.raises(UserError, match=r"--key .*entries with tensors: model"):
            read_checkpoint(tmp_path / "w", key)


def test_several_sets_of_tensors_must_be_chosen_from(tmp_path):
    part = {"x": torch.ones(2)}
    torch.save({"generator": part, "discriminator": part, "optim": part}, tmp_path / "w")
    with pytest.raises(UserError, match="choose one with --key; entries with tensors: generator, discr"):
        read_checkpoint(tmp_path / "w")
    assert set(read_checkpoint(tmp_path / "w", "generator").state) == {"x"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_other_precisions_become_float32_and_are_reported(tmp_path, dtype):
    state = {"w": torch.tensor([1.5, -0.25]).to(dtype), "n": torch.tensor(7), "flag": torch.tensor(True)}
    torch.save(state, tmp_path / "w")
    found = read_checkpoint(tmp_path / "w")
    assert torch.equal(found.state["w"], torch.tensor([1.5, -0.25]))  # in all of these without rounding
    assert found.state["w"].dtype == torch.float32 and found.state["n"].dtype == torch.int64
    assert f"1 tensor is converted from {str(dtype)[6:]} to float32" in found.facts


def test_tied_and_cut_out_tensors_are_whole(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    torch.save({"a": whole, "b": whole, "c": whole.T, "d": whole[1:, ::2], "e": whole[:0]}, tmp_path / "w")
    state = read_checkpoint(tmp_path / "w").state
    assert torch.equal(state["b"], whole) and torch.equal(state["c"], whole.T)
    assert torch.equal(state["d"], torch.tensor([[4.0, 6.0], [8.0, 10.0]])) and state["e"].shape == (0, 4)


def test_what_is_no_tensor_is_left_out_and_reported(tmp_path):
    torch.save({"w": torch.ones(2), "epoch": 3, "names": ["cat"], 5: torch.ones(1)}, tmp_path / "w")
    found = read_checkpoint(tmp_path / "w")
    assert set(found.state) == {"w"}
    assert found.facts == ["3 entries that are not tensors are skipped: epoch, names, 5"]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_the_options_of_torchvisions_scripts_do_no_harm(tmp_path, zipped):
    """As references/classification/train.py of torchvision saves: args is an argparse.Namespace."""
    net = network()
    options = argparse.Namespace(model="resnet18", lr=0.1, device=torch.device("cpu"), sizes=[1, 2])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    content = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "args": options}
    torch.save(content, tmp_path / "w", _use_new_zipfile_serialization=zipped)
    assert same(net, loaded(tmp_path / "w"))
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


# --- what is refused --------------------------------------------------------------------------------------


class Local:
    pass


def with_method() -> argparse.Namespace:
    """Unpickled, its second attributes would be given to a function of the file's choice."""
    made = argparse.Namespace()
    vars(made)["__setstate__"] = torch._utils._rebuild_tensor_v2
    return made


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "module": (lambda: {"model": network()}, r"torch\.nn\.modules\.container\.Sequential.* and \d+ more"),
    "own class in a namespace": (
        lambda: {"w": torch.ones(1), "args": argparse.Namespace(x=Local())},
        r"loading .*Local could .*torch\.save\(model\.state_dict\(\)",
    ),
    "a namespace with a method": (lambda: {"w": torch.ones(1), "args": with_method()}, "special attributes"),
    "numpy": (lambda: {"w": torch.ones(1), "best": np.float64(1)}, r"numpy\..*scalar"),
    "own class": (lambda: {"w": torch.ones(1), "x": Local()}, r"Local"),
    "sparse": (lambda: {"w": torch.eye(3).to_sparse()}, "sparse"),
    "csr": (lambda: {"w": torch.eye(3).to_sparse_csr()}, "sparse"),
    "meta": (lambda: {"w": torch.ones(3, device="meta")}, "without values"),
    "list": (lambda: [torch.ones(3)], "of type list; expected a state_dict"),
    "tensor": (lambda: torch.ones(3), "of type Tensor; expected a state_dict"),
    "nothing": (lambda: {"epoch": 3, "model": {}}, "no named tensors"),
    "optimizer alone": (lambda: {"optimizer": {"x": torch.ones(2)}}, "no named tensors"),
    "tuple keys": (lambda: {tuple(range(99)): torch.ones(2)}, "a tuple is too long"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plain_weights_is_refused_with_the_reason(tmp_path, name, zipped):
    make, reason = REFUSED[name]
    torch.save(make(), tmp_path / "w", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=reason) as error:
        read_checkpoint(tmp_path / "w")
    assert str(error.value).startswith(f"{tmp_path / 'w'}: ")


@pytest.mark.filterwarnings("ignore")
def test_other_kinds_of_files_are_named(tmp_path):
    path = tmp_path / "w.pt"

    def refusal() -> str:
        with pytest.raises(UserError) as error:
            read_checkpoint(path)
        return str(error.value)

    assert "No such file" in refusal()
    torch.jit.script(nn.Linear(2, 2)).save(path)
    assert "TorchScript" in refusal()
    torch.save({"w": torch.ones(2)}, path, pickle_protocol=4)
    assert "default protocol" in refusal()
    path.write_bytes(pickle.dumps({"w": [1.0]}, protocol=2))
    assert "is a pickle, but not from torch.save" in refusal()
    for text, reason in [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>404</html>", "web page"),
        (b"hello", "not in a known checkpoint format"),
        (b"PK\x05\x06" + bytes(18), "no data.pkl"),
    ]:
        path.write_bytes(text)
        assert reason in refusal()
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    assert "tar format" in refusal()
    path.unlink()
    path.mkdir()
    assert "is a folder" in refusal()
    path.rmdir()
    os.mkfifo(path)
    assert "it is a pipe" in refusal()


# --- what is hostile --------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.command = f"touch {path}"

    def __reduce__(self):
        return os.system, (self.command,)


# Told before PyTorch sees the file, which has ends of its own for some of these.
SEEN = {
    "10^12 elements of four": "a tensor of shape 1000000000000 does not fit into its storage of 16 bytes",
    "a storage of 10^12": "has 16 bytes; expected 4,000,000,000,000",
    "a storage of five": "has 16 bytes; expected 20",
    "a storage that is not there": "is missing",
    "10^12 times the same": "its tensors have 4,000,000,000,000 bytes, but",
    "a key of many levels": "an object of type tuple cannot be a key",
    "hex of hex of hex": "byte string is invalid",
    "a set again and again": "copies more values than it contains",
    "a legacy storage of 10^12": "do not match",
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HARM)
def test_harm_is_a_sentence_and_takes_little_memory(tmp_path, name):
    (tmp_path / "w").write_bytes(HARM[name])
    before = resident()
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            read_checkpoint(tmp_path / "w")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert SEEN.get(name, "") in str(error.value)
    assert str(error.value).isprintable() and len(str(error.value)) < 600
    assert peak < 200 * len(HARM[name]) + 2**20
    assert resident() - before < 2**27


def resident() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_overlapping_records_are_refused(tmp_path):
    content = bytearray(archive(tensor(b"K\x04"), {f"data/{n}": bytes(1000) for n in range(9)}))
    at = content.index(b"PK\x01\x02")
    while (at := content.find(b"PK\x01\x02", at)) >= 0:
        content[at + 20 : at + 28] = (5000).to_bytes(4, "little") * 2
        at += 4
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(UserError, match="larger in total than the file"):
        read_checkpoint(tmp_path / "w")


@pytest.mark.processes
def test_a_bomb_does_not_go_off(tmp_path, forked):
    marker = tmp_path / "ran"
    content = {"model": network().state_dict(), "x": Bomb(marker)}
    torch.save(content, tmp_path / "zip.pt")
    torch.save(content, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(content, protocol=2))
    paths = sorted(tmp_path.glob("*.pt"))
    words = [["import", str(path), "--out", "o", "--model", "yolov4-tiny"] for path in paths]
    code = f"from rankless.cli import main; print([main(words) for words in {words!r}])"
    (tmp_path / "imports.py").write_text(code)
    done = forked("imports.py", cwd=tmp_path)
    assert not marker.exists()
    assert done.stdout == "[2, 2, 2]\n"
    for path, line in zip(paths, done.stderr.splitlines(), strict=True):
        assert line.startswith(f"error: {path}: this file contains more than tensors"), line
        assert "posix.system" in line
    torch.load(paths[0], weights_only=False)
    assert marker.exists()  # it was a bomb


# --- what is broken ---------------------------------------------------------------------------------------

fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def saved(zipped: bool) -> bytes:
    out = io.BytesIO()
    half = torch.tensor([1.0, 2.0]).half()
    content = {"state_dict": network().state_dict(), "half": half, "counts": collections.Counter("ab")}
    torch.save(content, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


SAVED = {True: saved(True), False: saved(False)}


def read_or_refused(path: Path, content: bytes) -> bool:
    """Whether it was read; anything but a sentence fails the test."""
    path.write_bytes(content)
    try:
        state = read_checkpoint(path).state
    except UserError as error:
        assert str(error).startswith(f"{path}: ")
        return False
    assert all(tensor.numel() < 10**6 for tensor in state.values())
    return True


@fuzz
@given(content=st.binary(max_size=60))
@example(content=b"}q\x00.")
def test_random_pickles_are_refused(tmp_path, content):
    assert not read_or_refused(tmp_path / "w", archive(b"\x80\x02" + content, STORED))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_cut_and_lengthened_files_are_refused(tmp_path, zipped):
    content = SAVED[zipped]
    for end in range(0, len(content), 1 + len(content) // 150):
        assert not read_or_refused(tmp_path / "w", content[:end]), end
    if not zipped:  # behind a zip archive there may be a comment
        assert not read_or_refused(tmp_path / "w", content + b"\0")


@fuzz
@given(data=st.data())
def test_changed_pickles_are_read_or_refused(tmp_path, data):
    with zipfile.ZipFile(io.BytesIO(SAVED[True])) as file:
        records = {
            name.partition("/")[2]: file.read(name)
            for name in file.namelist()
            if name.partition("/")[2].startswith(("data", "byteorder"))
        }
    pickled = bytearray(records.pop("data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pickled) - 1))
        pickled[at] = data.draw(st.integers(0, 255))
    read_or_refused(tmp_path / "w", archive(bytes(pickled), records))
