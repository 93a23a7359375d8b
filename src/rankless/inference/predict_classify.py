"""Predict the classes of images with a trained classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankless.data.datasets.classification import open_images
from rankless.data.datasets.classification_input import placement, shown_as
from rankless.data.images.image_file import Decoded, Pixels, UnreadableImage
from rankless.errors import UserError
from rankless.inference.finder import Finder, PredictOptions
from rankless.inference.formats import OF_BOXES
from rankless.inference.heatmaps import in_image
from rankless.inference.results import BEST, ClassificationResult
from rankless.models.weights_files import weights
from rankless.recipe.schema import Data
from rankless.structures import Classification, ClassificationItem
from rankless.tasks import trained
from rankless.tasks.classify import Classify


def class_maps(model: nn.Module, images: Tensor, source: str) -> Tensor:
    """Compute Grad-CAM heat maps for the most likely class, float32 (B, h, w), on the CPU.

    The highest value of each map is 1, or 0 if there is no evidence. The model must be in evaluation mode.
    ``images`` is its input, (B, 3, H, W). Messages mention ``source``, the weights file.
    """
    torch.clear_autocast_cache()  # weights cast in inference mode have no gradients
    with torch.inference_mode(False), torch.enable_grad():
        copies = images.clone().requires_grad_()  # a tensor created in inference mode has no gradients
        with _last_map(model, copies) as found:
            best = model(copies).float().amax(1).sum()
        if not found:
            raise UserError(
                f"--save contains heatmaps, but the network in {source} has no feature map; remove heatmaps "
                "from --save, or use a convolutional classifier"
            )
        (slope,) = torch.autograd.grad(best, found[0])
    weights = slope.float().mean((2, 3), keepdim=True)
    maps = (weights * found[0].detach().float()).sum(1).clamp(min=0)
    highest = maps.amax((1, 2), keepdim=True)
    return (maps / highest.where(highest > 0, 1.0)).cpu()


@contextmanager
def _last_map(model: nn.Module, images: Tensor) -> Iterator[list[Tensor]]:
    """Yield a list that receives the last feature map, unless the network ends with tokens."""
    found: list[Tensor] = []
    height, width = images.shape[-2:]

    def keep(_: nn.Module, __: object, output: object) -> None:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if output.dim() == 3:
            found.clear()
        if output.dim() == 4 and min(output.shape[-2:]) > 1:
            # Feature maps have the aspect ratio of the input, but channels-last outputs do not.
            rows, columns = output.shape[-2:]
            if abs(rows * width - columns * height) <= width + height:
                found[:] = [output]

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_hook(keep).remove)
        yield found


class ClassAnswer(NamedTuple):
    """The class probabilities of one image and, if requested, the heat map of the input (h, w)."""

    found: Classification
    heat: Tensor | None = None


class ClassFinder(Finder):
    """A predictor that uses a trained classifier.

    It reports classes with a probability of at least ``confidence``. Messages mention ``source``, the weights
    file.
    """

    def __init__(
        self, loaded: weights.Weights, asked: PredictOptions, device: torch.device, source: str
    ) -> None:
        self.confidence, self.is_exported = asked.confidence or 0.0, trained.is_exported(loaded)
        self.task: Classify = self._load(loaded.recipe, loaded, device, source)
        self.source = source
        data = loaded.recipe.data
        self.shown = shown_as(self.task.size, data.augment.crop < 1, data.detail, data.range)

    def unfit(self) -> tuple[frozenset[str], str]:
        if self.is_exported:
            return OF_BOXES | {"heatmaps"}, "an exported classifier predicts classes without positions"
        return OF_BOXES, "a classifier does not predict boxes"

    def scene(self, data: Data, split: str, index: int) -> Tensor:
        images = open_images(data, split)
        if index >= len(images):
            reason = f"the built-in data has only the images 0 to {len(images) - 1} in '{split}'"
            raise UnreadableImage(f"{data.root}:{split}:{index}", reason)
        return images.read(index)

    def item(self, view: Decoded) -> ClassificationItem:
        return self.task.item(view.image)

    def answers(self, items: Sequence[ClassificationItem], batch: int) -> list[ClassAnswer]:
        padded = self.task.collate([*items, *[items[-1]] * (batch - len(items))]).to(self.device)
        found = self.task.predict(self.model, padded)[: len(items)]
        if not self.heat:
            return [ClassAnswer(one) for one in found]
        maps = class_maps(self.model, self.task.network_input(padded.images), self.source)
        return [ClassAnswer(one, heat) for one, heat in zip(found, maps, strict=False)]

    def best(self, answer: ClassAnswer) -> float:
        return float(answer.found.log_probabilities.max().exp())

    def level(self, answer: ClassAnswer, image: Pixels) -> Pixels | None:
        cropped = self.task.recipe.data.augment.crop < 1
        where = placement(image.shape[:2], self.task.size, cropped=cropped)
        return None if answer.heat is None else in_image(answer.heat, where, self.task.size)

    def result(self, answer: ClassAnswer, image: Pixels, source: str) -> ClassificationResult:
        probabilities = answer.found.log_probabilities.exp()
        scores, labels = probabilities.sort(descending=True, stable=True)
        scores, labels = scores[:BEST], labels[:BEST]
        likely = torch.tensor([score >= self.confidence for score in scores.tolist()])
        return ClassificationResult(
            image=image,
            scores=scores[likely].numpy(),
            classes=labels[likely].numpy(),
            probabilities=probabilities.numpy(),
            class_names=self.class_names,
            source=source,
        )
