"""Train image detectors and classifiers with results that do not depend on the number of devices.

The names in ``__all__`` are public. Each is imported on first use, so importing the package is fast and does
not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankless.data.torch_dataset import from_dataset, seeded
    from rankless.engine.custom_loop import Steps
    from rankless.engine.sinks.sink import Sink
    from rankless.errors import UserError
    from rankless.inference.predict import predict
    from rankless.inference.predictor import Predictor, load
    from rankless.inference.results import ClassificationResult, DetectionResult
    from rankless.interop.export import export
    from rankless.launch.joining import join
    from rankless.launch.local import evaluate, train
    from rankless.models.weights_files.weights import digest, digest_file
    from rankless.randomness import generator
    from rankless.recipe.load import load as load_recipe
    from rankless.recipe.schema import Recipe
    from rankless.report.page import Report
    from rankless.structures import LossSum, Scores
    from rankless.tasks.protocol import Examples, Task

__version__ = "0.1.0"

_HOMES = {
    "ClassificationResult": "rankless.inference.results:ClassificationResult",
    "DetectionResult": "rankless.inference.results:DetectionResult",
    "Examples": "rankless.tasks.protocol:Examples",
    "LossSum": "rankless.structures:LossSum",
    "Predictor": "rankless.inference.predictor:Predictor",
    "Recipe": "rankless.recipe.schema:Recipe",
    "Report": "rankless.report.page:Report",
    "Scores": "rankless.structures:Scores",
    "Sink": "rankless.engine.sinks.sink:Sink",
    "Steps": "rankless.engine.custom_loop:Steps",
    "Task": "rankless.tasks.protocol:Task",
    "UserError": "rankless.errors:UserError",
    "digest": "rankless.models.weights_files.weights:digest",
    "digest_file": "rankless.models.weights_files.weights:digest_file",
    "evaluate": "rankless.launch.local:evaluate",
    "export": "rankless.interop.export:export",
    "from_dataset": "rankless.data.torch_dataset:from_dataset",
    "generator": "rankless.randomness:generator",
    "join": "rankless.launch.joining:join",
    "load": "rankless.inference.predictor:load",
    "load_recipe": "rankless.recipe.load:load",
    "predict": "rankless.inference.predict:predict",
    "seeded": "rankless.data.torch_dataset:seeded",
    "train": "rankless.launch.local:train",
}

__all__ = [
    "ClassificationResult",
    "DetectionResult",
    "Examples",
    "LossSum",
    "Predictor",
    "Recipe",
    "Report",
    "Scores",
    "Sink",
    "Steps",
    "Task",
    "UserError",
    "__version__",
    "digest",
    "digest_file",
    "evaluate",
    "export",
    "from_dataset",
    "generator",
    "join",
    "load",
    "load_recipe",
    "predict",
    "seeded",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rankless' has no attribute '{name}'")
    module, attribute = _HOMES[name].split(":")
    return getattr(importlib.import_module(module), attribute)
