"""Detection: a YOLO model, its loss, what it finds in an image, and the COCO score of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rankless.data.anchors import box_sizes, kmeans_anchors
from rankless.data.augment.multi_scale import StepSizes
from rankless.data.datasets.detection import DetectionExamples, Images, collate, open_images
from rankless.errors import UserError
from rankless.geometry.letterbox import to_source
from rankless.geometry.nms import nms
from rankless.metrics.coco import Truth, coco_scores
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.heads.anchor_free import codec
from rankless.models.heads.anchor_free import loss as free
from rankless.models.heads.anchor_free.codec import AnchorFreeHead
from rankless.models.heads.yolo import codec as yolo_grid
from rankless.models.heads.yolo import loss as yolo
from rankless.models.heads.yolo.codec import YoloHead
from rankless.models.zoo import network
from rankless.recipe.schema import Recipe
from rankless.structures import DetectionBatch, DetectionItem, Detections, Letterbox, LossSum, Scores
from rankless.tasks.tta import VIEWS, seen, unseen
from rankless.tasks.without_effect import refuse_without_effect

# The built-in scenes are the same whatever the network's input is, so that models can be compared on them.
SCENE_SIZE = (256, 256)
# So many of the best candidates of an image reach NMS; its cost grows with their square.
CANDIDATES = 3000


class Detect:
    """The task ``detect``; see :class:`rankless.tasks.protocol.Task`.

    Args:
        recipe: the whole recipe.
        class_names: of a trained model; the training data then is not opened to learn them.

    Raises:
        UserError: no such model, a setting that only classifiers have, a loss setting that the loss does not
            have, or data that cannot be opened.
    """

    score_name = "AP"

    def __init__(self, recipe: Recipe, class_names: Sequence[str] | None = None) -> None:
        self.recipe = recipe
        # Size, heads and loss are the same for any number of classes, which only the data may know.
        published = network(recipe.model, classes=1)
        side = published.size if recipe.model.image_size == "auto" else recipe.model.image_size
        self.size: tuple[int, int] = (side, side) if isinstance(side, int) else side
        self.heads = published.heads()
        if not class_names:
            refuse_without_effect(recipe, "detect", [*_without_effect(recipe, self.size)])
        if published.loss == "anchor-free":
            self._loss: Any = free.from_recipe(recipe.loss, recipe.model.dfl)
        else:
            self._loss = yolo.from_recipe(recipe.loss, published.loss)
        if class_names is None:
            class_names = self._training.images.class_names
        self.class_names = tuple(class_names)

    def model(self) -> nn.Module:
        """The bare model on the CPU, freshly initialized from torch's global generator."""
        return DetectionModel(network(self.recipe.model, len(self.class_names)))

    def training_data(self) -> DetectionExamples:
        """The training images, varied as the recipe says."""
        return self._named_alike(self._training, self.recipe.data.train)

    def evaluation_data(self) -> DetectionExamples:
        """The validation images, letterboxed and not varied."""
        return self._named_alike(self._evaluation, self.recipe.data.val)

    def collate(self, items: Sequence[DetectionItem]) -> DetectionBatch:
        """Items as one batch, their targets padded to the longest list."""
        return collate(items)

    def loss(self, model: nn.Module, batch: DetectionBatch) -> LossSum:
        """The loss of one micro-batch, summed over its images; ``count`` is their number."""
        found: LossSum = self._loss(model(network_input(batch.images)), self.heads, batch)
        return found

    @torch.no_grad()
    def predict(self, model: nn.Module, batch: DetectionBatch) -> list[Detections]:
        """What the model finds in each image of the batch, in pixels of the sources.

        A score is objectness times class probability, or what an anchor-free head says at once. Unless the
        recipe says otherwise, one box may carry several classes (COCO's practice) and NMS works class by
        class. Equal scores stay in the order of the model's outputs. With ``evaluate.tta`` the boxes of all
        views are candidates of one NMS.
        """
        images = network_input(batch.images)
        boxes, scores = [], []
        for view in VIEWS[self.recipe.evaluate.tta]:
            raw = model(seen(images, view))
            placed, said = zip(*map(_found, raw, self.heads), strict=True)
            boxes.append(unseen(torch.cat(placed, 1), view, images.shape[-2:]))
            scores.append(torch.cat(said, 1))
        samples = zip(torch.cat(boxes, 1), torch.cat(scores, 1), strict=True)  # (P, 4), (P, C) each
        places = zip(batch.indices, batch.letterboxes, strict=True)
        found = [
            self._best(index, letterbox, place, score)
            for (index, letterbox), (place, score) in zip(places, samples, strict=True)
        ]
        missing = {one.index for one in batch.unreadable}
        return [replace(one, unreadable=True) if one.index in missing else one for one in found]

    def score(self, predictions: Sequence[Detections]) -> Scores:
        """COCO's AP of the predictions of the whole evaluation data, in the order of its images.

        Images that could not be read are left out.
        """
        data = self.evaluation_data()
        if len(predictions) != len(data):
            raise ValueError(f"{len(predictions)} predictions for {len(data)} images")
        readable = [index for index, found in enumerate(predictions) if not found.unreadable]
        predictions = [predictions[index] for index in readable]
        truths = [data.ground_truth(index) for index in readable]
        known = [Truth(t.boxes, t.labels, t.crowd, t.areas, ignored=t.difficult) for t in truths]
        return coco_scores(predictions, known, self.class_names)

    @cached_property
    def _training(self) -> DetectionExamples:
        data = self.recipe.data
        samples = self._open(data.train, data.train_images, self.recipe.seed)
        sizes = StepSizes(self.size, data.multi_scale, data.multi_scale_every, self.recipe.seed)
        return DetectionExamples(
            samples,
            self.size,
            self.recipe.seed,
            data.augment,
            self.recipe.epochs,
            data.fit,
            sizes=sizes if data.multi_scale else None,
            detail=data.detail,
            cache=data.cache,
        )

    @cached_property
    def _evaluation(self) -> DetectionExamples:
        data = self.recipe.data
        # Seed 0 whatever the recipe's: runs with different seeds are scored on the same scenes.
        samples = self._open(data.val, data.val_images, 0)
        return DetectionExamples(
            samples,
            self.size,
            self.recipe.seed,
            None,
            fit=data.fit,
            rectangular=self.recipe.evaluate.rectangular,
            detail=data.detail,
            cache=data.cache,
        )

    def _open(self, split: str, images: int, seed: int) -> Images:
        data = self.recipe.data
        return open_images(
            data.root,
            split,
            images=images,
            seed=seed,
            size=SCENE_SIZE,
            format=data.format,
            max_bad=data.max_bad,
        )

    def _named_alike(self, examples: DetectionExamples, split: str) -> DetectionExamples:
        """The examples, once it is sure that their labels mean what the model's outputs mean."""
        found = tuple(examples.images.class_names)
        if found != self.class_names:
            raise UserError(
                f"The split '{split}' of {self.recipe.data.root} has other classes than the model: "
                f"{_listed(found)}, expected {_listed(self.class_names)}. Give data with the model's classes "
                "in the model's order, or train anew."
            )
        return examples

    def _best(self, index: int, letterbox: Letterbox, boxes: Tensor, scores: Tensor) -> Detections:
        """The detections of one image: (P, 4) xyxy in pixels of the input, (P, C) -> best first."""
        settings = self.recipe.evaluate
        classes = scores.shape[1]
        if not settings.multi_label:
            best = scores.argmax(1, keepdim=True)
            scores = torch.full_like(scores, -1).scatter(1, best, scores.gather(1, best))
        flat = scores.flatten()
        candidates = (flat > settings.confidence).nonzero().squeeze(1)
        candidates = candidates[flat[candidates].sort(descending=True, stable=True).indices[:CANDIDATES]]
        found = to_source(boxes[candidates // classes], letterbox)
        # What lies wholly in the gray margin has no area in the source.
        seen = (found[:, 2:] > found[:, :2]).all(1)
        found, candidates = found[seen], candidates[seen]
        confidence, labels = flat[candidates], candidates % classes
        kept = nms(
            found,
            confidence,
            labels,
            kind=settings.nms,
            threshold=settings.iou,
            class_agnostic=settings.class_agnostic,
        )[: settings.detections]
        return Detections(index, found[kept].cpu(), confidence[kept].cpu(), labels[kept].cpu())


def _without_effect(recipe: Recipe, size: tuple[int, int]) -> Iterator[str]:
    """What is asked for and cannot be, given the input's size and the other settings."""
    spread = recipe.data.multi_scale
    if spread and len(StepSizes(size, spread, 1, 0).choices()) == 1:
        height, width = size
        yield (
            f"data.multi_scale is {spread:g}, but around {height} × {width} pixels there is no other size in "
            f"multiples of 32 within a factor of {1 + spread:g}: give a larger one, or leave it out."
        )
    if recipe.evaluate.rectangular and recipe.data.fit == "stretch":
        yield (
            "evaluate.rectangular is true, but data.fit is 'stretch', which leaves no margin to take away: "
            "leave one of them out."
        )


def settled_detection(recipe: Recipe) -> Recipe:
    """A cfg file becomes its text, and anchors that are to be found become numbers.

    Raises:
        UserError: a faulty cfg, or data without enough boxes.
    """
    model = recipe.model
    if model.cfg and "\n" not in model.cfg:
        made = read_cfg(model.cfg)
        model = replace(model, cfg=write_cfg(made.network, letterbox=made.letterbox, nms=made.nms))
    if model.anchors == "kmeans":
        wanted = len(network(model, classes=1).anchors)
        task = Detect(replace(recipe, model=replace(model, anchors="default")))
        sizes = box_sizes(task.training_data().images, task.size)
        model = replace(model, anchors=kmeans_anchors(sizes, wanted, recipe.seed))
    return replace(recipe, model=model)


def _found(raw: Tensor, head: YoloHead | AnchorFreeHead) -> tuple[Tensor, Tensor]:
    """A head's boxes (B, P, 4) xyxy in pixels of the input and scores (B, P, C)."""
    if isinstance(head, AnchorFreeHead):
        boxes, _, classes = codec.decode(raw, head)
        return boxes.flatten(1, 2), classes.sigmoid().flatten(1, 2)
    boxes, objectness, classes = yolo_grid.decode(raw, head)
    return boxes.flatten(1, 3), (objectness.sigmoid().unsqueeze(-1) * classes.sigmoid()).flatten(1, 3)


def network_input(images: Tensor) -> Tensor:
    """uint8 (B, 3, H, W) as the network reads it, in training as in prediction: float 0..1, channels_last."""
    return images.contiguous(memory_format=torch.channels_last).float() / 255


def _listed(names: Sequence[str]) -> str:
    """How many names, and the first few."""
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"{len(names)} ({shown})"
