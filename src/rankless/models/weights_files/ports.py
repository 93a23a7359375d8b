"""Map the tensor names of widely used PyTorch ports of YOLOv3 and YOLOv4 to Rankless's names.

A port is the same network with different tensor names. It may also use a different epsilon in its batch
norms, and its heads may order or interpret the values of an anchor differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankless.errors import UserError, nearest, one_of
from rankless.models.darknet.network import DETECTOR_CHANNELS, Conv, Involution, Network
from rankless.models.layers import BATCH_NORM_EPS
from rankless.models.weights_files.matching import COUNTER, align, compare, mismatch

Module = tuple[str, str]
"""The names of a convolution and its batch norm. The latter is empty if there is no batch norm."""

_IN_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_STAGES = (1, 2, 8, 8, 4)  # residual blocks of Darknet-53 and of CSPDarknet-53
_PADDED = ("data.fit=letterbox", "data.pad=128")
_ROUGH_ANCHORS = (
    (0.02, 0.03), (0.04, 0.07), (0.08, 0.06), (0.07, 0.15), (0.15, 0.11), (0.14, 0.29), (0.28, 0.22),
    (0.38, 0.48), (0.9, 0.78),
)  # fmt: skip


@dataclass(frozen=True)
class Port:
    """A PyTorch port of a Darknet network.

    Attributes:
        model: name of the network; empty if the port supports any named network or cfg file.
        modules: function that yields the port's names for the convolutions of a network, in order.
        about: differences from Rankless, for messages.
        options: recipe options that the port's weights need.
        eps: epsilon of the batch norms.
        order: positions of x, y, width, height and objectness among the values of an anchor.
        unused: substrings of the names of tensors that are stored but never used.
    """

    source: str
    model: str
    modules: Callable[[Network], Iterator[Module]]
    about: str = "names only"
    options: tuple[str, ...] = ()
    eps: float = BATCH_NORM_EPS
    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    unused: tuple[str, ...] = ()


def port_named(name: str) -> Port:
    if name not in PORTS:
        known = [f"  {port:20} {one.source}" for port, one in PORTS.items()]
        problem = f"--from is '{name}'; expected {one_of(PORTS)}{nearest(name, PORTS)}"
        raise UserError("\n".join([problem, *known]))
    return PORTS[name]


def likely_port(state: Mapping[str, Tensor], model: str, ours: Mapping[str, Tensor], network: Network) -> str:
    """Return the name of the port whose tensor names occur most often in a file.

    The result is empty if Rankless's own names (``ours``) occur at least as often, or if no port matches more
    than half of the tensors.
    """
    candidates = {"": list(ours)} | {
        name: [theirs for _, theirs in _names(port, network)]
        for name, port in PORTS.items()
        if port.model in ("", model)
    }

    def known(names: Sequence[str]) -> int:
        wanted = dict.fromkeys(names, torch.empty(0))
        return len(wanted.keys() & align(wanted, _with_backbone(state, names))[0].keys())

    counts = {name: known(names) for name, names in candidates.items()}
    likely = max(counts, key=counts.__getitem__)  # Rankless's names win a tie
    return likely if 2 * counts[likely] > len(state) else ""


def from_port(
    state: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    port: Port,
    network: Network,
    source: str,
    partial: bool = False,
) -> tuple[dict[str, Tensor], list[str]]:
    """Rename the tensors of a port, and convert values that the port stores differently.

    Ports have no involutions, but users may have added some, which are recognized by the shapes of their
    tensors. With ``partial``, tensors may be missing, for example if the file contains only a backbone.
    """
    names = dict(_names(port, network))  # Rankless's names to the port's
    if partial:
        state = _with_backbone(state, names.values())
    expected = {theirs: ours[mine] for mine, theirs in names.items()}
    aligned, notes = align(expected, state)
    aligned = {
        name: tensor for name, tensor in aligned.items() if not any(one in name for one in port.unused)
    }
    involutions = _involutions(ours, network, {n: t for n, t in aligned.items() if n not in expected})
    names |= involutions
    expected |= {theirs: ours[mine] for mine, theirs in involutions.items()}
    misfits = compare(expected, {name: expected.get(name, tensor) for name, tensor in aligned.items()})
    missing = [one for one in misfits.missing if not one.endswith(COUNTER)]
    if (missing or misfits.unexpected) and not (partial and len(missing) < len(names)):
        hint = f"check that it comes from {port.source} and belongs to this model"
        raise mismatch(source, misfits, hint, general=True)
    predictors = {f"layers.{network.names[number]}.conv." for number in network.predictors()}
    renamed = {name: aligned[name] for name in misfits.unexpected}
    for mine, theirs in names.items():
        tensor = aligned.get(theirs)
        if tensor is None:
            continue  # a batch counter, which checkpoints from before PyTorch 0.4.1 lack
        if mine.endswith("running_var") and port.eps != BATCH_NORM_EPS:
            tensor = tensor + (port.eps - BATCH_NORM_EPS)
        if mine.startswith(tuple(predictors)):
            tensor = _reordered(tensor, port.order, network)
        renamed[mine] = tensor
    if port.eps != BATCH_NORM_EPS:
        notes.append(
            f"the batch norms' variances were increased by {port.eps - BATCH_NORM_EPS:.2g} to compensate for "
            "a different epsilon"
        )
    return renamed, notes


def _with_backbone(state: Mapping[str, Tensor], theirs: Iterable[str]) -> Mapping[str, Tensor]:
    """Add the prefix ``backbone.`` to all names if more names match with it."""
    wanted = set(theirs)
    both = wanted | {name.removeprefix("backbone.") for name in wanted}
    bare, _ = align(dict.fromkeys(both, torch.empty(0)), state)
    if len(wanted & {f"backbone.{name}" for name in bare}) <= len(wanted & bare.keys()):
        return state
    return {longer if (longer := f"backbone.{name}") in wanted else name: one for name, one in bare.items()}


def _involutions(ours: Mapping[str, Tensor], network: Network, left: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the tensors of each involution to consecutive tensors in ``left`` with the same shapes."""
    found: dict[str, str] = {}
    theirs, counts = list(left), any(name.endswith(COUNTER) for name in left)
    for number, layer in enumerate(network.layers):
        if not isinstance(layer, Involution):
            continue
        prefix = f"layers.{network.names[number]}."
        mine = [name for name in ours if name.startswith(prefix) and (counts or not name.endswith(COUNTER))]
        for start in range(len(theirs) - len(mine) + 1):
            run = theirs[start : start + len(mine)]
            if all(ours[one].shape == left[other].shape for one, other in zip(mine, run, strict=True)):
                found |= zip(mine, run, strict=True)
                del theirs[start : start + len(mine)]
                break
    return found


def _names(port: Port, network: Network) -> Iterator[tuple[str, str]]:
    convs = [number for number, layer in enumerate(network.layers) if isinstance(layer, Conv)]
    for number, (conv, norm) in zip(convs, port.modules(network), strict=True):
        mine = f"layers.{network.names[number]}"
        yield f"{mine}.conv.weight", f"{conv}.weight"
        if norm:
            yield from ((f"{mine}.norm.{name}", f"{norm}.{name}") for name in _IN_NORM)
        else:
            yield f"{mine}.conv.bias", f"{conv}.bias"


def _reordered(tensor: Tensor, order: tuple[int, ...], network: Network) -> Tensor:
    """Reorder a head's kernels or biases (A · (5 + C), …) to x, y, width, height, objectness, classes."""
    anchors = len(network.heads()[0].mask)  # type: ignore[union-attr]  # ports have anchors
    if tensor.shape[0] % anchors:
        return tensor  # the comparison of shapes reports it
    channels = tensor.shape[0] // anchors
    rows = [*order, *range(DETECTOR_CHANNELS, channels)]
    shape = (anchors, channels, *tensor.shape[1:])
    return tensor.view(shape)[:, torch.tensor(rows)].flatten(0, 1)


def _numbered(conv: str, norm: str) -> Callable[[Network], Iterator[Module]]:
    """Return a function that replaces ``{n}`` with layer numbers and ``{k}`` with convolution numbers."""

    def modules(network: Network) -> Iterator[Module]:
        convs = [n for n, layer in enumerate(network.layers) if isinstance(layer, Conv)]
        for k, n in enumerate(convs, 1):
            layer = network.layers[n]
            has_norm = isinstance(layer, Conv) and layer.norm
            yield conv.format(n=n, k=k), norm.format(n=n, k=k) if has_norm else ""

    return modules


def _block(name: str) -> Module:
    return f"{name}.conv", f"{name}.bn"


def _of_tianxiaomo(_: Network) -> Iterator[Module]:
    def block(name: str) -> Module:
        return f"{name}.conv.0", f"{name}.conv.1"

    yield from (block(f"down1.conv{n}") for n in range(1, 9))
    for stage, blocks in enumerate(_STAGES[1:], 2):
        yield from (block(f"down{stage}.conv{n}") for n in (1, 2, 3))
        for number in range(blocks):
            yield from (block(f"down{stage}.resblock.module_list.{number}.{n}") for n in (0, 1))
        yield from (block(f"down{stage}.conv{n}") for n in (4, 5))
    yield from (block(f"neek.conv{n}") for n in range(1, 21))
    for number in range(1, 19):
        yield (f"head.conv{number}.conv.0", "") if number in (2, 10, 18) else block(f"head.conv{number}")


def _of_bubbliiiing_yolov4(_: Network) -> Iterator[Module]:
    yield _block("backbone.conv1")
    for stage, blocks in enumerate(_STAGES):
        at = f"backbone.stages.{stage}"
        yield from (_block(f"{at}.{name}") for name in ("downsample_conv", "split_conv0", "split_conv1"))
        for number in range(blocks):
            yield from (_block(f"{at}.blocks_conv.{number}.block.{n}") for n in (0, 1))
        yield _block(f"{at}.blocks_conv.{blocks}")
        yield _block(f"{at}.concat_conv")
    yield from (_block(f"{name}.{n}") for name in ("conv1", "conv2") for n in range(3))
    for number, level in ((1, 4), (2, 3)):
        yield _block(f"upsample{number}.upsample.0")
        yield _block(f"conv_for_P{level}")
        yield from (_block(f"make_five_conv{number}.{n}") for n in range(5))
    for number, head in ((0, 3), (1, 2), (2, 1)):
        if number:
            yield _block(f"down_sample{number}")
            yield from (_block(f"make_five_conv{number + 2}.{n}") for n in range(5))
        yield _block(f"yolo_head{head}.0")
        yield f"yolo_head{head}.1", ""


def _of_bubbliiiing_yolov3(_: Network) -> Iterator[Module]:
    yield "backbone.conv1", "backbone.bn1"
    for stage, blocks in enumerate(_STAGES, 1):
        at = f"backbone.layer{stage}"
        yield f"{at}.ds_conv", f"{at}.ds_bn"
        for number in range(blocks):
            yield from ((f"{at}.residual_{number}.conv{n}", f"{at}.residual_{number}.bn{n}") for n in (1, 2))
    for level in range(3):
        if level:
            yield _block(f"last_layer{level}_conv")
        yield from (_block(f"last_layer{level}.{n}") for n in range(6))
        yield f"last_layer{level}.6", ""


def _of_aladdinpersson(_: Network) -> Iterator[Module]:
    yield _block("layers.0")
    for stage, blocks in enumerate(_STAGES):
        yield _block(f"layers.{2 * stage + 1}")
        for number in range(blocks):
            yield from (_block(f"layers.{2 * stage + 2}.layers.{number}.{n}") for n in (0, 1))
    for level, at in enumerate((11, 18, 25)):
        if level:
            yield _block(f"layers.{at - 2}")  # before the upsampling
        yield from (_block(f"layers.{at + n}") for n in (0, 1))
        yield from (_block(f"layers.{at + 2}.layers.0.{n}") for n in (0, 1))
        yield _block(f"layers.{at + 3}")
        yield _block(f"layers.{at + 4}.pred.0")
        yield f"layers.{at + 4}.pred.1.conv", ""


def _of_mmdetection(_: Network) -> Iterator[Module]:
    yield _block("backbone.conv1")
    for stage, blocks in enumerate(_STAGES, 1):
        at = f"backbone.conv_res_block{stage}"
        yield _block(f"{at}.conv")
        yield from (_block(f"{at}.res{number}.conv{n}") for number in range(blocks) for n in (1, 2))
    for level in range(3):
        if level:
            yield _block(f"neck.conv{level}")
        yield from (_block(f"neck.detect{level + 1}.conv{n}") for n in range(1, 6))
        yield _block(f"bbox_head.convs_bridge.{level}")
        yield f"bbox_head.convs_pred.{level}", ""


PORTS: dict[str, Port] = {
    "eriklindernoren": Port(
        "github.com/eriklindernoren/PyTorch-YOLOv3",
        "",
        _numbered("module_list.{n}.conv_{n}", "module_list.{n}.batch_norm_{n}"),
        "names only; also ayooshkathuria/pytorch-yolo-v3",
        unused=(".anchors", ".anchor_grid"),
    ),
    "ultralytics-yolov3": Port(
        "github.com/ultralytics/yolov3 (archive) and github.com/WongKinYiu/PyTorch_YOLOv4",
        "",
        _numbered("module_list.{n}.Conv2d", "module_list.{n}.BatchNorm2d"),
        "batch norms with an epsilon of 1e-4",
        eps=1e-4,
    ),
    "tianxiaomo": Port(
        "github.com/Tianxiaomo/pytorch-YOLOv4, models.py",
        "yolov4",
        _of_tianxiaomo,
        "names only",
        ("data.fit=stretch", "data.resample=darknet"),
    ),
    "tianxiaomo-darknet": Port(
        "github.com/Tianxiaomo/pytorch-YOLOv4, tool/darknet2pytorch.py",
        "",
        _numbered("models.{n}.conv{k}", "models.{n}.bn{k}"),
        "names only; also marvis/pytorch-yolo3",
        ("data.fit=stretch", "data.resample=darknet"),
    ),
    "bubbliiiing-yolov3": Port(
        "github.com/bubbliiiing/yolo3-pytorch", "yolov3", _of_bubbliiiing_yolov3, "names only", _PADDED
    ),
    "bubbliiiing-yolov4": Port(
        "github.com/bubbliiiing/yolov4-pytorch",
        "yolov4",
        _of_bubbliiiing_yolov4,
        "no scale_xy",
        ("model.scale_xy=1", *_PADDED),
    ),
    "aladdinpersson": Port(
        "github.com/aladdinpersson/Machine-Learning-Collection, YOLOv3",
        "yolov3",
        _of_aladdinpersson,
        "objectness first, other anchors, an unused batch norm after each prediction",
        (
            f"model.anchors={[[round(416 * side, 2) for side in anchor] for anchor in _ROUGH_ANCHORS]}",
            "data.pad=0",
        ),
        order=(1, 2, 3, 4, 0),
        unused=(".pred.1.bn.",),
    ),
    "mmdetection": Port(
        "github.com/open-mmlab/mmdetection, yolov3_d53", "yolov3", _of_mmdetection, "names only"
    ),
}
"""All known ports by name."""
