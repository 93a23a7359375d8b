"""Activation checkpointing: the same bits with less memory, on any number of ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.activation_checkpointing import blocks, checkpoint_activations
from rankless.recipe.load import default, load
from rankless.tasks import open_task
from rankless.world.process_group import World
from support.first_steps import digests_of_steps
from support.thorough import THOROUGH

SIX = ["batch.images=12", "batch.micro=2"]
DIGITS = ["digits-classify", "batch.images=8", "batch.micro=2", "model.image_size=16"]
CASES = {
    "dropout, leaky": ["SMALL", *SIX],
    "mish, frozen backbone": ["SMALL", *SIX, "model.activation=mish", "model.freeze=1"],
    "bf16, norms frozen": ["SMALL", *SIX, "precision=bf16", "batch_norm=frozen"],
    "sync": ["SMALL", *SIX, "batch_norm=sync"],
    "sync in bf16": ["SMALL", *SIX, "batch_norm=sync", "precision=bf16", "model.activation=mish"],
    "anchor-free": ["SMALL", *SIX, "model.name=yolov4-tiny-anchor-free", "model.dfl=4"],
    "resnet": [*DIGITS, "model.name=resnet20-cifar", "model.dropout=0.2", "precision=fp32"],
    "densenet in sync": [
        *DIGITS, "batch_norm=sync", "model.name=densenet121", "model.densenet.growth=4",
        "model.densenet.stem=small", "model.dropout=0.2", "precision=fp32",
    ],
}  # fmt: skip
DIFFERENT = ("mish, frozen backbone", "sync in bf16", "anchor-free", "resnet")


def trained(world: World, words: list[str], folder: str) -> str:
    return digests_of_steps(load(words[0], words[1:]), folder, world, 2)[1]


@pytest.mark.parametrize("case", [case for case in CASES if THOROUGH or case in DIFFERENT])
@pytest.mark.processes
def test_the_bits_are_the_same(case: str, ranks: Any, tmp_path: Path, small_recipe: str) -> None:
    words = [small_recipe if word == "SMALL" else word for word in CASES[case]]
    (plain,) = ranks(1, trained, words, str(tmp_path / "plain"))
    again = [*words, "model.checkpointing=true"]
    assert ranks(2, trained, again, str(tmp_path / "two")) == [plain] * 2


def kept(net: nn.Module, x: Tensor) -> int:
    """Bytes that the graph keeps between a forward and a backward pass, of storages other than parameters."""
    storages: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = net(x)
    held = made  # so that no memory is given out twice
    del held
    return sum(storages.values())


MODELS = {
    "yolov4-tiny": ["model.name=yolov4-tiny"],
    "yolov4-tiny-anchor-free": ["model.name=yolov4-tiny-anchor-free"],
    "yolov3": ["model.name=yolov3", "model.width=0.125"],
    "resnet18": ["task=classify", "model.name=resnet18"],
    "resnet50": ["task=classify", "model.name=resnet50"],
    "densenet121": ["task=classify", "model.name=densenet121"],
    "timm": ["task=classify", "model.name=timm/convnext_atto"],
    "torchvision": ["model.name=torchvision/retinanet_resnet50_fpn_v2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_every_kind_of_model_has_blocks(name: str) -> None:
    task = open_task(default([*MODELS[name], "model.image_size=64"]))
    with torch.device("meta"):
        net = task.model()
    found = [*blocks(net)]
    assert len(found) >= 4
    inside = {id(inner) for block in found for inner in block.modules()}
    # No block holds another one, and most of the weights are in blocks.
    assert len(inside) == sum(len([*block.modules()]) for block in found)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert sum(id(m) in inside for m in convolutions) >= 0.5 * len(convolutions)


def net_of_blocks() -> nn.Module:
    def block(channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Mish(), nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8), nn.Mish(),
        )  # fmt: skip

    torch.manual_seed(0)
    return nn.Sequential(block(3), block(8), block(8))


def test_the_graph_keeps_the_inputs_of_blocks_alone() -> None:
    x = torch.randn(2, 3, 16, 16)
    plain, less = net_of_blocks(), net_of_blocks()
    names = [name for name, _ in less.named_parameters()]
    assert checkpoint_activations(less) == 3
    assert [name for name, _ in less.named_parameters()] == names == [n for n, _ in plain.named_parameters()]
    plain(x).square().sum().backward()
    less(x).square().sum().backward()
    for one, other in zip(plain.parameters(), less.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    assert kept(less, x) < kept(plain, x) / 4


def test_a_copy_is_of_its_own() -> None:
    net = net_of_blocks()
    checkpoint_activations(net)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(other(x), torch.zeros_like(other(x)))
    assert other(x).abs().sum() == 0 < net(x).abs().sum()


def test_a_block_that_changes_its_input_is_an_error() -> None:
    net = nn.Sequential(
        nn.Sequential(nn.LeakyReLU(inplace=True), nn.Conv2d(3, 3, 1)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()),
    )
    checkpoint_activations(net)
    with pytest.raises(UserError, match=r"a block of the model \(Sequential\) changes its input in place"):
        net(torch.randn(1, 3, 4, 4).mul(2.0))


def test_what_has_no_blocks_is_an_error() -> None:
    with pytest.raises(UserError, match=r"the model \(Linear\) has no blocks"):
        checkpoint_activations(nn.Linear(2, 2))
