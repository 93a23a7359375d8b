"""The classification task: a network, its loss, its predictions, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankless.data.datasets.class_matching import between_splits
from rankless.data.datasets.classification import ClassificationExamples, collate, open_images
from rankless.data.datasets.classification_input import place
from rankless.data.datasets.torchvision_sets import located
from rankless.errors import UserError
from rankless.losses.classify import ClassificationLoss, from_recipe
from rankless.metrics.topk import score_names, topk_scores
from rankless.models.classifiers.catalog import build_classifier, variant
from rankless.models.detectors.protocol import Exports
from rankless.recipe import loss_kinds
from rankless.recipe.schema import Recipe
from rankless.structures import Classification, ClassificationBatch, ClassificationItem, LossSum, Scores
from rankless.tasks.best import unknown_best
from rankless.tasks.report_details import images_of_training, of_classifications
from rankless.tasks.tta import TTA, apply_transform, mean_of_logs


class Classify:
    """The task ``classify``; see :class:`.protocol.Task` and :func:`rankless.tasks.open_task`."""

    score_name, exports = "top1", Exports()
    activations = ()  # not counted

    def __init__(
        self, recipe: Recipe, class_names: Sequence[str] | None = None, *, exported: bool = False
    ) -> None:
        self.recipe, self._exported = recipe, exported
        chosen = variant(recipe.model)
        self.size = recipe.model.input_size() or (chosen.side, chosen.side)
        self.mean = (0.0, 0.0, 0.0) if exported else tuple(chosen.mean)
        self.std = (1.0, 1.0, 1.0) if exported else tuple(chosen.std)
        self._learns = class_names is None
        self.class_names = tuple(self._training.images.class_names if class_names is None else class_names)
        self.score_names = score_names(len(self.class_names))
        if class_names is None and (problems := [*unknown_best(recipe.evaluate.best, self.score_names)]):
            raise UserError(problems)
        if class_names is None:
            _ = self._loss  # report the loss's problems now, not at the first step

    def resolved(self) -> Recipe:
        """Return the recipe, whose values do not depend on files or on the data."""
        return self.recipe

    def preprocessing(self) -> dict[str, Any]:
        """Describe how an image is placed on the input, for other programs; see :class:`.Facts`."""
        cropped = self.recipe.data.augment.crop < 1
        return {"fit": "resize to 256/224 of the input, crop the middle" if cropped else "stretch"}

    def model(self) -> nn.Module:
        """Build the bare model on the CPU, freshly initialized from torch's global generator."""
        return build_classifier(self.recipe.model, len(self.class_names))

    def training_data(self) -> ClassificationExamples:
        """Return the training images, augmented as the recipe specifies."""
        return self._training

    def evaluation_data(self) -> ClassificationExamples:
        """Return the validation images, preprocessed as in prediction and not augmented."""
        return self._evaluation

    def collate(self, items: Sequence[ClassificationItem]) -> ClassificationBatch:
        return collate(items)

    def loss(self, model: nn.Module, batch: ClassificationBatch) -> LossSum:
        return self._loss(model(self.network_input(batch.images)), batch.targets)

    @torch.no_grad()
    def predict(self, model: nn.Module, batch: ClassificationBatch) -> list[Classification]:
        """Predict the class probabilities of each image of the batch."""
        images = self.network_input(batch.images)
        transforms = TTA[self.recipe.evaluate.tta]
        every = [model(apply_transform(images, one)).float().log_softmax(1) for one in transforms]
        # The mean of the probabilities; without TTA, exactly the model's probabilities.
        logs = (every[0] if len(every) == 1 else mean_of_logs(every)).cpu()  # (B, C)
        missing = {one.index for one in batch.unreadable}
        # Copies, because a view would send the complete batch to another rank.
        return [
            Classification(index, row.clone(), index in missing)
            for index, row in zip(batch.indices, logs, strict=True)
        ]

    def score(self, predictions: Sequence[Classification]) -> Scores:
        """Score the predictions for all readable evaluation images, in the order of the images."""
        logs = torch.stack([prediction.log_probabilities for prediction in predictions])  # (N, C)
        readable = torch.tensor([not prediction.unreadable for prediction in predictions])
        return topk_scores(logs[readable], self.evaluation_data().labels()[readable], self.class_names)

    def report_details(self, predictions: Sequence[Classification]) -> dict[str, Any]:
        """Return details of the scored predictions for the report."""
        details = of_classifications(self.evaluation_data(), predictions, self.class_names)
        return details | {"kind": self.recipe.task, "training": self._training_images}

    @cached_property
    def _training_images(self) -> dict[str, Any]:
        return images_of_training(self._training, len(self.class_names))

    def item(self, image: Tensor, index: int = 0) -> ClassificationItem:
        """Preprocess an image, uint8 (3, h, w), as in evaluation, and give it an all-zero target."""
        placed = place(image, self.size, cropped=self.recipe.data.augment.crop < 1)
        return ClassificationItem(placed, torch.zeros(len(self.class_names)), index)

    def network_input(self, images: Tensor) -> Tensor:
        """Normalize uint8 (B, 3, H, W) for the network: (x / 255 - mean) / std, channels_last."""
        mean, std = (_on(images.device, numbers) for numbers in (self.mean, self.std))  # (3, 1, 1)
        return (images.contiguous(memory_format=torch.channels_last).float() / 255 - mean) / std

    @cached_property
    def _training(self) -> ClassificationExamples:
        return self._examples(self.recipe.data.train, augmented=True)

    @cached_property
    def _evaluation(self) -> ClassificationExamples:
        return self._examples(self.recipe.data.val, augmented=False)

    @cached_property
    def _loss(self) -> ClassificationLoss:
        options = cast(
            loss_kinds.CrossEntropyLoss | loss_kinds.FocalLoss, self.recipe.loss
        )  # as in every classifier
        if options.class_weights != "balanced":  # the training data may be missing
            return from_recipe(options, [1] * len(self.class_names))
        counts = self._training.labels().bincount(minlength=len(self.class_names))
        return from_recipe(options, counts.tolist())

    @cached_property
    def validation_loss(self) -> bool:
        """Whether evaluations compute the loss. False if the loss cannot be built."""
        if self._exported:
            return False
        try:
            _ = self._loss
        except UserError:
            return False
        return True

    def _examples(self, split: str, *, augmented: bool) -> ClassificationExamples:
        data = located(self.recipe.data)
        # Labels are indices of the model's outputs, which the training data defines.
        with between_splits(data.root, data.train, split) if self._learns else nullcontext():
            samples = open_images(
                data,
                split,
                getattr(self, "class_names", None),
                () if augmented else self.recipe.evaluate.classes_map,
            )
        recipe = self.recipe
        return ClassificationExamples(
            samples,
            self.size,
            recipe.seed,
            data.augment,
            augmented=augmented,
            epochs=recipe.epochs,
            batch=recipe.batch.images,
            data=data,
        )


@lru_cache(maxsize=8)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Return one number per channel, (C, 1, 1), on the device. It is cached, because a transfer is slow."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.float32, device=device).view(-1, 1, 1)
