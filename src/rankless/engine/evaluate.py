"""Evaluate a model on a complete data set, with the same scores for any number of ranks.

All ranks split the images into the same batches, and exactly one rank predicts on each batch. Rank 0
gathers the predictions in the order of the images and scores them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from rankless.data.loader import MicroBatches
from rankless.data.order import Line
from rankless.engine import layer_errors
from rankless.engine.forward_state import EvaluationState
from rankless.engine.loader_count import of_rank
from rankless.engine.shared_process import seeded_pass
from rankless.engine.validation_loss import FirstOutput, batch_loss, has_loss, mean
from rankless.errors import ShortageError, TaskError, UserError
from rankless.hardware.computing import forward_pass, kept_casts
from rankless.randomness import GENERATORS, kept_generators, seed_generators
from rankless.recipe.schema import Recipe
from rankless.structures import Scores, Unreadable
from rankless.tasks.capabilities import capabilities, unreadable_in
from rankless.tasks.checks import (
    check_batch,
    check_order,
    check_predictions,
    check_scores,
    check_sendable,
)
from rankless.tasks.protocol import Examples, Task
from rankless.user_code import explained
from rankless.world.process_group import World

SHOWN = 20
"""Maximum number of unreadable images listed in an error."""


def evaluate(
    task: Task,
    model: nn.Module,
    recipe: Recipe,
    world: World,
    *,
    limit: int | None = None,
    unreadable: Callable[[Sequence[Unreadable]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    phase: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: Callable[[Sequence[Any]], None] | None = None,
) -> Scores:
    """Return the scores of ``model``, the same on every rank.

    The scores include the precision (``computed_in``), the validation ``loss`` if the task has one, and the
    number of ``unreadable`` images if there are any. Too many unreadable images raise an error.

    Args:
        limit: number of images to predict on. If given, return a digest of the predictions instead of scores.
        unreadable: called on every rank with the images that could not be read, if any.
        stop: called before every batch. Returns whether this rank has received a request to stop.
        phase: called with ``predicting`` before every batch, and with ``scoring`` after the last one.
        progress: called with this rank's number of finished batches and its total number of batches.
        keep: called on rank 0 with all predictions in the order of the images. It must not raise.
    """
    data = task.evaluation_data()
    size = recipe.batch.micro if recipe.evaluate.batch == "auto" else recipe.evaluate.batch
    lines = _lines(task, data, size, limit)[world.rank :: world.size]
    model.eval()
    failures, mine = Failures(world), _Predicted(with_loss=limit is None and has_loss(task))
    finished = itertools.count()

    def is_stopped() -> bool:
        if phase:
            phase("predicting")
        if progress:
            progress(next(finished), len(lines))
        return bool(stop and stop())

    with failures.recording():
        _predict(task, model, recipe, world, lines, is_stopped, mine)
    if progress:
        progress(len(lines), len(lines))
    if phase:
        phase("scoring")
    failures.raise_first(mine.stopped)
    missing = _missing(mine.unreadable, len(data), recipe.data.max_bad, world)
    if missing and unreadable:
        unreadable(missing)
    gathered = world.gather([mine.predictions, mine.losses])
    scores: Scores | None = None
    with failures.recording():
        if gathered is not None:
            in_order = sorted((part for parts, _ in gathered for part in parts), key=lambda part: part[0])
            predictions = [prediction for _, prediction in in_order]
            if limit is None:
                with GENERATORS, kept_generators():
                    seed_generators(recipe.seed, "score")
                    found = check_scores(task, task.score(predictions))
                scores = {**found, "computed_in": recipe.precision}
                if mine.with_loss:
                    scores.setdefault("loss", mean(loss for _, losses in gathered for loss in losses))
            else:
                scores = {"predictions": fingerprint(predictions)}
            if missing:
                scores["unreadable"] = len(missing)
            if keep:
                keep(predictions)
    failures.raise_first()
    return world.broadcast(scores) or {}


@dataclass
class _Predicted:
    """One rank's predictions by image index, and the sum and count of each batch's loss."""

    with_loss: bool = False
    predictions: list[tuple[int, Any]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    stopped: bool = False


def _predict(
    task: Task,
    model: nn.Module,
    recipe: Recipe,
    world: World,
    lines: Sequence[Line],
    stop: Callable[[], bool],
    done: _Predicted,
) -> None:
    data, device, shared = task.evaluation_data(), world.device, world.transport.in_process
    workers, pinned = min(of_rank(recipe, world), len(lines)), device.type == "cuda"
    drawn = MicroBatches(data, task.collate, lines, workers=workers, seed=recipe.seed, pin_memory=pinned)
    state = EvaluationState(model)

    @contextmanager
    def computing(purpose: str, line: Line) -> Iterator[None]:
        with (
            torch.no_grad(),
            forward_pass(recipe.precision, device, training=False),
            seeded_pass(device, shared, recipe.seed, purpose, line.images[0][1]),
        ):
            try:
                yield
            finally:
                state.restore()

    with drawn as batches, kept_casts():
        for line, batch in zip(lines, batches, strict=True):
            if stop():
                done.stopped = True
                return
            check_batch(task, batch)
            done.unreadable += unreadable_in(batch)
            batch, once = batch.to(device), FirstOutput(model) if done.with_loss else model
            with layer_errors.explained(recipe), computing("predict", line):
                predictions = task.predict(cast(nn.Module, once), batch)
            check_predictions(task, predictions, len(line.images))
            check_sendable(task, predictions)
            done.predictions += zip([index for _, index in line.images], predictions, strict=True)
            if done.with_loss:
                done.losses.append(batch_loss(task, once, batch, computing("validation", line)))


def _lines(task: Task, data: Examples, size: int, limit: int | None) -> list[Line]:
    count = len(data) if limit is None else min(limit, len(data))
    ordered = capabilities(data).evaluation_order()
    if ordered is None:
        order: Sequence[int] = range(count)
    else:
        check_order(task, ordered, len(data))
        order = [index for index in ordered.tolist() if index < count]
    return [Line(0, [(0, index) for index in order[at : at + size]]) for at in range(0, count, size)]


def _missing(mine: Iterable[Unreadable], count: int, max_bad: float, world: World) -> list[Unreadable]:
    """Return the unreadable images of all ranks, sorted by index. Too many of them raise an error."""
    missing = sorted({one for images in world.all_gather(list(mine)) for one in images})
    if len(missing) == count:
        last = f"none of the {count} evaluation images can be read; replace them"
    elif len(missing) > max_bad * count:
        last = (
            f"data.max_bad is {max_bad:g}, but {len(missing)} of the {count} evaluation images cannot be "
            "read; replace them, or remove them from the data"
        )
    else:
        return missing
    raise UserError([*listed(missing), last])


def listed(images: Iterable[Unreadable]) -> list[str]:
    """Return a sentence for each of the first unreadable images, and one with the number of the others."""
    every = sorted(images)
    more = [f"… and {len(every) - SHOWN} more"] if len(every) > SHOWN else []
    return [*(f"{one.path} cannot be read: {one.reason}" for one in every[:SHOWN]), *more]


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """Raised on every rank if an evaluation stops early on request."""


_KINDS: dict[str, type[UserError]] = {kind.__name__: kind for kind in (ShortageError, TaskError)}


class Failures:
    """Raises the error of one rank on all ranks, because the others would wait for the failed rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.error: UserError | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record a user error raised in this block for :meth:`raise_first`. Other errors propagate."""
        try:
            yield
        except UserError as error:
            self.error = error
        except Exception as error:
            self.error = explained(error)
            if self.error is None:
                raise

    def raise_first(self, stopped: bool = False) -> None:
        """Raise the error of the lowest failed rank on every rank, or :class:`Stopped` if a rank stopped."""
        mine = [type(self.error).__name__, list(self.error.problems)] if self.error else None
        gathered = self.world.all_gather([mine, stopped])
        if errors := [error for error, _ in gathered if error]:
            kind, problems = errors[0]
            raise _KINDS.get(kind, UserError)(problems)
        if any(is_stopped for _, is_stopped in gathered):
            raise Stopped


def fingerprint(value: Any) -> str:
    """Return a digest of the bits of all tensors, numbers and strings in lists, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        content = plain.flatten().view(torch.uint8).numpy()
        parts: list[Any] = [str(plain.dtype), str(tuple(plain.shape)), content]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [
            type(value).__name__,
            *(fingerprint(getattr(value, f.name)) for f in dataclasses.fields(value)),
        ]
    elif isinstance(value, dict):
        parts = ["dict", *(fingerprint(item) for item in value.items())]
    elif isinstance(value, list | tuple):
        parts = ["list", *(fingerprint(item) for item in value)]
    else:
        parts = [repr(value)]
    whole = hashlib.blake2b(digest_size=12)
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        whole.update(len(encoded).to_bytes(8, "little"))
        whole.update(encoded)
    return whole.hexdigest()
