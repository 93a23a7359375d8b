"""The detection task: a detector, its loss, its detections, and their COCO scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankless.data.anchors import box_sizes, kmeans_anchors
from rankless.data.augment.multi_scale import StepSizes
from rankless.data.datasets.annotated import DetectionImages, MatchedImages
from rankless.data.datasets.class_matching import between_splits, match_classes
from rankless.data.datasets.detection import DetectionExamples, collate, open_images, placing_of
from rankless.data.datasets.torchvision_sets import located
from rankless.errors import UserError
from rankless.geometry.boxes import clip
from rankless.geometry.letterbox import to_source
from rankless.geometry.nms import best_first, nms
from rankless.hardware.precision import without_layers
from rankless.metrics import coco
from rankless.metrics.coco import coco_scores
from rankless.models import zoo
from rankless.models.detectors.protocol import CANDIDATES, Detector
from rankless.recipe import model_kinds
from rankless.recipe.mistakes import ascending_anchors
from rankless.recipe.schema import Recipe
from rankless.structures import DetectionBatch, DetectionItem, Detections, Letterbox, LossSum, Scores
from rankless.tasks.best import unknown_best
from rankless.tasks.report_details import as_truth, boxes_of_training, of_detections
from rankless.tasks.tta import TTA, apply_transform, restore_boxes

_NO_MARGIN = (
    "evaluate.rectangular is true, but data.fit is 'stretch', which leaves no margin to remove; remove one "
    "of the two keys"
)


class Detect:
    """The task ``detect``; see :class:`.protocol.Task` and :func:`rankless.tasks.open_task`."""

    score_name, score_names = "AP", coco.NAMES

    def __init__(
        self, recipe: Recipe, class_names: Sequence[str] | None = None, *, exported: bool = False
    ) -> None:
        self.recipe, self.validation_loss = recipe, not exported
        self.spec = zoo.spec(recipe.model, recipe.loss)
        self.size = recipe.model.input_size() or self.spec.size
        self.placing, self.exports = placing_of(recipe.data), self.spec.exports
        problems = [*_without_effect(recipe, self.size), *unknown_best(recipe.evaluate.best, coco.NAMES)]
        if not class_names and problems:
            raise UserError(problems)
        self._learns = class_names is None
        self.warnings = tuple(_anchors_that_descend(recipe.model))
        if class_names is None:
            class_names = self._training.images.class_names
        self.class_names = tuple(class_names)

    def resolved(self) -> Recipe:
        """Return the recipe with the text of a cfg file in place of its path, and with fitted anchors."""
        recipe, model = self.recipe, cast(model_kinds.AnyModel, self.spec.self_contained())
        if isinstance(model, model_kinds.YoloModel) and model.anchors == "kmeans":
            task = Detect(replace(recipe, model=model))
            sizes = box_sizes(task.training_data().images, task.size)
            model = replace(model, anchors=kmeans_anchors(sizes, len(task.spec.anchors), recipe.seed))
        return replace(recipe, model=model)

    @property
    def activations(self) -> list[int]:
        """Count the output values of the layers for one image; see :class:`.DetectorSpec`."""
        return self.spec.activations(self.size)

    def preprocessing(self) -> dict[str, Any]:
        """Describe how an image is placed on the input, for other programs; see :class:`.Facts`."""
        data = self.recipe.data
        resize = {"resize": "bilinear"} if data.resample == "darknet" else {}
        return {**resize, "fit": data.fit, **({"pad": data.pad} if data.fit == "letterbox" else {})}

    def model(self) -> nn.Module:
        """Build the bare model on the CPU, freshly initialized from torch's global generator."""
        return zoo.build(self.recipe.model, len(self.class_names), self.recipe.loss)

    def training_data(self) -> DetectionExamples:
        """Return the training images, augmented as the recipe specifies."""
        return self._training

    def evaluation_data(self) -> DetectionExamples:
        """Return the validation images, letterboxed and not augmented."""
        return self._evaluation

    def collate(self, items: Sequence[DetectionItem]) -> DetectionBatch:
        return collate(items)

    def loss(self, model: nn.Module, batch: DetectionBatch) -> LossSum:
        """Compute the detector's loss for one micro-batch."""
        detector = cast(Detector, model)
        return detector.loss(detector(batch.network_input), batch)

    @torch.no_grad()
    def predict(self, model: nn.Module, batch: DetectionBatch) -> list[Detections]:
        """Detect objects in each image of the batch. Boxes are in pixels of the source images.

        By default, a box may have several classes, and NMS is applied per class. Boxes with equal scores
        keep the order of the model's outputs. With ``evaluate.tta``, a single NMS covers the boxes of all
        transforms.
        """
        detector, images = cast(Detector, model), batch.network_input
        boxes, scores = [], []
        for one in TTA[self.recipe.evaluate.tta]:
            its_boxes, its_scores = detector.decode(detector(apply_transform(images, one, self.placing)))
            boxes.append(restore_boxes(its_boxes, one, images.shape[-2:]))
            scores.append(its_scores)
        joined = (torch.cat(part, 1) if len(part) > 1 else part[0] for part in (boxes, scores))
        candidates = zip(*joined, strict=True)  # (P, 4), (P, C) each
        with without_layers():
            detections = [
                self._best(index, letterbox, *of_image)
                for index, letterbox, of_image in zip(
                    batch.indices, batch.letterboxes, candidates, strict=True
                )
            ]
        missing = {one.index for one in batch.unreadable}
        return [replace(one, unreadable=True) if one.index in missing else one for one in detections]

    def score(self, predictions: Sequence[Detections]) -> Scores:
        """Compute the COCO scores of the predictions for all readable evaluation images, in order."""
        data = self.evaluation_data()
        if len(predictions) != len(data):
            raise ValueError(f"{len(predictions)} predictions for {len(data)} images")
        readable = [index for index, one in enumerate(predictions) if not one.unreadable]
        predictions = [predictions[index] for index in readable]
        truths = [data.ground_truth(index) for index in readable]
        return coco_scores(predictions, [as_truth(each) for each in truths], self.class_names)

    def report_details(self, predictions: Sequence[Detections]) -> dict[str, Any]:
        """Return details of the scored predictions for the report."""
        details = of_detections(self.evaluation_data(), predictions, self.class_names)
        details["kind"] = self.recipe.task
        return details | ({"training": self._training_boxes} if self._training_boxes else {})

    @cached_property
    def _training_boxes(self) -> dict[str, Any] | None:
        return boxes_of_training(self._training, len(self.class_names))

    @cached_property
    def _training(self) -> DetectionExamples:
        data = self.recipe.data
        samples = open_images(located(data), data.train, data.train_images, self.recipe.seed, self.size)
        sizes = StepSizes(self.size, data.multi_scale, data.multi_scale_every, self.recipe.seed)
        return DetectionExamples(
            samples,
            self.size,
            self.recipe.seed,
            data.augment,
            self.recipe.epochs,
            data,
            sizes=sizes if data.multi_scale else None,
            batch=self.recipe.batch.images,
        )

    @cached_property
    def _evaluation(self) -> DetectionExamples:
        data = self.recipe.data
        # Always seed 0, so that runs with different seeds are evaluated on the same scenes.
        if self.recipe.evaluate.rectangular and data.fit == "stretch":
            raise UserError(_NO_MARGIN)
        samples = open_images(located(data), data.val, data.val_images, size=self.size)
        return DetectionExamples(
            self._with_classes_of_model(samples),
            self.size,
            self.recipe.seed,
            None,
            data=data,
            rectangular=self.recipe.evaluate.rectangular,
        )

    def _with_classes_of_model(self, images: DetectionImages) -> DetectionImages:
        given = self.recipe.evaluate.classes_map
        if images.class_names == self.class_names and not given:
            return images
        where = f"{self.recipe.data.root}, split '{self.recipe.data.val}'"
        data = self.recipe.data
        with between_splits(data.root, data.train, data.val) if self._learns else nullcontext():
            match = match_classes(images.class_names, self.class_names, given, where)
        return MatchedImages(images, match, self.class_names)

    def _best(self, index: int, letterbox: Letterbox, boxes: Tensor, scores: Tensor) -> Detections:
        """Select one image's detections from boxes (P, 4), xyxy in pixels of the input, and scores (P, C)."""
        settings = self.recipe.evaluate
        # Most boxes are not candidates. If the score of one class is NaN, the others still count.
        some = (~(scores.amax(1) <= settings.confidence)).nonzero().squeeze(1)
        some = some[boxes[some].isfinite().all(1)]
        boxes, scores = to_source(boxes[some], letterbox), scores[some]
        if settings.multi_label:
            rows, labels = (scores > settings.confidence).nonzero(as_tuple=True)
        else:
            best, labels = scores.max(1)
            rows = (best > settings.confidence).nonzero().squeeze(1)
            labels = labels[rows]
        confidence = scores[rows, labels]
        chosen = best_first(confidence, CANDIDATES)
        boxes, confidence, labels = boxes[rows[chosen]], confidence[chosen], labels[chosen]
        # Only better boxes remove a box, so if enough of the best remain, the rest need not be compared.
        first = 2 * settings.detections
        while True:
            selected = nms(
                boxes[:first],
                confidence[:first],
                labels[:first],
                kind=settings.nms,
                threshold=settings.iou,
                class_agnostic=settings.class_agnostic,
            )
            # Clip after NMS, as in Darknet: clipped boxes overlap more and would remove boxes that Darknet
            # keeps.
            inside = clip(boxes[selected], letterbox.height, letterbox.width)
            visible = (inside[:, 2:] > inside[:, :2]).all(1)  # not just in the gray margin
            inside, selected = inside[visible], selected[visible]
            if len(selected) >= settings.detections or first >= len(boxes):
                break
            first *= 4
        boxes, selected = inside[: settings.detections], selected[: settings.detections]
        return Detections(index, boxes.cpu(), confidence[selected].cpu(), labels[selected].cpu())


def _without_effect(recipe: Recipe, size: tuple[int, int]) -> Iterator[str]:
    spread = recipe.data.multi_scale
    if spread and len(StepSizes(size, spread, 1, 0).choices()) == 1:
        height, width = size
        yield (
            f"data.multi_scale is {spread:g}, but no other size in multiples of 32 is within a factor of "
            f"{1 + spread:g} of {height} × {width} pixels; increase data.multi_scale, or remove it"
        )
    if recipe.evaluate.rectangular and recipe.data.fit == "stretch":
        yield _NO_MARGIN


def _anchors_that_descend(model: model_kinds.ModelKeys) -> Iterator[str]:
    anchors = model.anchors if isinstance(model, model_kinds.YoloModel) else ()
    if not isinstance(anchors, str) and anchors and math.prod(anchors[0]) > math.prod(anchors[-1]):
        ascending, _ = ascending_anchors(anchors, model.image_size)
        yield (
            "model.anchors are in descending order, so the finest head would learn the largest boxes; "
            f"expected the smallest pair first: model.anchors='{ascending}'"
        )
