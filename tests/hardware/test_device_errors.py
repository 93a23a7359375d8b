"""An invalid index on a GPU is reported at once; a damaged GPU is not, because a restart may help."""

from __future__ import annotations

import pytest
import torch

from rankless.hardware.device_errors import device_error

MORE = "\nCUDA kernel errors might be asynchronously reported at some other API call."


@pytest.mark.parametrize(
    "first",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
    ],
)
def test_an_invalid_index_is_a_sentence_with_the_line_of_code(first: str):
    with pytest.raises(torch.AcceleratorError) as caught:
        raise torch.AcceleratorError(first + MORE)
    found = str(device_error(caught.value))
    assert found.startswith(f"{first} (noticed at {__file__}:")
    assert "class id" in found and "asynchronously" not in found


@pytest.mark.parametrize(
    "text", ["CUDA error: uncorrectable ECC error encountered", "CUDA error: unspecified launch failure", ""]
)
def test_other_errors_are_left_to_a_restart(text: str):
    assert device_error(torch.AcceleratorError(text + MORE)) is None
