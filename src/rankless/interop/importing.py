"""Other projects' weights as weights files of our own: what ``rankless import`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError, counted
from rankless.files import reading
from rankless.files.outputs import Outputs
from rankless.models import zoo
from rankless.models.checkpoints import weights
from rankless.models.checkpoints.darknet_weights import classes_of, read_weights
from rankless.models.checkpoints.fit import agrees_in_order, align, fit
from rankless.models.checkpoints.fit import by_order as in_order
from rankless.models.checkpoints.foreign import read_checkpoint
from rankless.models.checkpoints.unwrapping import Checkpoint
from rankless.models.classifiers.catalog import build_classifier
from rankless.models.darknet.architectures import COCO_CLASSES
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.network import Yolo
from rankless.models.darknet.reshape import with_classes
from rankless.models.detectors import darknet
from rankless.randomness import torch_seed
from rankless.recipe import load
from rankless.recipe.schema import Recipe

Head = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class ImportReport:
    """What :func:`import_weights` did.

    Attributes:
        source: the file that was read.
        out: the weights file that was written.
        model: the model's name.
        class_names: a name per class id.
        tensors: how many the model has.
        taken: how many of them came from the file.
        digest: SHA-256 of the weights.
        notes: what was found and done on the way, a line each.
    """

    source: Path
    out: Path
    model: str
    class_names: tuple[str, ...]
    tensors: int
    taken: int
    digest: str
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "source": str(self.source),
            "weights": str(self.out),
            "model": self.model,
            "class_names": list(self.class_names),
            "tensors": self.tensors,
            "taken": self.taken,
            "sha256": self.digest,
            "notes": self.notes,
        }


def import_weights(
    source: Path,
    out: Path,
    *,
    model: str | None = None,
    cfg: Path | None = None,
    names: Path | None = None,
    classes: int | None = None,
    key: str | None = None,
    partial: bool = False,
    by_order: bool = False,
    overrides: Sequence[str] = (),
    force: bool = False,
) -> ImportReport:
    """Read the weights of another project and write them as a weights file of Rankless.

    Args:
        source: a checkpoint; see :func:`~rankless.models.checkpoints.foreign.read_checkpoint`.
        out: the weights file to write.
        model: the model's name, as in a recipe's ``model.name``.
        cfg: a Darknet cfg file in place of ``model``.
        names: a file of class names: one per line, or a JSON list. Without it they are "0", "1" …
        classes: how many, where no names are given; read off the checkpoint's head if neither is.
        key: the entry of the checkpoint that holds the weights; chosen if not given.
        partial: take what fits and leave the rest as the model is initialized by the recipe's seed.
        by_order: take the tensors one after another, whatever they are called.
        overrides: ``key=value`` for the recipe that is written with the weights.
        force: replace an existing ``out``.

    Raises:
        UserError: the checkpoint cannot be read or does not fit, or whatever else is at fault.
    """
    outputs = _place(source, out, force, (cfg, names))
    class_names = _class_names(names, classes)
    if cfg is not None or _is_darknet(source):
        checkpoint, recipe, known, truncated = _from_darknet(source, cfg, model, overrides)
        partial = partial or truncated
        if class_names is None:
            classes = classes or known
        elif len(class_names) != known and not truncated:
            raise UserError(
                f"--names {names}: {counted(len(class_names), 'name')}, but the network has {known}"
            )
    else:
        recipe = _recipe(model, overrides)
        checkpoint = read_checkpoint(source, key)
    notes = list(checkpoint.facts)
    head = _head(recipe)
    if by_order:
        own = build_any(recipe, 2).state_dict()
        checkpoint = replace(checkpoint, state=in_order(own, checkpoint.state, str(source)))
        notes.append("the tensors are taken by their order, not by their names: evaluate the result")
    if class_names is None:
        count = classes or _classes_of(checkpoint.state, recipe, head, source)
        class_names = tuple(map(str, range(count)))
        notes.append(f"no class names are given: the classes are called by their numbers, 0 to {count - 1}")
    model_state = build_any(recipe, len(class_names)).state_dict()
    fitted = fit(model_state, checkpoint.state, partial, tuple(head), str(source))
    with outputs.writing(out) as file:
        extra = {"imported_from": source.name}
        weights.save(file, fitted.state, recipe=recipe, class_names=class_names, extra=extra)
    return ImportReport(
        source=source,
        out=out,
        model=str(cfg) if cfg else recipe.model.name,
        class_names=class_names,
        tensors=len(fitted.state),
        taken=len(fitted.state) - len(fitted.missing) - len(fitted.misshapen),
        digest=weights.digest(fitted.state),
        notes=notes + fitted.notes,
    )


def build_any(recipe: Recipe, classes: int) -> nn.Module:
    """The recipe's model on the CPU, initialized by the recipe's seed, as a training begins with it.

    Raises:
        UserError: there is no such model, or it cannot be made so.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(recipe.seed, "model"))
        if recipe.task == "classify":
            return build_classifier(recipe.model, classes)
        return zoo.build(recipe.model, classes)


def _task_of(name: str) -> str:
    """The task of the model called ``name``: what is no detector is a classifier, or none at all."""
    return "detect" if name in zoo.MODELS else "classify"


def _recipe(model: str | None, overrides: Sequence[str]) -> Recipe:
    """The recipe to write: the defaults, the model, and what the user changes."""
    named = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == "model.name"]
    if model is not None and named:
        raise UserError(f"--model is '{model}' and model.name is '{named[-1]}': give one of the two")
    name = model or (named[-1] if named else None)
    if name is None:
        raise UserError(
            "of which model are the weights? Give --model NAME, such as yolov4-tiny, resnet50 or "
            "timm/convnext_tiny (rankless models lists them), or --cfg FILE for Darknet's"
        )
    task = [] if any(word.startswith("task=") for word in overrides) else [f"task={_task_of(name)}"]
    return load.default([*task, f"model.name={json.dumps(name)}", *overrides])


def _from_darknet(
    source: Path, cfg: Path | None, model: str | None, overrides: Sequence[str]
) -> tuple[Checkpoint, Recipe, int, bool]:
    """Darknet's .weights for a cfg or a named model.

    Returns:
        The tensors under the model's own names; the recipe, with the cfg's text and what else it says; the
        number of classes; whether the file ends before the network does, as published backbones do.
    """
    if cfg is not None and model is not None:
        raise UserError(f"--cfg is {cfg} and --model is '{model}': give one of the two")
    facts: list[str] = []
    if cfg is not None:
        read = read_cfg(str(cfg))
        network, letterbox, nms, facts = read.network, read.letterbox, read.nms, list(read.notes)
        words = [f"model.cfg={json.dumps(write_cfg(network, letterbox=letterbox, nms=nms))}"]
    else:
        named = _recipe(model, overrides).model
        known = darknet.MODELS.get(named.name)
        if known is None or known.anchor_free:
            raise UserError(f"{source}: Darknet has no {named.name}; name the model that the weights are of")
        network = darknet.network(named, COCO_CLASSES)
        network = with_classes(network, classes_of(source, network) or COCO_CLASSES)
        # As in the published cfg files: only Scaled-YOLOv4 keeps the aspect, only YOLOv3 has plain NMS.
        letterbox = any(isinstance(layer, Yolo) and layer.new_coords for layer in network.layers)
        nms = "iou" if network.loss == "yolov3" else "diou"
        words = [f"model.name={named.name}"]
    fit_words = [f"data.fit={'letterbox' if letterbox else 'stretch'}", f"evaluate.nms={nms}"]
    others = [word for word in overrides if not word.startswith("model.name=")]
    recipe = load.default([*words, *fit_words, "evaluate.iou=0.45", *others])
    found = read_weights(source, network)
    facts.append(
        f"{source}: Darknet's weights, {found.filled} of the network's {found.convolutions} convolutions, "
        f"trained on {counted(found.seen, 'image')}"
    )
    state = dict(found.state)
    for name in found.state:
        if name.endswith("running_var"):  # PyTorch counts the batches too, which nothing here reads
            state[name.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    whole = found.filled == found.convolutions
    return Checkpoint(state, [*facts, *found.notes]), recipe, network.classes, not whole


def _is_darknet(source: Path) -> bool:
    """``.weights``, or a published backbone such as ``darknet53.conv.74``."""
    return source.suffix == ".weights" or ".conv." in source.name


def _class_names(path: Path | None, classes: int | None) -> tuple[str, ...] | None:
    """The names in a file: a JSON list, or a name on every line; None without a file."""
    if path is None:
        return None
    try:
        text = reading.read_text(path, reading.NAMES)
    except OSError as error:
        raise UserError(f"--names {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"--names {path}: no text in UTF-8 (byte {error.start}); expected a class name on every line"
        ) from None
    names = _listed(path, text) if text.lstrip().startswith("[") else text.strip().splitlines()
    names = [name.strip() for name in names]
    faults = [f"--names {path}:{n}: an empty name" for n, name in enumerate(names, 1) if not name]
    if not names:
        faults = [f"--names {path}: holds no name; expected a class name on every line, or a JSON list"]
    if classes is not None and classes != len(names):
        faults.append(
            f"--classes is {classes}, but {path} has {counted(len(names), 'name')}: leave --classes out"
        )
    if faults:
        raise UserError(faults)
    return tuple(names)


def _listed(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--names {path}: begins like a JSON list and is none: {error}") from None
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"--names {path}: has entries that are no text; expected a list of class names")
    return list(names)


def _head(recipe: Recipe) -> Head:
    """The tensors whose first side depends on the number of classes: that side for 2 classes, and for 3."""
    two, three = (build_any(recipe, classes).state_dict() for classes in (2, 3))
    return {
        name: (two[name].shape[0], three[name].shape[0])
        for name in two
        if two[name].shape != three[name].shape
    }


def _classes_of(state: Mapping[str, Tensor], recipe: Recipe, head: Head, source: Path) -> int:
    """The number of classes for which the model's head has the shape of the checkpoint's."""
    own = build_any(recipe, 2).state_dict()
    found, _ = align(own, state)
    counts = set[float]()
    for name, (of_two, of_three) in head.items():
        if name in found and found[name].ndim:
            counts.add(2 + (found[name].shape[0] - of_two) / (of_three - of_two))
    if not counts and agrees_in_order(own, state, tuple(head)):
        return 2  # the names are others: the misfit, with its cure, is told where the names are compared
    count = counts.pop() if len(counts) == 1 else 0
    if count < 1 or count != int(count):
        raise UserError(
            f"{source}: the number of classes does not show (is it the weights of another model than "
            f"{recipe.model.name}?); give --names FILE or --classes N"
        )
    return int(count)


def _place(source: Path, out: Path, force: bool, inputs: Sequence[Path | None]) -> Outputs:
    faults = []
    if not source.exists():
        faults.append(f"{source}: no such file; expected a checkpoint")
    if out.is_dir():
        faults.append(
            f"--out {out}: this is a folder; expected a file, such as {out / 'weights.safetensors'}"
        )
    elif not out.parent.is_dir():
        faults.append(f"--out {out}: there is no folder {out.parent}; make it first")
    if faults:
        raise UserError(faults)
    outputs = Outputs([out], verb=None, force=force)
    outputs.refuse_inputs([each for each in (source, *inputs) if each is not None])
    return outputs
