"""Checkpoints of other projects' ports: every name and shape, and raw outputs of an independent forward pass.

The networks here are written from the papers, and the names from the ports; nothing of this project computes
in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless import cli
from rankless.interop.importing import import_weights
from rankless.models import zoo
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors import darknet
from rankless.models.weights_files import weights
from rankless.models.weights_files.ports import PORTS
from rankless.recipe.schema import Model

CLASSES = 3
OUT = 3 * (5 + CLASSES)
STAGES = (1, 2, 8, 8, 4)
Width = Callable[[int], int]


def narrow(channels: int) -> int:
    """Of ``model.width=0.125``."""
    return max(8, 8 * int(channels / 64 + 0.5))


def up(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


def five(a: int, b: int, c: int) -> list[tuple[int, ...]]:
    return [(a, b), (b, c, 3), (c, b), (b, c, 3), (c, b)]


class Port(nn.Module):
    """Convolutions with norms under the names of a port, as the network computes them one after another."""

    mish = 0  # the first so many have this activation

    def __init__(self, names: Iterable[tuple[str, str]], w: Width, eps: float = 1e-5):
        super().__init__()
        self.order: list[nn.Module] = []
        for (conv, norm), shape in zip(names, self.shapes(w), strict=True):
            a, b, k, s = (*shape, *(1, 1)[len(shape) - 2 :])  # channels in and out, size and stride
            block = [self.add(conv, nn.Conv2d(a, b, k, s, k // 2, bias=not norm))]
            if norm:
                block.append(self.add(norm, nn.BatchNorm2d(b, eps=eps)))
                block.append(nn.Mish() if len(self.order) < self.mish else nn.LeakyReLU(0.1))
            self.order.append(nn.Sequential(*block))

    def add(self, path: str, part: nn.Module) -> nn.Module:
        at: nn.Module = self
        *parents, name = path.split(".")
        for parent in parents:
            if parent not in at._modules:
                at.add_module(parent, nn.Module())
            at = at.get_submodule(parent)
        at.add_module(name, part)
        return part

    def runner(self) -> Callable[..., Tensor]:
        """A function that applies the next block, or the next few."""
        blocks = iter(self.order)

        def run(x: Tensor, count: int = 1) -> Tensor:
            for _ in range(count):
                x = next(blocks)(x)
            return x

        return run


class Yolov3(Port):
    @staticmethod
    def shapes(w: Width) -> Iterator[tuple[int, ...]]:
        yield 3, w(32), 3
        for stage, blocks in enumerate(STAGES):
            a, b = w(32 << stage), w(64 << stage)
            yield a, b, 3, 2
            yield from [(b, a), (a, b, 3)] * blocks
        for level, (c, wide) in enumerate(((w(512), w(1024)), (w(256), w(512)), (w(128), w(256)))):
            if level:
                yield wide, c
            yield from [*five(wide + c if level else wide, c, wide), (c, wide, 3), (wide, OUT)]

    def forward(self, x: Tensor) -> list[Tensor]:
        run, maps, outs = self.runner(), [], []
        x = run(x)
        for count in STAGES:
            x = run(x)
            for _ in range(count):
                x = x + run(x, 2)
            maps.append(x)
        for level in range(3):
            if level:
                x = torch.cat([up(run(x)), maps[4 - level]], 1)
            x = run(x, 5)
            outs.append(run(x, 2))
        return outs


class Yolov4(Port):
    mish = 1 + sum(5 + 2 * blocks for blocks in STAGES)

    @staticmethod
    def shapes(w: Width) -> Iterator[tuple[int, ...]]:
        yield 3, w(32), 3
        for stage, blocks in enumerate(STAGES):
            a, b = w(32 << stage), w(64 << stage)
            half, inner = (a, a) if stage else (b, w(32))
            yield from [(a, b, 3, 2), (b, half), (b, half)]
            yield from [(half, inner), (inner, half, 3)] * blocks
            yield from [(half, half), (2 * half, b)]
        f, m, c, top = w(128), w(256), w(512), w(1024)
        yield from [(top, c), (c, top, 3), (top, c), (4 * c, c), (c, top, 3), (top, c)]
        yield from [(c, m), (c, m), *five(2 * m, m, c), (m, f), (m, f), *five(2 * f, f, m)]
        yield from [(f, m, 3), (m, OUT)]
        for a, b, wide in ((f, m, c), (m, c, top)):
            yield from [(a, b, 3, 2), *five(2 * b, b, wide), (b, wide, 3), (wide, OUT)]

    def last(self, level: int, x: Tensor) -> Tensor:
        """What a head and the next down-sampling read."""
        return x

    def forward(self, x: Tensor) -> list[Tensor]:
        run, maps = self.runner(), []
        x = run(x)
        for count in STAGES:
            x = run(x)
            aside, x = run(x), run(x)
            for _ in range(count):
                x = x + run(x, 2)
            x = run(torch.cat([run(x), aside], 1))
            maps.append(x)
        x = run(x, 3)
        p5 = run(torch.cat([*(F.max_pool2d(x, size, 1, size // 2) for size in (13, 9, 5)), x], 1), 3)
        coarse = up(run(p5))
        p4 = run(torch.cat([run(maps[3]), coarse], 1), 5)
        coarse = up(run(p4))
        x = self.last(3, run(torch.cat([run(maps[2]), coarse], 1), 5))
        outs = [run(x, 2)]
        for level, coarser in ((4, p4), (5, p5)):
            x = self.last(level, run(torch.cat([run(x), coarser], 1), 5))
            outs.append(run(x, 2))
        return outs


class Yolov3Tiny(Port):
    """As the ports that walk through a cfg name it."""

    NUMBERS = (0, 2, 4, 6, 8, 10, 12, 13, 14, 15, 18, 21, 22)

    def __init__(self, w: Width, conv: str, norm: str, eps: float = 1e-5, anchors: bool = False):
        names = [
            (conv.format(n=n, k=k), "" if n in (15, 22) else norm.format(n=n, k=k))
            for k, n in enumerate(self.NUMBERS, 1)
        ]
        super().__init__(names, w, eps)
        for n in (16, 23) if anchors else ():
            self.add(f"module_list.{n}.yolo_{n}", nn.Module()).register_buffer("anchors", torch.zeros(3, 2))

    @staticmethod
    def shapes(w: Width) -> Iterator[tuple[int, ...]]:
        yield 3, w(16), 3
        yield from ((w(16 << n), w(32 << n), 3) for n in range(6))
        yield from [(w(1024), w(256)), (w(256), w(512), 3), (w(512), OUT)]
        yield from [(w(256), w(128)), (w(128) + w(256), w(256), 3), (w(256), OUT)]

    def forward(self, x: Tensor) -> list[Tensor]:
        one = dict(zip(self.NUMBERS, self.order, strict=True))
        for n in (0, 2, 4, 6):
            x = F.max_pool2d(one[n](x), 2, 2)
        tap = one[8](x)
        x = one[10](F.max_pool2d(tap, 2, 2))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
        neck = one[13](one[12](x))
        fine = torch.cat([up(one[18](neck)), tap], 1)
        return [one[15](one[14](neck)), one[22](one[21](fine))]


def pairs(names: Iterable[str], conv: str = "conv", norm: str = "bn") -> list[tuple[str, str]]:
    """Of each block; one that ends with a ``!`` predicts, without a norm."""
    return [(name[:-1], "") if name.endswith("!") else (f"{name}.{conv}", f"{name}.{norm}") for name in names]


def tianxiaomo(w: Width) -> nn.Module:
    names = [f"down1.conv{n}" for n in range(1, 9)]
    for stage, blocks in enumerate(STAGES[1:], 2):
        at = f"down{stage}"
        names += [f"{at}.conv{n}" for n in (1, 2, 3)]
        names += [f"{at}.resblock.module_list.{block}.{n}" for block in range(blocks) for n in (0, 1)]
        names += [f"{at}.conv4", f"{at}.conv5"]
    names += [f"neek.conv{n}" for n in range(1, 21)]
    names += [f"head.conv{n}{'.conv.0!' if n in (2, 10, 18) else ''}" for n in range(1, 19)]
    return Yolov4(pairs(names, "conv.0", "conv.1"), w)


def of_bubbliiiing4() -> list[tuple[str, str]]:
    names = ["backbone.conv1"]
    for stage, blocks in enumerate(STAGES):
        at = f"backbone.stages.{stage}"
        names += [f"{at}.downsample_conv", f"{at}.split_conv0", f"{at}.split_conv1"]
        names += [f"{at}.blocks_conv.{block}.block.{n}" for block in range(blocks) for n in (0, 1)]
        names += [f"{at}.blocks_conv.{blocks}", f"{at}.concat_conv"]
    names += [f"conv{part}.{n}" for part in (1, 2) for n in range(3)]
    for number, level in ((1, 4), (2, 3)):
        names += [f"upsample{number}.upsample.0", f"conv_for_P{level}"]
        names += [f"make_five_conv{number}.{n}" for n in range(5)]
    names += ["yolo_head3.0", "yolo_head3.1!"]
    for number, head in ((1, 2), (2, 1)):
        names += [f"down_sample{number}", *(f"make_five_conv{number + 2}.{n}" for n in range(5))]
        names += [f"yolo_head{head}.0", f"yolo_head{head}.1!"]
    return pairs(names)


def bubbliiiing4(w: Width) -> nn.Module:
    return Yolov4(of_bubbliiiing4(), w)


def bubbliiiing3(w: Width) -> nn.Module:
    names = [("backbone.conv1", "backbone.bn1")]
    for stage, blocks in enumerate(STAGES, 1):
        at = f"backbone.layer{stage}"
        names.append((f"{at}.ds_conv", f"{at}.ds_bn"))
        for block in range(blocks):
            names += [(f"{at}.residual_{block}.conv{n}", f"{at}.residual_{block}.bn{n}") for n in (1, 2)]
    for level in range(3):
        at = f"last_layer{level}"
        names += pairs([f"{at}_conv"] * (level > 0) + [f"{at}.{n}" for n in range(6)] + [f"{at}.6!"])
    return Yolov3(names, w)


class Aladdin(Yolov3):
    def __init__(self, w: Width):
        names = ["layers.0"]
        for stage, blocks in enumerate(STAGES):
            names.append(f"layers.{2 * stage + 1}")
            names += [f"layers.{2 * stage + 2}.layers.{block}.{n}" for block in range(blocks) for n in (0, 1)]
        for level, at in enumerate((11, 18, 25)):
            names += [f"layers.{at - 2}"] * (level > 0) + [f"layers.{at}", f"layers.{at + 1}"]
            names += [f"layers.{at + 2}.layers.0.{n}" for n in (0, 1)]
            names += [f"layers.{at + 3}", f"layers.{at + 4}.pred.0", f"layers.{at + 4}.pred.1.conv!"]
        super().__init__(pairs(names), w)
        for at in (15, 22, 29):
            self.add(f"layers.{at}.pred.1.bn", nn.BatchNorm2d(OUT))  # never used

    def forward(self, x: Tensor) -> list[Tensor]:
        """Theirs: objectness, x, y, width, height; ours has the objectness last of the five."""
        order = [1, 2, 3, 4, 0, 5, 6, 7]
        return [out.unflatten(1, (3, 5 + CLASSES))[:, :, order].flatten(1, 2) for out in super().forward(x)]


def mmdetection(w: Width) -> nn.Module:
    names = ["backbone.conv1"]
    for stage, blocks in enumerate(STAGES, 1):
        at = f"backbone.conv_res_block{stage}"
        names += [f"{at}.conv", *(f"{at}.res{block}.conv{n}" for block in range(blocks) for n in (1, 2))]
    for level in range(3):
        names += [f"neck.conv{level}"] * (level > 0)
        names += [f"neck.detect{level + 1}.conv{n}" for n in range(1, 6)]
        names += [f"bbox_head.convs_bridge.{level}", f"bbox_head.convs_pred.{level}!"]
    return Yolov3(pairs(names), w)


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


class WithInvolution(Yolov4):
    """P3 and P4 are replaced by their involutions, which the next down-sampling reads, too."""

    def __init__(self, w: Width):
        super().__init__(of_bubbliiiing4(), w)
        for level, channels in ((3, 128), (4, 256), (5, 512)):
            self.add(f"involution_P{level}", RefInvolution(w(channels), 7))

    def last(self, level: int, x: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(f"involution_P{level}")(x)
        return out


def tiny(conv: str, norm: str, eps: float = 1e-5, anchors: bool = False) -> Callable[[Width], nn.Module]:
    return lambda w: Yolov3Tiny(w, conv, norm, eps, anchors)


ERIK = tiny("module_list.{n}.conv_{n}", "module_list.{n}.batch_norm_{n}", anchors=True)
THEIRS: dict[str, tuple[str, Callable[[Width], nn.Module]]] = {
    "eriklindernoren": ("yolov3-tiny", ERIK),
    "ultralytics-yolov3": (
        "yolov3-tiny",
        tiny("module_list.{n}.Conv2d", "module_list.{n}.BatchNorm2d", 1e-4),
    ),
    "tianxiaomo": ("yolov4", tianxiaomo),
    "tianxiaomo-darknet": ("yolov3-tiny", tiny("models.{n}.conv{k}", "models.{n}.bn{k}")),
    "bubbliiiing-yolov3": ("yolov3", bubbliiiing3),
    "bubbliiiing-yolov4": ("yolov4", bubbliiiing4),
    "aladdinpersson": ("yolov3", Aladdin),
    "mmdetection": ("yolov3", mmdetection),
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


def agree(path: Path, theirs: nn.Module) -> Tensor:
    """The raw outputs with weights from a file are those of a port, for the returned images."""
    loaded = weights.load(path)
    ours = zoo.build(loaded.recipe.model, CLASSES).eval()
    weights.load_into(ours, loaded.state, "ours")
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(ours(images), theirs(images), strict=True):
            assert b.std() > 1e-3
            torch.testing.assert_close(a, b, atol=2e-5 * float(b.abs().max()), rtol=1e-4)
    return images


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
    recipe = weights.load(tmp_path / "ours").recipe
    assert recipe.precision == "fp32" and recipe.model.name == model
    agree(tmp_path / "ours", theirs)


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
    images = agree(tmp_path / "ours", theirs)
    with torch.no_grad():
        plain = trained(bubbliiiing4, 5)
        plain.load_state_dict(theirs.state_dict(), strict=False)
        assert not torch.allclose(plain(images)[1], theirs(images)[1], rtol=0.01)


@pytest.mark.slow
def test_ports_do_not_shift_centers_unless_the_published_network_does(tmp_path: Path):
    torch.save(trained(bubbliiiing4, 1).state_dict(), tmp_path / "their.pth")
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
    theirs = ERIK(lambda c: c)
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
            "check that it comes from github.com/open-mmlab/mmdet",
        ),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, capsys, words: list[str], sentence: str):
    torch.save(trained(bubbliiiing3, 1).state_dict(), tmp_path / "their.pth")
    assert cli.main(["import", str(tmp_path / "their.pth"), "--out", str(tmp_path / "o"), *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error
    assert not (tmp_path / "o").exists()
