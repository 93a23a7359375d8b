"""The networks against published sizes and against an interpreter of the published cfg files."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rankless.errors import UserError
from rankless.models.darknet.reshape import scaled
from rankless.models.layers import ConvBlock
from rankless.models.zoo import build
from rankless.recipe import model_kinds
from support.norms import with_statistics

# The layers of cfg/yolov4-tiny.cfg in their order (test_ports.py has other networks): ("c", filters, size,
# stride), ("m", size, stride), ("r", *layers), ("h", layer) the second half of a layer's channels, ("u",)
# upsampling, ("y",) a head, whose convolution is linear and has a bias.
CFG = {
    "yolov4-tiny": [
        *(("c", 32, 3, 2), ("c", 64, 3, 2), ("c", 64, 3, 1), ("h", -1), ("c", 32, 3, 1), ("c", 32, 3, 1)),
        *(("r", -1, -2), ("c", 64, 1, 1), ("r", -6, -1), ("m", 2, 2)),
        *(("c", 128, 3, 1), ("h", -1), ("c", 64, 3, 1), ("c", 64, 3, 1), ("r", -1, -2), ("c", 128, 1, 1)),
        *(("r", -6, -1), ("m", 2, 2), ("c", 256, 3, 1), ("h", -1), ("c", 128, 3, 1), ("c", 128, 3, 1)),
        *(("r", -1, -2), ("c", 256, 1, 1), ("r", -6, -1), ("m", 2, 2), ("c", 512, 3, 1)),
        *(("c", 256, 1, 1), ("c", 512, 3, 1), ("y",), ("y-end",)),
        *(("r", -4), ("c", 128, 1, 1), ("u",), ("r", -1, 23), ("c", 256, 3, 1), ("y",), ("y-end",)),
    ],
}
CFG["yolov4-tiny-3l"] = [
    *CFG["yolov4-tiny"],
    *(("r", -3), ("c", 64, 1, 1), ("u",), ("r", -1, 15), ("c", 128, 3, 1), ("y",), ("y-end",)),
]


def interpret(layers, parts, x):
    """Darknet's forward pass: ``parts`` are the model's convolutions in the order of the cfg."""
    parts = iter(parts)
    outputs, heads = [], []
    for kind, *arguments in layers:
        if kind == "c":
            part = next(parts)
            filters, size, stride = arguments
            weight = part.conv.weight
            assert weight.shape[0] == filters
            y = F.conv2d(x, weight, stride=stride, padding=size // 2)
            norm = part.norm
            y = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-5)
            x = F.leaky_relu(y, 0.1)
        elif kind == "y":
            part = next(parts)
            x = F.conv2d(x, part.conv.weight, part.conv.bias)
            heads.append(x)
        elif kind == "m":
            x = F.max_pool2d(x, 2, 2)
        elif kind == "u":
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        elif kind == "h":
            x = outputs[arguments[0]][:, outputs[arguments[0]].shape[1] // 2 :]
        elif kind == "r":
            x = torch.cat([outputs[number] for number in arguments], 1)
        outputs.append(x)
    assert next(parts, None) is None
    return heads


@pytest.mark.slow
@pytest.mark.parametrize("name", CFG)
def test_computes_what_the_cfg_says(name):
    torch.manual_seed(1)
    model = with_statistics(build(model_kinds.Model(name=name), classes=3))
    parts = [m for m in model.modules() if isinstance(m, ConvBlock)]
    x = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        found = model(x)
        expected = interpret(CFG[name], parts, x)
    assert len(found) == len(expected) == len(model.heads)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


# Parameters and GFLOPs (2 × multiply-accumulates) as the cfg files give them in Darknet.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes", "parameters", "work"),
    [
        ("yolov3", 80, 61_949_149, {416: 65.86, 608: 140.69}),
        ("yolov3", 20, 61_626_049, {}),
        ("yolov3-spp", 80, 62_998_749, {608: 141.45}),
        ("yolov3-tiny", 80, 8_852_366, {416: 5.57}),
        ("yolov4", 80, 64_363_101, {416: 60.1, 608: 128.4}),
        ("yolov4", 20, 64_040_001, {}),
        ("yolov4", 3, 63_948_456, {}),
        ("yolov4-tiny", 80, 6_056_606, {416: 6.91}),
        ("yolov4-tiny-3l", 80, 6_327_453, {608: 17.7}),
        ("yolov4-csp", 80, 52_921_437, {512: 77.0}),
        ("yolov4x-mish", 80, 99_751_053, {640: 221.9}),
    ],
)
def test_published_size_and_work(name, classes, parameters, work):
    with torch.device("meta"):
        model = build(model_kinds.Model(name=name), classes).eval()
        assert sum(p.numel() for p in model.parameters()) == parameters
        for side, gflops in work.items():
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(torch.empty(1, 3, side, side))
            places = 1 if round(gflops, 1) == gflops else 2
            assert counter.get_total_flops() / 1e9 == pytest.approx(gflops, abs=0.6 / 10**places)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "added"), [(3, 135_352), (7, 352_632)])
def test_involution_adds_its_parameters(size, added):
    with torch.device("meta"):
        plain, more = (
            build(model_kinds.Model(name="yolov4", involution=model_kinds.Involution(kernel=k)), 80)
            for k in (0, size)
        )
    count = [sum(p.numel() for p in model.parameters()) for model in (plain, more)]
    assert count[1] - count[0] == added
    # Every published tensor keeps its name.
    assert plain.state_dict().keys() <= more.state_dict().keys()


def test_the_network_for_small_inputs_is_the_published_one_without_its_coarsest_stage():
    whole, less = (
        build(model_kinds.Model(name=f"yolov4-tiny-{name}anchor-free"), classes=3) for name in ("", "p34-")
    )
    assert [head.stride for head in less.heads] == [16, 8]
    stages = {f"layers.{name}." for name in list(less.layers)[:25]}
    shapes, published = ({key: one.shape for key, one in m.state_dict().items()} for m in (less, whole))
    stages = {key: shape for key, shape in shapes.items() if key.startswith(tuple(stages))}
    assert len(stages) == 6 * 14 and stages.items() <= published.items()  # of 14 convolutions
    assert len(less.backbone()) == 25


def test_anchors_and_scale_are_the_published_ones():
    v3 = build(model_kinds.Model(name="yolov3-tiny", width=0.25), classes=1)
    v4 = build(model_kinds.Model(name="yolov4-tiny", width=0.25), classes=1)
    assert [head.mask for head in v3.heads] == [(3, 4, 5), (0, 1, 2)]
    assert [head.mask for head in v4.heads] == [(3, 4, 5), (1, 2, 3)]
    assert {head.scale_xy for head in v3.heads} == {1.0}
    assert {head.scale_xy for head in v4.heads} == {1.05}
    assert v3.heads[0].anchors == v4.heads[0].anchors
    assert v3.heads[0].anchors[3:] == ((81, 82), (135, 169), (344, 319))
    assert (v3.network.loss, v4.network.loss) == ("yolov3", "yolov4")


def test_dropout_adds_nothing_to_the_weights_and_rests_in_evaluation():
    torch.manual_seed(0)
    plain = build(model_kinds.Model(width=0.25), classes=2).eval()
    torch.manual_seed(0)
    dropping = build(model_kinds.Model(width=0.25, dropout=0.5), classes=2)
    assert plain.state_dict().keys() == dropping.state_dict().keys()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        once, again = dropping(x)[0], dropping(x)[0]
        assert not torch.equal(once, again)
        dropping.load_state_dict(plain.state_dict())
        assert torch.equal(dropping.eval()(x)[0], plain(x)[0])


def test_a_fresh_model_expects_few_objects_and_every_class_alike():
    torch.manual_seed(0)
    model = build(model_kinds.Model(width=0.25), classes=10).train()
    for output in model(torch.rand(4, 3, 64, 64)):
        cells = output.detach().unflatten(1, (3, 15))
        assert cells[:, :, 4].sigmoid().mean().item() == pytest.approx(0.01, rel=0.3)
        assert cells[:, :, 5:].sigmoid().mean().item() == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(
    ("channels", "width", "expected"),
    [(64, 1, 64), (32, 0.5, 16), (32, 0.1, 8), (100, 1, 100), (100, 0.99, 96), (24, 0.5, 16)],
)
def test_channels_are_multiples_of_eight(channels, width, expected):
    assert scaled(channels, width) == expected


@pytest.mark.parametrize(
    ("keys", "classes", "said"),
    [
        ({"name": "YOLOv4_tiny"}, 3, "'YOLOv4_tiny'.*one of .*yolov3-tiny.*; did you mean 'yolov4-tiny'"),
        ({"anchors": ((1.0, 2.0),)}, 3, "1 pair; expected 6 for the 2 heads of yolov4-tiny"),
        ({}, 0, "0 classes"),
    ],
)
def test_what_cannot_be_built_is_an_error(keys, classes, said):
    with pytest.raises(UserError, match=said):
        build(model_kinds.Model(**keys), classes)


def test_num_anchors_sets_the_anchors_of_each_head_smallest_on_the_finest_map():
    given = tuple((float(side), float(side)) for side in (10, 20, 30, 40))
    assert "model.num_anchors=2" in str(_error(anchors=given))
    model = build(model_kinds.Model(width=0.25, anchors=given, num_anchors=2), classes=3)
    masks = {head.stride: head.mask for head in model.heads}
    assert masks == {16: (0, 1), 32: (2, 3)}
    assert [map.shape[1] for map in model(torch.rand(1, 3, 64, 64))] == [2 * 8, 2 * 8]
    assert "model.anchors=kmeans" in str(_error(num_anchors=5))
    assert "expected 10 for the 2 heads" in str(_error(num_anchors=5, anchors=given))


def _error(**keys):
    with pytest.raises(UserError) as caught:
        build(model_kinds.Model(**keys), classes=3)
    return caught.value


def test_options_change_what_they_say():
    given = ((5.0, 6.0), (7.0, 8.0), (9.0, 10.0), (11.0, 12.0), (13.0, 14.0), (15.0, 16.0))
    model = build(model_kinds.Model(width=0.25, anchors=given, activation="prelu"), classes=3)
    assert model.heads[0].anchors == given
    slopes = [m for m in model.modules() if isinstance(m, nn.PReLU)]
    assert len(slopes) == len({id(m) for m in slopes}) == 19  # each convolution its own
