"""Find the options with which a checkpoint that does not fit a model would fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankless.errors import UserError, counted
from rankless.models.detectors import darknet
from rankless.models.weights_files.matching import COUNTER, align
from rankless.models.weights_files.ports import PORTS, from_port
from rankless.recipe import load
from rankless.recipe.schema import Recipe

Build = Callable[[Recipe, int], nn.Module]
"""Builds the model of a recipe for a number of classes."""

# Both kinds of involution have the same tensors.
_TRUNK = "and model.involution.where=trunk if the next up- or down-sampling also reads its output"


class _Way(NamedTuple):
    """Options, the number of tensors that they load, of how many, and whether nothing is left over."""

    options: tuple[str, ...]
    taken: int
    tensors: int
    whole: bool


def advice(state: Mapping[str, Tensor], recipe: Recipe, port: str | None, partial: bool, build: Build) -> str:
    """Return advice to add the options with which most tensors of a file are loaded, or "".

    Names and shapes are compared, so the models are built without values. The options that the user gave are
    in ``recipe``, ``port`` and ``partial``.
    """
    ways = [way for way in _ways(state, recipe, port, build) if way.options or not partial]
    if not ways:
        return ""
    best = max(ways, key=lambda way: (way.whole, way.taken, -len(way.options)))
    if 2 * best.taken <= sum(not name.endswith(COUNTER) for name in state):
        return ""  # the weights of another network
    options = (*best.options, *(["--partial"] * (not best.whole and not partial)))
    if not options:
        return ""
    loaded = f"{best.taken:,} of the model's {counted(best.tensors, 'tensor')}"
    trunk = any("involution" in one for one in best.options) * f" ({_TRUNK})"
    return f"add {' '.join(options)}{trunk}, which would load {loaded}"


def _ways(state: Mapping[str, Tensor], recipe: Recipe, port: str | None, build: Build) -> Iterator[_Way]:
    for keys in _involutions(recipe):
        changed = load.changed(recipe, keys)
        with torch.device("meta"):
            ours, three = (build(changed, classes).state_dict() for classes in (2, 3))
        head = {name for name in ours if ours[name].shape != three[name].shape}
        if port is None:
            yield _way(keys, ours, align(ours, state)[0], head)
        model = changed.model
        if model.name not in darknet.MODELS or darknet.MODELS[model.name].anchor_free:
            continue
        for name in [port] if port else PORTS:
            if PORTS[name].model not in ("", model.name):
                continue
            try:
                renamed, _ = from_port(state, ours, PORTS[name], darknet.network(model, 2), "", partial=True)
            except UserError:
                continue
            yield _way((*([] if port else ["--from", name]), *keys), ours, renamed, head)


def _involutions(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Yield the overrides for each involution that the model may have, beginning with none."""
    yield ()
    involution = getattr(recipe.model, "involution", None)
    if involution is not None and not involution.kernel:
        yield from ((f"model.involution.kernel={kernel}",) for kernel in (3, 5, 7))


def _way(
    options: tuple[str, ...], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], head: set[str]
) -> _Way:
    """Count the tensors that fit by name and shape. The head's shape depends on the number of classes."""
    fitting = [
        name for name in ours if name in theirs and (name in head or ours[name].shape == theirs[name].shape)
    ]
    lacks = [name for name in ours if name not in fitting and not name.endswith(COUNTER)]
    return _Way(options, len(fitting), len(ours), not lacks and theirs.keys() <= ours.keys())
