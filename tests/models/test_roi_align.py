"""RoIAlign from index selections against torchvision's compiled one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import MultiScaleRoIAlign

from rankless.models.detectors.roi_align import multiscale_roi_align

SIZE = 256


def drawn_boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    """Boxes of all sizes, some of which have no area or reach beyond the image."""
    centers = torch.rand(count, 2, generator=generator, dtype=torch.float64) * (SIZE + 40) - 20
    sides = 2 ** (torch.rand(count, 2, generator=generator, dtype=torch.float64) * 9) - 1
    return torch.cat([centers - sides / 2, centers + sides / 2], 1)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_values_and_gradients_are_those_of_torchvision(seed: int, counts: list[int]):
    generator = torch.Generator().manual_seed(seed)
    boxes = [drawn_boxes(count, generator) for count in counts]
    shapes = [(len(counts), 3, SIZE >> exponent, SIZE >> exponent) for exponent in (2, 3, 4, 5)]
    maps = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ours, theirs = ([one.clone().requires_grad_() for one in maps] for _ in range(2))
    reference = MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=7, sampling_ratio=2)
    wanted = reference(dict(zip("0123", theirs, strict=True)), boxes, [(SIZE, SIZE)] * len(counts))
    found = multiscale_roi_align(ours, boxes, SIZE, 7, 2)
    torch.testing.assert_close(found, wanted)
    if not sum(counts):
        return
    weights = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        expected = torch.zeros_like(one) if other.grad is None else other.grad
        torch.testing.assert_close(one.grad, expected)
