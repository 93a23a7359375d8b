"""The layers: their shapes, what they say untrained, and that they can learn images by heart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rankless.geometry.boxes import iou
from rankless.models.heads.anchor_free.codec import AnchorFreeHead, decode
from rankless.models.heads.anchor_free.layers import CLASS_PRIOR, SIZE_PRIOR, AnchorFreeHeadLayers
from rankless.models.heads.anchor_free.loss import AnchorFreeLoss
from rankless.models.layers import ConvBlock
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch
from support.thorough import THOROUGH


@pytest.mark.parametrize(("bins", "outputs"), [(0, 9), (12, 53)])
def test_the_output_is_the_heads(bins, outputs):
    layers = AnchorFreeHeadLayers(24, 5, bins, hidden=16, depth=1)
    assert layers(torch.randn(2, 24, 3, 4)).shape == (2, outputs, 3, 4)
    assert AnchorFreeHead(8, bins).outputs(5) == outputs


def test_branches_are_no_wider_than_what_they_read():
    assert AnchorFreeHeadLayers(24, 5).box.in_channels == 24
    assert AnchorFreeHeadLayers(512, 5).box.in_channels == 64
    assert AnchorFreeHeadLayers(24, 5, hidden=40).classes.in_channels == 40


def test_the_branches_share_the_stem_alone():
    layers = AnchorFreeHeadLayers(8, 2, hidden=8, depth=2)
    layers(torch.randn(2, 8, 4, 4))[:, :4].square().sum().backward()
    assert layers.stem.conv.weight.grad.any()
    assert all(parameter.grad.any() for parameter in layers.box.parameters())
    assert not any(parameter.grad.any() for parameter in layers.class_branch.parameters())


@pytest.mark.parametrize(("bins", "tolerance"), [(0, 1e-6), (64, 1e-6), (16, 0.06)])
def test_untrained_it_says_hardly_anything_and_boxes_of_three_cells(bins, tolerance):
    layers = AnchorFreeHeadLayers(8, 3, bins)
    for last in (layers.box, layers.classes):
        nn.init.zeros_(last.weight)
    boxes, _, logits = decode(layers(torch.randn(1, 8, 2, 2)), AnchorFreeHead(16, bins))
    assert logits.sigmoid().flatten().tolist() == pytest.approx([CLASS_PRIOR] * 12)
    sides = (boxes[..., 2:] - boxes[..., :2]) / 16
    assert sides.flatten().tolist() == pytest.approx([SIZE_PRIOR] * 8, rel=tolerance + 1e-5)


def test_dropout_drops_whole_channels_in_training_only():
    layers = AnchorFreeHeadLayers(8, 2, dropout=0.5)
    x = torch.randn(2, 8, 4, 4)
    assert not torch.equal(layers(x), layers(x))
    layers.eval()
    assert torch.equal(layers(x), layers(x))


# --- four images learnt by heart ------------------------------------------------------------------------

SPOTS = [
    [(4, 6, 24, 22), (30, 30, 60, 58), (40, 8, 46, 14)],
    [(10, 10, 50, 40), (2, 50, 10, 60), (52, 50, 62, 63)],
    [(0, 0, 20, 30), (25, 5, 60, 20), (30, 40, 50, 60)],
    [(8, 20, 16, 60), (30, 10, 36, 16), (40, 30, 64, 64)],
]


def rectangles():
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 0.3
    boxes = torch.tensor(SPOTS, dtype=torch.float32)
    labels = torch.tensor([[(b + t) % 2 for t in range(3)] for b in range(4)])
    for b, spots in enumerate(SPOTS):
        for (x1, y1, x2, y2), label in zip(spots, labels[b].tolist(), strict=True):
            images[b, label, y1:y2, x1:x2] = 1
    valid = torch.ones(4, 3, dtype=torch.bool)
    return images, DetectionBatch(images.mul(255).byte(), boxes, labels, valid, [0, 1, 2, 3], [])


class Net(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.fine = nn.Sequential(ConvBlock(3, 16, 3, 2), ConvBlock(16, 32, 3, 2), ConvBlock(32, 32, 3, 2))
        self.coarse = ConvBlock(32, 32, 3, 2)
        self.heads = nn.ModuleList(AnchorFreeHeadLayers(32, 2, bins, depth=1) for _ in range(2))

    def forward(self, x):
        fine = self.fine(x)
        return [self.heads[0](fine), self.heads[1](self.coarse(fine))]


@pytest.mark.slow
@pytest.mark.parametrize(("assign", "bins"), [("task-aligned", 12), ("simota", 0)][: 1 + THOROUGH])
def test_learns_four_images_by_heart(assign, bins):
    images, batch = rectangles()
    torch.manual_seed(1)
    net, heads = Net(bins), (AnchorFreeHead(8, bins), AnchorFreeHead(16, bins))
    loss = AnchorFreeLoss(loss_kinds.AnchorFreeLoss(assign=assign))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    calm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (180 - step) / 60))
    for _ in range(180):
        found = loss(net(images), heads, batch)
        optimizer.zero_grad()
        (found.sum / found.count).backward()
        optimizer.step()
        calm.step()  # whatever the rounding, the boxes come to rest
    with torch.no_grad():
        decoded = [decode(raw, head) for raw, head in zip(net(images), heads, strict=True)]
    boxes = torch.cat([place.flatten(1, 2) for place, _, _ in decoded], 1)
    scores = torch.cat([logits.flatten(1, 2) for _, _, logits in decoded], 1).sigmoid()
    for b in range(4):
        for truth, label in zip(batch.boxes[b], batch.labels[b].tolist(), strict=True):
            overlap = iou(boxes[b], truth)
            # Of the boxes that lie on this truth the one that is surest.
            best = (scores[b, :, label] * (overlap > 0.5)).argmax()
            # Also the squares of 6 pixels, under cells of 8.
            assert overlap[best] > 0.8, (truth.tolist(), overlap[best].item())
            assert scores[b, best, label] > 0.5
            assert math.isclose(scores[b, best, label], overlap[best], abs_tol=0.25)
