"""Settings of PyTorch follow the recipe inside, and are what they were outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.backends import cuda, cudnn, mkldnn

from rankless.hardware.computing import computes_like
from rankless.recipe.schema import Recipe

ON_CUDA = (cuda.matmul, cudnn.conv, cudnn.rnn)
ON_CPU = (mkldnn.matmul, mkldnn.conv, mkldnn.rnn)


def settings() -> list[object]:
    return [place.fp32_precision for place in (*ON_CUDA, *ON_CPU)]


@pytest.fixture(params=["untouched", "tf32 by the older switches", "tf32 everywhere"])
def before(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a task's module, or a library that it imports, may have set."""
    if request.param == "tf32 by the older switches":
        cuda.matmul.allow_tf32 = cudnn.allow_tf32 = True
    if request.param == "tf32 everywhere":
        torch.backends.fp32_precision = "tf32"
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_float32_is_ieee_with_any_earlier_settings(precision: str, before: None) -> None:
    outside = settings()
    with computes_like(Recipe(precision=precision)):  # type: ignore[arg-type]
        assert settings() == ["ieee"] * 6
        # The older names are still read by libraries, and must not raise an error.
        assert not cuda.matmul.allow_tf32 and not cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
    assert settings() == outside


def test_tf32_is_for_gpus_alone(before: None) -> None:
    outside = settings()
    with computes_like(Recipe(precision="tf32")):
        assert settings() == ["tf32"] * 3 + ["ieee"] * 3
        assert cuda.matmul.allow_tf32 and cudnn.allow_tf32
    assert settings() == outside


def test_what_is_set_by_both_kinds_of_switches_is_overruled() -> None:
    cudnn.allow_tf32 = True
    cudnn.conv.fp32_precision = "ieee"  # reading cudnn.allow_tf32 is an error from here on
    with computes_like(Recipe(precision="fp32")):
        assert settings() == ["ieee"] * 6 and not cudnn.allow_tf32
    cudnn.allow_tf32 = True
