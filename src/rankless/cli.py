"""The command line: verbs only. Every heavy import waits until its verb runs.

A recipe decides the numbers, and ``key=value`` changes it; options decide where and how it runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from rankless import __version__
from rankless.errors import STOPPED, UserError
from rankless.printing import print_json, print_models, print_scores

if TYPE_CHECKING:
    from rankless.recipe import Recipe

_commands = Group("Commands", sort_key=0)
_arguments = Group("Arguments", sort_key=1)
_options = Group("Options", sort_key=2)

app = App(
    name="rankless",
    help="Train image detectors and classifiers on one device or on many: the same weights, bit for bit.",
    help_epilogue="Start with:\n  rankless train digits",
    help_format="plaintext",
    version=__version__,
    usage="Usage: rankless COMMAND [ARGUMENTS] [OPTIONS]",
    group_commands=_commands,
    group_arguments=_arguments,
    group_parameters=_options,
    suppress_keyboard_interrupt=False,
)
app["--help"].group = app["--version"].group = _options

_OTHER_THAN_DIGITS = ("task", "data.root", "data", "model", "model.name", "model.cfg")
_flag = Parameter(negative="", show_default=False)
Target = Annotated[Path, Parameter(name="TARGET", help="A run directory or a weights file.")]
Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for programs."), _flag]
Devices = Annotated[
    str, Parameter(help="GPUs to use, or processes where there is no GPU: a number, or auto.", metavar="N")
]


@app.command(
    sort_key=1,
    usage="Usage: rankless train [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless train digits
  rankless train digits epochs=5 optim.lr=0.02 --run runs/short --devices 2
  rankless train --resume --run runs/short epochs=20
""",
)
def train(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe or a YAML file (if not given: digits, or the defaults with other data or "
            "another model; a resumed run brings its own), "
            "and changes to it, such as optim.lr=0.02.",
        ),
    ],
    run: Annotated[
        Path | None, Parameter(help="The run directory; if not given, runs/RECIPE, or RECIPE-2, -3 …")
    ] = None,
    devices: Devices = "auto",
    resume: Annotated[bool, Parameter(help="Go on from the last checkpoint in --run."), _flag] = False,
) -> int:
    """Train a recipe; the weights are the same on any number of devices."""
    from rankless import recipe_file

    count = _device_count(devices)
    name, overrides = _recipe_and_overrides(recipe)
    if resume and run is None:
        raise UserError("--resume needs the run to go on with: add --run, as in --resume --run runs/digits")
    if resume and run is not None and name is None:
        kept = run / "recipe.yaml"
        if not kept.is_file():
            raise UserError(f"--run {run}: no run to resume there ({kept} does not exist)")
        loaded = recipe_file.load(kept, overrides)
    else:
        loaded, name = _loaded(name, overrides)
    if run is None:
        from rankless.run_directory import new_run_directory

        run = new_run_directory(Path(name or "run").stem)
    with _may_be_requeued():
        from rankless.launch import local

        return local.train(loaded, run, devices=count, resume=resume)


@app.command(
    sort_key=2,
    usage="Usage: rankless evaluate TARGET [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless evaluate runs/digits
  rankless evaluate runs/digits evaluate.iou=0.5 --json
""",
)
def evaluate(
    target: Target,
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the run's recipe.")],
    devices: Devices = "auto",
    split: Annotated[
        str | None, Parameter(help="The split to score on; if not given, the recipe's data.val.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Score a run or a weights file on its evaluation pictures."""
    count = _device_count(devices)
    if stray := [word for word in overrides if "=" not in word]:
        raise UserError(f"'{word}': expected key=value, as in evaluate.iou=0.5" for word in stray)
    from rankless.launch import local

    scores = local.evaluate(target, overrides, devices=count, split=split)
    if as_json:
        print_json(scores)
    else:
        print_scores(scores)
    return 0


@app.command(
    sort_key=3,
    usage="Usage: rankless predict TARGET SOURCE ... [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless predict runs/digits photo.jpg folder/
  rankless predict runs/digits digits:val:0-7 --out found
""",
)
def predict(
    target: Target,
    /,
    *sources: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="Pictures, folders, patterns, or scenes of the built-in data, as in digits:val:0-7.",
        ),
    ],
    out: Annotated[Path, Parameter(help="Where the results go.")] = Path("predictions"),
    confidence: Annotated[
        float | None,
        Parameter(help="Leave out what scores lower, 0 to 1; if not given, 0.25 for detections."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find things in pictures: annotated pictures and one predictions.json."""
    if not sources:
        raise UserError(
            "no pictures given: expected files, folders or patterns, "
            "as in: rankless predict runs/digits photo.jpg"
        )
    if confidence is not None and not 0 <= confidence <= 1:
        raise UserError(f"--confidence is {confidence:g}: expected a number from 0 to 1")
    from rankless.prediction import predict as find

    report = find(target, sources, out=out, confidence=confidence)
    for source, reason in report.failed:
        print(f"{source}: {reason}", file=sys.stderr)
    if as_json:
        print_json(report.as_json())
    else:
        for picture in (each for each in report.pictures if each.classes):
            best = picture.classes[0]
            print(f"{picture.source}: {best['name']} {best['score']:.0%}")
        found = sum(len(picture.detections or picture.classes[:1]) for picture in report.pictures)
        failed = f", {len(report.failed)} not readable" if report.failed else ""
        print(f"{found} found; pictures: {len(report.pictures)}{failed}; results in {report.out}")
    return report.exit_code


@app.command(
    sort_key=9,
    usage="Usage: rankless export TARGET --format FORMAT [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless export runs/mine --format darknet
  rankless export weights.safetensors --format darknet --out shared/net
""",
)
def export(
    target: Target,
    /,
    *,
    format: Annotated[str, Parameter(help="darknet: a .cfg, .weights and .names.")],
    out: Annotated[
        Path | None, Parameter(help="Path of the new files, without an ending; if not given, TARGET's name.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Write trained weights in the format of other software."""
    from rankless.exporting import export as write

    done = write(target, format=format, out=out)
    if as_json:
        print_json({"weights": str(done.weights), "files": [str(file) for file in done.files]})
    else:
        print("\n".join(str(file) for file in done.files))
    return 0


@app.command(
    sort_key=4,
    usage="Usage: rankless digest TARGET [OPTIONS]",
    help_epilogue="Example:\n  rankless digest runs/digits\n",
)
def digest(target: Target, /, *, as_json: Json = False) -> int:
    """Print the SHA-256 of the weights: equal weights, equal digest."""
    from rankless.models.weights import digest_file
    from rankless.run_directory import weights_of

    path = weights_of(target)
    sha256 = digest_file(path)
    if as_json:
        print_json({"sha256": sha256, "weights": str(path)})
    else:
        print(f"{sha256}  {path}")
    return 0


@app.command(
    sort_key=5,
    usage="Usage: rankless verify [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless verify
  rankless verify my.yaml batch.images=24 --worlds 1,2,3 --steps 5
""",
)
def verify(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe or a YAML file (digits if not given), and changes to it.",
        ),
    ],
    worlds: Annotated[str, Parameter(help="Numbers of processes to compare.", metavar="N,N")] = "1,2",
    steps: Annotated[str, Parameter(help="Steps to train with each.", metavar="N")] = "20",
    as_json: Json = False,
) -> int:
    """Prove on this machine that the number of processes changes no bit of the weights."""
    sizes = [_whole_number("--worlds", size, ", as in 1,2,3") for size in worlds.split(",")]
    step_count = _whole_number("--steps", steps)
    name, overrides = _recipe_and_overrides(recipe)
    loaded, _ = _loaded(name, overrides)
    from rankless.verify import verify as compare

    # With --json the standard output is the report's alone.
    log = sys.stderr if as_json else sys.stdout
    report = compare(loaded, sizes, step_count, lambda line: print(line, file=log, flush=True))
    if as_json:
        print_json(report.as_json())
    return 0 if report.ok else 1


@app.command(
    sort_key=6,
    usage="Usage: rankless recipes [NAME] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless recipes
  rankless recipes digits > my.yaml
""",
)
def recipes(
    name: Annotated[str | None, Parameter(name="NAME", help="Print this recipe.")] = None,
    /,
    *,
    schema: Annotated[bool, Parameter(help="Print the JSON Schema of recipes, for editors."), _flag] = False,
    as_json: Json = False,
) -> int:
    """List the shipped recipes, or print one."""
    from rankless import recipe_file

    text = None if name is None else recipe_file.shipped_text(name)
    if schema:
        print_json(recipe_file.schema())
    elif name is not None and as_json:
        print_json(json.loads(recipe_file.to_json(recipe_file.load(name))))
    elif text is not None:
        print(text, end="")
    elif as_json:
        print_json(recipe_file.shipped())
    else:
        width = max(map(len, recipe_file.shipped()))
        for known, what in recipe_file.shipped().items():
            print(f"{known:{width}}  {what}")
    return 0


@app.command(
    sort_key=7,
    usage="Usage: rankless models [OPTIONS]",
    help_epilogue="Besides these, any classifier of timm by its name, as in model.name=timm/convnext_tiny.\n",
)
def models(*, as_json: Json = False) -> int:
    """List the models with their size, their work and their origin."""
    from dataclasses import asdict

    from rankless.models.listing import listed

    rows = list(listed())
    if as_json:
        print_json([asdict(row) for row in rows])
        return 0
    print_models(rows)
    return 0


@app.command(
    name="import",
    sort_key=8,
    usage="Usage: rankless import FILE --out FILE [--model NAME] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="Example:\n  rankless import their.pth --out ours.safetensors --model yolov4-tiny\n",
)
def import_(
    source: Annotated[Path, Parameter(name="FILE", help="A checkpoint of another project.")],
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the recipe written with it.")],
    out: Annotated[Path, Parameter(help="The weights file to write.", metavar="FILE")],
    model: Annotated[str | None, Parameter(help="The model.", metavar="NAME")] = None,
    cfg: Annotated[Path | None, Parameter(help="Darknet's cfg, in place of --model.", metavar="FILE")] = None,
    names: Annotated[
        Path | None, Parameter(help="Class names, one per line or JSON.", metavar="FILE")
    ] = None,
    classes: Annotated[str | None, Parameter(help="How many, without --names.", metavar="N")] = None,
    key: Annotated[str | None, Parameter(help="The entry that holds the weights.", metavar="NAME")] = None,
    partial: Annotated[bool, Parameter(help="Take what fits."), _flag] = False,
    by_order: Annotated[bool, Parameter(help="Take tensors by order, not by name."), _flag] = False,
    force: Annotated[bool, Parameter(help="Replace an existing --out."), _flag] = False,
    as_json: Json = False,
) -> int:
    """Make a weights file of another project's checkpoint."""
    count = None if classes is None else _whole_number("--classes", classes)
    if stray := [word for word in overrides if "=" not in word]:
        raise UserError(f"'{word}': expected key=value, as in model.width=0.5" for word in stray)
    from rankless.importing import import_weights

    report = import_weights(
        source,
        out,
        model=model,
        cfg=cfg,
        names=names,
        classes=count,
        key=key,
        partial=partial,
        by_order=by_order,
        overrides=overrides,
        force=force,
    )
    if as_json:
        print_json(report.as_json())
    else:
        print(*report.notes, sep="\n")
        print(f"{report.taken} of {report.tensors} tensors of {report.model}; {report.digest}  {report.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after ``rankless``; the process's own if not given.

    Returns:
        The exit code: 0; 1 where the work failed; 2 for a mistake of the user's; 130 when interrupted.
    """
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        for fault in error.faults:
            print(f"error: {fault}", file=sys.stderr)
        return error.exit_code
    except UnusedCliTokensError as error:
        print(f"error: one word too many: '{(error.unused_tokens or ['?'])[0]}'", file=sys.stderr)
        return 2
    except CycloptsError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; a training run goes on with: rankless train --resume --run RUN", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        traceback.print_exc()
        print("error: this is a bug in Rankless; please report it with the lines above", file=sys.stderr)
        return 1


@contextmanager
def _may_be_requeued() -> Iterator[None]:
    """A SIGTERM that comes while libraries are still loading ends the command as a later one does."""

    def end(number: int, _: object) -> None:
        print("stopped by SIGTERM; the run had not begun", file=sys.stderr, flush=True)
        os._exit(STOPPED)  # an exception could be caught by whatever is being imported

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _recipe_and_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first word that is no ``key=value`` is the recipe; the rest is for the recipe's reader to judge."""
    name = next((word for word in words if "=" not in word), None)
    overrides = list(words)
    if name is not None:
        overrides.remove(name)
    return name, overrides


def _loaded(name: str | None, overrides: Sequence[str]) -> tuple[Recipe, str]:
    """The recipe of that name, and what to call its run.

    Without a name it is ``digits``; but what was found to be good for the digits would do harm to other data
    and other models, so for those it is the defaults.
    """
    from rankless import recipe_file

    if name is None and any(word.partition("=")[0] in _OTHER_THAN_DIGITS for word in overrides):
        return recipe_file.default(overrides), "run"
    return recipe_file.load(name or "digits", overrides), name or "digits"


def _device_count(devices: str) -> int | None:
    return None if devices == "auto" else _whole_number("--devices", devices, ", or auto")


def _whole_number(option: str, text: str, more: str = "") -> int:
    number = int(text) if text.strip().isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise UserError(f"{option} has '{text}': expected a whole number of at least 1{more}")
    return number
