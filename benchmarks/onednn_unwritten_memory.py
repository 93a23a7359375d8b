"""Find the bf16 and fp16 convolutions of oneDNN that read unwritten memory; for a report upstream.

The script needs only PyTorch and glibc. Every block that malloc returns is filled with NaN, so a NaN in a
result comes from unwritten memory. conv3d ends with glibc's message on corrupted memory.

    python benchmarks/onednn_unwritten_memory.py [conv1d conv2d conv3d conv_transpose2d ...]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
from collections import defaultdict
from typing import Any

import torch
from torch.nn import functional

M_PERTURB = -6  # <malloc.h>: new blocks are filled with the complement of its low byte
Sides = tuple[int, ...]


def unsound(
    make: str, dtype: torch.dtype, shape: Sides, kernel: int, options: dict[str, Any], out: int
) -> str:
    """Return which of output, input gradient and weight gradient hold a NaN."""
    dimensions, channels, groups = len(shape), 16, options["groups"]
    transposed = "transpose" in make
    first, second = (channels, out // groups) if transposed else (out, channels // groups)
    torch.manual_seed(0)
    memory = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dimensions, torch.contiguous_format)
    image = torch.randn(2, channels, *shape, dtype=dtype).contiguous(memory_format=memory).requires_grad_()
    weight = torch.randn(first, second, *[kernel] * dimensions, dtype=dtype).contiguous(memory_format=memory)
    weight.requires_grad_()
    try:
        made = getattr(functional, make)(image, weight, None, **options)
    except RuntimeError:  # the kernel is larger than the padded input
        return ""
    found = ["output"] if made.isnan().any() else []
    made.backward(torch.ones_like(made))
    found += ["input gradient"] if image.grad.isnan().any() else []
    found += ["weight gradient"] if weight.grad.isnan().any() else []
    return ", ".join(found)


def main() -> None:
    """Read the command line and print the unsound combinations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["conv2d", "conv_transpose2d"])
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_PERTURB, 0x100)
    print(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    for make, dtype in itertools.product(parser.parse_args().kinds, (torch.bfloat16, torch.float16)):
        for groups, out in ((1, 16), (1, 3), (16, 16), (16, 32), (4, 16)):
            sweep(make, dtype, groups, out)


def sweep(make: str, dtype: torch.dtype, groups: int, out: int) -> None:
    """Try kernels, strides, paddings, dilations and maps, and print the unsound combinations."""
    dimensions = int(make[-2])
    sides = (1, 2, 4) if dimensions == 3 else (1, 2, 3, 5)
    strides = [(s,) * dimensions for s in (1, 2, 3, 4)] + [(1,) * (dimensions - 1) + (2,)] * (dimensions > 1)
    found, tried = defaultdict(list), 0
    for kernel, stride, padding, dilation in itertools.product((1, 2, 3, 5), strides, (0, 1, 2), (1, 2)):
        if padding > kernel // 2 * dilation:
            continue
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        for shape in itertools.product(sides, repeat=dimensions):
            tried += 1
            if nan := unsound(make, dtype, shape, kernel, options, out):
                what = f"{nan}: kernel {kernel} stride {stride} padding {padding} dilation {dilation}"
                found[what].append(shape)
    count = sum(map(len, found.values()))
    print(f"{make} {dtype} groups {groups} of 16 → {out} channels: {count} of {tried} unsound", flush=True)
    for what, shapes in found.items():
        print(f"  {what}: {shapes}")


if __name__ == "__main__":
    main()
