"""The command ``rankless new``, and the recipe that ``rankless train DATA`` uses."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import Classes, Force, Format, Root, app, check_recipe, chosen_classes, opened_task
from rankless.errors import UserError, check_all, counted, nearest
from rankless.printing import say
from rankless.task_kinds import DEFAULT, KINDS, wrong_model

if TYPE_CHECKING:
    from rankless.curation.facts import Facts
    from rankless.recipe.schema import Recipe


@app.command(
    sort_key=1.5,
    usage="Usage: rankless new ROOT [OPTIONS]",
    help_epilogue="""\
If the data has no validation split, NAME-split is created next to the recipe
NAME.yaml. This new folder contains the split data with links to the images.

Examples:
  rankless new mydata
  rankless new VOCdevkit --classes cat,dog --out pets.yaml
  rankless new mydata --pretrained runs/my
""",
)
def new(
    root: Root,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            help="The recipe file to write. Default: the data folder's name with .yaml.", metavar="FILE"
        ),
    ] = None,
    format: Format = "auto",
    classes: Classes = "auto",
    pretrained: Annotated[
        str | None,
        Parameter(
            help="Weights to fine-tune: a run, a file, hf://OWNER/NAME or published/NAME. The recipe uses "
            "their network.",
            metavar="WEIGHTS",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> int:
    """Write a recipe for a data set and this machine, with a reason for each value."""
    from rankless.curation.data_set import known_format, refuse_data_files
    from rankless.curation.facts import facts_of
    from rankless.curation.new_recipe import settings, text
    from rankless.data.formats.registry import recognize
    from rankless.files.outputs import Outputs

    file = out or Path(f"{name_of(root)}.yaml")
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"--out {file}: expected a name that ends in .yaml or .yml")

    def check_weights() -> None:
        if pretrained in ("", "published"):
            raise UserError(
                f"--pretrained is '{pretrained}': expected a run, a weights file, or a name such as "
                "published/yolov4-tiny; to train from scratch, remove --pretrained"
            )
        if pretrained:
            _check_weights(pretrained)

    outputs, *_ = check_all(  # before the data is read
        lambda: Outputs([file], verb=None, force=force),
        lambda: recognize(root, known_format(format)),
        check_weights,
    )
    refuse_data_files(outputs, root, known_format(format))
    divided = file.with_name(f"{file.stem}-split")
    with ExitStack() as undo:
        facts = facts_of(root, divided, format, classes=chosen_classes(classes), undo=undo)
        if pretrained:
            _check_task(pretrained, root, facts)
        written = text(facts, str(file), pretrained or "")
        with outputs.writing(file) as part:
            part.write_text(written, encoding="utf-8", errors="surrogateescape")
    _say_facts(facts)
    for note in facts.notes:
        say(f"note: {note}")
    say(f"recipe: {file} ({counted(len(settings(facts, pretrained or '')), 'key')}, each with a reason)")
    say(f"to train it: rankless train {shlex.quote(str(file))}")
    return 0


def holds_data(word: str | None) -> bool:
    """Return whether the given word is a folder with a data set and not a run."""
    if word is None or not Path(word).is_dir() or (Path(word) / "recipe.yaml").exists():
        return False
    from rankless.data.builtin import is_built_in
    from rankless.data.formats.registry import recognize

    try:
        return not is_built_in(word) and bool(recognize(word))
    except UserError:
        return False


def recipe_for(folder: str, overrides: Sequence[str], undo: ExitStack | None = None) -> Recipe:
    """Return the recipe that ``rankless new`` would write, with overrides applied, and print its values.

    For ``undo``, see :func:`rankless.curation.facts.facts_of`.
    """
    from rankless.curation.facts import facts_of
    from rankless.curation.new_recipe import settings, text
    from rankless.recipe import load

    name = name_of(folder)
    facts = facts_of(folder, Path(f"{name}-split"), undo=undo)
    _say_facts(facts)
    for note in facts.notes if facts.root != folder else ():  # training reads only the divided data
        say(f"note: {note}")
    pretrained = _pretrained_of(overrides)
    if pretrained:
        _check_task(pretrained, folder, facts)
    written = text(facts, f"{name}.yaml", pretrained)
    recipe = load.parsed(written, f"the recipe for {folder}", overrides, check_name=wrong_model)
    _say_values(recipe, [each.key for each in settings(facts, pretrained)], overrides)
    named = f"published/{recipe.model.name}" if pretrained == "published" else pretrained
    more = f" --pretrained {shlex.quote(named)}" if named else ""
    say(f"to see the reasons or change the values: rankless new {shlex.quote(folder)}{more}")
    return recipe


def say_fine_tuning(recipe: Recipe, overrides: Sequence[str], *, is_here: bool) -> None:
    """Print the values of ``fine-tune`` that depend on the number of training images, and the overrides.

    If ``is_here`` is False, the data may be missing on this machine.
    """
    from rankless.curation import fine_tuning

    try:
        why = counted(len(opened_task(recipe).training_data()), "training image")
    except UserError:
        if is_here:
            raise
        why = "200 training images, because the data is not on this machine"
    say(f"fine-tune, with values for {why}:")
    _say_values(recipe, [each.key for each in fine_tuning.settings(1, known=True)], overrides)


def _pretrained_of(overrides: Sequence[str]) -> str:
    values = [word.partition("=")[2] for word in overrides if word.startswith("model.pretrained=")]
    return values[-1].strip("'\"") if values else ""


def _check_weights(pretrained: str) -> None:
    from rankless.recipe import load

    check_recipe(load.default([f"model.pretrained={json.dumps(pretrained)}"]), begins=True)


def _check_task(pretrained: str, root: str, facts: Facts) -> None:
    """Raise a UserError if the weights and the data are for different tasks."""
    from rankless.data.datasets.open_split import of_another_task
    from rankless.recipe.recorded import with_network

    task = with_network({("model", "pretrained"): pretrained}).get(("task",), facts.kind.name)
    if problem := of_another_task(pretrained, task, root, boxed=facts.boxed):
        raise UserError(problem)


def folders_like(name: str) -> str:
    """Return a hint that a data folder is also accepted, with the name of a similar folder if any exists."""
    folders = [folder.name for folder in Path().iterdir() if folder.is_dir()]
    return f"; a folder with data is also accepted{nearest(name.rstrip('/'), folders)}"


def _say_values(recipe: Recipe, keys: Sequence[str], overrides: Sequence[str]) -> None:
    """Print ``key=value`` for each of ``keys`` in the recipe, followed by the other overrides."""
    from rankless.recipe import load
    from rankless.recipe.keys import at

    tree = json.loads(load.to_json(recipe))
    if recipe.model.pretrained == "published":  # the network may be the default one
        keys = list(dict.fromkeys(("model.name", *keys)))
    words = []
    for key in keys:
        if (value := at(tree, (*key.split("."),))) is not None:
            text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            words.append(f"{key}={text}")
    words += [word for word in overrides if word.partition("=")[0] not in keys]
    for line in textwrap.wrap(" ".join(words), 98, break_long_words=False):
        say(f"  {line}")


def check_changes(folder: str, overrides: Sequence[str]) -> None:
    """Raise a UserError if no built-in task accepts the overrides, or if the weights do not exist."""
    from rankless.data.formats.registry import recognize
    from rankless.recipe.load import default

    tasks = [
        [f"task={kind.name}", f"model.name={kind.recipe}"] if kind.name != DEFAULT else [] for kind in KINDS
    ]
    errors = list[UserError]()
    if recognize(folder)[0] == "image-folder":
        tasks.reverse()  # report the faults for the data's likely task
    for words in tasks:
        try:
            default([*words, *overrides])
        except UserError as error:
            errors.append(error)
    if len(errors) == len(tasks):
        raise errors[0]
    if pretrained := _pretrained_of(overrides):
        _check_weights(pretrained)


def name_of(root: str) -> str:
    """Return the name of the data set's folder, or ``data`` for the root of the file system."""
    path = Path(root).expanduser().resolve()
    return (path.name if path.is_dir() else path.parent.name) or "data"


def _say_facts(facts: Facts) -> None:
    images = f"{facts.train_images:,} images for training and {facts.val_images:,} for validation"
    say(f"{facts.root}: {facts.kind.problem}, {images}, {counted(len(facts.counts), 'class', 'classes')}")
    if facts.split_note:
        say(f"'{facts.val}': {facts.split_note}")
