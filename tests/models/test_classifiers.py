"""Every classifier by its name: published size and work, head and backbone, and what is refused."""

from __future__ import annotations

import socket

import pytest
import timm
import torch
import torchvision
from torch import nn

from rankless.errors import UserError
from rankless.models.classifiers import catalog
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier, variant
from rankless.recipe import model_kinds

TINY = model_kinds.Densenet(growth=2)
# A plain one, one inside a module, two heads, a convolution before the head, one that is a convolution.
TIMM = ("vit_tiny_patch16_224", "convnext_atto", "levit_128s", "mobilenetv3_small_050", "dpn48b")
NAMES = ("resnet18", "resnet50", "densenet121", "densenet-bc-100-12", *(f"timm/{name}" for name in TIMM))


@pytest.fixture(autouse=True)
def seeded_and_without_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("went onto the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    torch.manual_seed(0)


def on_meta(name, classes, **keys):
    with torch.device("meta"):
        return build_classifier(model_kinds.Model(name=name, **keys), classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "densenet121", "densenet169"])
def test_size_and_work_are_those_torchvision_publishes(name):
    meta = torchvision.models.get_model_weights(name).DEFAULT.meta
    assert CLASSIFIERS[name].parameters == meta["num_params"]
    assert CLASSIFIERS[name].gflops == pytest.approx(2 * meta["_ops"], abs=0.006)  # theirs: multiply-adds


def test_size_of_the_small_one_and_of_timms():
    # The paper's table 2 says 0.8 M, its authors' code counts 769,162.
    assert CLASSIFIERS["densenet-bc-100-12"].parameters == 769_162
    found = variant(model_kinds.Model(name="timm/resnet18"))
    assert (found.parameters, round(found.gflops, 1)) == (11_689_512, 3.6)


def test_looking_at_the_sizes_takes_no_chance():
    before = torch.get_rng_state()
    assert variant(model_kinds.Model(name="densenet121", densenet=TINY)).parameters < 100_000
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvision_weights_fit(name):
    theirs = torchvision.models.get_model(name, weights=None)
    agrees(theirs, build_classifier(model_kinds.Model(name=name), 1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_timm_weights_fit(name):
    theirs = timm.create_model(name, pretrained=False, num_classes=12)
    agrees(theirs, build_classifier(model_kinds.Model(name=name), 12))


@pytest.mark.slow
def test_another_activation_computes_what_timm_computes_with_it():
    theirs = timm.create_model("resnet18", num_classes=5, act_layer=nn.SiLU)
    agrees(theirs, build_classifier(model_kinds.Model(name="resnet18", activation="swish"), 5))


def agrees(theirs, mine):
    for m in theirs.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias, -0.5, 0.5)
            nn.init.uniform_(m.running_mean, -0.5, 0.5)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.eval()(x)
        scale = expected.abs().max()  # random weights make numbers of any size
        torch.testing.assert_close(mine.eval()(x) / scale, expected / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["leaky", "mish", "swish", "relu"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_activation_replaces_every_relu_of_a_resnet(name, activation):
    kinds = {"leaky": nn.LeakyReLU, "mish": nn.Mish, "swish": nn.SiLU, "relu": nn.ReLU}
    model = on_meta(name, 3, activation=activation)
    count = sum(isinstance(m, nn.ReLU) for m in on_meta(name, 3).modules())
    assert [sum(isinstance(m, kind) for m in model.modules()) for kind in kinds.values()] == [
        count if chosen == activation else 0 for chosen in kinds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_head_is_what_depends_on_the_number_of_classes_and_the_backbone_all_else(name):
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


def test_a_frozen_backbone_leaves_the_head_to_learn():
    model = build_classifier(model_kinds.Model(name="densenet-bc-100-12", densenet=TINY), 3)
    for part in catalog.backbone_modules(model):
        part.requires_grad_(False)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is not None] == [
        "classifier.weight",
        "classifier.bias",
    ]


@pytest.mark.slow
def test_dropout_of_a_resnet_is_before_its_last_layer():
    plain = build_classifier(model_kinds.Model(name="resnet18"), 4).eval()
    model = build_classifier(model_kinds.Model(name="resnet18", dropout=0.25), 4)
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
    model = build_classifier(model_kinds.Model(name="timm/vit_tiny_patch16_224", image_size=size), 3)
    height, width = (size, size) if isinstance(size, int) else size
    assert model(torch.randn(1, 3, height, width)).shape == (1, 3)


def test_normalization_and_side():
    def known(name, **densenet):
        found = variant(
            model_kinds.Model(
                name=name, **({"densenet": model_kinds.Densenet(**densenet)} if densenet else {})
            )
        )
        return found.side, found.mean[0], found.std[2]

    assert known("resnet50") == known("densenet201") == (224, 0.485, 0.225)
    assert known("densenet-bc-190-40") == known("densenet121", stem="small") == (32, 0.5, 0.5)
    assert known("densenet-bc-100-12", stem="imagenet") == (224, 0.485, 0.225)
    assert known("timm/vit_base_patch16_224.augreg_in21k") == (224, 0.5, 0.5)
    assert known("timm/inception_v3") == (299, 0.5, 0.5)


@pytest.mark.slow
def test_densenet_options_reach_the_network():
    options = model_kinds.Densenet(
        growth=3, bottleneck=False, separable=model_kinds.Separable(dilation=1), stem="small", compression=1.0
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
            "'timm/resnet18x': timm .* has no such model; expected one.*; did you mean 'timm/resnet18'",
        ),
        ("timm/resnet18.a9_in1k", r"no such model; expected one.*; did you mean .*'timm/resnet18\.a1_in1k'"),
        ("timm/hf-hub:timm/resnet18", "no such model"),
        ("timm/", "no such model"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UserError, match=message):
        variant(model_kinds.Model(name=name))


def test_cfg_of_a_classifier_is_answered_with_the_key_that_was_given():
    with pytest.raises(UserError, match=r"'model.cfg' is 'my.cfg'.*model.name"):
        variant(model_kinds.Model(cfg="my.cfg"))


def test_every_problem_is_reported_at_once():
    with pytest.raises(UserError) as caught:
        build_classifier(model_kinds.Model(name="resnet19"), 1)
    name, classes = caught.value.problems
    assert "'resnet19'" in name and "1 class" in classes


def test_too_small_a_image_is_refused():
    with pytest.raises(UserError, match=r"'model.image_size' is 28.*at least 29"):
        variant(model_kinds.Model(name="densenet121", image_size=28))
    with pytest.raises(UserError, match=r"'model.image_size' is \[64, 16\].*at least 29"):
        variant(model_kinds.Model(name="densenet121", image_size=(64, 16)))
    assert variant(model_kinds.Model(name="densenet121", image_size=29))


def test_timm_that_cannot_build_it_says_what_was_asked():
    with pytest.raises(
        UserError, match=r"'timm/xcit.*with model.image_size \(100, 36\) \(AssertionError: `patch"
    ):
        on_meta("timm/xcit_nano_12_p8_224", 3, image_size=(100, 36))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18-cifar", 11_173_962), ("resnet34-cifar", 21_282_122), ("resnet50-cifar", 23_520_842)],
)
def test_cifar_resnets_have_the_size_that_others_report(name, parameters):
    """Those of the ResNets that CIFAR repositories share; the 3×3 stem keeps the size."""
    with torch.device("meta"):
        net = build_classifier(model_kinds.Model(name=name), 10)
    assert sum(p.numel() for p in net.parameters()) == parameters
    known = variant(model_kinds.Model(name=name))
    assert (known.side, known.classes) == (32, 10)
    small = build_classifier(model_kinds.Model(name="resnet18-cifar"), 10).eval()
    sizes = []
    small.layer1.register_forward_hook(lambda _m, _i, out: sizes.append(tuple(out.shape)))
    small(torch.zeros(1, 3, 32, 32))
    assert sizes == [(1, 64, 32, 32)]
