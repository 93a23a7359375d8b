"""The YOLO networks that were published as Darknet cfg files, layer by layer.

Layers have the same numbers as in the cfg files, so that published weights fit. Sources: cfg/ in pjreddie's
Darknet (yolov3, yolov3-spp, yolov3-tiny) and in AlexeyAB's (the yolov4 family).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankless.models.darknet.network import Builder, Network, Upsample, Yolo
from rankless.models.heads.yolo.codec import HeadLoss

COCO_CLASSES = 80
_YOLOV3_ANCHORS = (
    (10, 13), (16, 30), (33, 23), (30, 61), (62, 45), (59, 119), (116, 90), (156, 198), (373, 326),
)  # fmt: skip
_YOLOV4_ANCHORS = (
    (12, 16), (19, 36), (40, 28), (36, 75), (76, 55), (72, 146), (142, 110), (192, 243), (459, 401),
)  # fmt: skip
_TINY_ANCHORS = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))
_FINE, _MIDDLE, _COARSE = (0, 1, 2), (3, 4, 5), (6, 7, 8)
_YOLOV3_LOSS = HeadLoss(box_loss="mse", box=1.0, objectness=1.0, classes=1.0, ignore=0.7)
_TINY_LOSS = replace(_YOLOV3_LOSS, box_loss="ciou", box=0.07)
_YOLOV4_LOSS = replace(_TINY_LOSS, largest_gradient=5.0)


def yolov3(*, spp: bool = False) -> Network:
    """Build YOLOv3 (Redmon and Farhadi, 2018), with spatial pyramid pooling if ``spp`` is true."""
    b = Builder()
    taps = _darknet53(b)
    backbone = len(b.layers)
    b.convs(512, 1024, 512)
    if spp:
        _spatial_pyramid(b)
        b.conv(512)
    b.conv(1024, 3)
    neck = b.conv(512)
    b.head(1024, Yolo(_YOLOV3_ANCHORS, _COARSE, loss=_YOLOV3_LOSS), COCO_CLASSES)
    for channels, mask in ((256, _MIDDLE), (128, _FINE)):
        b.route(neck)
        b.conv(channels)
        b.route(b.add(Upsample()), taps.pop())
        neck = b.convs(channels, 2 * channels, channels, 2 * channels, channels)
        b.head(2 * channels, Yolo(_YOLOV3_ANCHORS, mask, loss=_YOLOV3_LOSS), COCO_CLASSES)
    return b.network(608 if spp else 416, backbone, COCO_CLASSES, "yolov3")


def yolov3_tiny() -> Network:
    """Build YOLOv3-tiny: a chain of convolutions and max pooling with two heads."""
    b = Builder()
    b.conv(16, 3)
    tap = 0
    for channels in (32, 64, 128, 256, 512):
        b.pool(2, 2)
        b.conv(channels, 3)
        tap = b.last if channels == 256 else tap
    b.pool(2, 1)
    b.conv(1024, 3)
    backbone = len(b.layers)
    neck = b.conv(256)
    b.head(512, Yolo(_TINY_ANCHORS, (3, 4, 5), loss=_YOLOV3_LOSS), COCO_CLASSES)
    b.route(neck)
    b.conv(128)
    b.route(b.add(Upsample()), tap)
    b.head(256, Yolo(_TINY_ANCHORS, (0, 1, 2), loss=_YOLOV3_LOSS), COCO_CLASSES)
    return b.network(416, backbone, COCO_CLASSES, "yolov3")


def yolov4() -> Network:
    """Build YOLOv4 (Bochkovskiy, Wang and Liao, 2020): CSPDarknet-53, SPP and a path aggregation network."""

    def yolo(mask: tuple[int, ...], scale: float) -> Yolo:
        return Yolo(_YOLOV4_ANCHORS, mask, scale_xy=scale, anchor_iou=0.213, loss=_YOLOV4_LOSS)

    b = Builder("mish")
    b.conv(32, 3)
    _csp_stage(b, 64, 1, squeezes=True)
    taps = [_csp_stage(b, channels, blocks) for channels, blocks in ((128, 2), (256, 8), (512, 8), (1024, 4))]
    backbone = len(b.layers)
    b.activation = "leaky"
    b.convs(512, 1024, 512)
    _spatial_pyramid(b)
    coarse = b.convs(512, 1024, 512)
    middle = _lateral(b, coarse, taps[2], 256)
    fine = _lateral(b, middle, taps[1], 128)
    b.head(256, yolo(_FINE, 1.2), COCO_CLASSES)
    for channels, mask, scale, lateral in ((256, _MIDDLE, 1.1, middle), (512, _COARSE, 1.05, coarse)):
        b.route(fine)
        b.route(b.conv(channels, 3, 2), lateral)
        fine = b.convs(channels, 2 * channels, channels, 2 * channels, channels)
        b.head(2 * channels, yolo(mask, scale), COCO_CLASSES)
    return b.network(608, backbone, COCO_CLASSES, "yolov4")


def yolov4_tiny(*, strides: tuple[int, ...] = (32, 16)) -> Network:
    """Build YOLOv4-tiny, with a head at each of the ``strides``, coarsest first.

    (32, 16) is the published network, whose anchor 3 belongs to both heads, and anchor 0 to neither. (32, 16,
    8) is YOLOv4-tiny-3l, with YOLOv4's anchors. (16, 8) has neither the published stage with a stride of 32
    nor the first head.
    """
    b = Builder()
    b.conv(32, 3, 2)
    b.conv(64, 3, 2)
    taps: list[int] = []
    for channels in (64, 128, 256):
        if taps:
            b.pool(2, 2)
        taps.append(_split_block(b, channels))
    if strides[0] == 32:
        b.pool(2, 2)
        b.conv(512, 3)
    else:
        taps.pop()  # the neck begins with this block
    backbone = len(b.layers)
    published = strides == (32, 16)
    anchors = _TINY_ANCHORS if published else _YOLOV4_ANCHORS
    masks = {32: (3, 4, 5), 16: (1, 2, 3)} if published else {32: _COARSE, 16: _MIDDLE, 8: _FINE}
    below = b.conv(256)
    for level, stride in enumerate(strides):
        channels = 16 * stride
        if level:
            b.route(below)
            b.conv(channels // 2)
            b.route(b.add(Upsample()), taps.pop())
        yolo = Yolo(anchors, masks[stride], scale_xy=1.05, loss=_TINY_LOSS)
        b.head(channels, yolo, COCO_CLASSES)
        # The third level starts from the second head's 3×3 convolution.
        below = below if level == 0 else b.last - 2
    return b.network(416 if published else 608, backbone, COCO_CLASSES, "yolov4")


def scaled_yolov4(
    channels: Sequence[int], blocks: Sequence[int], *, depth: int, pyramid_depth: int, side: int
) -> Network:
    """Build YOLOv4-csp or a larger variant of Scaled-YOLOv4 (Wang et al., 2021).

    Args:
        channels: channels of the backbone's five stages.
        blocks: number of residual blocks in each of the last four stages.
        depth: number of pairs of convolutions in each block of the neck.
        pyramid_depth: number of pairs of convolutions after the spatial pyramid pooling.
        side: side length of the published input in pixels.
    """
    b = Builder("mish")
    b.conv(32, 3)
    b.conv(channels[0], 3, 2)
    b.residual(channels[0] // 2, channels[0])
    taps = [_csp_stage(b, count, number) for count, number in zip(channels[1:], blocks, strict=True)]
    backbone = len(b.layers)
    widths = [count // 2 for count in channels[2:]]  # for the fine, the middle and the coarse map
    aside = b.conv(widths[2])
    b.route(taps[3])
    b.convs(widths[2], widths[2], widths[2])
    _spatial_pyramid(b)
    b.convs(*[widths[2]] * (2 * pyramid_depth))
    b.route(b.last, aside)
    maps = [b.conv(widths[2])]
    for width, tap in ((widths[1], taps[2]), (widths[0], taps[1])):
        b.conv(width)
        up = b.add(Upsample())
        b.route(tap)
        b.route(b.conv(width), up)
        maps.append(_csp_neck(b, width, depth))
    heads = ((_FINE, 4.0, 5.0), (_MIDDLE, 1.0, 5.0), (_COARSE, 0.4, 2.0))
    for level, (mask, objectness, limit) in enumerate(heads):
        width = widths[level]
        if level:
            b.route(maps.pop())
            b.conv(width, 3, 2)
            b.route(b.last, maps.pop())
            maps.append(_csp_neck(b, width, depth))
        loss = replace(_YOLOV4_LOSS, box=0.05, objectness=objectness, classes=0.5, largest_gradient=limit)
        loss = replace(loss, smooth_objectness=level > 0)
        yolo = Yolo(_YOLOV4_ANCHORS, mask, scale_xy=2.0, new_coords=True, anchor_iou=0.2, loss=loss)
        b.head(2 * width, yolo, COCO_CLASSES, "logistic")
    return b.network(side, backbone, COCO_CLASSES, "yolov4")


def _darknet53(b: Builder) -> list[int]:
    """Add Darknet-53, and return the numbers of its last layers at strides 8 and 16."""
    b.conv(32, 3)
    ends = []
    for channels, blocks in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        b.conv(channels, 3, 2)
        for _ in range(blocks):
            b.residual(channels // 2, channels)
        ends.append(b.last)
    return ends[2:4]


def _csp_stage(b: Builder, channels: int, blocks: int, *, squeezes: bool = False) -> int:
    """Add a cross-stage partial stage. In YOLOv4's first stage, the blocks squeeze the channels."""
    width = channels if squeezes else channels // 2
    down = b.conv(channels, 3, 2)
    aside = b.conv(width)
    b.route(down)
    b.conv(width)
    for _ in range(blocks):
        b.residual(width // 2 if squeezes else width, width)
    b.route(b.conv(width), aside)
    return b.conv(channels)


def _split_block(b: Builder, channels: int) -> int:
    """Add YOLOv4-tiny's cross-stage partial block, and return the number of the layer that the neck reads."""
    whole = b.conv(channels, 3)
    b.route(whole, groups=2, group=1)
    first = b.conv(channels // 2, 3)
    b.route(b.conv(channels // 2, 3), first)
    merged = b.conv(channels)
    b.route(whole, merged)
    return merged


def _spatial_pyramid(b: Builder) -> None:
    """Add spatial pyramid pooling: max pooling over 13, 9 and 5 pixels, concatenated with the input."""
    entry = b.last
    pooled: list[int] = []
    for size in (5, 9, 13):
        if pooled:
            b.route(entry)
        pooled.append(b.pool(size, 1))
    b.route(*reversed(pooled), entry)


def _lateral(b: Builder, coarser: int, tap: int, channels: int) -> int:
    """Add YOLOv4's top-down step: concatenate the upsampled map with one from the backbone, then convolve."""
    b.conv(channels)
    up = b.add(Upsample())
    b.route(tap)
    b.route(b.conv(channels), up)
    return b.convs(channels, 2 * channels, channels, 2 * channels, channels)


def _csp_neck(b: Builder, width: int, depth: int) -> int:
    entry = b.conv(width)
    aside = b.conv(width)
    b.route(entry)
    b.convs(*[width] * (2 * depth))
    b.route(b.last, aside)
    return b.conv(width)
