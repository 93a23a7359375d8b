"""All classifiers by name, and how to build them from a recipe.

A classifier's network has the same state dict as the original implementation, and two additional attributes:
``variant``, a :class:`Classifier`, and ``head_names``, the prefixes of the parameters whose shape depends on
the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import nn

from rankless.errors import UserError, counted, nearest, one_of
from rankless.hardware import memory
from rankless.models.classifiers import cifar_resnet, darknet, densenet
from rankless.models.classifiers.adapters import (
    CIFAR,
    build_resnet,
    build_timm,
    timm_facts,
    timm_heads,
    timm_knows,
)
from rankless.models.classifiers.densenet import DenseNet
from rankless.models.layers import Activation
from rankless.models.work import parameters_and_gflops
from rankless.randomness import GENERATORS
from rankless.recipe import model_kinds
from rankless.recipe.model_kinds import IMAGENET_MEAN, IMAGENET_STD

TIMM = "timm/"

Color = tuple[float, float, float]  # red, green, blue
HALF: Color = (0.5, 0.5, 0.5)
IMAGENET_SIDE, SMALL_SIDE = 224, 32

_MANY_CLASSES = 20_000  # heads with up to this many classes, as in ImageNet-21k, need little memory


@dataclass(frozen=True)
class Classifier:
    """A published classifier, or one of its variants.

    Attributes:
        side: published side length of the square input in pixels.
        classes: number of classes that the classifier was published for.
        mean, std: per-channel normalization: the network expects (image - mean) / std, for images in 0..1.
        densenet: options of a DenseNet; None for other classifiers.
    """

    name: str
    source: str
    side: int = IMAGENET_SIDE
    classes: int = 1000
    mean: Color = IMAGENET_MEAN
    std: Color = IMAGENET_STD
    densenet: densenet.Variant | None = None

    @property
    def parameters(self) -> int:
        """The number of parameters, for the published number of classes."""
        return self._work[0]

    @property
    def gflops(self) -> float:
        """The GFLOPs per image of the published size. A multiply-accumulate counts as two operations."""
        return self._work[1]

    @cached_property
    def _work(self) -> tuple[int, float]:
        build = partial(_build, self, model_kinds.Model(name=self.name), self.classes)
        return parameters_and_gflops(build, (self.side, self.side))


def _resnet(depth: int) -> Classifier:
    source = "He et al., 2016, Deep Residual Learning for Image Recognition, arXiv:1512.03385"
    return Classifier(name=f"resnet{depth}", source=source)


def _cifar_resnet(depth: int) -> Classifier:
    name = f"resnet{depth}{CIFAR}"
    return replace(_resnet(depth), name=name, side=SMALL_SIDE, classes=10, mean=HALF, std=HALF)


def _darknet(name: str, source: str, side: int) -> Classifier:
    """Describe a YOLO backbone with a linear layer. Its input is normalized as in the detectors."""
    return Classifier(name=name, source=source, side=side, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def _densenet(name: str, variant: densenet.Variant) -> Classifier:
    source = "Huang et al., 2017, Densely Connected Convolutional Networks, arXiv:1608.06993"
    classes = 10 if variant.stem == "small" else 1000
    return _with_densenet(Classifier(name=name, source=source, classes=classes), variant)


def _with_densenet(chosen: Classifier, variant: densenet.Variant) -> Classifier:
    if variant.stem == "small":
        return replace(chosen, densenet=variant, side=SMALL_SIDE, mean=HALF, std=HALF)
    return replace(chosen, densenet=variant, side=IMAGENET_SIDE, mean=IMAGENET_MEAN, std=IMAGENET_STD)


_ALL = (
    *(_resnet(depth) for depth in (18, 34, 50, 101, 152)),
    *(_cifar_resnet(depth) for depth in (18, 34, 50, *cifar_resnet.DEPTHS)),
    _darknet("darknet53", "Redmon and Farhadi, 2018, YOLOv3, arXiv:1804.02767", 256),
    _darknet("cspdarknet53", "Bochkovskiy, Wang and Liao, 2020, YOLOv4, arXiv:2004.10934", 256),
    *(_densenet(name, variant) for name, variant in densenet.PUBLISHED.items()),
)
CLASSIFIERS: dict[str, Classifier] = {chosen.name: chosen for chosen in _ALL}
"""All built-in classifiers by name. Each ``timm/NAME`` is available as well."""


def variant(model: model_kinds.ModelKeys) -> Classifier:
    """Return the description of a recipe's classifier."""
    if cfg := getattr(model, "cfg", ""):
        where = "the text of a cfg file" if "\n" in cfg else f"'{cfg}'"
        raise UserError(
            f"'model.cfg' is {where}, but task is 'classify', and cfg files describe only detectors; "
            "expected a classifier in model.name, such as darknet53 or resnet18"
        )
    chosen = classifier_named(model.name)
    if chosen.densenet is None or not isinstance(model, model_kinds.DensenetModel):
        return chosen
    options = chosen.densenet.with_options(model.densenet)
    size = model.input_size()
    if size is not None and min(size) < options.least_side:
        sides = model.image_size if isinstance(model.image_size, int) else list(size)
        small = "" if options.stem == "small" else ", or model.densenet.stem=small"
        raise UserError(
            f"'model.image_size' is {sides}, which is too small for {model.name}; "
            f"expected at least {options.least_side}{small}"
        )
    return _with_densenet(chosen, options)


def published(model: model_kinds.ModelKeys) -> tuple[int, tuple[int, int]]:
    """Return the published number of classes, and the (height, width) of the input."""
    chosen = variant(model)
    return chosen.classes, model.input_size() or (chosen.side, chosen.side)


def build_classifier(model: model_kinds.ModelKeys, classes: int) -> nn.Module:
    """Build a classifier on the CPU that maps normalized images (B, 3, H, W) to logits (B, classes).

    The weights are initialized with torch's global generator.
    """
    problems: list[str] = []
    chosen = None
    try:
        chosen = variant(model)
    except UserError as error:
        problems += error.problems
    if classes < 2:
        few = counted(classes, "class", "classes")
        problems.append(f"the data has {few}, but a classifier needs at least two; set data.classes")
    if problems or chosen is None:
        raise UserError(problems)
    _refuse_giant(chosen, model, classes)
    return _build(chosen, model, classes)


def _refuse_giant(chosen: Classifier, model: model_kinds.ModelKeys, classes: int) -> None:
    """Raise an error if the weights do not fit into memory. Published models are known to be small enough."""
    options = model.densenet if isinstance(model, model_kinds.DensenetModel) else model_kinds.Densenet()
    if classes <= _MANY_CLASSES and options.growth == options.depth == "auto":
        return
    with torch.device("meta"), GENERATORS, torch.random.fork_rng(devices=[]):
        count = sum(tensor.numel() for tensor in _build(chosen, model, classes).parameters())
    memory.ensure(
        4 * count,
        f"{model.name} for {classes:,} classes, with {count:,} parameters,",
        "use a smaller model.densenet.growth or model.densenet.depth, or fewer classes",
    )


def backbone_modules(model: nn.Module) -> list[nn.Module]:
    """Return the largest modules of a classifier that do not contain any part of its head.

    Parameters that belong directly to a module containing the head, such as the class token of a vision
    transformer, are not included.
    """
    head_names: Any = model.head_names  # set by _build
    heads = tuple(head_names)

    def outside(module: nn.Module, prefix: str) -> Iterator[nn.Module]:
        for name, child in module.named_children():
            path = f"{prefix}{name}."
            if path in heads:
                continue
            if any(head.startswith(path) for head in heads):
                yield from outside(child, path)
            else:
                yield child

    return list(outside(model, ""))


def classifier_named(name: str) -> Classifier:
    if name in CLASSIFIERS:
        return CLASSIFIERS[name]
    if name.startswith(TIMM):
        facts = timm_facts(name.removeprefix(TIMM))
        return Classifier(
            name=name,
            source=facts.source,
            side=facts.size[1],
            classes=facts.classes,
            mean=facts.mean,
            std=facts.std,
        )
    if name.startswith("yolo"):
        raise UserError(
            f"'model.name' is '{name}', which is not a classifier; expected a classifier, such as resnet18 "
            "or timm/convnext_tiny; to train a detector, set task to 'detect'"
        )
    near = f"; did you mean '{TIMM}{name}'?" if timm_knows(name) else nearest(name, CLASSIFIERS)
    raise UserError(
        f"'model.name' is '{name}': no such classifier; expected {one_of(CLASSIFIERS)}, or timm/NAME "
        f"for a timm model{near}"
    )


def _build(chosen: Classifier, model: model_kinds.ModelKeys, classes: int) -> nn.Module:
    net: Any  # mypy allows only tensors and modules as attributes of nn.Module
    if isinstance(model, model_kinds.TimmModel):
        net = build_timm(
            chosen.name.removeprefix(TIMM), classes, dropout=model.dropout, size=model.input_size()
        )
        inside = {id(layer) for layer in timm_heads(net)}
        heads = tuple(f"{name}." for name, layer in net.named_modules() if id(layer) in inside)
        if not heads:
            raise UserError(
                f"'model.name' is '{chosen.name}': the model has no classification layer; use another model"
            )
    elif isinstance(model, model_kinds.DensenetModel) and chosen.densenet is not None:
        net = DenseNet(chosen.densenet, classes, activation=_activation(model), dropout=model.dropout)
        heads = ("classifier.",)
    elif isinstance(model, model_kinds.DarknetClassifierModel):
        layers = darknet.backbone(chosen.name, None if model.activation == "auto" else model.activation)
        net = darknet.DarknetClassifier(layers, classes, dropout=model.dropout)
        heads = ("classifier.",)
    else:
        resnet = cast(model_kinds.ResnetModel, model)
        options: dict[str, Any] = {"activation": _activation(resnet), "dropout": resnet.dropout}
        depth = int(chosen.name.removeprefix("resnet").removesuffix(CIFAR))
        if depth in cifar_resnet.DEPTHS:
            net = cifar_resnet.CifarResNet(depth, classes, **options)
        else:
            net = build_resnet(chosen.name, classes, **options)
        heads = ("fc.",)
    net.variant, net.head_names = chosen, heads
    net.backbone = partial(backbone_modules, net)  # used by a recipe's model.freeze
    built: nn.Module = net
    return built


def _activation(model: model_kinds.ResnetModel | model_kinds.DensenetModel) -> Activation:
    return "relu" if model.activation == "auto" else model.activation
