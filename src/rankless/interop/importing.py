"""Convert weights from other projects to weights files with a recipe and class names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError, counted, nearest, one_of
from rankless.files import checksums, reading
from rankless.files.outputs import Outputs
from rankless.interop.other_ways import advice
from rankless.models import zoo
from rankless.models.darknet.architectures import COCO_CLASSES
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.network import Network, Yolo
from rankless.models.darknet.reshape import with_classes
from rankless.models.detectors import darknet
from rankless.models.weights_files import transformers_folder, weights
from rankless.models.weights_files.darknet_weights import classes_of, read_weights
from rankless.models.weights_files.foreign import read_checkpoint
from rankless.models.weights_files.matching import Fit, MisfitError, agrees_in_order, align, fit
from rankless.models.weights_files.matching import by_order as in_order
from rankless.models.weights_files.ports import from_port, likely_port, port_named
from rankless.models.weights_files.unwrapping import Checkpoint
from rankless.models.work import Layer, layers
from rankless.randomness import torch_seed
from rankless.recipe import load
from rankless.recipe.familiar import PYTORCH
from rankless.recipe.schema import Recipe
from rankless.recipe.transformers_config import CONFIG, folder_of, recipe_keys
from rankless.task_kinds import KINDS, kind_for, kind_of


def checked_name(source: Path) -> list[str]:
    """Compare the SHA-256 of a file with the digits in its name, as in ``resnet18-f37072fd.pth``.

    Return a message about the result if the name has digits. A mismatch is only a warning, because the digits
    may be a date.
    """
    said = checksums.digits_in(source.name)
    if not said:
        return []
    found = checksums.of_file(source)
    if found.startswith(said):
        return [f"the SHA-256 of the file matches the digits in its name ({said})"]
    return [
        f"warning: the SHA-256 of the file starts with {found[: len(said)]}, but its name contains {said}; "
        "if the file was published with this name, download it again"
    ]


PRECISION = "precision=fp32"  # published scores were computed in single precision
_LEAST_CROPPED = 128  # pixels; CIFAR classifiers are evaluated on the whole image


def build_any(recipe: Recipe, classes: int) -> nn.Module:
    """Build the model of a recipe on the CPU, initialized with the recipe's seed as in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(recipe.seed, "model"))
        made: nn.Module = kind_of(recipe.task).build(recipe.model, classes)
        return made


def layers_of(model: str, overrides: Sequence[str]) -> tuple[list[Layer], int]:
    """Return the layers of a model and its number of parameters; see :func:`rankless.models.work.layers`."""
    recipe = recipe_for(model, overrides)
    classes, size = kind_of(recipe.task).published(recipe.model)
    return layers(lambda: build_any(recipe, classes), size)


def recipe_for(model: str | None, overrides: Sequence[str]) -> Recipe:
    """Return the recipe to store with the weights: the model's defaults with the overrides applied."""
    named = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == "model.name"]
    if model is not None and named:
        raise UserError(f"--model is '{model}', and model.name is '{named[-1]}'; remove one of them")
    name = model or (named[-1] if named else None)
    if name is None and any(word.startswith("model.cfg=") for word in overrides):
        return load.default([PRECISION, *overrides])
    if name is None:
        raise UserError(
            "the weights do not name their model; add --model NAME (`rankless models` lists the names), "
            "model.cfg=FILE or, for Darknet weights, --cfg FILE"
        )
    stem = name.removesuffix(".cfg")
    if (name.startswith("yolo") or stem != name) and name not in zoo.MODELS:
        near = nearest(name, zoo.MODELS)
        raise UserError(
            f"--model is '{name}': no such model; expected {one_of(zoo.MODELS)}{near}; for another Darknet "
            f"network, use --cfg {stem}.cfg"
        )
    kind = next((one for one in KINDS if name in one.names.load()), kind_for(boxes=False))
    task = [] if any(word.startswith("task=") for word in overrides) else [f"task={kind.name}"]
    options = [*task, f"model.name={json.dumps(name)}", PRECISION]
    recipe = load.default([*options, *overrides])
    if crop := kind_of(recipe.task).crop:
        _, size = kind_of(recipe.task).published(replace(recipe.model, image_size="auto"))
        if min(size) >= _LEAST_CROPPED:
            recipe = load.default([*options, crop, *overrides])
    return recipe


def read_class_names(path: Path | None, classes: int | None) -> tuple[str, ...] | None:
    """Read class names from a file with a JSON list or one name per line. Without a file, return None.

    ``classes`` is the expected number of names, or None to accept any number.
    """
    if path is None:
        return None
    try:
        text = reading.read_text(path, reading.NAMES)
    except OSError as error:
        raise UserError(f"--names {path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"--names {path}: is not UTF-8 text (byte {error.start}); expected one class name per line"
        ) from None
    names = _listed(path, text) if text.lstrip().startswith("[") else text.strip().splitlines()
    names = [name.strip() for name in names]
    problems = [f"--names {path}:{n}: the name is empty" for n, name in enumerate(names, 1) if not name]
    if not names:
        problems = [f"--names {path}: has no names; expected one class name per line, or a JSON list"]
    if classes is not None and classes != len(names):
        problems.append(
            f"--classes is {classes}, but {path} has {counted(len(names), 'name')}; remove --classes"
        )
    if problems:
        raise UserError(problems)
    return tuple(names)


def _listed(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--names {path}: starts like a JSON list, but is not valid ({error})") from None
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"--names {path}: has entries that are not text; expected a list of class names")
    return list(names)


Head = Mapping[str, tuple[int, int]]
_DARKNET_PLACING = ("data.resample=darknet", "data.pad=128")


@dataclass(frozen=True)
class ImportReport:
    """The result of :func:`import_weights`. ``taken`` is the number of tensors from the checkpoint."""

    source: Path
    weights: Path
    model: str
    class_names: tuple[str, ...]
    tensors: int
    taken: int
    sha256: str
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return {**plain, "class_names": list(self.class_names)}


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
    port: str | None = None,
    overrides: Sequence[str] = (),
    force: bool = False,
) -> ImportReport:
    """Convert weights from another project to a weights file.

    Args:
        source: a Darknet weights file, a transformers model folder, or a checkpoint for
            :func:`~rankless.models.weights_files.foreign.read_checkpoint`.
        out: the weights file to write.
        model, cfg: the model, as ``model.name`` in a recipe, or a Darknet cfg file.
        names: a file with class names, one per line or as a JSON list. By default, classes are numbered.
        classes: number of classes if ``names`` is not given. By default, it is inferred from the head.
        key: entry in the checkpoint with the weights. By default, it is found automatically.
        partial: load all matching tensors, and initialize the others with the recipe's seed.
        by_order: match tensors by order instead of name. With ``partial``, matching ends at the first tensor
            with a different shape.
        port: a key of :data:`~rankless.models.weights_files.ports.PORTS`, if the checkpoint is from a port of
            YOLO.
    """
    outputs = _outputs(source, out, force, (cfg, names))
    class_names = read_class_names(names, classes)
    extra = {"imported_from": source.name}
    if (folder := folder_of(str(source))) is not None:
        options = {"--model": model, "--cfg": cfg, "--key": key, "--from": port, "--classes": classes}
        ways = {"--partial": partial or None, "--by-order": by_order or None}
        checkpoint, recipe, of_folder = _from_transformers(folder, {**options, **ways}, overrides)
        class_names = class_names or of_folder
    elif port is not None:
        checkpoint, recipe = _from_port(source, port, cfg, model, key, overrides, partial)
    elif cfg is not None or source.suffix == ".weights" or ".conv." in source.name:
        checkpoint, recipe, known, truncated = _from_darknet(source, cfg, model, overrides)
        extra |= {} if truncated else {"seen": str(checkpoint.seen)}
        partial, classes = partial or truncated, classes or known
        if class_names is not None and len(class_names) != known and not truncated:
            given = counted(len(class_names), "name")
            raise UserError(
                f"--names {names}: has {given}; expected {known}, the network's number of classes"
            )
    else:
        recipe = recipe_for(model, overrides)
        checkpoint = read_checkpoint(source, key)
        if partial and not by_order and (likely := _likely_port(checkpoint, recipe, model)):
            checkpoint, recipe = _from_port(source, likely, None, model, key, overrides, partial)
    with _advising(checkpoint, recipe, port, partial):
        fitted, class_names, notes = _fitted(
            checkpoint, recipe, class_names or classes, source, by_order=by_order, partial=partial
        )
    notes = [*checked_name(source), *notes]
    with outputs.writing(out) as file:
        weights.save(file, fitted.state, recipe=recipe, class_names=class_names, extra=extra)
    taken = len(fitted.state) - len(fitted.misfits.missing) - len(fitted.misfits.misshapen)
    name, digest = str(cfg) if cfg else recipe.model.name, weights.digest(fitted.state)
    return ImportReport(source, out, name, class_names, len(fitted.state), taken, digest, notes)


def _from_transformers(
    folder: Path, given: Mapping[str, object], overrides: Sequence[str]
) -> tuple[Checkpoint, Recipe, tuple[str, ...]]:
    if wrong := [option for option, value in given.items() if value is not None]:
        raise UserError(
            f"{folder}: is a transformers model folder, whose {CONFIG} describes the model; remove "
            f"{', '.join(wrong)}"
        )
    keys = recipe_keys(folder, "rankless import")
    options = [
        f"{section}.{key}={json.dumps(value)}"
        for section, part in keys.items()
        for key, value in part.items()
    ]
    state, names = transformers_folder.read(folder, "rankless import")
    return Checkpoint(state, []), load.default([*options, PRECISION, *overrides]), names


def _fitted(
    checkpoint: Checkpoint,
    recipe: Recipe,
    classes: tuple[str, ...] | int | None,
    source: Path,
    *,
    by_order: bool,
    partial: bool,
) -> tuple[Fit, tuple[str, ...], list[str]]:
    """Fit a checkpoint to the recipe's model, and return the tensors, the class names and messages."""
    notes, head = list(checkpoint.facts), _head(recipe)
    if by_order:
        ours = build_any(recipe, 2).state_dict()
        checkpoint = replace(checkpoint, state=in_order(ours, checkpoint.state, str(source), partial))
        notes.append("the tensors were matched by order instead of name; evaluate the imported weights")
    if not isinstance(classes, tuple):
        count = classes or _classes_of(checkpoint.state, recipe, head, source, partial)
        classes = tuple(map(str, range(count)))
        notes.append(f"no class names are given, so the classes are numbered from 0 to {count - 1}")
    state = build_any(recipe, len(classes)).state_dict()
    known = _head_classes(align(state, checkpoint.state)[0], head)
    if not partial and len(known) == 1 and len(classes) not in known and min(known) in range(1, 1_000_000):
        of_file = counted(int(*known), "class", "classes")
        raise UserError(
            f"{source}: the head has {of_file}, but --names or --classes specifies {len(classes)}; specify "
            f"{of_file}, or add --partial to replace the head"
        )
    fitted = fit(state, checkpoint.state, partial, tuple(head), str(source))
    return fitted, classes, notes + fitted.notes


def _from_darknet(
    source: Path, cfg: Path | None, model: str | None, overrides: Sequence[str]
) -> tuple[Checkpoint, Recipe, int, bool]:
    """Return the tensors, the recipe, the number of classes, and whether the file lacks the last layers."""
    if cfg is not None and model is not None:
        raise UserError(f"--cfg is {cfg}, and --model is '{model}'; remove one of them")
    facts: list[str] = []
    if cfg is not None:
        described = read_cfg(str(cfg))
        network, letterbox, nms = described.network, described.letterbox, described.nms
        facts += described.notes
        options = [f"model.cfg={json.dumps(write_cfg(network, letterbox=letterbox, nms=nms))}"]
    else:
        named = recipe_for(model, overrides).model
        known = darknet.MODELS.get(named.name)
        if known is None or known.anchor_free:
            raise UserError(
                f"{source}: Darknet has no model {named.name}; set --model to the model of the weights"
            )
        network = darknet.network(named, COCO_CLASSES)
        network = with_classes(network, classes_of(source, network) or COCO_CLASSES)
        # As in the published cfg files, only Scaled-YOLOv4 uses letterboxing, and only YOLOv3 uses plain NMS.
        letterbox = any(isinstance(layer, Yolo) and layer.new_coords for layer in network.layers)
        nms = "iou" if network.loss == "yolov3" else "diou"
        options = [f"model.name={named.name}"]
    fit_options = [f"data.fit={'letterbox' if letterbox else 'stretch'}", *_DARKNET_PLACING]
    others = [word for word in overrides if not word.startswith("model.name=")]
    options += [*fit_options, f"evaluate.nms={nms}", "evaluate.iou=0.45", PRECISION]
    recipe = load.default([*options, *others])
    try:
        read = read_weights(source, network)
    except UserError as error:
        raise _of_other_classes(source, cfg, network) or error from None
    facts.append(
        f"{source} contains Darknet weights for {read.filled} of the network's {read.convolutions} "
        f"convolutions; they were trained on {counted(read.seen, 'image')}"
    )
    state = dict(read.state)
    for name in read.state:
        if name.endswith("running_var"):  # PyTorch's batch norms also have an unused counter
            state[name.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    whole = read.filled == read.convolutions
    checkpoint = Checkpoint(state, [*facts, *read.notes], read.seen)
    return checkpoint, recipe, network.classes, not whole


def _of_other_classes(source: Path, cfg: Path | None, network: Network) -> UserError | None:
    known = classes_of(source, network) if cfg else None
    if known in (None, network.classes):
        return None
    return UserError(
        f"{source}: its heads have {counted(known or 0, 'class', 'classes')}, but the heads in --cfg {cfg} "
        f"have {network.classes}; use the cfg file of the weights; to train your own classes, replace the "
        "heads of the imported weights:\n"
        f"  rankless import {source} --cfg ORIGINAL.cfg --out pretrained.safetensors\n"
        "  rankless train fine-tune model.pretrained=pretrained.safetensors data.root=DATA"
    )


def _from_port(
    source: Path,
    name: str,
    cfg: Path | None,
    model: str | None,
    key: str | None,
    overrides: Sequence[str],
    partial: bool,
) -> tuple[Checkpoint, Recipe]:
    port = port_named(name)
    if model is None and cfg is None:
        if not port.model:
            raise UserError(f"--from is '{name}', which supports any network; add --model NAME or --cfg FILE")
        model = port.model
    elif port.model and (cfg is not None or model != port.model):
        raise UserError(f"--from is '{name}', which is a port of {port.model}; remove --model and --cfg")
    options = [*port.options, *overrides]
    if cfg is not None:
        described = read_cfg(str(cfg))
        text = write_cfg(described.network, letterbox=described.letterbox, nms=described.nms)
        options.insert(0, f"model.cfg={json.dumps(text)}")
    recipe = recipe_for(model, options)
    checkpoint = read_checkpoint(source, key)
    network = darknet.network(recipe.model, 2)
    ours = build_any(recipe, 2).state_dict()
    with _advising(checkpoint, recipe, name, partial):
        state, notes = from_port(checkpoint.state, ours, port, network, str(source), partial)
    facts = [*checkpoint.facts, f"a checkpoint from {port.source} ({port.about})", *notes]
    return Checkpoint(state, facts), recipe


@contextmanager
def _advising(checkpoint: Checkpoint, recipe: Recipe, port: str | None, partial: bool) -> Iterator[None]:
    """Within the context, an error about weights that do not fit names the options with which they fit."""
    try:
        yield
    except MisfitError as error:
        raise error.advised(advice(checkpoint.state, recipe, port, partial, build_any)) from None


def _likely_port(checkpoint: Checkpoint, recipe: Recipe, model: str | None) -> str:
    known = darknet.MODELS.get(model or "")
    if known is None or known.anchor_free:
        return ""
    ours = build_any(recipe, 2).state_dict()
    return likely_port(checkpoint.state, recipe.model.name, ours, darknet.network(recipe.model, 2))


def _head(recipe: Recipe) -> Head:
    """Map the names of the head's tensors to their first dimensions for 2 and for 3 classes."""
    two, three = (build_any(recipe, classes).state_dict() for classes in (2, 3))
    return {
        name: (two[name].shape[0], three[name].shape[0])
        for name in two
        if two[name].shape != three[name].shape
    }


def _head_classes(theirs: Mapping[str, Tensor], head: Head) -> set[float]:
    """Return the numbers of classes that the head's shapes imply. Consistent shapes imply only one number."""
    return {
        2 + (theirs[name].shape[0] - of_two) / (of_three - of_two)
        for name, (of_two, of_three) in head.items()
        if name in theirs and theirs[name].ndim
    }


def _classes_of(state: Mapping[str, Tensor], recipe: Recipe, head: Head, source: Path, partial: bool) -> int:
    """Infer the number of classes from the head or, for a backbone, from the published model."""
    ours = build_any(recipe, 2).state_dict()
    theirs, _ = align(ours, state)
    counts = _head_classes(theirs, head)
    if not counts and agrees_in_order(ours, state, tuple(head)):
        return 2  # the comparison of the tensors reports that the names differ
    if not counts and partial:
        published: int = kind_of(recipe.task).published(recipe.model)[0]
        return published
    count = counts.pop() if len(counts) == 1 else 0
    if count >= 1 and count == int(count):
        return int(count)
    same = sum(name in theirs for name in ours)
    if same * 2 < len(ours):
        raise MisfitError(
            f"{source}: the weights do not fit {recipe.model.name}: only {same:,} of its "
            f"{counted(len(ours), 'tensor')} are among the {len(state):,} tensors of the file",
            "set --model to the model of the weights (`rankless models` lists all models)",
        )
    raise MisfitError(
        f"{source}: the number of classes is unclear, because the file contains only {same:,} of the "
        f"{len(ours):,} tensor names of {recipe.model.name}",
        "add --names FILE or --classes N",
    )


def _outputs(source: Path, out: Path, force: bool, inputs: Sequence[Path | None]) -> Outputs:
    problems = []
    if not source.exists():
        problems.append(f"{source}: no such file; expected a checkpoint")
    if out.is_dir():
        problems.append(f"--out {out}: is a folder; expected a file, such as {out / 'weights.safetensors'}")
    elif not out.parent.is_dir():
        problems.append(f"--out {out}: the folder {out.parent} does not exist; create it first")
    if problems:
        raise UserError(problems)
    outputs = Outputs([out], verb=None, force=force)
    outputs.refuse_inputs([each for each in (source, *inputs) if each is not None])
    if out.suffix.lower() in (*PYTORCH, ".ckpt", ".bin", ".weights", ".onnx"):
        ours = out.with_suffix(".safetensors")
        raise UserError(f"--out {out}: the file is written as safetensors; use {ours}")
    return outputs
