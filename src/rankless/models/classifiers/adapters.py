"""Build untrained classifiers with torchvision and timm, and convert timm's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rankless.errors import UserError, counted, nearest
from rankless.models.layers import Activation, activate

CIFAR = "-cifar"


def build_resnet(
    name: str, classes: int, *, activation: Activation = "relu", dropout: float = 0.0
) -> nn.Module:
    """Build a torchvision ResNet, whose last layer is ``fc``.

    With the suffix ``-cifar``, the network starts with a 3×3 convolution of stride 1 and no pooling, as is
    usual for 32-pixel images. The names in the state dict are the same. PReLU is not allowed, because each
    block calls the same activation module several times, and these calls would share one slope.
    """
    if activation == "prelu":
        raise ValueError(
            "activation 'prelu' is not supported for a ResNet, because all activations of a block would "
            "share one slope"
        )
    from torchvision import models  # importing it takes as long as importing torch

    build = getattr(models, name.removesuffix(CIFAR))
    net: Any = build(weights=None, num_classes=classes)
    if name.endswith(CIFAR):
        net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # like all others
        net.maxpool = nn.Identity()
    if activation != "relu":
        for module in list(net.modules()):
            for child_name, child in list(module.named_children()):
                if isinstance(child, nn.ReLU):
                    setattr(module, child_name, activate(activation))
    if dropout:
        net.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout))
    built: nn.Module = net
    return built


@dataclass(frozen=True)
class TimmFacts:
    """timm's description of a model.

    Attributes:
        size: published (height, width) of the input in pixels.
        fixed: whether the model accepts only one input size.
        mean, std: published normalization per channel, for images in 0..1.
        classes: number of classes in the published weights.
    """

    size: tuple[int, int]
    fixed: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    classes: int
    source: str


def timm_knows(name: str) -> bool:
    """Check whether timm has the model ``name``, which may end in a weights tag (``.a1_in1k``)."""
    import timm

    architecture, _, tag = name.partition(".")
    return timm.is_model(architecture) and (not tag or name in timm.list_pretrained())


def timm_facts(name: str) -> TimmFacts:
    """Return timm's description of the model ``name``, given without the prefix ``timm/``."""
    import timm

    # Only registered models: timm would download a name such as 'hf-hub:…'.
    config = timm.get_pretrained_cfg(name) if timm_knows(name) else None
    if config is None:
        known = timm.list_models() + timm.list_pretrained()
        near = nearest(name, known, count=3, shown="'timm/{}'")
        raise UserError(
            f"'model.name' is 'timm/{name}': timm {timm.__version__} has no such model; expected a name "
            f"listed by `python -c 'import timm; print(timm.list_models())'`{near}"
        )
    if config.input_size[0] != 3:
        raise UserError(
            f"'model.name' is 'timm/{name}', whose images have {counted(config.input_size[0], 'channel')}; "
            "expected a model for images with three channels"
        )
    return TimmFacts(
        size=(config.input_size[1], config.input_size[2]),
        fixed=config.fixed_input_size,
        mean=_three(config.mean),
        std=_three(config.std),
        classes=config.num_classes or 1000,
        source=_text(config.paper_ids) or config.origin_url or "timm",
    )


def build_timm(
    name: str, classes: int, *, dropout: float = 0.0, size: tuple[int, int] | None = None
) -> nn.Module:
    """Build a timm model without pretrained weights, for the published input size or the given ``size``."""
    import timm

    facts = timm_facts(name)
    options: dict[str, Any] = {"drop_rate": dropout} if dropout else {}
    if size is not None and facts.fixed and size != facts.size:
        options["img_size"] = size
    try:
        return timm.create_model(name, pretrained=False, num_classes=classes, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        asked = {"drop_rate": f"model.dropout {dropout:g}", "img_size": f"model.image_size {size}"}
        with_options = " and ".join(asked[option] for option in options)
        raise UserError(
            f"'model.name' is 'timm/{name}': timm cannot build this model{' with ' * bool(options)}"
            f"{with_options} ({type(error).__name__}: {error}); "
            f"{'remove these keys from the recipe, or ' * bool(options)}use another model"
        ) from error


def timm_heads(net: nn.Module) -> list[nn.Module]:
    """Return the classification layers of a timm model. Distilled models have several."""
    get_classifier = getattr(net, "get_classifier", None)
    head = get_classifier() if get_classifier else None
    layers = head if isinstance(head, tuple | list) else [head]
    return [layer for layer in layers if isinstance(layer, nn.Module) and list(layer.parameters())]


def _text(papers: str | tuple[str, ...] | None) -> str:
    return papers if isinstance(papers, str) else ", ".join(papers or ())


def _three(values: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = values
    return (red, green, blue)


def timm_weights(name: str, published: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the published weights of a timm model to the names that the installed timm uses."""
    import timm

    offered = {"state_dict": published, "custom_load": False}
    state: dict[str, Tensor] = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=offered
    ).state_dict()
    return state
