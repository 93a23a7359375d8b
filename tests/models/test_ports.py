"""Checkpoints of other projects' ports: every name and shape, and raw outputs of an independent forward pass.

The modules here are written from the ports' module names and orders alone; nothing of this project computes
in them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless import cli
from rankless.interop.importing import import_weights
from rankless.models import zoo
from rankless.models.checkpoints import weights
from rankless.models.checkpoints.ports import PORTS
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors import darknet
from rankless.recipe.schema import Model

CLASSES = 3
OUT = 3 * (5 + CLASSES)
STAGES = (1, 2, 8, 8, 4)
Width = Callable[[int], int]


def narrow(channels: int) -> int:
    """Of ``model.width=0.125``."""
    return max(8, 8 * int(channels / 64 + 0.5))


class Two(nn.Module):
    """A convolution, a batch norm and an activation under the names that a port gives them."""

    def __init__(self, a, b, k=1, s=1, *, act="leaky", names=("conv", "bn"), active=True, eps=1e-5):
        super().__init__()
        self.names, self.act, self.active = names, act, active
        self.add_module(names[0], nn.Conv2d(a, b, k, s, k // 2, bias=not active))
        self.add_module(names[1], nn.BatchNorm2d(b, eps=eps))

    def forward(self, x: Tensor) -> Tensor:
        x = getattr(self, self.names[0])(x)
        if not self.active:
            return x
        x = getattr(self, self.names[1])(x)
        return F.mish(x) if self.act == "mish" else F.leaky_relu(x, 0.1)


class Listed(nn.Module):
    """Tianxiaomo's block: a ModuleList called ``conv``."""

    def __init__(self, a, b, k=1, s=1, *, act="leaky", norm=True):
        super().__init__()
        self.act = act if norm else None
        self.conv = nn.ModuleList([nn.Conv2d(a, b, k, s, k // 2, bias=not norm)])
        if norm:
            self.conv.append(nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        for one in self.conv:
            x = one(x)
        if self.act is None:
            return x
        return F.mish(x) if self.act == "mish" else F.leaky_relu(x, 0.1)


def five(block, a: int, b: int, c: int) -> list[nn.Module]:
    return [block(a, b), block(b, c, 3), block(c, b), block(b, c, 3), block(c, b)]


def up(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


def pyramid(x: Tensor) -> Tensor:
    pooled = [F.max_pool2d(x, size, 1, size // 2) for size in (13, 9, 5)]
    return torch.cat([*pooled, x], 1)


class Tianxiaomo(nn.Module):
    def __init__(self, w: Width):
        super().__init__()
        for stage, blocks in enumerate(STAGES, 1):
            part = nn.Module()
            a, b = w(2 ** (4 + stage)), w(2 ** (5 + stage))
            half = w(2 ** (5 + stage) if stage == 1 else 2 ** (4 + stage))
            shapes = [(a, b, 3, 2), (b, half), (b, half)]
            if stage == 1:
                shapes = [(3, a, 3), *shapes, (half, w(32)), (w(32), half, 3), (half, half), (2 * half, b)]
            else:
                shapes += [(half, half), (2 * half, b)]
                part.resblock = nn.Module()
                part.resblock.module_list = nn.ModuleList(
                    nn.ModuleList([Listed(half, half, act="mish"), Listed(half, half, 3, act="mish")])
                    for _ in range(blocks)
                )
            for number, shape in enumerate(shapes, 1):
                part.add_module(f"conv{number}", Listed(*shape, act="mish"))
            self.add_module(f"down{stage}", part)
        c, m, f = w(512), w(256), w(128)
        self.neek = nn.Module()
        neck = [
            (w(1024), c),
            (c, w(1024), 3),
            (w(1024), c),
            (4 * c, c),
            (c, w(1024), 3),
            (w(1024), c),
            (c, m),
        ]
        neck += [(w(512), m), (2 * m, m), (m, c, 3), (c, m), (m, c, 3), (c, m), (m, f)]
        neck += [(w(256), f), (2 * f, f), (f, m, 3), (m, f), (f, m, 3), (m, f)]
        for number, shape in enumerate(neck, 1):
            self.neek.add_module(f"conv{number}", Listed(*shape))
        self.head = nn.Module()
        head = [
            (f, m, 3),
            (m, OUT),
            (f, m, 3, 2),
            (2 * m, m),
            (m, c, 3),
            (c, m),
            (m, c, 3),
            (c, m),
            (m, c, 3),
        ]
        head += [(c, OUT), (m, c, 3, 2), (2 * c, c), (c, w(1024), 3), (w(1024), c), (c, w(1024), 3)]
        head += [(w(1024), c), (c, w(1024), 3), (w(1024), OUT)]
        for number, shape in enumerate(head, 1):
            self.head.add_module(f"conv{number}", Listed(*shape, norm=number not in (2, 10, 18)))

    def forward(self, x: Tensor) -> list[Tensor]:
        d = self.down1
        x = d.conv2(d.conv1(x))
        aside, x = d.conv3(x), d.conv4(x)
        x = d.conv7(x + d.conv6(d.conv5(x)))
        x = d.conv8(torch.cat([x, aside], 1))
        maps = []
        for stage in range(2, 6):
            d = getattr(self, f"down{stage}")
            x = d.conv1(x)
            aside, x = d.conv2(x), d.conv3(x)
            for one, two in d.resblock.module_list:
                x = x + two(one(x))
            x = d.conv5(torch.cat([d.conv4(x), aside], 1))
            maps.append(x)
        n = self.neek
        p5 = n.conv3(n.conv2(n.conv1(x)))
        p5 = n.conv6(n.conv5(n.conv4(pyramid(p5))))
        p4 = torch.cat([n.conv8(maps[2]), up(n.conv7(p5))], 1)
        for number in range(9, 14):
            p4 = getattr(n, f"conv{number}")(p4)
        p3 = torch.cat([n.conv15(maps[1]), up(n.conv14(p4))], 1)
        for number in range(16, 21):
            p3 = getattr(n, f"conv{number}")(p3)
        h = self.head
        outs = [h.conv2(h.conv1(p3))]
        last = p3
        for number, coarser in ((3, p4), (11, p5)):
            x = torch.cat([getattr(h, f"conv{number}")(last), coarser], 1)
            for one in range(number + 1, number + 6):
                x = getattr(h, f"conv{one}")(x)
            last = x
            outs.append(getattr(h, f"conv{number + 7}")(getattr(h, f"conv{number + 6}")(x)))
        return outs


class Bubbliiiing4(nn.Module):
    def __init__(self, w: Width):
        super().__init__()

        def mish(a, b, k=1, s=1):
            return Two(a, b, k, s, act="mish")

        self.backbone = nn.Module()
        self.backbone.conv1 = mish(3, w(32), 3)
        self.backbone.stages = nn.ModuleList()
        for stage, blocks in enumerate(STAGES):
            a, b = w(2 ** (5 + stage)), w(2 ** (6 + stage))
            half, inner = (b, w(32)) if stage == 0 else (w(2 ** (5 + stage)),) * 2
            part = nn.Module()
            part.downsample_conv, part.concat_conv = mish(a, b, 3, 2), mish(2 * half, b)
            part.split_conv0, part.split_conv1 = mish(b, half), mish(b, half)
            residual = []
            for _ in range(blocks):
                one = nn.Module()
                one.block = nn.Sequential(mish(half, inner), mish(inner, half, 3))
                residual.append(one)
            part.blocks_conv = nn.ModuleList([*residual, mish(half, half)])
            self.backbone.stages.append(part)
        c, m, f, top = w(512), w(256), w(128), w(1024)
        self.conv1 = nn.Sequential(Two(top, c), Two(c, top, 3), Two(top, c))
        self.conv2 = nn.Sequential(Two(4 * c, c), Two(c, top, 3), Two(top, c))
        self.upsample1, self.upsample2 = nn.Module(), nn.Module()
        self.upsample1.upsample, self.upsample2.upsample = nn.Sequential(Two(c, m)), nn.Sequential(Two(m, f))
        self.conv_for_P4, self.conv_for_P3 = Two(w(512), m), Two(w(256), f)
        self.make_five_conv1 = nn.Sequential(*five(Two, 2 * m, m, c))
        self.make_five_conv2 = nn.Sequential(*five(Two, 2 * f, f, m))
        self.make_five_conv3 = nn.Sequential(*five(Two, 2 * m, m, c))
        self.make_five_conv4 = nn.Sequential(*five(Two, 2 * c, c, top))
        self.down_sample1, self.down_sample2 = Two(f, m, 3, 2), Two(m, c, 3, 2)
        for number, a, b in ((3, f, m), (2, m, c), (1, c, top)):
            self.add_module(f"yolo_head{number}", nn.Sequential(Two(a, b, 3), nn.Conv2d(b, OUT, 1)))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, maps = self.backbone.conv1(x), []
        for part in self.backbone.stages:
            x = part.downsample_conv(x)
            aside, x = part.split_conv0(x), part.split_conv1(x)
            *blocks, last = part.blocks_conv
            for one in blocks:
                x = x + one.block(x)
            x = part.concat_conv(torch.cat([last(x), aside], 1))
            maps.append(x)
        p5 = self.conv2(pyramid(self.conv1(x)))
        p4 = torch.cat([self.conv_for_P4(maps[3]), up(self.upsample1.upsample(p5))], 1)
        p4 = self.make_five_conv1(p4)
        p3 = torch.cat([self.conv_for_P3(maps[2]), up(self.upsample2.upsample(p4))], 1)
        p3 = self.make_five_conv2(p3)
        p4 = self.make_five_conv3(torch.cat([self.down_sample1(p3), p4], 1))
        p5 = self.make_five_conv4(torch.cat([self.down_sample2(p4), p5], 1))
        return [self.yolo_head3(p3), self.yolo_head2(p4), self.yolo_head1(p5)]


class Bubbliiiing3(nn.Module):
    def __init__(self, w: Width):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.conv1, self.backbone.bn1 = (
            nn.Conv2d(3, w(32), 3, 1, 1, bias=False),
            nn.BatchNorm2d(w(32)),
        )
        for stage, blocks in enumerate(STAGES, 1):
            a, b = w(2 ** (4 + stage)), w(2 ** (5 + stage))
            part = nn.Module()
            part.ds_conv, part.ds_bn = nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b)
            for number in range(blocks):
                block = nn.Module()
                block.conv1, block.bn1 = nn.Conv2d(b, a, 1, bias=False), nn.BatchNorm2d(a)
                block.conv2, block.bn2 = nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
                part.add_module(f"residual_{number}", block)
            self.backbone.add_module(f"layer{stage}", part)
        before = 0
        for level, c in enumerate((w(512), w(256), w(128))):
            a, wide = (w(1024), w(512), w(256))[level], (w(1024), w(512), w(256))[level]
            if level:
                self.add_module(f"last_layer{level}_conv", Two(before, c))
                a += c
            layers = [*five(Two, a, c, wide), Two(c, wide, 3), nn.Conv2d(wide, OUT, 1)]
            self.add_module(f"last_layer{level}", nn.Sequential(*layers))
            before = c

    def forward(self, x: Tensor) -> list[Tensor]:
        def step(x, conv, norm):
            return F.leaky_relu(norm(conv(x)), 0.1)

        b, maps, outs = self.backbone, [], []
        x = step(x, b.conv1, b.bn1)
        for stage, blocks in enumerate(STAGES, 1):
            part = getattr(b, f"layer{stage}")
            x = step(x, part.ds_conv, part.ds_bn)
            for number in range(blocks):
                one = getattr(part, f"residual_{number}")
                x = x + step(step(x, one.conv1, one.bn1), one.conv2, one.bn2)
            maps.append(x)
        for level in range(3):
            if level:
                x = torch.cat([up(getattr(self, f"last_layer{level}_conv")(x)), maps[4 - level]], 1)
            *head, three, predict = getattr(self, f"last_layer{level}")
            for one in head:
                x = one(x)
            outs.append(predict(three(x)))
        return outs


class Aladdin(nn.Module):
    def __init__(self, w: Width):
        super().__init__()

        def repeated(channels, inner, count):
            one = nn.Module()
            one.layers = nn.ModuleList(
                nn.Sequential(Two(channels, inner), Two(inner, channels, 3)) for _ in range(count)
            )
            return one

        layers: list[nn.Module] = [Two(3, w(32), 3)]
        for stage, blocks in enumerate(STAGES):
            a, b = w(2 ** (5 + stage)), w(2 ** (6 + stage))
            layers += [Two(a, b, 3, 2), repeated(b, a, blocks)]
        before = w(1024)
        for level, (c, wide) in enumerate(((w(512), w(1024)), (w(256), w(512)), (w(128), w(256)))):
            if level:
                layers += [Two(before, c), nn.Upsample(scale_factor=2)]
            a = wide + c if level else wide
            scale = nn.Module()
            scale.pred = nn.Sequential(Two(c, wide, 3), Two(wide, OUT, active=False))
            layers += [Two(a, c), Two(c, wide, 3), repeated(wide, c, 1), Two(wide, c), scale]
            before = c
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        outs, taps = [], []
        for number, layer in enumerate(self.layers):
            if hasattr(layer, "pred"):
                outs.append(layer.pred(x))
            elif hasattr(layer, "layers"):
                for one in layer.layers:
                    x = x + one(x) if number < 11 else one(x)
                if len(layer.layers) == 8:
                    taps.append(x)
            else:
                x = layer(x)
                if isinstance(layer, nn.Upsample):
                    x = torch.cat([x, taps.pop()], 1)
        # Theirs: objectness, x, y, width, height; ours has the objectness last of the five.
        return [
            out.unflatten(1, (3, 5 + CLASSES))[:, :, [1, 2, 3, 4, 0, 5, 6, 7]].flatten(1, 2) for out in outs
        ]


class Mmdetection(nn.Module):
    def __init__(self, w: Width):
        super().__init__()
        self.backbone, self.neck, self.bbox_head = nn.Module(), nn.Module(), nn.Module()
        self.backbone.conv1 = Two(3, w(32), 3)
        for stage, blocks in enumerate(STAGES, 1):
            a, b = w(2 ** (4 + stage)), w(2 ** (5 + stage))
            part = nn.Module()
            part.conv = Two(a, b, 3, 2)
            for number in range(blocks):
                block = nn.Module()
                block.conv1, block.conv2 = Two(b, a), Two(a, b, 3)
                part.add_module(f"res{number}", block)
            self.backbone.add_module(f"conv_res_block{stage}", part)
        self.bbox_head.convs_bridge, self.bbox_head.convs_pred = nn.ModuleList(), nn.ModuleList()
        before = 0
        for level, (c, wide) in enumerate(((w(512), w(1024)), (w(256), w(512)), (w(128), w(256)))):
            if level:
                self.neck.add_module(f"conv{level}", Two(before, c))
            detect = nn.Module()
            for number, one in enumerate(five(Two, wide + c if level else wide, c, wide), 1):
                detect.add_module(f"conv{number}", one)
            self.neck.add_module(f"detect{level + 1}", detect)
            self.bbox_head.convs_bridge.append(Two(c, wide, 3))
            self.bbox_head.convs_pred.append(nn.Conv2d(wide, OUT, 1))
            before = c

    def forward(self, x: Tensor) -> list[Tensor]:
        x, maps, outs = self.backbone.conv1(x), [], []
        for stage, blocks in enumerate(STAGES, 1):
            part = getattr(self.backbone, f"conv_res_block{stage}")
            x = part.conv(x)
            for number in range(blocks):
                one = getattr(part, f"res{number}")
                x = x + one.conv2(one.conv1(x))
            maps.append(x)
        for level in range(3):
            if level:
                x = torch.cat([up(getattr(self.neck, f"conv{level}")(x)), maps[4 - level]], 1)
            for number in range(1, 6):
                x = getattr(getattr(self.neck, f"detect{level + 1}"), f"conv{number}")(x)
            outs.append(self.bbox_head.convs_pred[level](self.bbox_head.convs_bridge[level](x)))
        return outs


class OfCfg(nn.Module):
    """yolov3-tiny as the ports that walk through a cfg name it; its forward pass is written out."""

    def __init__(self, w: Width, conv: str, norm: str, eps: float, extra: bool = False):
        super().__init__()
        shapes = {0: (3, w(16), 3), 13: (w(1024), w(256), 1), 14: (w(256), w(512), 3), 15: (w(512), OUT, 1)}
        shapes |= {n: (w(2 ** (3 + n // 2)), w(2 ** (4 + n // 2)), 3) for n in (2, 4, 6, 8, 10, 12)}
        shapes |= {18: (w(256), w(128), 1), 21: (w(128) + w(256), w(256), 3), 22: (w(256), OUT, 1)}
        self.conv, self.norm, self.numbers = conv, norm, sorted(shapes)
        parts = []
        for n in range(24):
            part = nn.Module()
            if n in shapes:
                a, b, size = shapes[n]
                k = self.numbers.index(n) + 1
                bare = n in (15, 22)
                part.add_module(conv.format(n=n, k=k), nn.Conv2d(a, b, size, 1, size // 2, bias=bare))
                if not bare:
                    part.add_module(norm.format(n=n, k=k), nn.BatchNorm2d(b, eps=eps))
            elif n in (16, 23) and extra:
                part.add_module(f"yolo_{n}", nn.Module())
                part.get_submodule(f"yolo_{n}").register_buffer("anchors", torch.zeros(3, 2))
            parts.append(part)
        self.add_module("models" if conv == "conv{k}" else "module_list", nn.ModuleList(parts))

    def forward(self, x: Tensor) -> list[Tensor]:
        parts = next(iter(self.children()))

        def run(n, x):
            made = list(parts[n].children())
            x = made[0](x)
            return F.leaky_relu(made[1](x), 0.1) if len(made) > 1 else x

        for n in (0, 2, 4, 6):
            x = F.max_pool2d(run(n, x), 2, 2)
        tap = run(8, x)
        x = run(10, F.max_pool2d(tap, 2, 2))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
        neck = run(13, run(12, x))
        fine = torch.cat([up(run(18, neck)), tap], 1)
        return [run(15, run(14, neck)), run(22, run(21, fine))]


def of_cfg(conv: str, norm: str, eps: float = 1e-5, extra: bool = False) -> Callable[[Width], nn.Module]:
    return lambda w: OfCfg(w, conv, norm, eps, extra)


class RefInvolution(nn.Module):
    """Equation 6 of Li et al. (2021) at each pixel, with the names of the authors' implementation."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.kernel, self.groups = kernel, channels // math.gcd(channels, 16)
        self.conv1, self.conv2 = nn.Module(), nn.Module()
        self.conv1.conv, self.conv1.bn = (
            nn.Conv2d(channels, channels // 4, 1, bias=False),
            nn.BatchNorm2d(channels // 4),
        )
        self.conv2.conv = nn.Conv2d(channels // 4, kernel * kernel * self.groups, 1)

    def forward(self, x: Tensor) -> Tensor:
        (b, c, h, w), k, g = x.shape, self.kernel, self.groups
        weights = self.conv2.conv(F.relu(self.conv1.bn(self.conv1.conv(x)))).view(b, g, k * k, h, w)
        around = F.pad(x, (k // 2,) * 4).view(b, g, c // g, h + k - 1, w + k - 1)
        parts = [
            weights[:, :, None, k * row + column] * around[..., row : row + h, column : column + w]
            for row in range(k)
            for column in range(k)
        ]
        return sum(parts).view(b, c, h, w)


class WithInvolution(Bubbliiiing4):
    """P3 and P4 are replaced by their involutions, which the next down-sampling reads, too."""

    def __init__(self, w: Width):
        super().__init__(w)
        for level, channels in ((3, 128), (4, 256), (5, 512)):
            self.add_module(f"involution_P{level}", RefInvolution(w(channels), 7))
        self.make_five_conv2.append(self.involution_P3)
        self.make_five_conv3.append(self.involution_P4)
        self.make_five_conv4.append(self.involution_P5)

    def state_dict(self, *args, **keys):
        state = super().state_dict(*args, **keys)
        return {key: tensor for key, tensor in state.items() if not re.search(r"five_conv\d\.5\.", key)}


THEIRS: dict[str, tuple[str, Callable[[Width], nn.Module]]] = {
    "eriklindernoren": ("yolov3-tiny", of_cfg("conv_{n}", "batch_norm_{n}", extra=True)),
    "ultralytics-yolov3": ("yolov3-tiny", of_cfg("Conv2d", "BatchNorm2d", 1e-4)),
    "tianxiaomo": ("yolov4", Tianxiaomo),
    "tianxiaomo-darknet": ("yolov3-tiny", of_cfg("conv{k}", "bn{k}")),
    "bubbliiiing-yolov3": ("yolov3", Bubbliiiing3),
    "bubbliiiing-yolov4": ("yolov4", Bubbliiiing4),
    "aladdinpersson": ("yolov3", Aladdin),
    "mmdetection": ("yolov3", Mmdetection),
}


def trained(build: Callable[[Width], nn.Module], seed: int) -> nn.Module:
    """A model whose statistics are of its own, as after a training."""
    torch.manual_seed(seed)
    model = build(narrow)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            nn.init.uniform_(one.weight, 0.5, 1.5)
            nn.init.normal_(one.bias, std=0.2)
            nn.init.normal_(one.running_mean, std=0.2)
            nn.init.uniform_(one.running_var, 0.01, 1.0)
    return model.eval()


def test_every_port_is_tested():
    assert THEIRS.keys() == PORTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", THEIRS)
def test_raw_outputs_equal_those_of_the_port(name: str, tmp_path: Path):
    model, build = THEIRS[name]
    theirs = trained(build, 5)
    state = {f"module.{key}": tensor for key, tensor in theirs.state_dict().items()}
    torch.save({"epoch": 3, "model": state}, tmp_path / "their.pth")
    any_cfg = {} if PORTS[name].model else {"model": model}
    report = import_weights(
        tmp_path / "their.pth", tmp_path / "ours", port=name, overrides=["model.width=0.125"], **any_cfg
    )
    assert (report.taken, len(report.class_names)) == (report.tensors, CLASSES)
    loaded = weights.load(tmp_path / "ours")
    assert loaded.recipe.precision == "fp32" and loaded.recipe.model.name == model
    ours = zoo.build(loaded.recipe.model, CLASSES).eval()
    weights.load_into(ours, loaded.state, "ours")
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(ours(images), theirs(images), strict=True):
            assert b.std() > 1e-3
            torch.testing.assert_close(a, b, atol=2e-5 * float(b.abs().max()), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", THEIRS)
def test_published_shapes_are_those_of_the_port(name: str):
    """At full width: the same number of parameters, with 3 classes, as the published network here has."""
    model, build = THEIRS[name]
    with torch.device("meta"):
        theirs = build(lambda channels: channels)
        ours = zoo.build(Model(name=model), CLASSES)
    used = [p for key, p in theirs.named_parameters() if not any(one in key for one in PORTS[name].unused)]
    assert sum(p.numel() for p in used) == sum(p.numel() for p in ours.parameters())


@pytest.mark.slow
def test_port_with_involution_in_its_trunk_gives_the_same_outputs(tmp_path: Path):
    theirs = trained(WithInvolution, 5)
    torch.save(theirs.state_dict(), tmp_path / "their.pth")
    options = ["model.width=0.125", "model.involution.kernel=7", "model.involution.where=trunk"]
    report = import_weights(
        tmp_path / "their.pth", tmp_path / "ours", port="bubbliiiing-yolov4", overrides=options
    )
    assert report.taken == report.tensors
    loaded = weights.load(tmp_path / "ours")
    ours = zoo.build(loaded.recipe.model, CLASSES).eval()
    weights.load_into(ours, loaded.state, "ours")
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(ours(images), theirs(images), strict=True):
            assert b.std() > 1e-3
            torch.testing.assert_close(a, b, atol=2e-5 * float(b.abs().max()), rtol=1e-4)
        plain = trained(Bubbliiiing4, 5)
        plain.load_state_dict(theirs.state_dict(), strict=False)
        assert not torch.allclose(plain(images)[1], theirs(images)[1], rtol=0.01)


@pytest.mark.slow
def test_no_port_moves_centers_as_the_published_network_unless_it_does_so(tmp_path: Path):
    torch.save(trained(Bubbliiiing4, 1).state_dict(), tmp_path / "their.pth")
    narrowed = ["model.width=0.125"]
    import_weights(tmp_path / "their.pth", tmp_path / "o", port="bubbliiiing-yolov4", overrides=narrowed)
    recipe = weights.load(tmp_path / "o").recipe
    assert {head.scale_xy for head in zoo.build(recipe.model, CLASSES).heads} == {1.0}
    assert (recipe.data.fit, recipe.data.pad) == ("letterbox", 128)


@pytest.mark.slow
def test_a_cfg_gives_the_network(tmp_path: Path):
    made = darknet.network(Model(name="yolov3-tiny"), CLASSES)
    (tmp_path / "their.cfg").write_text(write_cfg(made))
    torch.manual_seed(0)
    theirs = OfCfg(lambda c: c, "conv_{n}", "batch_norm_{n}", 1e-5, extra=True)
    torch.save(theirs.state_dict(), tmp_path / "their.pth")
    report = import_weights(
        tmp_path / "their.pth", tmp_path / "ours", port="eriklindernoren", cfg=tmp_path / "their.cfg"
    )
    assert report.taken == report.tensors and "[yolo]" in weights.load(tmp_path / "ours").recipe.model.cfg


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from", "ultralitics-yolov3"], "did you mean 'ultralytics-yolov3'?"),
        (["--from", "x"], "mmdetection          github.com/open-mmlab/mmdetection"),
        (["--from", "eriklindernoren"], "which supports any network; add --model NAME or --cfg FILE"),
        (
            ["--from", "tianxiaomo", "--model", "yolov3"],
            "which is a port of yolov4; remove --model and --cfg",
        ),
        (
            ["--from", "mmdetection", "model.width=0.125"],
            "a checkpoint from github.com/open-mmlab/mmdet",
        ),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, capsys, words: list[str], sentence: str):
    torch.save(trained(Bubbliiiing3, 1).state_dict(), tmp_path / "their.pth")
    assert cli.main(["import", str(tmp_path / "their.pth"), "--out", str(tmp_path / "o"), *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error
    assert not (tmp_path / "o").exists()
