"""What distinguishes the tasks: a record for each built-in task, and one for all custom tasks.

Other modules ask the record of a task instead of comparing its name. A record names the code for its task,
which is imported when it is called, because commands that need no PyTorch read the records too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankless.errors import UserError


@dataclass(frozen=True)
class Later:
    """A function, class or constant, ``module:name``, whose module is imported when it is needed."""

    name: str

    def load(self) -> Any:
        """Return the function, class or constant."""
        module, _, attribute = self.name.partition(":")
        return getattr(importlib.import_module(f"rankless.{module}"), attribute)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.load()(*given, **options)


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A kind of task.

    Attributes:
        name: value of the recipe's key ``task``; empty for custom tasks.
        model, problem: what a model of this kind is, and what it does, for messages.
        annotations, counted: words for the contents of the data, and for the unit counted per class.
        boxes: whether the data has boxes; otherwise, each image has one class.
        score: the score that selects the best weights by default; for custom tasks, ``score`` stands for it.
        recipe: shipped recipe in examples for the user's own data.
        shown: shipped recipe whose augmentation ``data show`` uses by default; empty for a recipe's defaults.
        multiple: the sides of the input are multiples of this number of pixels.
        cfg: whether Darknet's cfg files describe its models.
        one_size: whether many models accept only one input size.
        mixing: augmentations that ``data.augment.close_mosaic`` ends; it needs one of them if there are any.
        loss_weights: keys of the loss that weight its parts.
        not_predicted: reasons why prediction does not use some keys.
        crop: override for imported weights of models that were published with cropped images.
        exported: keys that may be changed when a model is exported.
        outputs: names and descriptions of the outputs of an exported model.
        hub, title: name of the task on the Hugging Face Hub, and how a model card begins.
        open: opens the task of a recipe; see :func:`rankless.tasks.open_task`.
        finder: a class that predicts; see :class:`rankless.inference.finder.Finder`.
        names: the names of the models.
        listed: describes a model by name; see :class:`rankless.models.listing.Listed`.
        check_name: raises an error if no model has the given name.
        build: builds the model of a recipe's ``model`` for a number of classes.
        published: returns the number of classes and the input size of a recipe's ``model`` as published.
        run_export: returns a module that runs an exported file.
        portable: returns a module for other programs; see :meth:`rankless.interop.export_plan.Plan.portable`.
        compare: compares the outputs of an export with those of PyTorch.
        mistakes: yields the errors in an image; see :mod:`rankless.curation.model_errors`.
        show: shows an augmented image; see :mod:`rankless.curation.sampling`.
        advice: how to choose a recipe for new data; see :class:`rankless.curation.new_recipe.Advice`.
    """

    name: str = ""
    model: str = "a custom model"
    problem: str = ""
    annotations: str = ""
    counted: str = ""
    boxes: bool = False
    score: str = "score"
    recipe: str = ""
    shown: str = ""
    multiple: int = 1
    cfg: bool = False
    one_size: bool = False
    mixing: tuple[str, ...] = ()
    loss_weights: tuple[str, ...] = ()
    not_predicted: Mapping[str, str] = field(default_factory=dict)
    crop: str = ""
    exported: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    hub: str = ""
    title: str = ""
    open: Later
    finder: Later
    names: Later = Later("")
    listed: Later = Later("")
    check_name: Later = Later("")
    build: Later = Later("")
    published: Later = Later("")
    run_export: Later = Later("")
    portable: Later = Later("")
    compare: Later = Later("")
    mistakes: Later = Later("")
    show: Later = Later("")
    advice: Later = Later("")


_EXPORTED = ("model.image_size", "data.root", "data.val")
_NO_BOXES = "a classifier predicts the five best classes and no boxes; remove it"

DETECT = TaskKind(
    name="detect",
    model="a detector",
    problem="detection",
    annotations="boxes",
    counted="boxes",
    boxes=True,
    score="AP",
    recipe="yolov4-tiny",
    multiple=32,
    cfg=True,
    loss_weights=("box", "objectness", "classes"),
    exported=(*_EXPORTED, "evaluate.iou", "evaluate.nms", "evaluate.class_agnostic"),
    outputs={
        "boxes": "float32 (images, candidates, 4): x1, y1, x2, y2 in pixels of the input, not clipped",
        "scores": "float32 (images, candidates, classes): 0 to 1",
    },
    hub="object-detection",
    title="An object detector",
    open=Later("tasks.detect:Detect"),
    finder=Later("inference.predict_detect:BoxFinder"),
    names=Later("models.zoo:MODELS"),
    listed=Later("models.listing:listed_detector"),
    check_name=Later("models.zoo:check_name"),
    build=Later("models.zoo:build"),
    published=Later("models.zoo:published"),
    run_export=Later("models.exported.modules:ExportedDetector"),
    portable=Later("interop.export_plan:PortableDetector"),
    compare=Later("interop.comparison:of_candidates"),
    mistakes=Later("curation.model_errors:of_detections"),
    show=Later("curation.sampling:of_detector"),
    advice=Later("curation.new_recipe:DETECTOR"),
)

CLASSIFY = TaskKind(
    name="classify",
    model="a classifier",
    problem="classification",
    annotations="one class per image",
    counted="images",
    score="top1",
    recipe="resnet18",
    shown="resnet18",
    one_size=True,
    mixing=("mixup", "cutmix"),
    not_predicted=dict.fromkeys(("evaluate.iou", "evaluate.detections"), _NO_BOXES),
    crop="data.augment.crop=0.08",  # ImageNet classifiers, which are evaluated on the center of the image
    exported=_EXPORTED,
    outputs={"probabilities": "float32 (images, classes)"},
    hub="image-classification",
    title="An image classifier",
    open=Later("tasks.classify:Classify"),
    finder=Later("inference.predict_classify:ClassFinder"),
    names=Later("models.classifiers.catalog:CLASSIFIERS"),
    listed=Later("models.listing:listed_classifier"),
    check_name=Later("models.classifiers.catalog:classifier_named"),
    build=Later("models.classifiers.catalog:build_classifier"),
    published=Later("models.classifiers.catalog:published"),
    run_export=Later("models.exported.modules:ExportedClassifier"),
    portable=Later("interop.export_plan:PortableClassifier"),
    compare=Later("interop.comparison:of_probabilities"),
    mistakes=Later("curation.model_errors:of_classification"),
    show=Later("curation.sampling:of_classifier"),
    advice=Later("curation.new_recipe:CLASSIFIER"),
)

CUSTOM = TaskKind(
    open=Later("tasks.custom:open_custom"),
    finder=Later("inference.predict_custom:CustomFinder"),
)

KINDS = (DETECT, CLASSIFY)
"""The kinds of the built-in tasks."""
BUILT_IN = tuple(kind.name for kind in KINDS)
DEFAULT = BUILT_IN[0]


def kind_of(task: str) -> TaskKind:
    """Return the kind of a recipe's ``task``."""
    return KINDS[BUILT_IN.index(task)] if task in BUILT_IN else CUSTOM


def wrong_model(task: str, name: str) -> str | None:
    """Return an error message if a built-in task has no model with the given name, otherwise None."""
    try:
        if task in BUILT_IN:
            kind_of(task).check_name(name)
    except UserError as error:
        return "; ".join(error.problems)
    return None


def kind_for(*, boxes: bool) -> TaskKind:
    """Return the kind of task for data with boxes, or with one class per image."""
    return next(kind for kind in KINDS if kind.boxes == boxes)
