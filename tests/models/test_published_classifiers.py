"""Classifiers of the papers: their numbers of parameters, as published or as in timm, and their shapes."""

from __future__ import annotations

import pytest
import timm
import torch

from rankless.errors import UserError
from rankless.models import zoo
from rankless.models.classifiers.catalog import backbone_modules, build_classifier, classifier_named
from rankless.recipe import model_kinds
from rankless.recipe.schema import Model


def parameters(net: torch.nn.Module) -> int:
    return sum(one.numel() for one in net.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet20-cifar", 269_722),  # He et al., 2016, table 6: 0.27 M
        ("resnet32-cifar", 464_154),  # 0.46 M
        ("resnet44-cifar", 658_586),  # 0.66 M
        ("resnet56-cifar", 853_018),  # 0.85 M
    ],
)
def test_cifars_residual_networks(name: str, count: int):
    net = build_classifier(Model(name=name), 10).eval()
    assert parameters(net) == count == classifier_named(name).parameters
    depth = int(name[6:8])
    assert sum(isinstance(one, torch.nn.Conv2d | torch.nn.Linear) for one in net.modules()) == depth
    x = torch.rand(2, 3, 32, 32)
    maps = net.layer3(net.layer2(net.layer1(net.activation(net.bn1(net.conv1(x))))))
    assert maps.shape == (2, 64, 8, 8) and net(x).shape == (2, 10)


def test_a_shortcut_has_no_parameters_and_skips_pixels():
    net = build_classifier(Model(name="resnet20-cifar"), 10).eval()
    block = net.layer2[0]
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(1, 16, 8, 8)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any() and not out[:, 24:].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("densenet-40-12", 1.0),
        ("densenet-100-12", 7.0),
        ("densenet-100-24", 27.2),
        ("densenet-bc-100-12", 0.8),
    ],
)
def test_cifars_dense_networks(name: str, millions: float):
    """Huang et al., 2017, table 2."""
    with torch.device("meta"):
        net = build_classifier(Model(name=name), 10)
    assert round(parameters(net) / 1e6, 1) == millions
    depth = int(name.split("-")[-2])
    assert sum(isinstance(one, torch.nn.Conv2d | torch.nn.Linear) for one in net.modules()) == depth


def test_the_depth_of_a_dense_network_is_a_key():
    options = model_kinds.Densenet(depth=22)
    net = build_classifier(Model(name="densenet-40-12", densenet=options), 10)
    assert sum(isinstance(one, torch.nn.Conv2d | torch.nn.Linear) for one in net.modules()) == 22
    with pytest.raises(UserError, match=r"is 23; .* 3n \+ 4 .*without bottlenecks, such as 22 or 25"):
        build_classifier(Model(name="densenet-40-12", densenet=model_kinds.Densenet(depth=23)), 10)
    with pytest.raises(UserError, match=r"6n \+ 4 for a DenseNet with bottlenecks, such as 22 or 28"):
        build_classifier(Model(name="densenet-bc-100-12", densenet=model_kinds.Densenet(depth=25)), 10)
    with pytest.raises(UserError, match="only the DenseNets for CIFAR have this option"):
        build_classifier(Model(name="densenet121", densenet=options), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "detector"), [("darknet53", "yolov3"), ("cspdarknet53", "yolov4")])
def test_the_backbones_of_the_detectors_as_classifiers(name: str, detector: str):
    with torch.device("meta"):
        net = build_classifier(Model(name=name), 1000)
        theirs = timm.create_model(name)
        whole = zoo.build(Model(name=detector), 80)
    assert parameters(net) == parameters(theirs)
    ours = {key: value.shape for key, value in net.state_dict().items() if key.startswith("layers.")}
    assert ours.items() <= {key: value.shape for key, value in whole.state_dict().items()}.items()
    assert len(ours) == len(net.state_dict()) - 2
    assert [*net.head_names] == ["classifier."] and backbone_modules(net)


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
