"""Initialize a model from trained weights (``model.pretrained``).

Every tensor must fit, except those of a head for different classes. If the file and the model have classes in
common, the rows of these classes are copied by name, and the other rows keep their initial values. If they
have none in common, a head of the same size is loaded by position. From a head of a different size, only the
rows that do not belong to a class, such as those for boxes, are copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankless.data.datasets.class_matching import spelled_otherwise
from rankless.errors import UserError, counted, listed
from rankless.files import checksums, hub
from rankless.models import published
from rankless.models.classifiers.adapters import timm_weights
from rankless.models.classifiers.catalog import TIMM
from rankless.models.darknet.architectures import COCO_CLASSES
from rankless.models.detectors import darknet
from rankless.models.weights_files import transformers_folder
from rankless.models.weights_files.darknet_weights import read_weights
from rankless.models.weights_files.foreign import read_checkpoint
from rankless.models.weights_files.matching import COUNTER, Misfits, compare
from rankless.models.weights_files.weights import load_into, load_tensors
from rankless.recipe.load import from_json
from rankless.recipe.model_kinds import Model, ModelKeys
from rankless.recipe.recorded import recipe_in
from rankless.recipe.transformers_config import folder_of
from rankless.runs.directory import weights_of
from rankless.runs.trained_weights import trained_weights_of


def start_from(
    model: nn.Module,
    pretrained: str,
    class_names: Sequence[str] = (),
    described: ModelKeys | None = None,
) -> list[str]:
    """Load the weights specified by ``model.pretrained`` into a new model, and return messages about them.

    Args:
        model: the bare model. Its optional attribute ``head_names`` contains the names of the modules or
            parameters whose shapes depend on the number of classes, such as ``("fc", "levels.0.predict")``.
            For its optional method ``head_layout``, see :mod:`rankless.models.detectors.protocol`.
        pretrained: a weights file, a run (its best weights), or any safetensors file with the model's keys,
            local or on the Hugging Face Hub; ``published``, ``published/NAME`` or ``timm`` for a file in
            :mod:`rankless.models.published`. An empty value loads nothing.
        class_names: the model's class names, which are matched with the class names in the file, if any.
        described: the recipe's ``model``. It selects published files, and is compared with the ``model`` in
            the file if the weights do not fit.
    """
    if not pretrained:
        return []
    variant: Any = described or getattr(model, "variant", None)
    name, is_cfg = getattr(variant, "name", ""), bool(getattr(variant, "cfg", ""))
    wanted = published.asked_for(pretrained, name, is_cfg=is_cfg)
    state, known, source = _published(model, wanted) if wanted else _of_a_file(pretrained)
    if bad := [name for name, one in state.items() if not one.isfinite().all()]:
        raise UserError(
            f"model.pretrained: {source} has NaN or infinite values in {listed(bad)}; use another checkpoint"
        )
    pairs = _matched(class_names, known)
    has_rows = bool(pairs) or 0 < len(known) != len(class_names) > 0
    arranged = _by_class(model, state, len(known), len(class_names), pairs) if has_rows else None
    initialized: list[str] = []
    if arranged is not None:
        state = {**state, **arranged}
        initialized = [] if pairs else [*arranged]
    else:
        state, initialized = _without_other_heads(model, state, len(known), len(class_names))
    if described and not wanted and (misfits := compare(model.state_dict(), state)):
        _refuse_another_network(pretrained, described, misfits, len(model.state_dict()))
    load_into(model, state, f"model.pretrained: {source}")
    messages = [f"starting from the weights in {source}"]
    if pairs and arranged is not None:
        others = [name for label, name in enumerate(class_names) if label not in pairs]
        rest = f"; newly initialized: {listed(others)}" if others else ""
        alike = _spelled_otherwise(class_names, known)
        spelled = "; these have other names in the file: " * bool(alike)
        spelled += ", ".join(f"'{name}' ('{alike[name]}')" for name in class_names if name in alike)
        messages.append(
            f"the head is matched by class name: {len(pairs)} of {len(class_names)} classes are among the "
            f"{len(known)} in the file{spelled}{rest}"
        )
    elif initialized:
        what = "the heads" if arranged is None else "the class rows of the heads"
        classes = f" for {counted(len(class_names), 'class', 'classes')}" if class_names else ""
        instead = f" instead of {len(known)}" if class_names and known else ""
        messages.append(f"{what} are newly initialized{classes}{instead}: {listed(initialized)}")
    elif tuple(known) != tuple(class_names) and sorted(known) == sorted(class_names):
        messages.append(
            f"warning: the classes are in a different order in the file ({listed(known)}) than in the data "
            f"({listed(class_names)}), so some classes start from the weights of another class; to use the "
            f"order of the file, add data.classes='[{', '.join(known)}]'"
        )
    elif known and len(known) == len(class_names) and tuple(known) != tuple(class_names):
        messages.append(
            f"the heads are loaded, but the class names in the file ({listed(known)}) differ from those in "
            f"the data ({listed(class_names)})"
        )
    return messages


def _matched(ours: Sequence[str], known: Sequence[str]) -> dict[int, int]:
    """Map the model's label of each shared class to the file's label, if classes are matched by name."""
    if tuple(ours) == tuple(known) or list(known) == [str(label) for label in range(len(known))]:
        return {}  # numbers are not names
    of_file = {name: label for label, name in enumerate(known)}
    others = _spelled_otherwise(ours, known)
    names = (others.get(name, name) for name in ours)
    return {label: of_file[name] for label, name in enumerate(names) if name in of_file}


def _spelled_otherwise(ours: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    return spelled_otherwise(
        [name for name in ours if name not in known], [name for name in known if name not in ours]
    )


def _by_class(
    model: nn.Module, theirs: Mapping[str, Tensor], known: int, wanted: int, pairs: Mapping[int, int]
) -> dict[str, Tensor] | None:
    """Return the model's head with the file's rows for shared classes, or None if the head does not fit."""
    layout: Callable[[str], tuple[int, ...]] | None = getattr(model, "head_layout", None)
    heads, made = _heads(model), dict[str, Tensor]()
    for name, value in model.state_dict().items():
        if not f"{name}.".startswith(heads):
            continue
        before, width, *rest = layout(name) if layout else (0, 1)
        after = sum(rest)
        rows, their_rows = before + wanted * width + after, before + known * width + after
        groups = len(value) // rows if value.ndim else 0
        if not groups or name not in theirs or (layout is None and groups > 1):
            return None
        shape = (groups * rows, *value.shape[1:]), (groups * their_rows, *value.shape[1:])
        if (value.shape, theirs[name].shape) != shape:
            return None
        new = value.clone().unflatten(0, (groups, rows))
        old = theirs[name].to(value).unflatten(0, (groups, their_rows))
        new[:, :before] = old[:, :before]
        new[:, rows - after :] = old[:, their_rows - after :]
        for mine, other in pairs.items():
            at, of = before + mine * width, before + other * width
            new[:, at : at + width] = old[:, of : of + width]
        made[name] = new.flatten(0, 1)
    return made or None


def _of_a_file(pretrained: str) -> tuple[dict[str, Tensor], tuple[str, ...], str]:
    """Return the tensors in a weights file, its class names, and a description of the source."""
    try:
        if (folder := folder_of(pretrained)) is not None:
            return *transformers_folder.read(folder, "model.pretrained"), str(folder)
        if not pretrained.startswith(hub.PREFIX):
            path = trained_weights_of(Path(pretrained))
            return *load_tensors(path), str(path)
        address = hub.parse(pretrained)
        path = hub.file_of(address)
        at = path.parents[address.file.count("/")].name
        return *load_tensors(path), f"{replace(address, revision=at)} (SHA-256 {checksums.of_file(path)})"
    except UserError as error:
        raise UserError(f"model.pretrained: {one}" for one in error.problems) from None


def _refuse_another_network(pretrained: str, ours: ModelKeys, misfits: Misfits, tensors: int) -> None:
    """Raise an error that explains why the weights do not fit, if the file's recipe shows the reason."""
    what = f"model.pretrained is '{pretrained}'"
    tree = recipe_in(weights_of(hub.path_of(pretrained), warn=lambda _: None))
    if tree is None:
        if len(misfits.missing) == tensors:
            raise UserError(
                f"{what}: none of its tensors belongs to '{ours.name}', and it contains no recipe that "
                "names its network; set model.name, or convert the file with `rankless import`"
            )
        return
    theirs = from_json(json.dumps(tree), f"{pretrained}: the recipe inside").model
    keys = [
        field.name
        for field in fields(theirs)
        if field.name not in ("pretrained", "freeze", "checkpointing")
        and hasattr(ours, field.name)  # other kinds of networks have other keys and names
        and getattr(theirs, field.name) != getattr(ours, field.name)
    ]
    if keys:
        differ = "; ".join(
            f"model.{key} is {_short(getattr(ours, key))}, but {_short(getattr(theirs, key))} in the file"
            for key in keys
        )
        if getattr(theirs, "cfg", "") and not getattr(ours, "cfg", ""):
            differ = f"model.name is {_short(ours.name)}, but the network in the file comes from a cfg file"
        raise UserError(
            f"{what}, which contains a different network ({misfits.counts}): {differ}; to use the network in "
            "the file, remove these keys from the recipe, or use the recipe fine-tune; to start untrained, "
            "remove model.pretrained"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _published(
    model: nn.Module, wanted: published.PublishedFile
) -> tuple[dict[str, Tensor], tuple[str, ...], str]:
    """Like :func:`_of_a_file`, but for a published file. Missing layers keep their values."""
    path, sha256 = published.fetch(wanted)
    ours, source = model.state_dict(), f"{wanted.name}: {path} (SHA-256 {sha256})"
    if wanted.is_darknet:
        network = darknet.network(Model(name=wanted.models[0]), COCO_CLASSES)
        taken = {name: one for name, one in read_weights(path, network).state.items() if name in ours}
        if not wanted.categories:
            count, of = (sum(name.endswith("conv.weight") for name in each) for each in (taken, ours))
            source = f"{source}, for {count} of {of} convolutions"
        return {**ours, **taken}, wanted.categories, source
    theirs = load_tensors(path)[0] if path.suffix == ".safetensors" else read_checkpoint(path).state
    if wanted.name.startswith(TIMM):
        return timm_weights(wanted.name.removeprefix(TIMM), theirs), (), source
    # torchvision's DenseNets were saved when module names such as norm.1 and conv.1 were still allowed.
    theirs = {re.sub(r"\.(norm|conv)\.([12])\.", r".\1\2.", name): one for name, one in theirs.items()}
    counters = {name: one for name, one in ours.items() if name.endswith(COUNTER)}
    return {**counters, **theirs}, wanted.categories, source


def _heads(model: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name.rstrip('.')}." for name in getattr(model, "head_names", ()))


def _without_other_heads(
    model: nn.Module, theirs: dict[str, Tensor], known: int, wanted: int
) -> tuple[dict[str, Tensor], list[str]]:
    """Replace head tensors that do not fit with the model's own, and return the result and their names."""
    if known and known == wanted:  # then a head that does not fit is a different head
        return theirs, []
    ours = model.state_dict()
    heads = _heads(model)
    initialized = [
        name
        for name, value in ours.items()
        if name in theirs and value.shape != theirs[name].shape and f"{name}.".startswith(heads)
    ]
    return {**theirs, **{name: ours[name] for name in initialized}}, initialized
