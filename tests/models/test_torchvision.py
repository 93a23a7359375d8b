"""torchvision's detectors here are torchvision's: sizes, losses and boxes, against its own forward pass."""

from __future__ import annotations

import copy
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.ops import batched_nms, clip_boxes_to_image

from rankless.cli import main
from rankless.engine.layer_errors import explained
from rankless.errors import UserError
from rankless.interop.export import export
from rankless.models import zoo
from rankless.models.detectors.protocol import CANDIDATES
from rankless.models.detectors.torchvision import MODELS, FasterRCNN
from rankless.models.listing import listed_detector
from rankless.models.weights_files import weights
from rankless.recipe import schema
from rankless.recipe.schema import Model, Recipe
from rankless.structures import DetectionBatch
from rankless.tasks import resolve_recipe

# A worker makes each of them once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchvision's detectors")]
RETINANET, FCOS, FASTER, SSDLITE = MODELS
CLASSES, SIDE = 3, 64
PUBLISHED = {
    RETINANET: (detection.RetinaNet_ResNet50_FPN_V2_Weights, 38_198_935, 0),
    # torchvision's pretrained backbone has its 53,120 scales and shifts of norms as buffers, frozen.
    FCOS: (detection.FCOS_ResNet50_FPN_Weights, 32_269_600, 53_120),
    FASTER: (detection.FasterRCNN_ResNet50_FPN_V2_Weights, 43_712_278, 0),
    SSDLITE: (detection.SSDLite320_MobileNet_V3_Large_Weights, 3_440_060, 0),
}
BOXES = [[[5.0, 5, 30, 40], [20, 20, 60, 60]], [[10, 10, 50, 50], [0, 0, 0, 0]]]
LABELS, VALID = [[0, 2], [1, 0]], [[True, True], [True, False]]


def detector(name: str, seed: int = 0) -> Any:
    return copy.deepcopy(_made(name, seed))


@functools.cache
def _made(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    model: Any = zoo.build(Model(name=name), CLASSES)
    with torch.no_grad():  # scores and offsets that differ visibly
        for key, parameter in model.named_parameters():
            if key.startswith(model.head_names) or "bbox" in key or "ctrness" in key:
                parameter.mul_(3 if parameter.ndim > 1 else 0)
        norms = [(m, m.momentum) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm, _ in norms:
            norm.momentum = 1.0
        model.train()(images())  # running statistics with which scores do not vanish
        for norm, momentum in norms:
            norm.momentum = momentum
    # torchvision's own resizing then leaves the images as they are, and draws no random number for it.
    transform = model.network.transform
    transform.min_size, transform.max_size, transform.fixed_size = (SIDE,), SIDE, None
    transform.size_divisible, transform.torch_choice = 32, lambda sizes: sizes[0]
    if name == FASTER:  # a tenth of the proposals, whose second stage takes nearly all the time
        model.network.rpn._post_nms_top_n = {"training": 100, "testing": 100}
    return model


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))


def batch(*which: int) -> DetectionBatch:
    rows = list(which)
    return DetectionBatch(
        torch.zeros(len(rows), 3, SIDE, SIDE, dtype=torch.uint8),
        torch.tensor(BOXES)[rows],
        torch.tensor(LABELS)[rows],
        torch.tensor(VALID)[rows],
        rows,
        [],
    )


def targets(one: DetectionBatch, background: int) -> list[dict[str, Tensor]]:
    return [
        {"boxes": boxes[valid], "labels": labels[valid] + background}
        for boxes, labels, valid in zip(one.boxes, one.labels, one.valid, strict=True)
    ]


def loss_of(model: Any, which: tuple[int, ...], seed: int = 7) -> Any:
    raw = model(images()[list(which)])
    torch.manual_seed(seed)
    return model.loss(raw, batch(*which))


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_the_published_ones(name: str) -> None:
    published, known, thawed = PUBLISHED[name]
    assert published.DEFAULT.meta["num_params"] == known
    row = listed_detector(name, "detect")
    assert (row.parameters, row.classes) == (known + thawed, MODELS[name].classes)
    # torchvision counts multiply-accumulates, of which each is two operations here.
    assert row.gflops == pytest.approx(2 * published.DEFAULT.meta["_ops"], abs=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_state_dict_is_torchvisions(name: str) -> None:
    with torch.device("meta"):
        model: Any = zoo.build(Model(name=name), CLASSES)
        build = getattr(detection, name.removeprefix("torchvision/"))
        theirs = build(weights=None, weights_backbone=None, num_classes=CLASSES + model.background)
    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in model.state_dict().items()} == shapes


@pytest.mark.parametrize("name", [RETINANET, FCOS, SSDLITE])
def test_the_loss_is_torchvisions(name: str) -> None:
    model = detector(name).train()
    model.network.train()
    found = loss_of(model, (0, 1))
    theirs = model.network(list(images()), targets(batch(0, 1), model.background))
    theirs.pop("positives", None)
    learned = [p for p in model.parameters() if p.requires_grad]
    gradients = [
        torch.autograd.grad(one, learned, retain_graph=True)
        for one in (found.sum / found.count, sum(theirs.values()))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert found.parts.keys() == theirs.keys()
    for part, mean in theirs.items():
        torch.testing.assert_close(found.parts[part] / found.count, mean.detach())
    assert float(found.sum.detach()) == pytest.approx(float(sum(found.parts.values())), rel=1e-5)
    assert float(found.count) == (2 if name == RETINANET else found.count.round())
    assert found.sum.dtype == torch.float32


@pytest.mark.slow
def test_the_loss_of_an_image_is_faster_rcnns() -> None:
    model = detector(FASTER).train()
    model.network.train()
    found = loss_of(model, (0,))
    torch.manual_seed(7)
    theirs = model.network(list(images()[:1]), targets(batch(0), 1))
    names = {
        "rpn_objectness": "loss_objectness",
        "rpn_box": "loss_rpn_box_reg",
        "classes": "loss_classifier",
        "box": "loss_box_reg",
    }
    for part, their_part in names.items():
        torch.testing.assert_close(found.parts[part], theirs[their_part].detach())
    assert float(found.count) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_parts_of_a_batch_add_up(name: str) -> None:
    """Only then does a division by the global count make the gradient independent of the micro-batches."""
    model = detector(name).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    if name == FASTER:  # every anchor and proposal is sampled, so that none is drawn
        for sampler in (model.network.rpn.fg_bg_sampler, model.network.roi_heads.fg_bg_sampler):
            sampler.batch_size_per_image, sampler.positive_fraction = 100_000, 0.5
    with torch.no_grad():
        together, first, second = (loss_of(model, which) for which in ((0, 1), (0,), (1,)))
    torch.testing.assert_close(together.sum, first.sum + second.sum, rtol=1e-4, atol=1e-4)
    assert together.count == first.count + second.count


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_images_without_objects_have_a_loss_and_every_gradient(name: str) -> None:
    model = detector(name).train()
    empty = batch(0, 1)
    empty.valid = torch.zeros_like(empty.valid)
    found = model.loss(model(images()), empty)
    found.sum.backward()
    assert found.sum.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_unmatched_anchors_in_a_region_to_ignore_have_no_gradient(name: str) -> None:
    model, one = detector(name).train(), batch(0, 1)
    if name == FASTER:  # every anchor is sampled
        sampler = model.network.rpn.fg_bg_sampler
        sampler.batch_size_per_image, sampler.positive_fraction = 100_000, 0.5
    with torch.no_grad():
        raw = model(images())
    logits = raw.objectness if name == FASTER else raw.outputs["cls_logits"]
    logits.requires_grad_()

    def gradient(ignored: Tensor | None) -> Tensor:
        one.ignored = ignored
        torch.manual_seed(7)
        loss = model.loss(raw, one)
        assert loss.sum.isfinite()
        return torch.autograd.grad(loss.sum, logits)[0].abs().view(2, len(raw.anchors), -1).sum(-1)

    region = [7.9, 0.3, 60.7, 61.1]
    before, found = gradient(None), gradient(torch.tensor([[region], [[0.0] * 4]]))
    x1, y1, x2, y2 = raw.anchors.double().unbind(1)
    if name == FCOS:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        excused = (x > 7.9) & (x < 60.7) & (y > 0.3) & (y < 61.1)
    else:
        across, down = x2.clamp(max=60.7) - x1.clamp(min=7.9), y2.clamp(max=61.1) - y1.clamp(min=0.3)
        excused = across.clamp(min=0) * down.clamp(min=0) > (x2 - x1) * (y2 - y1) / 2
    # Only matched anchors keep their gradients there.
    kept = excused & (found[0] > 0)
    assert 0 < kept.sum() < 0.4 * excused.sum() and torch.equal(found[0][kept], before[0][kept])
    assert torch.equal(found[1], before[1]) and found[0][~excused].any()
    if name != SSDLITE:  # which takes other negatives instead
        assert torch.equal(found[0][~excused], before[0][~excused])
    one.valid = torch.zeros_like(one.valid)
    assert not gradient(
        torch.tensor([[[-1e4, -1e4, 1e4, 1e4]]] * 2)
    ).any()  # nor any NaN, where nothing is left


def everything(network: Any) -> None:
    """Let torchvision report all it has, so that its detections are ours."""
    for part in (network, getattr(network, "roi_heads", network)):
        part.score_thresh, part.detections_per_img, part.topk_candidates = 0.01, 10_000, 100_000
        part.nms_thresh = 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_boxes_and_scores_are_torchvisions(name: str) -> None:
    model = detector(name).eval()
    model.network.eval()
    everything(model.network)
    with torch.no_grad():
        theirs = model.network(list(images()))
        boxes, scores = model.decode(model(images()))
    assert boxes.shape == (2, scores.shape[1], 4) and scores.shape[2] == CLASSES
    for image in range(2):
        row, label = (scores[image] > 0.01).nonzero(as_tuple=True)
        mine = clip_boxes_to_image(boxes[image][row], (SIDE, SIDE))
        # Of torchvision's, only Faster R-CNN leaves out boxes without area.
        solid = (mine[:, 2:] - mine[:, :2] >= (1e-2 if name == FASTER else 0)).all(1)
        mine, label, score = mine[solid], label[solid], scores[image][row, label][solid]
        kept = batched_nms(mine, score, label, 0.5)
        expected = theirs[image]
        assert len(expected["scores"]) > 5
        torch.testing.assert_close(score[kept], expected["scores"])
        torch.testing.assert_close(mine[kept], expected["boxes"], rtol=1e-4, atol=1e-3)
        assert (label[kept] + model.background).tolist() == expected["labels"].tolist()


def test_the_samplers_depend_on_torchs_generator_alone() -> None:
    model = detector(FASTER).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    model.network.rpn.fg_bg_sampler.batch_size_per_image = 16
    model.network.roi_heads.fg_bg_sampler.batch_size_per_image = 8
    with torch.no_grad():
        first = loss_of(model, (0, 1), seed=1).sum
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002 - the generator that nothing may read
        assert loss_of(model, (0, 1), seed=1).sum == first
        assert loss_of(model, (0, 1), seed=2).sum != first


def test_an_unknown_name_is_refused_and_common_keys_are_taken() -> None:
    with pytest.raises(UserError, match="did you mean 'torchvision/fcos_resnet50_fpn'"):
        zoo.spec(Model(name="torchvision/fcos_resnet50"))
    zoo.spec(Model(name=FCOS, image_size=320, freeze=1, pretrained="x.safetensors"))


def test_a_darknet_cfg_is_refused_and_no_anchors_are_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = detector(SSDLITE)
    recipe = Recipe(model=Model(name=SSDLITE))
    weights.save(tmp_path / "w", model.state_dict(), recipe=recipe, class_names=["a", "b", "c"])
    with pytest.raises(UserError, match=f"'{SSDLITE}', which is not a Darknet network"):
        export(tmp_path / "w", format="darknet", out=tmp_path / "net")
    assert main(["data", "anchors", "digits", "--model", SSDLITE]) == 2
    assert "this model has no anchors" in capsys.readouterr().err


def test_a_recipe_is_resolved_without_a_change() -> None:
    recipe = Recipe(model=Model(name=RETINANET, image_size=64), data=schema.Data(train_images=4))
    assert resolve_recipe(recipe) == recipe


def test_a_micro_batch_of_one_small_image_is_refused_in_words() -> None:
    model = detector(SSDLITE).train()
    with pytest.raises(UserError, match="gets only one value per channel"), explained(Recipe()):
        model(images(1))


def test_an_image_without_proposals_has_no_detections() -> None:
    model = detector(FASTER).eval()
    model.network.rpn._post_nms_top_n = {"training": 0, "testing": 0}
    with torch.no_grad():
        boxes, scores = model.decode(model(images()))
    assert boxes.shape == (2, CANDIDATES, 4) and not scores.any()


def test_proposals_are_counted_whole_where_nothing_is_computed() -> None:
    with torch.device("meta"):
        model = zoo.build(Model(name=FASTER), 2).eval()
        assert isinstance(model, FasterRCNN)
        boxes, scores = model.decode(model(torch.empty(1, 3, 64, 64)))
    assert (boxes.shape, scores.shape) == ((1, CANDIDATES, 4), (1, CANDIDATES, 2))


@pytest.mark.parametrize("name", MODELS)
def test_the_known_outputs_are_a_lower_bound_of_what_autograd_saves(name: str) -> None:
    """At least so many values are saved for the gradient, besides the weights, and not many times as many."""
    described = zoo.spec(Model(name=name))
    before = torch.get_rng_state()
    outputs = described.activations((96, 128))
    assert torch.equal(before, torch.get_rng_state())
    model = described.build(1).train()
    weights = {each.untyped_storage().data_ptr() for each in [*model.parameters(), *model.buffers()]}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.rand(2, 3, 96, 128))
    held = sum(size for pointer, size in saved.items() if pointer not in weights)
    bound = 2 * 4 * sum(outputs)
    assert bound < held < 4 * bound
