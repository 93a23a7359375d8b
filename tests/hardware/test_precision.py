"""What ``auto`` means, and what runs in which format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rankless.errors import UserError
from rankless.hardware.instruction_set import computes_bf16
from rankless.hardware.precision import autocast, resolve, without_layers

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve("auto", CUDA) == expected


def test_auto_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    without = frozenset(["avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"])
    assert computes_bf16(features=without | {"avx512_bf16"})
    for features in (without, frozenset(["avx2"]), frozenset()):
        assert not computes_bf16(features=features)
    assert resolve("auto", CPU) == ("bf16" if computes_bf16() else "fp32")
    assert resolve("auto", CPU, "avx2") == "fp32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # the processor could, oneDNN may not
    assert resolve("auto", CPU) == "fp32"


def test_a_format_that_the_instruction_set_lacks_is_refused() -> None:
    for named in ("bf16", "fp16"):
        assert resolve(named, CPU) == named
        with pytest.raises(UserError, match=f"precision is '{named}', which cpu_isa 'avx2' .*precision=fp32"):
            resolve(named, CPU, "avx2")
        assert resolve(named, CUDA, "avx2") == named
    assert resolve("fp32", CPU, "avx2") == "fp32"


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


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("limited_to", ["native", "avx2"], indirect=True)
def test_functions_between_layers_are_replaced_on_limited_cpus_alone(limited_to: str) -> None:
    with Counting() as counting:
        with without_layers():
            torch.sqrt(torch.ones(1))
        assert (counting.calls > 0) == (limited_to == "avx2")
        torch.sqrt(torch.ones(1))
        assert counting.calls
