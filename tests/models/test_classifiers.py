"""Every classifier by its name: published size and work, head and backbone, and what is refused."""

from __future__ import annotations

import re

import pytest
import timm
import torch
import torchvision
from torch import nn

from rankless.errors import UserError
from rankless.models import zoo
from rankless.models.classifiers import catalog
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier, variant
from rankless.recipe.model_kinds import Densenet, Model, Separable
from support.norms import with_statistics

TINY = Densenet(growth=2)
# A plain one, one inside a module, two heads, a convolution before the head, one that is a convolution.
TIMM = ("vit_tiny_patch16_224", "convnext_atto", "levit_128s", "mobilenetv3_small_050", "dpn48b")
NAMES = ("resnet18", "resnet50", "densenet121", "densenet-bc-100-12", *(f"timm/{name}" for name in TIMM))


@pytest.fixture(autouse=True)
def seeded_and_without_network(network_use):
    torch.manual_seed(0)
    yield
    assert network_use == []


def on_meta(name, classes, **keys):
    with torch.device("meta"):
        return build_classifier(Model(name=name, **keys), classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "densenet121", "densenet169"])
def test_size_and_work_are_those_torchvision_publishes(name):
    meta = torchvision.models.get_model_weights(name).DEFAULT.meta
    assert CLASSIFIERS[name].parameters == meta["num_params"]
    assert CLASSIFIERS[name].gflops == pytest.approx(2 * meta["_ops"], abs=0.006)  # theirs: multiply-adds


def test_size_of_the_small_one_and_of_timms():
    # The paper's table 2 says 0.8 M, its authors' code counts 769,162.
    assert CLASSIFIERS["densenet-bc-100-12"].parameters == 769_162
    found = variant(Model(name="timm/resnet18"))
    assert (found.parameters, round(found.gflops, 1)) == (11_689_512, 3.6)


def test_looking_at_the_sizes_takes_no_chance():
    before = torch.get_rng_state()
    assert variant(Model(name="densenet121", densenet=TINY)).parameters < 100_000
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "name", "keys"),
    [
        (lambda: torchvision.models.resnet18(num_classes=5), "resnet18", {}),
        (lambda: torchvision.models.resnet50(num_classes=5), "resnet50", {}),
        (lambda: timm.create_model("resnet18", num_classes=5), "resnet18", {}),
        (
            lambda: timm.create_model("resnet50", num_classes=5, act_layer=nn.SiLU),
            "resnet50",
            {"activation": "swish"},
        ),
    ],
)
def test_computes_what_others_compute_with_the_same_weights(theirs, name, keys):
    theirs, mine = theirs(), build_classifier(Model(name=name, **keys), 5)
    mine.load_state_dict(with_statistics(theirs).state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs(x)
        scale = expected.abs().max()  # random weights make numbers of any size
        torch.testing.assert_close(mine.eval()(x) / scale, expected / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_head_depends_on_the_number_of_classes_and_the_backbone_is_the_rest(name):
    model = on_meta(name, 5)
    shapes = [
        {key: value.shape for key, value in one.state_dict().items()} for one in (model, on_meta(name, 7))
    ]
    other = {key for key, shape in shapes[1].items() if shape != shapes[0][key]}
    assert other
    assert all(key.startswith(model.head_names) for key in other)
    for head in model.head_names:  # no head that has nothing to do with the classes
        assert any(key.startswith(head) for key in other)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    head = {key for key in names.values() if key.startswith(model.head_names)}
    listed = set(names.values()) - head
    inside = [names[id(p)] for m in catalog.backbone_modules(model) for p in m.parameters()]
    assert len(inside) == len(set(inside))
    assert set(inside) <= listed
    assert {key.rpartition(".")[0] for key in listed - set(inside)} <= {""}  # the net's own, no layer's
    if "vit" not in name:
        assert set(inside) == listed


@pytest.mark.slow
def test_dropout_of_a_resnet_is_before_its_last_layer():
    plain = build_classifier(Model(name="resnet18"), 4).eval()
    model = build_classifier(Model(name="resnet18", dropout=0.25), 4)
    model.load_state_dict(plain.state_dict(), strict=True)
    x = torch.randn(8, 3, 64, 64)  # four pixels to pool: dropped before, they would leave a part
    seen = []
    model.fc.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    plain.fc.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), plain(x))
        model.avgpool.train()
        model(x)
    whole, dropped = seen[1], seen[2]
    alive, kept = whole != 0, dropped != 0  # some were zero before
    assert kept[alive].float().mean().item() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)


def test_dropout_of_a_timm_model_is_its_drop_rate():
    assert on_meta("timm/resnet18", 4, dropout=0.25).drop_rate == 0.25


@pytest.mark.parametrize("size", [96, (64, 96)])
def test_a_timm_model_of_fixed_size_is_built_for_the_recipes(size):
    model = build_classifier(Model(name="timm/vit_tiny_patch16_224", image_size=size), 3)
    height, width = (size, size) if isinstance(size, int) else size
    assert model(torch.randn(1, 3, height, width)).shape == (1, 3)


def test_normalization_and_side():
    def known(name, **densenet):
        found = variant(Model(name=name, **({"densenet": Densenet(**densenet)} if densenet else {})))
        return found.side, found.mean[0], found.std[2]

    assert known("resnet50") == known("densenet201") == (224, 0.485, 0.225)
    assert known("densenet-bc-190-40") == known("densenet121", stem="small") == (32, 0.5, 0.5)
    assert known("densenet-bc-100-12", stem="imagenet") == (224, 0.485, 0.225)
    assert known("timm/vit_base_patch16_224.augreg_in21k") == (224, 0.5, 0.5)
    assert known("timm/inception_v3") == (299, 0.5, 0.5)


@pytest.mark.slow
def test_densenet_options_reach_the_network():
    options = Densenet(
        growth=3, bottleneck=False, separable=Separable(dilation=1), stem="small", compression=1.0
    )
    model = on_meta("densenet121", 4, densenet=options, activation="prelu")
    keys = model.state_dict()
    assert keys["features.conv0.weight"].shape == (6, 3, 3, 3)
    assert "features.denseblock1.denselayer1.conv2.depthwise.weight" in keys
    assert "features.denseblock1.denselayer1.conv1.weight" not in keys
    assert keys["features.transition1.conv.weight"].shape == (24, 24, 1, 1)
    assert keys["features.activation5.weight"].shape == (1,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yolov4-tiny", r"'yolov4-tiny', which is not a classifier; expected a classifier, such as resnet18"),
        ("ResNet_18", "did you mean 'resnet18'"),
        ("efficientnet_b0", "did you mean 'timm/efficientnet_b0'"),
        (
            "timm/resnet18x",
            "'timm/resnet18x': timm .* has no such model; expected a name .*; did you mean 'timm/resnet18'",
        ),
        (
            "timm/resnet18.a9_in1k",
            r"no such model; expected a name .*; did you mean .*'timm/resnet18\.a1_in1k'",
        ),
        ("timm/hf-hub:timm/resnet18", "no such model"),
        ("timm/", "no such model"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UserError, match=message):
        variant(Model(name=name))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cfg": "my.cfg"}, r"'model.cfg' is 'my.cfg'.*model.name"),
        ({"name": "densenet121", "image_size": 28}, r"'model.image_size' is 28.*at least 29"),
        ({"name": "densenet121", "image_size": (64, 16)}, r"'model.image_size' is \[64, 16\].*at least 29"),
    ],
)
def test_keys_that_do_not_fit(keys, message):
    with pytest.raises(UserError, match=message):
        variant(Model(**keys))
    assert variant(Model(name="densenet121", image_size=29))


def test_every_problem_is_reported_at_once():
    with pytest.raises(UserError) as caught:
        build_classifier(Model(name="resnet19"), 1)
    name, classes = caught.value.problems
    assert "'resnet19'" in name and "1 class" in classes


def test_timm_that_cannot_build_it_says_what_was_asked():
    with pytest.raises(
        UserError, match=r"'timm/xcit.*with model.image_size \(100, 36\) \(AssertionError: `patch"
    ):
        on_meta("timm/xcit_nano_12_p8_224", 3, image_size=(100, 36))


def count_of(net: nn.Module) -> int:
    return sum(one.numel() for one in net.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions", "digits"),
    [
        # Those of the ResNets that CIFAR repositories share, exactly.
        ("resnet18-cifar", 11.173962, 6),
        ("resnet34-cifar", 21.282122, 6),
        ("resnet50-cifar", 23.520842, 6),
        # He et al., 2016, table 6.
        ("resnet20-cifar", 0.27, 2),
        ("resnet32-cifar", 0.46, 2),
        ("resnet44-cifar", 0.66, 2),
        ("resnet56-cifar", 0.85, 2),
        # Huang et al., 2017, table 2.
        ("densenet-40-12", 1.0, 1),
        ("densenet-100-12", 7.0, 1),
        ("densenet-100-24", 27.2, 1),
        ("densenet-bc-100-12", 0.8, 1),
        ("densenet-bc-190-40", 25.6, 1),
    ],
)
def test_networks_for_cifar_have_the_published_size_and_depth(name: str, millions: float, digits: int):
    net, known = on_meta(name, 10), variant(Model(name=name))
    assert round(count_of(net) / 1e6, digits) == millions
    assert (known.side, known.classes, known.parameters) == (32, 10, count_of(net))
    if "bc" in name or name[6:8] not in ("18", "34", "50"):  # in those, shortcuts are convolutions, too
        depth = int(re.findall(r"\d+", name)[0])
        assert sum(isinstance(one, nn.Conv2d | nn.Linear) for one in net.modules()) == depth


def test_networks_for_cifar_have_maps_of_the_published_size():
    for name, layer, side in (("resnet18-cifar", "layer1", 32), ("resnet20-cifar", "layer3", 8)):
        net, sizes = on_meta(name, 10), []
        net.get_submodule(layer).register_forward_hook(lambda _m, _i, out, s=sizes: s.append(out.shape[2:]))
        net(torch.zeros(2, 3, 32, 32, device="meta"))
        assert sizes == [(side, side)]


def test_a_shortcut_has_no_parameters_and_skips_pixels():
    net = build_classifier(Model(name="resnet20-cifar"), 10).eval()
    block = net.layer2[0]
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(1, 16, 8, 8)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any() and not out[:, 24:].any()


def test_the_depth_of_a_dense_network_is_a_key():
    options = Densenet(depth=22)
    net = build_classifier(Model(name="densenet-40-12", densenet=options), 10)
    assert sum(isinstance(one, nn.Conv2d | nn.Linear) for one in net.modules()) == 22
    with pytest.raises(UserError, match=r"is 23; .* 3n \+ 4 .*without bottlenecks, such as 22 or 25"):
        build_classifier(Model(name="densenet-40-12", densenet=Densenet(depth=23)), 10)
    with pytest.raises(UserError, match=r"6n \+ 4 for a DenseNet with bottlenecks, such as 22 or 28"):
        build_classifier(Model(name="densenet-bc-100-12", densenet=Densenet(depth=25)), 10)
    with pytest.raises(UserError, match="only the DenseNets for CIFAR have this option"):
        build_classifier(Model(name="densenet121", densenet=options), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "detector"), [("darknet53", "yolov3"), ("cspdarknet53", "yolov4")])
def test_the_backbones_of_the_detectors_as_classifiers(name: str, detector: str):
    with torch.device("meta"):
        net = build_classifier(Model(name=name), 1000)
        theirs = timm.create_model(name)
        whole = zoo.build(Model(name=detector), 80)
    assert count_of(net) == count_of(theirs)
    ours = {key: value.shape for key, value in net.state_dict().items() if key.startswith("layers.")}
    assert ours.items() <= {key: value.shape for key, value in whole.state_dict().items()}.items()
    assert len(ours) == len(net.state_dict()) - 2
    assert [*net.head_names] == ["classifier."] and catalog.backbone_modules(net)


@pytest.mark.slow
def test_a_backbone_computes_what_it_does_in_the_detector():
    torch.manual_seed(0)
    net = build_classifier(Model(name="cspdarknet53"), 5).eval()
    whole = zoo.build(Model(name="yolov4"), 3).eval()
    whole.load_state_dict(net.state_dict() | {}, strict=False)
    seen = {}
    last = [*whole.layers.values()][whole.network.backbone - 1]
    last.register_forward_hook(lambda _, __, out: seen.update(map=out))
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        whole(x)
        logits = net(x)
    expected = net.classifier(seen["map"].mean((2, 3)))
    torch.testing.assert_close(logits, expected)
