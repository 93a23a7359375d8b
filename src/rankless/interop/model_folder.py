"""Write a folder for sharing a model, with the layout of a repository on the Hugging Face Hub.

Every command that accepts a run also accepts the folder.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rankless.data.builtin import is_built_in
from rankless.errors import UserError, counted, printable
from rankless.files import yaml12
from rankless.files.outputs import Outputs
from rankless.models.weights_files import weights
from rankless.recipe.familiar import is_by_name
from rankless.recipe.load import dump
from rankless.runs import journal, starts
from rankless.runs.directory import RunDirectory, read_state, weights_of
from rankless.task_kinds import BUILT_IN, kind_of
from rankless.tasks import open_task, trained
from rankless.tasks.custom import naming, own_code

FILES = ("model.safetensors", "recipe.yaml", "classes.json", "README.md")
_NAMED = 100  # maximum number of classes in the card
_CARD = """\
---
library_name: rankless
license: unknown  # FILL IN an identifier of https://huggingface.co/docs/hub/repositories-licenses
{metadata}---

# {title}

{about}

Replace every **FILL IN** before you share the model.

## Use

    pip install rankless
    hf download FILL-IN/{name} --local-dir {name}
    rankless predict {name} photo.jpg{task}
    rankless evaluate {name}{data}{task}
{more}
## Scores

{scores}

## Training

{training}

{receipts}

## License

{licenses}
"""


class Record(NamedTuple):
    """A run's record of a checkpoint: its name (``best``, ``last`` or empty), scores, and facts."""

    name: str = ""
    scores: Mapping[str, str] = {}
    facts: Mapping[str, str] = {}


def write(loaded: weights.Weights, folder: Path, source: Path, force: bool) -> tuple[Path, ...]:
    """Write a model to a new or empty folder or, with ``force``, to the folder of an earlier export."""
    files = tuple(folder / name for name in FILES)
    if folder.is_dir() and any(folder.iterdir()) and not all(file.is_file() for file in files):
        # All files in the folder would be shared.
        raise UserError(f"--out {folder}: contains other files; use a new or empty folder")
    outputs = Outputs(files, verb=None, force=force)
    outputs.refuse_inputs([source])
    names = json.dumps(loaded.class_names, ensure_ascii=False, indent=1)
    texts = (dump(loaded.recipe), f"{names}\n", card(folder.name, loaded, source))
    with outputs.as_one(files) as (copy, *parts):
        shutil.copyfile(source, copy)
        for part, text in zip(parts, texts, strict=True):
            part.write_text(text, encoding="utf-8")
    return files


def read_record(source: Path) -> Record:
    """Return the readable parts of a run's record of one of its weights files."""
    source = source.resolve()
    if source.parent.parent.name != "checkpoints":
        return Record()
    run, scores = RunDirectory(source.parents[2]), dict[str, Any]()
    try:
        state = read_state(source.parent)
    except UserError:
        return Record()
    with suppress(OSError, UserError):
        if weights_of(source.parent) == source:  # the scores belong to the averaged weights, if any
            for entry in journal.read(run.journal):
                scores = entry["scores"] if entry.get("evaluation") == state["step"] else scores
    about = "digest of the data (classes, image sizes, annotations)"
    facts = {about: [str(state["data"])]} if state.get("data") else {}
    for start in starts.read(run.environment)[0]:
        for section in ("hardware", "instruction_set", "versions"):
            values = start.get(section)
            for name, value in values.items() if isinstance(values, dict) else ():
                label = f"instruction set of {name}" if section == "instruction_set" else name
                facts.setdefault(_plain(label), []).append(_plain(str(value)))
    return Record(
        next((name for name in ("best", "last") if run.pointed(name) == state["step"]), ""),
        {_plain(name): f"{value:.4f}" for name, value in scores.items() if isinstance(value, float)},
        {name: ", then ".join(dict.fromkeys(values)) for name, values in facts.items()},
    )


def card(name: str, loaded: weights.Weights, source: Path) -> str:
    """Return the model card: metadata for the Hub, followed by Markdown."""
    recipe, record = loaded.recipe, read_record(source)
    shown, own = shlex.quote(printable(name)), dict(own_code(recipe))
    is_ours = recipe.task in BUILT_IN and "model.name" not in own
    metadata: dict[str, Any] = {"tags": ["rankless"]}
    if is_ours:
        kind = kind_of(recipe.task)
        named = [] if getattr(recipe.model, "cfg", "") else [recipe.model.name]  # a cfg has no name
        metadata = {"pipeline_tag": kind.hub, "tags": ["rankless", *named]}
        model = trained.model(open_task(recipe, loaded.class_names), loaded, str(source))
        size = counted(sum(one.numel() for one in model.parameters()), "parameter")
        network = _plain(named[0]) if named else "the network in a Darknet cfg file"
        about = f"{kind.title}, {network}, with {size}."
    else:  # the user's code may be untrusted, so it is not run to count the parameters
        size = counted(sum(one.numel() for one in loaded.state.values()), "number")
        whose = "of the detector family" if "model.name" in own else "for the custom task"
        about = f"A model with {size} {whose} {_plain(next(iter(own.values())))}, whose code is also needed."
    if names := loaded.class_names:
        listed = ", ".join(map(_plain, names[:_NAMED]))
        about += f" {counted(len(names), 'class', 'classes')}: {listed}{' …' if len(names) > _NAMED else ''}"
    code = "".join(f" {naming(*one)}" for one in own.items() if one[0] != "data.format")
    data = " data.root=DATA" if "task" not in own and not is_built_in(recipe.data.root) else ""
    receipts = {"SHA-256 of the weights": weights.digest(loaded.state)}
    if step := loaded.extra.get("step"):
        receipts["steps of training"] = _plain(step)
    return _CARD.format(
        metadata=yaml12.write(metadata),
        title=_plain(name),
        name=shown,
        about=about,
        data=data,
        task=code,
        more=f"    rankless train model.pretrained={shown} data.root=DATA\n" if is_ours else "",
        scores=_table("score", "on the evaluation images", record.scores)
        if record.scores
        else "The scores are not recorded with the weights. Run `rankless evaluate` to compute them.",
        training=_training(loaded, record, shown, data),
        receipts=_table("", "", {**receipts, **record.facts}),
        licenses=_licenses(loaded),
    )


def _training(loaded: weights.Weights, record: Record, name: str, data: str) -> str:
    if published := loaded.extra.get("imported_from"):
        return f"The weights were imported from {_plain(published)}, which does not record their training."
    data += "" if is_by_name(loaded.recipe.model.pretrained) else " model.pretrained=WEIGHTS"
    commands = f"    rankless train {name}/recipe.yaml --run again{data}\n"
    if record.name:
        commands += f"    rankless digest again/checkpoints/{record.name}\n"
    return (
        f"{commands}\nThis repeats the training on any number of devices. With the same data, versions and "
        "processors, the digest is the same."
    )


def _licenses(loaded: weights.Weights) -> str:
    rows = {"these weights": "**FILL IN**, also as `license` at the top of this file"}
    if start := loaded.extra.get("imported_from") or loaded.recipe.model.pretrained:
        start = start if is_by_name(start) else Path(start).name
        rows[f"the original weights: {_plain(start)}"] = "**FILL IN**"
    rows[f"the data: {_plain(Path(loaded.recipe.data.root).name)}; **FILL IN** its source"] = "**FILL IN**"
    rows["the program, Rankless"] = "Apache-2.0"
    return _table("", "license", rows)


def _table(left: str, right: str, rows: Mapping[str, str]) -> str:
    lines = (f"| {one} | {two} |" for one, two in rows.items())
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines])


def _plain(text: str) -> str:
    """Put untrusted text on one line, and escape Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!~&])", r"\\\1", printable(text))
