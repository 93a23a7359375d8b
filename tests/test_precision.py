"""What ``auto`` means, and what runs in which format."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankless import precision
from rankless.precision import autocast, resolve

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("named", ["fp32", "bf16", "fp16"])
def test_a_named_format_stays(named: precision.Precision) -> None:
    assert resolve(named, CPU) == named == resolve(named, CUDA)


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve("auto", CUDA) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu avx2 avx512_bf16", "bf16"),
        ("flags : amx_bf16 fpu", "bf16"),
        ("flags : fpu avx2 avx512f", "fp32"),
        (None, "fp32"),
    ],
)
def test_auto_on_a_cpu(monkeypatch: pytest.MonkeyPatch, flags: str | None, expected: str) -> None:
    def read_text(path: object) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return flags

    monkeypatch.setattr(precision.Path, "read_text", read_text)
    assert resolve("auto", CPU) == expected


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_forward_pass_is_in_the_format_and_the_weights_are_not(name: str, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4)
    with autocast(name, CPU):
        out = layer(torch.ones(1, 4))
    assert out.dtype == dtype
    out.float().sum().backward()
    assert layer.weight.dtype == torch.float32
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32
    assert layer(torch.ones(1, 4)).dtype == torch.float32
