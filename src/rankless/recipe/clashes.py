"""Find values that are valid individually but contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rankless.recipe.loss_kinds import AnchorFreeLoss
from rankless.recipe.mistakes import ascending_anchors
from rankless.task_kinds import kind_of

if TYPE_CHECKING:
    from rankless.recipe.schema import Recipe


def clashes(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Yield each contradiction as a sentence, followed by the dotted keys involved (the wrong one first)."""
    yield from _of_model(recipe)
    yield from _of_data(recipe)
    yield from _of_range(recipe)
    yield from _of_training(recipe)
    yield from _of_compute(recipe)


def _of_model(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    model, size = recipe.model, recipe.model.image_size
    sides = () if isinstance(size, str) else (size,) if isinstance(size, int) else size
    kind = kind_of(recipe.task)
    if any(side % kind.multiple for side in sides):
        nearest = " and ".join(str(max(1, round(side / kind.multiple)) * kind.multiple) for side in sides)
        written = list(size) if isinstance(size, tuple) else size
        yield (
            f"'model.image_size' is {written}: {kind.model} needs multiples of {kind.multiple}, "
            f"such as {nearest}",
            "model.image_size",
        )
    anchors = getattr(model, "anchors", "default")
    if not isinstance(anchors, str) and (least := min(map(min, anchors))) < 1:
        text, input_size = ascending_anchors(anchors, size)
        what = f"'model.anchors' has a side of {least:g} pixels; expected at least 1"
        meant = f"; multiply fractions of the image by the input's size: at {input_size} pixels, {text}"
        yield f"{what}{meant if input_size else ''}", "model.anchors"
    if getattr(model, "config", "") and model.name.startswith("hf/") and model.name != "hf/config":
        yield (
            f"'model.config' is given, but 'model.name' is '{model.name}', which has its own configuration; "
            "remove model.config, or use model.name=hf/config",
            "model.config",
            "model.name",
        )
    loss = recipe.loss
    if isinstance(loss, AnchorFreeLoss) and loss.dfl != AnchorFreeLoss.dfl and getattr(model, "dfl", 1) == 0:
        yield (
            f"'loss.dfl' is {loss.dfl}, but model.dfl is 0, so the distances have no distributions; "
            "remove loss.dfl, or set model.dfl to a number of bins such as 16",
            "loss.dfl",
            "model.dfl",
        )


def _of_range(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    values = recipe.data.range
    if not isinstance(values, str) and values[0] >= values[1]:
        yield f"'data.range' is {list(values)}: expected [low, high] with low < high", "data.range"


def _of_data(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    data, augment = recipe.data, recipe.data.augment
    if data.folder != type(data).folder and not data.root.startswith("torchvision/"):
        yield (
            f"'data.folder' is {data.folder!r}, which has an effect only with data.root=torchvision/NAME; "
            "remove data.folder, or give the folder as data.root",
            "data.folder",
            "data.root",
        )
    kind = kind_of(recipe.task)
    if kind.mixing and augment.close_mosaic and not any(getattr(augment, key) for key in kind.mixing):
        yield (
            f"'data.augment.close_mosaic' is {augment.close_mosaic!r}, but {' and '.join(kind.mixing)} are "
            "both off; remove data.augment.close_mosaic",
            "data.augment.close_mosaic",
            *(f"data.augment.{key}" for key in kind.mixing),
        )
    if kind.one_size and recipe.evaluate.tta == "full":
        yield (
            "'evaluate.tta' is 'full', which needs inputs of several sizes, but many classifiers "
            "accept only one; expected 'none' or 'flip'",
            "evaluate.tta",
        )


def _of_training(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    batch, check = recipe.batch, recipe.check
    if batch.images % batch.micro:
        divisors = [d for d in range(1, min(batch.images, 1 << 16) + 1) if batch.images % d == 0]
        below = max(d for d in divisors if d < batch.micro)
        above = min((d for d in divisors if d > batch.micro), default=None)
        nearest = f"divisors are {below} and {above}" if above else f"divisor is {below}"
        yield (
            f"'batch.micro' is {batch.micro}, which does not divide batch.images ({batch.images}); "
            f"the nearest {nearest}",
            "batch.micro",
            "batch.images",
        )
    if recipe.optim.nesterov and recipe.optim.name == "sgd" and recipe.optim.momentum == 0:
        yield (
            "'optim.nesterov' is true, which needs momentum, but optim.momentum is 0; set a momentum "
            "such as 0.9, or use optim.nesterov=false",
            "optim.nesterov",
            "optim.momentum",
        )
    if check.exclude and check.recompute == 0:
        yield (
            "'check.exclude' is true, but check.recompute is 0, so no device is checked; "
            "set check.recompute to a number of steps such as 100, or remove check.exclude",
            "check.exclude",
            "check.recompute",
        )
    wrong = {}
    if recipe.batch_norm == "sync":
        wrong["batch_norm"] = "'sync' (micro-batches cannot be computed separately)"
    if recipe.reduce == "fast":
        wrong["reduce"] = "'fast' (a repeated computation can give other bits)"
    if check.recompute and wrong:
        found = " and ".join(f"{key} is {why}" for key, why in wrong.items())
        yield (
            f"'check.recompute' is {check.recompute}, but {found}; set check.recompute to 0, or use "
            f"another {' and '.join(wrong)}",
            "check.recompute",
            *wrong,
        )


def _of_compute(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    if recipe.compute == "eager":
        return
    refused = {
        "batch_norm": (
            recipe.batch_norm == "sync",
            "'sync', whose micro-batches stop at every norm to exchange statistics; use batch_norm=micro",
        ),
        "cpu_isa": (
            recipe.cpu_isa != "native",
            f"{recipe.cpu_isa!r}, but the C++ compiler generates code for this processor; use cpu_isa=native",
        ),
        "data.multi_scale": (
            bool(recipe.data.multi_scale),
            f"{recipe.data.multi_scale:g}, and every input size would be compiled again; set it to 0",
        ),
        "model.checkpointing": (
            recipe.model.checkpointing,
            "true, but the compiler chooses which activations are computed again; remove model.checkpointing",
        ),
        "model.name": (
            recipe.model.name.startswith("hf/"),
            f"{recipe.model.name!r}, which assigns boxes to queries on the CPU within its forward pass; use "
            "another detector",
        ),
    }
    for key, (clashing, why) in refused.items():
        if clashing:
            yield f"'compute' is 'compiled', but {key} is {why}, or compute=eager", "compute", key
