"""Published weights by name: the table, and models that start from them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.files.download import Offer
from rankless.files.hub import HubAddress
from rankless.models import published, zoo
from rankless.models.classifiers.catalog import CLASSIFIERS, build_classifier
from rankless.models.detectors import darknet
from rankless.models.published import PublishedFile, all_of_timm, all_published, named
from rankless.models.weights_files.darknet_weights import write_weights
from rankless.models.weights_files.pretrained import start_from
from rankless.recipe.schema import Model

NAMES = ("dog", "gnu", "cat")


@pytest.mark.slow
def test_lengths_are_those_of_the_networks() -> None:
    """Darknet's file: 20 bytes, then the float32 numbers of its first convolutions."""
    files = [one for one in all_published() if one.is_darknet]
    assert len(files) == 10
    for file in files:
        with torch.device("meta"):
            state = zoo.build(Model(name=file.models[0]), 80).state_dict()
        numbers: dict[str, int] = {}
        for name, value in state.items():
            if not name.endswith("num_batches_tracked"):
                layer = name.split(".")[1]
                numbers[layer] = numbers.get(layer, 0) + value.numel()
        *inside, end = (20 + 4 * total for total in accumulate(numbers.values()))
        assert isinstance(file.source, Offer)
        assert file.source.length in (inside if ".conv." in file.name else [end]), file.name


def test_digests_are_whole_and_what_is_not_confirmed_says_so() -> None:
    for one in all_published():
        assert isinstance(one.source, Offer)
        assert re.fullmatch("[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{8}|", one.source.digest)
        assert one.source.url.startswith("https://")
        assert (one.checked_by == "unconfirmed") == (one.source.digest == "")
        assert one.license
    assert [one.name for one in all_published() if not one.source.digest] == ["yolov4-csp"]


def test_every_model_that_torchvision_offers_weights_for_has_its_default() -> None:
    known = [*CLASSIFIERS, *zoo.MODELS]
    of_torchvision = [
        one for one in known if one.removeprefix("torchvision/") in torchvision.models.list_models()
    ]
    assert len(of_torchvision) == 13
    for name in of_torchvision:
        default = torchvision.models.get_model_weights(name.removeprefix("torchvision/")).DEFAULT
        assert named(name).source.url == default.url
        assert named(f"{name}.{default.name}") == named(name)
    assert named("resnet50.IMAGENET1K_V1").source.name == "resnet50-0676ba61.pth"
    assert named("torchvision/fasterrcnn_resnet50_fpn_v2").categories[0] == "person"
    assert named("torchvision/retinanet_resnet50_fpn_v2").categories[1] == "person"


def test_timm_says_where_its_weights_are() -> None:
    found = named("timm/resnet18")
    assert found.name == "timm/resnet18.a1_in1k"
    assert found.source == HubAddress("timm/resnet18.a1_in1k", "", "model.safetensors")
    assert found.license == "apache-2.0"
    assert "timm/resnet18.a1_in1k" in {one.name for one in all_of_timm(lambda name: "resnet18." in name)}


@pytest.mark.parametrize(
    ("model", "pretrained", "said"),
    [
        (Model(name="resnet18-cifar"), "published", "no published weights are named 'resnet18-cifar'"),
        (Model(name="hf/dfine_n"), "published", "use model.pretrained=hf://ustc-community/dfine-nano-coco"),
        (Model(name="yolov3"), "published/yolov3-tny", "did you mean 'yolov3-tiny'?"),
        (
            Model(name="yolov3"),
            "published/yolov4.conv.137",
            "fit yolov4 and yolov4-anchor-free, but model.name is",
        ),
        (Model(name="yolov3"), "timm", "the model is not a timm model"),
        (Model(name="yolov3", width=0.5), "published", "is 0.5; published weights have a width of 1"),
        (Model(name="resnet18"), "published/timm/nothing", "timm .* has no such model"),
    ],
)
def test_names_that_do_not_fit_are_refused(model: Any, pretrained: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"model\.pretrained is '{pretrained}'.*{said}"):
        published.prefetch(replace(model, pretrained=pretrained))


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build()
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value))
    return model


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], PublishedFile]:
    """Put a file in the place of the one that a name is published with, as if it had been downloaded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

    def offer(name: str, file: Path) -> PublishedFile:
        there = named(name)
        assert isinstance(there.source, Offer)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        known = replace(there, source=Offer(there.source.url, file.stat().st_size, digest))
        folder = tmp_path / ("cache/weights" if there.is_darknet else "torch/hub/checkpoints")
        folder.mkdir(parents=True, exist_ok=True)
        file.rename(folder / there.source.name)
        monkeypatch.setattr(published, "all_published", lambda: [known])
        return known

    return offer


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> set[str]:
    return {
        name
        for name, value in ours.items()
        if not name.endswith("num_batches_tracked")
        and not torch.equal(value, theirs.get(name, torch.tensor(0)))
    }


@pytest.mark.slow
def test_darknet_weights_start_a_detector(offered: Any, tmp_path: Path) -> None:
    keys = Model(name="yolov3-tiny")
    theirs = seeded(lambda: zoo.build(keys, 80), 1).state_dict()
    write_weights(tmp_path / "file", darknet.network(keys, 80), theirs)
    known = offered("yolov3-tiny", tmp_path / "file")
    model = zoo.build(keys, len(NAMES))
    said = start_from(model, "published", NAMES, keys)
    assert said[0].startswith("starting from the weights in yolov3-tiny: ")
    assert said[0].endswith(f"yolov3-tiny.weights (SHA-256 {known.source.digest})")
    assert "2 of 3 classes are among the 80 in the file; newly initialized: 'gnu'" in said[1]
    ours = model.state_dict()
    heads = {name for name in ours if name.startswith(tuple(model.head_names))}
    assert differing(ours, theirs) == heads
    weight = next(name for name in sorted(heads) if name.endswith("weight"))
    dog = known.categories.index("dog")  # rows: for each of 3 anchors a box, objectness, and the classes
    assert torch.equal(
        ours[weight].unflatten(0, (3, 8))[:, 5], theirs[weight].unflatten(0, (3, 85))[:, 5 + dog]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "of"), [("yolov4-tiny-3l", 17, 24), ("yolov4-tiny-anchor-free", 16, 34)]
)
def test_a_backbone_fills_the_layers_that_a_network_shares(
    offered: Any, tmp_path: Path, name: str, count: int, of: int
) -> None:
    keys = Model(name="yolov4-tiny")
    theirs = seeded(lambda: zoo.build(keys, 80), 1).state_dict()
    write_weights(tmp_path / "file", darknet.network(keys, 80), theirs)
    length = named("yolov4-tiny.conv.29").source.length  # type: ignore[union-attr]
    os.truncate(tmp_path / "file", length)
    offered("yolov4-tiny.conv.29", tmp_path / "file")
    keys = Model(name=name)
    model = zoo.build(keys, len(NAMES))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (said,) = start_from(model, "published", NAMES, keys)
    assert said.endswith(f", for {count} of {of} convolutions")
    ours = model.state_dict()
    first = [f"layers.{number}." for number in range(29)]
    taken = {name for name in ours if name.startswith(tuple(first))}
    assert differing({name: ours[name] for name in taken}, theirs) == set()
    assert differing({name: ours[name] for name in ours if name not in taken}, before) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_torchvision_weights_start_a_classifier(offered: Any, tmp_path: Path, name: str) -> None:
    theirs = seeded(lambda: getattr(torchvision.models, name)(), 1).state_dict()
    old = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", key): value for key, value in theirs.items()
    }
    old = {key: value for key, value in old.items() if not key.endswith("num_batches_tracked")}
    assert (set(old) <= set(theirs)) == (name == "resnet18")
    torch.save(old, tmp_path / "file")
    offered(name, tmp_path / "file")
    model = build_classifier(Model(name=name), len(NAMES))
    start_from(model, "published", NAMES, Model(name=name))
    heads = {key for key in theirs if key.startswith(tuple(model.head_names))}  # type: ignore[arg-type]
    assert differing(model.state_dict(), theirs) == heads


@pytest.mark.slow
def test_timm_weights_come_from_the_hub_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--timm--resnet18.a1_in1k"
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = build_classifier(Model(name="timm/resnet18"), len(NAMES))
    with pytest.raises(
        UserError, match=r"hf://timm/resnet18.a1_in1k/model.safetensors: it is not in the cache"
    ):
        start_from(model, "published", NAMES, Model(name="timm/resnet18"))
    theirs = seeded(lambda: timm.create_model("resnet18"), 1).state_dict()
    for folder in ("refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    safetensors.torch.save_file(theirs, repository / "snapshots" / commit / "model.safetensors")
    for pretrained in ("published", "timm"):
        said = start_from(model, pretrained, NAMES, Model(name="timm/resnet18"))
        assert commit in said[0] and "newly initialized" in said[1]
        assert differing(model.state_dict(), theirs) == {"fc.weight", "fc.bias"}
    address = "hf://timm/resnet18.a1_in1k/model.safetensors"
    said = start_from(model, address, NAMES)
    assert said[0].startswith(
        f"starting from the weights in hf://timm/resnet18.a1_in1k@{commit}/model.safetensors (SHA"
    )
    with pytest.raises(UserError, match=r"expected a \.safetensors file"):
        start_from(model, "hf://timm/resnet18.a1_in1k/pytorch_model.bin", NAMES)
