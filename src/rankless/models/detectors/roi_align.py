"""RoIAlign whose backward pass is deterministic on GPUs (He et al., Mask R-CNN, 2017).

On CUDA, torchvision's kernel adds gradients with atomic operations in arbitrary order. If deterministic
algorithms are requested, torchvision compiles another one at run time, which needs a compiler on every
machine. Instead, this module reads the four pixels around each point with ``index_select``, as in
:mod:`rankless.models.detectors.bilinear_sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# A box of this side in pixels is pooled from the level with this number (Lin et al., FPN, 2017, equation 1).
_SIDE, _LEVEL = 224, 4


def multiscale_roi_align(
    maps: Sequence[Tensor], boxes: Sequence[Tensor], height: int, pooled: int, samples: int
) -> Tensor:
    """Pool boxes from the levels of a pyramid, as torchvision's ``MultiScaleRoIAlign`` does.

    Args:
        maps: feature maps, (N, C, H, W), from the finest to the coarsest level, each half as large as the one
            before.
        boxes: xyxy in pixels of the input, (K, 4), for each of the N images. They get no gradient.
        height: height of the input in pixels.
        pooled: number of rows and columns of a pooled box.
        samples: number of points in each row and column of a pooled cell.

    Returns:
        The pooled boxes of all images, (ΣK, C, pooled, pooled).
    """
    channels = maps[0].shape[1]
    cells = torch.cat([one.flatten(2).transpose(1, 2).reshape(-1, channels) for one in maps])  # (ΣN·H·W, C)
    rois = torch.cat(list(boxes))
    finest = -round(math.log2(maps[0].shape[2] / height))  # the stride's exponent
    side = ((rois[:, 2] - rois[:, 0]) * (rois[:, 3] - rois[:, 1])).sqrt()
    level = (_LEVEL + (side / _SIDE).log2() + 1e-6).floor().nan_to_num(finest)
    level = level.clamp(finest, finest + len(maps) - 1)
    rows, columns, starts = (torch.zeros_like(level, dtype=torch.long) for _ in range(3))
    start = 0
    for number, one in enumerate(maps):
        is_here = level == finest + number
        rows, columns = rows.masked_fill(is_here, one.shape[2]), columns.masked_fill(is_here, one.shape[3])
        starts = starts.masked_fill(is_here, start)
        start += one.shape[0] * one.shape[2] * one.shape[3]
    image = torch.cat([torch.full_like(one[:, 0], n, dtype=torch.long) for n, one in enumerate(boxes)])
    starts = starts + image * rows * columns
    scaled = rois * torch.exp2(-level).unsqueeze(1)
    total = cells.new_zeros(())
    for row, for_row in _neighbors(scaled[:, 1], scaled[:, 3], rows, pooled, samples):
        for column, for_column in _neighbors(scaled[:, 0], scaled[:, 2], columns, pooled, samples):
            cell = (starts + row.T * columns).T.unsqueeze(2) + column.unsqueeze(1)  # (ΣK, points, points)
            values = cells.index_select(0, cell.flatten()).view(*cell.shape, channels)
            weighted = values * (for_row.unsqueeze(2) * for_column.unsqueeze(1)).unsqueeze(3)
            total = total + weighted.view(-1, pooled, samples, pooled, samples, channels).sum((2, 4))
    return (total / samples**2).permute(0, 3, 1, 2)


def _neighbors(
    start: Tensor, end: Tensor, length: Tensor, pooled: int, samples: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the pixels before and after each point along one axis, and their weights, (ΣK, points) each.

    ``start`` and ``end`` are the edges of the boxes and ``length`` is the size of the map, (ΣK,).
    """
    size = (end - start).clamp(min=1) / pooled  # of a pooled cell
    steps = (torch.arange(pooled * samples, device=start.device, dtype=start.dtype) + 0.5) / samples
    points = start.unsqueeze(1) + size.unsqueeze(1) * steps
    last = (length - 1).unsqueeze(1)
    is_inside = (points >= -1) & (points <= last + 1)  # others count as zero
    points = points.clamp(min=0).minimum(last.to(points.dtype))
    before = points.floor()
    weight = points - before
    pixel = before.long()
    return [(pixel, (1 - weight) * is_inside), ((pixel + 1).minimum(last), weight * is_inside)]
