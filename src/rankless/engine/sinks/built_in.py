"""The sinks that are included in Rankless, by their names for ``--sink``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rankless.extras import needed

if TYPE_CHECKING:
    from rankless.engine.sinks.sink import Sink


class _Known(NamedTuple):
    """The module and class of a sink, the library it needs, and whether it uses a server."""

    page: str
    name: str
    library: str = ""
    is_remote: bool = False


BUILT_IN = {
    "csv": _Known("csv_files", "CsvSink"),
    "mlflow": _Known("mlflow", "MlflowSink", "mlflow", is_remote=True),
    "tensorboard": _Known("tensorboard", "TensorBoardSink", "tensorboard"),
    "wandb": _Known("wandb", "WandbSink", "wandb", is_remote=True),
}


def built_in(name: str) -> Callable[[], Sink]:
    """Return a function that creates the sink ``name`` of :data:`BUILT_IN`."""
    known = BUILT_IN[name]
    if known.library and importlib.util.find_spec(known.library) is None:
        needed(known.library, known.library, f"--sink {name}")
    page = importlib.import_module(f"rankless.engine.sinks.{known.page}")
    make: Callable[[], Sink] = getattr(page, known.name)
    if not known.is_remote:
        return make
    from rankless.engine.sinks.background import BackgroundSink  # it imports this module

    return lambda: BackgroundSink(make())
