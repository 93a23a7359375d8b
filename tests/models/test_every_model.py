"""What every registered model inherits: a new line in the zoo is tested by all of this."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankless.models import zoo
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier
from rankless.models.classifiers.densenet import DenseNet, Variant
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.detectors.darknet import MODELS
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe import model_kinds
from rankless.recipe.load import default, load
from rankless.recipe.schema import Recipe
from rankless.world.process_group import World
from support.first_steps import digests_of_steps
from support.thorough import THOROUGH

WIDTH = 0.125
CLASSES = 3
CLASSIFIER_NAMES = [*CLASSIFIERS, "timm/mobilenetv3_small_050"]
# Those of transformers have tests of their own, with small configurations: see test_transformers.py.
DETECTORS = [name for name in zoo.MODELS if not name.startswith("hf/")]
# Between them they have every kind of layer that a detector has; the others repeat those.
KINDS = ("yolov3-tiny", "yolov4", "yolov4-tiny", "yolov4-tiny-anchor-free")
# The same for classifiers; one in a library that has many stands for them.
FAMILIES = (
    "resnet18", "resnet50", "resnet20-cifar", "densenet121", "densenet-40-12", "darknet53", "cspdarknet53",
    "timm/mobilenetv3_small_050",
)  # fmt: skip
# Seconds a step even at 32 pixels.
LARGE = {"densenet-bc-190-40", "resnet152", "densenet161", "densenet201", "darknet53", "cspdarknet53"}
# One of each family is as deep as published; the others, which only repeat its layers, a quarter as deep.
DEEP = {"resnet18", "densenet121"}


def some(names: Iterable[str]) -> list[str]:
    """Those that have every kind of layer between them, where the others take minutes to say the same."""
    return [
        name for name in names if THOROUGH or name not in (*MODELS, *CLASSIFIERS) or name in KINDS + FAMILIES
    ]


@contextlib.contextmanager
def a_quarter_as_deep() -> Iterator[None]:
    """ResNets (those in detectors too) and DenseNets with a quarter of their blocks, and thin bottlenecks.

    The kinds of layers are the same, and in ResNets the sizes and channels of every stage's output.
    """
    from torchvision.models.resnet import Bottleneck, ResNet  # takes as long to import as torch does

    resnet, densenet = ResNet.__init__, DenseNet.__init__

    def fewer(counts: Any) -> list[int]:
        return [math.ceil(count / 4) for count in counts]

    def short_resnet(self: Any, block: Any, layers: list[int], *rest: Any, **options: Any) -> None:
        inside = {"width_per_group": 8} if block is Bottleneck else {}
        resnet(self, block, fewer(layers), *rest, **options, **inside)

    def short_densenet(self: Any, variant: Variant, *rest: Any, **options: Any) -> None:
        densenet(self, replace(variant, blocks=tuple(fewer(variant.blocks))), *rest, **options)

    ResNet.__init__, DenseNet.__init__ = short_resnet, short_densenet
    try:
        yield
    finally:
        ResNet.__init__, DenseNet.__init__ = resnet, densenet


def depth_of(name: str) -> Any:
    """What a network is built in where its depth is not the point."""
    return contextlib.nullcontext() if name in DEEP or name in MODELS else a_quarter_as_deep()


def any_model(name: str) -> nn.Module:
    return classifier(name) if name in CLASSIFIER_NAMES else any_detector(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in some((*CLASSIFIERS, *DETECTORS)) if name not in DEEP | {*MODELS}]
)
def test_a_quarter_of_the_depth_has_every_kind_of_layer(name: str) -> None:
    found = []
    for depth in (contextlib.nullcontext, a_quarter_as_deep):
        with depth(), torch.device("meta"):
            model = any_model(name)
        kinds = {(type(part).__name__, str(getattr(part, "stride", ""))) for part in model.modules()}
        found.append((kinds, sum(parameter.numel() for parameter in model.parameters())))
    (kinds, size), (kinds_of_short, size_of_short) = found
    assert kinds_of_short == kinds
    norms = {kind for kind, _ in kinds if "BatchNorm" in kind}
    assert norms == {"BatchNorm2d"} or name in CLASSIFIER_NAMES
    assert size_of_short < 0.6 * size or "resnet" not in name or "cifar" in name  # small as they are


def small(name: str, **options: Any) -> DetectionModel:
    torch.manual_seed(3)
    return build(model_kinds.Model(name=name, width=WIDTH, **options), CLASSES)


def any_detector(name: str, classes: int = CLASSES) -> Any:
    """Narrow where the model has a width."""
    torch.manual_seed(3)
    return build(options_of(name), classes)


def options_of(name: str) -> model_kinds.ModelKeys:
    return model_kinds.Model(name=name, width=WIDTH) if name in MODELS else model_kinds.Model(name=name)


def images(height: int = 64, width: int = 96) -> torch.Tensor:
    rng = torch.Generator().manual_seed(5)
    return torch.rand(2, 3, height, width, generator=rng).contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in MODELS),
        *((name, {"dropout": 0.2, "involution": model_kinds.Involution(kernel=3)}) for name in some(MODELS)),
        *((name, {"involution": model_kinds.Involution(kernel=7, where="trunk")}) for name in some(MODELS)),
    ],
)
def test_forward_backward_shapes_and_dtype(name: str, options: dict[str, Any]) -> None:
    model = small(name, **options)
    raw = model(images())
    assert len(raw) == len(model.heads)
    for output, head in zip(raw, model.heads, strict=True):
        per_cell = (
            4 * max(head.bins, 1) + CLASSES if MODELS[name].anchor_free else len(head.mask) * (5 + CLASSES)
        )
        assert output.shape == (2, per_cell, 64 // head.stride, 96 // head.stride)
        assert output.dtype == torch.float32
    torch.stack([output.square().sum() for output in raw]).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.slow
@pytest.mark.parametrize("name", some(MODELS))
def test_bf16_autocast_is_near_and_channels_last_is_the_same(name: str) -> None:
    model = small(name).eval()
    with torch.no_grad():
        # In float64, where another order of adding up cannot hide another sum.
        exact = model.double()(images().double().contiguous())
        last = model.to(memory_format=torch.channels_last)(images().double())
        plain = model.float()(images())
        with torch.autocast("cpu", torch.bfloat16):
            short = model(images())
    for one, other in zip(exact, last, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for one, low in zip(plain, short, strict=True):
        assert low.dtype == torch.bfloat16
        assert (low.float() - one).abs().max() < 0.1 * one.abs().max() + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", some(DETECTORS))
def test_state_goes_into_a_file_and_back(name: str, tmp_path: Path) -> None:
    with depth_of(name):
        model = any_detector(name)
    model(images())  # so that the running statistics are no longer those of the start
    made = Recipe(model=options_of(name))
    weights.save(tmp_path / "w.safetensors", model.state_dict(), recipe=made, class_names=["a", "b", "c"])
    with depth_of(name):
        other = build(made.model, CLASSES)
    weights.load_into(other, weights.load(tmp_path / "w.safetensors").state, "w.safetensors")
    with torch.no_grad():
        model.eval(), other.eval()
        one = images()[:1]
        pairs = zip(model.decode(model(one)), other.decode(other(one)), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS if THOROUGH else ["yolov3-tiny", "yolov4-tiny-anchor-free"])
def test_the_graph_is_captured_whole(name: str) -> None:
    torch._dynamo.reset()  # its limit counts what other models made of the same lines
    model = small(name).eval()
    # Autograd's graph as well where it is small: its operators are those of the others.
    backend = "aot_eager" if THOROUGH or "free" in name else "eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for one, two in zip(compiled(images()), model(images()), strict=True):
            torch.testing.assert_close(one, two)


def kinds_of_layers(name: str) -> set[tuple[str, ...]]:
    """The layers' types, with what they do by their settings."""
    with depth_of(name), torch.device("meta"):
        model = any_model(name)
    return {(type(module).__name__, str(getattr(module, "activation", ""))) for module in model.modules()}


@pytest.mark.slow
@pytest.mark.parametrize(("some", "names"), [(KINDS, MODELS), (FAMILIES, CLASSIFIERS)])
def test_some_models_have_every_kind_of_layer(some: Iterable[str], names: Iterable[str]) -> None:
    kinds = {name: kinds_of_layers(name) for name in {*some, *names}}
    assert set().union(*(kinds[name] for name in some)) == set().union(*kinds.values())
    norms = {kind for found in kinds.values() for kind, _ in found if "BatchNorm" in kind}
    assert norms == {"BatchNorm2d"} or some == FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("name", some(DETECTORS))
def test_heads_and_backbone_are_reported_apart(name: str) -> None:
    with torch.device("meta"):
        few, many = (any_detector(name, classes).state_dict() for classes in (CLASSES, 7))
        model = any_detector(name)
    changed = {key for key in few if few[key].shape != many[key].shape}
    assert changed
    assert all(key.startswith(model.head_names) for key in changed)
    spared = {id(p) for part in model.backbone() for p in part.parameters()}
    named = [(key, id(p)) for key, p in model.named_parameters()]
    assert 0 < len(spared) < len(named)
    assert not any(key.startswith(model.head_names) for key, place in named if place in spared)


def one_step(world: World, name: str, words: list[str], folder: str) -> str:
    """Train one step of a recipe's file, or of the defaults; the digest of every tensor after it."""
    made = default(words) if "=" in words[0] else load(words[0], words[1:])
    with depth_of(name):
        return digests_of_steps(made, folder, world, 1)[0]


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    # RetinaNet's backbone, norms and loss are also those of FCOS.
    [name for name in some(DETECTORS) if THOROUGH or "retinanet" not in name],
)
def test_digest_on_one_and_on_two_ranks(name: str, ranks: Any, small_recipe: str, tmp_path: Path) -> None:
    text = Path(small_recipe).read_text()
    if name not in MODELS:
        text = text.replace("width: 0.125, image_size: 64, dropout: 0.1", "image_size: 32")
    (tmp_path / "small.yaml").write_text(text)
    words = [str(tmp_path / "small.yaml"), f"model.name={name}", "batch.images=4", "batch.micro=2"]
    (alone,) = ranks(1, one_step, name, words, str(tmp_path / "one"))
    both = ranks(2, one_step, name, words, str(tmp_path / "two"))
    assert both == [alone, alone]


def classifier(name: str) -> nn.Module:
    torch.manual_seed(3)
    return build_classifier(model_kinds.Model(name=name), CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in some(CLASSIFIER_NAMES)],
)
def test_classifier_contract(name: str, tmp_path: Path) -> None:
    """Forward, backward, shape, dtype, bf16, channels_last, and its state into a file and back."""
    with depth_of(name):
        model = classifier(name)
    logits = model(images(32, 32))
    assert logits.shape == (2, CLASSES)
    assert logits.dtype == torch.float32
    logits.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    model.eval()
    with torch.no_grad():
        exact = model.double()(images(32, 32).double().contiguous())
        model.to(memory_format=torch.channels_last)
        torch.testing.assert_close(model(images(32, 32).double()), exact, rtol=1e-9, atol=1e-9)
        plain = model.float()(images(32, 32))
        with torch.autocast("cpu", torch.bfloat16):
            short = model(images(32, 32))
        assert short.dtype == torch.bfloat16
        assert (short.float() - plain).abs().max() < 0.1 * plain.abs().max() + 0.1
        made = Recipe(task="classify", model=model_kinds.Model(name=name))
        path = tmp_path / "w.safetensors"
        weights.save(path, model.state_dict(), recipe=made, class_names=["a", "b", "c"])
        with depth_of(name):
            other = build_classifier(made.model, CLASSES)
        weights.load_into(other, weights.load(path).state, str(path))
        other.eval().to(memory_format=torch.channels_last)
        assert torch.equal(other(images(32, 32)), model(images(32, 32)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # Without THOROUGH, only the networks that are neither torchvision's nor timm's.
    [n for n in CLASSIFIER_NAMES if n not in LARGE] if THOROUGH else ["resnet20-cifar", "densenet121"],
)
def test_a_classifiers_graph_is_captured_whole(name: str) -> None:
    torch._dynamo.reset()
    with depth_of(name) if THOROUGH else a_quarter_as_deep():
        model = classifier(name).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images(64, 64)), model(images(64, 64)))


@pytest.mark.processes
@pytest.mark.parametrize("name", some(name for name in CLASSIFIER_NAMES if name not in LARGE))
def test_a_classifiers_digest_on_one_and_on_two_ranks(name: str, ranks: Any, tmp_path: Path) -> None:
    words = [
        "task=classify",
        f"model.name={name}",
        "model.image_size=32",
        "model.dropout=0.1",
        "precision=fp32",
    ]
    words += ["batch.images=4", "batch.micro=2", "data.augment.mixup=0.2", "data.augment.erase=0.5"]
    (alone,) = ranks(1, one_step, name, words, str(tmp_path / "one"))
    both = ranks(2, one_step, name, words, str(tmp_path / "two"))
    assert both == [alone, alone]
