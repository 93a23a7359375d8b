"""Parameters that several commands share, and functions that parse their values."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from rankless import __version__
from rankless.cli import candidates
from rankless.data.builtin import is_built_in
from rankless.data.path_checks import missing_data
from rankless.errors import UserError, printable
from rankless.files.reading import NAMES, read_text
from rankless.task_kinds import BUILT_IN, wrong_model

if TYPE_CHECKING:
    from rankless.data.images.image_file import Values
    from rankless.recipe.schema import Recipe
    from rankless.tasks.protocol import Task as OpenTask

OPTIONS = Group("Options", sort_key=2)
_SHARED: Mapping[str, Any] = {
    "group_commands": Group("Commands", sort_key=0),
    "group_arguments": Group("Arguments", sort_key=1),
    "group_parameters": OPTIONS,
    "default_parameter": Parameter(completer=candidates.by_name),
}

app = App(
    name="rankless",
    help="Train image detectors and classifiers on one device or on many: the same weights, bit for bit.",
    help_epilogue="Start with:\n  rankless train digits",
    help_format="plaintext",
    version=__version__,
    usage="Usage: rankless COMMAND [ARGUMENTS] [OPTIONS]",
    suppress_keyboard_interrupt=False,
    **_SHARED,
)
"""The command line, to which the modules of this package add their commands."""
app["--help"].group = app["--version"].group = OPTIONS


def group(**options: Any) -> App:
    """Add a command with subcommands to the command line, and return it."""
    added = App(**_SHARED, **options)
    added["--help"].group = OPTIONS
    added["--version"].show = False
    app.command(added)
    return added


_MODEL = ("task", "model", "model.name", "model.cfg")
_PRETRAINED = "model.pretrained"
_NO_RECIPE = (
    "the recipe is missing: expected its name first, as in rankless train yolov4-tiny data.root=DATA (to "
    "detect) or rankless train resnet18 data.root=DATA (to classify); see: rankless recipes"
)
_OTHER_THAN_DIGITS = ("data.root", "data", *_MODEL)

flag = repeatable = Parameter(negative="", show_default=False)
Target = Annotated[Path, Parameter(name="TARGET", help="A run directory or a weights file.")]
PredictingTarget = Annotated[Path, Parameter(name="TARGET", help="A run directory, weights file or export.")]
Task = Annotated[
    str | None,
    Parameter(
        help="A custom task, package.module:Class or file.py:Class, whose code is run. A task that is "
        "named only in the run or the weights file is refused.",
        metavar="TASK",
    ),
]
Json = Annotated[bool, Parameter(name="--json", help="Print the result as JSON."), flag]

RecipeWords = Annotated[
    str,
    Parameter(
        name="RECIPE KEY=VALUE", help="A shipped recipe or a YAML file, followed by changes. Default: digits."
    ),
]


def _refuse_recipe(_: Any, root: str) -> None:
    if not root.endswith((".yaml", ".yml")) or not Path(root).is_file():
        return
    from rankless.recipe import load

    if load.is_recipe(Path(root)):
        raise UserError(f"{root}: this is a recipe, not a data set; {_data_of(root)}")


def _data_of(recipe: str) -> str:
    """Describe a recipe's data set, and name the command that checks it."""
    from rankless.data.datasets.torchvision_sets import located
    from rankless.recipe import load

    try:
        named = load.load(recipe).data
    except UserError as error:
        return f"fix the recipe first: {'; '.join(error.problems)}"
    if is_built_in(named.root):
        return f"its data is the built-in data.root={named.root}; to see it: rankless data show {named.root}"
    try:
        data = located(named)
    except UserError as error:
        return f"its data cannot be found: {'; '.join(error.problems)}"
    more = "" if data.format == "auto" else f" --format {data.format}"
    command = f"rankless data check {shlex.quote(data.root)}{more}"
    return f"its data is data.root={named.root}; to check it: {command}"


Root = Annotated[
    str, Parameter(name="ROOT", help="A data folder, or a file such as data.yaml.", validator=_refuse_recipe)
]
Force = Annotated[
    bool, Parameter(help="Replace existing files, even if this command did not write them."), flag
]
Link = Annotated[
    bool,
    Parameter(help="Link images instead of copying them. Changing an image then changes both data sets."),
    flag,
]
Format = Annotated[str, Parameter(help="Data format. auto detects it.", metavar="NAME")]
Classes = Annotated[
    str,
    Parameter(
        help="Use only these classes, in this order: cat,dog or a file with one name per line.",
        metavar="NAMES",
    ),
]
Range = Annotated[
    str,
    Parameter(
        name="--range",
        help="Values of gray images with more than 8 bits that become black and white, as data.range.",
        metavar="LOW,HIGH",
        allow_leading_hyphen=True,
    ),
]
Splits = Annotated[
    tuple[str, ...],
    Parameter(help="Use only this split. Repeatable. Default: all.", metavar="NAME"),
    repeatable,
]

Offline = Annotated[bool, Parameter(help="Use only cached weights, as with HF_HUB_OFFLINE=1."), flag]


def go_offline(offline: bool) -> None:
    """Apply ``--offline`` to this process and its ranks."""
    from rankless.files.hub import OFFLINE

    if offline:
        os.environ[OFFLINE] = "1"


Hosts = Annotated[
    str | None,
    Parameter(
        help="Machines to use over SSH: HOST[:DEVICES[:DATA]], separated by commas, or a file with one per "
        "line. DATA is the data's path there.",
        metavar="HOSTS",
    ),
]
Sync = Annotated[bool, Parameter(help="Run a copy of this machine's Rankless on the hosts."), flag]
Ssh = Annotated[str, Parameter(help="SSH command, including its options.", metavar="COMMAND")]
Python = Annotated[
    str | None,
    Parameter(
        help="Path to Python on every other host. Default: the same path as on this machine.", metavar="PATH"
    ),
]

Devices = Annotated[
    str,
    Parameter(
        help="Number of GPUs or, on a machine without GPUs, of processes. auto uses all. A list such as 0,2 "
        "selects GPUs by number. '2,' selects only GPU 2.",
        metavar="N",
    ),
]
Device = Annotated[str, Parameter(help="cpu or cuda. auto prefers GPUs.", metavar="KIND")]


def chosen_range(text: str) -> Values:
    """Return the value of ``data.range`` given by ``--range``."""
    from rankless.recipe import load

    pair = f"[{text.strip('[]')}]"
    return load.default([f"data.range={pair if ',' in text else text}"]).data.range


def compute_on(device: str) -> None:
    """Apply ``--device``. With ``cpu``, this process and its ranks ignore GPUs."""
    if device == "cpu":
        os.environ["RANKLESS_CPU"] = "1"
    elif device == "cuda":
        if os.environ.get("RANKLESS_CPU"):
            raise UserError(
                "--device is cuda, but RANKLESS_CPU is set; unset RANKLESS_CPU, or remove --device"
            )
        import torch

        if not torch.cuda.device_count():  # does not initialize CUDA, which forked ranks could not use
            raise UserError(
                "--device is cuda, but PyTorch found no GPU on this machine; see: rankless doctor"
            )
    elif device != "auto":
        raise UserError(
            f"--device is '{device}': expected cpu, cuda or auto; to select GPUs, use --devices, as in "
            "--devices 0,2 or --devices 1,"
        )


def device_count(devices: str) -> int | None:
    """Return the number given by ``--devices``, or None for ``auto``."""
    if "," in devices:
        raise UserError(
            f"--devices is {devices}, which selects GPUs, but only their number can be set here: expected "
            "a number or auto; to select GPUs, set CUDA_VISIBLE_DEVICES on their machine"
        )
    if devices == "0":
        raise UserError("--devices is 0: expected at least 1 device, or auto; to select GPU 0, use '0,'")
    return None if devices == "auto" else whole_number("--devices", devices, ", or auto")


def devices_here(devices: str) -> int | tuple[int, ...] | None:
    """Return the number of devices or the GPU numbers given by ``--devices``, or None for ``auto``."""
    if "," not in devices:
        return device_count(devices)
    words = [word.strip() for word in devices.removesuffix(",").split(",")]
    if not all(word.isdecimal() and len(word) < 5 for word in words):
        raise UserError(f"--devices is '{devices}': expected a number, auto, or GPU numbers, as in 0,2")
    return tuple(map(int, words))


def whole_number(option: str, text: str, more: str = "") -> int:
    if not (number := _count(text)):
        raise UserError(f"{option} is '{text}': expected a whole number of at least 1{more}")
    return number


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    numbers = tuple(map(_count, text.split(",")))
    if not all(numbers):
        raise UserError(f"{option} is '{text}': expected whole numbers of at least 1, as in 1,2,4")
    return numbers


def _count(text: str) -> int:
    return int(text) if text.strip().isdecimal() and len(text) < 10 else 0


def fraction(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UserError(f"{option} is '{text}': expected a number from 0 to 1")
    return number


def chosen_classes(text: str) -> str | tuple[str, ...]:
    """Return the value of ``--classes``: ``auto``, a file, or a tuple of names."""
    if text == "auto" or Path(text).expanduser().is_file():
        return text
    return tuple(name.strip() for name in text.strip("[]").split(",") if name.strip())


def class_pairs(given: str) -> list[list[str]]:
    """Parse ``--classes-map``: ``a=b, c=d``, or a file with one pair per line."""
    lines = given.split(",")
    if Path(given).is_file():
        try:
            lines = read_text(Path(given), NAMES).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--classes-map {given}: cannot be read: {error}") from None
    pairs = [[name.strip() for name in line.split("=", 1)] for line in lines if line.strip()]
    wrong = [pair[0] for pair in pairs if len(pair) != 2 or not pair[0]]
    if wrong or not pairs:
        raise UserError(
            f"--classes-map has '{name}': expected DATA=MODEL pairs separated by commas, as in "
            "'motorbike=motorcycle', or a file with one pair per line"
            for name in wrong or [given]
        )
    return pairs


def refuse_without(needed: str, options: Mapping[str, object]) -> None:
    """Raise a UserError if any of ``options``, which require the option ``needed``, has a value."""
    if given := [option for option, value in options.items() if value]:
        raise UserError(
            f"{option}: has no effect without {needed}; add {needed}, or remove {option}" for option in given
        )


def refuse_stray(words: Sequence[str], example: str) -> None:
    """Raise a UserError for words without ``=``. The message shows ``example`` as a valid override."""
    if stray := [word for word in words if "=" not in word]:
        raise UserError(f"'{word}': expected key=value, as in {example}" for word in stray)


def refuse_repeated(words: Sequence[str]) -> None:
    """Raise a UserError if a command line gives a recipe key more than once."""
    given: dict[str, list[str]] = {}
    for word in filter(is_override, words):
        given.setdefault(word.partition("=")[0], []).append(word)
    if repeated := {key: both for key, both in given.items() if len(both) > 1}:
        from rankless.recipe.keys import leaves, sections
        from rankless.recipe.schema import Recipe

        known = {".".join(path) for path in (*leaves(Recipe), *sections(Recipe))}
        if problems := [
            f"{' and '.join(map(printable, both))}: '{key}' is given more than once; keep only one"
            for key, both in repeated.items()
            if key in known
        ]:
            raise UserError(problems)


def is_override(word: str) -> bool:
    """Return whether ``word`` is a ``key=value`` override and not an existing path."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not os.path.lexists(word)


def recipe_and_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the recipe's name (the first word without ``=``, or None) and the other words as overrides."""
    name = next((word for word in words if "=" not in word), None)
    if name == "":
        raise UserError("the recipe is an empty string: expected the name of a recipe or a file")
    overrides = list(words)
    if name is not None:
        overrides.remove(name)
    return name, overrides


def recipe_of(words: Sequence[str]) -> tuple[Recipe, str]:
    """Call :func:`load_recipe` with the recipe and the overrides in a command's words."""
    return load_recipe(*recipe_and_overrides(words))


def load_recipe(
    name: str | None, overrides: Sequence[str], *, check_model: bool = True
) -> tuple[Recipe, str]:
    """Return a recipe and the name of its run. Errors in the recipe and missing data are reported together.

    Without a name, the recipe is ``fine-tune`` if the overrides set weights but no model, the default
    recipe if they set data or a model, and otherwise ``digits``. ``fine-tune`` is adapted to the number of
    training images (:mod:`rankless.curation.fine_tuning`). Checking the model imports PyTorch.
    """
    try:
        return _load_recipe(name, overrides, check_model=check_model)
    except UserError as error:
        from rankless.recipe.load import data_root

        roots = [word.removeprefix("data.root=") for word in overrides if word.startswith("data.root=")]
        if not roots and name and Path(name).is_file():
            roots = [data_root(Path(name))]
        root = roots[-1] if roots else ""
        gone = _problems_of_data(root) if root else []
        raise UserError(dict.fromkeys((*error.problems, *gone, *_unknown_best(name, overrides)))) from None


def _unknown_best(name: str | None, overrides: Sequence[str]) -> Iterator[str]:
    """Yield an error if the overrides set ``evaluate.best`` to a score that no built-in task has."""
    from rankless.recipe.installed import shipped

    given = dict(word.partition("=")[::2] for word in overrides)
    built_in = ":" not in given.get("task", "") and name in (None, *shipped())
    if "evaluate.best" in given and built_in:
        from rankless.metrics.coco import NAMES
        from rankless.metrics.topk import score_names
        from rankless.tasks.best import unknown_best

        yield from unknown_best(given["evaluate.best"], (*NAMES, *score_names(6)))


def _load_recipe(name: str | None, overrides: Sequence[str], *, check_model: bool) -> tuple[Recipe, str]:
    from rankless.recipe import load
    from rankless.recipe.installed import shipped

    # Models are slow to import, and the models of shipped recipes exist.
    is_named = name not in (None, *shipped()) or any(word.partition("=")[0] in _MODEL for word in overrides)
    check = wrong_model if is_named and check_model else None
    keys = [word.partition("=")[0] for word in overrides]
    if name is None and _PRETRAINED in keys and not is_named:
        name = "fine-tune"
    if name is None and any(key in _OTHER_THAN_DIGITS for key in keys):
        try:
            return load.default(overrides, check_name=check), "run"
        except UserError as error:
            # ``data=`` comes from other programs, whose command lines need no recipe.
            needs_none = "data" not in keys or "model" in keys
            raise UserError([*error.problems, *([] if needs_none else [_NO_RECIPE])]) from None
    recipe = load.load(name or "digits", overrides, check_name=check)
    if name == "fine-tune" and check_model:
        chosen = _fine_tuning(recipe)
        recipe = load.load(name, [*chosen, *overrides], check_name=check) if chosen else recipe
    return recipe, name or "digits"


def _fine_tuning(recipe: Recipe) -> list[str]:
    """Return overrides that adapt ``fine-tune`` to its training images, or [] if they cannot be read."""
    try:
        task = opened_task(recipe)
    except UserError:
        return []  # the training reports why, or it runs on hosts that have the data
    from rankless.curation.fine_tuning import knows, overrides

    return overrides(len(task.training_data()), known=knows(recipe.model.pretrained, task.class_names))


def opened_task(recipe: Recipe) -> OpenTask:
    """Open the task and the data of a new run."""
    check_recipe(recipe, begins=True)  # before PyTorch is imported
    from rankless.tasks import open_task, resolve_recipe

    return open_task(resolve_recipe(recipe))


def check_target(target: Path) -> None:
    """Raise a UserError if ``target`` has no weights."""
    from rankless.runs.directory import weights_of

    if problems := [*_problems_of_weights(target, weights_of)]:
        raise UserError(problems)


def not_given(recipe: Recipe) -> dict[str, str]:
    """Return an error message for each key whose value is still the placeholder ``path/to/…``."""
    root = recipe.data.root if recipe.task in BUILT_IN else ""
    return {
        key: f"{key} is not given: expected {expected}"
        for key, path, expected in (
            ("data.root", root, "a folder or a file; add data.root=FOLDER"),
            ("model.pretrained", recipe.model.pretrained, "weights; add model.pretrained=WEIGHTS"),
        )
        if path.startswith("path/to/") and not os.path.lexists(path)
    }


def check_recipe(recipe: Recipe, *, begins: bool) -> None:
    """Raise a UserError if a path in a recipe does not exist on this machine.

    If ``begins`` is False, the run is resumed and does not need ``model.pretrained``.
    """
    from rankless.data.datasets.torchvision_sets import located
    from rankless.files import hub
    from rankless.recipe.familiar import PUBLISHED, is_by_name
    from rankless.recipe.transformers_config import folder_of
    from rankless.runs.trained_weights import trained_weights_of

    without = not_given(recipe) if begins else {}
    problems = [*without.values()]
    if recipe.task in BUILT_IN and "data.root" not in without:
        try:
            problems += _problems_of_data(located(recipe.data).root)
        except UserError as error:
            problems += error.problems
    pretrained = recipe.model.pretrained
    is_named = is_by_name(pretrained) or "model.pretrained" in without
    if begins and pretrained.startswith(hub.PREFIX):
        try:
            if (address := hub.parse(pretrained)).file:
                hub.refuse_pickles(address)
        except UserError as error:
            problems += [f"model.pretrained: {one}" for one in error.problems]
    if begins and not is_named and folder_of(pretrained) is None:
        given = _problems_of_weights(Path(pretrained), trained_weights_of)
        problems += [
            f"model.pretrained is '{pretrained}': {one.removeprefix(f'{pretrained}: ').removeprefix('is ')}"
            f"{'' if Path(pretrained).suffix or Path(pretrained).exists() else f'; {PUBLISHED}'}"
            for one in given
        ]
    if problems:
        raise UserError(problems)


def _problems_of_data(root: str) -> list[str]:
    return [f"data.root is '{root}': {one.removeprefix(f'{root}: ')}" for one in missing_data(root)]


def _problems_of_weights(target: Path, find: Callable[[Path, Callable[[str], None]], Path]) -> Iterator[str]:
    try:
        find(target, lambda _: None)
    except UserError as error:
        yield from error.problems
