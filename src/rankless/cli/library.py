"""The commands recipes, models, import and export."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli import candidates
from rankless.cli.options import Json, Target, flag, part, refuse_stray, whole_number
from rankless.errors import UserError, check_all
from rankless.printing import print_json, print_models, say

app = part()


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
    name: Annotated[
        str | None, Parameter(name="NAME", help="The recipe to print.", completer=candidates.recipes)
    ] = None,
    /,
    *,
    schema: Annotated[bool, Parameter(help="Print the JSON Schema of recipes, for editors."), flag] = False,
    as_json: Json = False,
) -> int:
    """List the shipped recipes, or print one."""
    from rankless.recipe import installed, load

    text = None if name is None else installed.shipped_text(name)
    if schema:
        print(installed.schema_text(), end="")
    elif name is not None and as_json:
        print_json(json.loads(load.to_json(load.load(name))))
    elif text is not None:
        print(text, end="")
    elif as_json:
        print_json(installed.shipped())
    else:
        width = max(map(len, installed.shipped()))
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000  # one line per recipe
        for known, what in installed.shipped().items():
            indent = " " * (width + 2)
            print(textwrap.fill(f"{known:{width}}  {what}", columns, subsequent_indent=indent))
    return 0


@app.command(
    sort_key=7,
    usage="Usage: rankless models [NAME --layers] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="Besides these, any classifier of timm by its name, as in model.name=timm/convnext_tiny.\n",
)
def models(
    name: Annotated[
        str | None,
        Parameter(name="NAME", help="The model whose layers to list.", completer=candidates.models),
    ] = None,
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the model, as in a recipe.")],
    layers: Annotated[bool, Parameter(help="List the layers of NAME, with their shapes."), flag] = False,
    as_json: Json = False,
) -> int:
    """List the models with parameters, FLOPs and origin, or the layers of one model."""
    if layers != (name is not None):
        raise UserError("rankless models lists all models; to list the layers of one, give NAME and --layers")
    if name is not None:
        refuse_stray(overrides, "model.width=0.5")
        return _layers(name, overrides, as_json=as_json)
    from dataclasses import asdict

    from rankless.models.listing import listed

    rows = list(listed())
    if as_json:
        print_json([asdict(row) for row in rows])
        return 0
    print_models(rows)
    return 0


def _layers(name: str, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print a model's layers, with their output shapes for one image."""
    from rankless.interop.importing import layers_of

    rows, parameters = layers_of(name, overrides)
    if as_json:
        print_json([dict(zip(("layer", "type", "output", "parameters"), row, strict=True)) for row in rows])
        return 0
    widths = [max(len(str(row[column])) for row in rows) for column in range(3)]
    for layer, kind, shape, count in rows:
        print(f"{layer:{widths[0]}}  {kind:{widths[1]}}  {shape:>{widths[2]}}  {count:>11,}")
    print(f"{parameters:,} parameters")
    return 0


@app.command(
    name="import",
    sort_key=8,
    usage="Usage: rankless import FILE --out FILE [--model NAME] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="Example:\n  rankless import their.pth --out ours.safetensors --model yolov4-tiny\n",
)
def import_(
    source: Annotated[Path, Parameter(name="FILE", help="The checkpoint of another project.")],
    /,
    *overrides: Annotated[
        str, Parameter(name="KEY=VALUE", help="Changes to the recipe that is stored with the weights.")
    ],
    out: Annotated[Path, Parameter(help="The weights file to write.", metavar="FILE")],
    model: Annotated[
        str | None, Parameter(help="Name of the model.", metavar="NAME", completer=candidates.models)
    ] = None,
    cfg: Annotated[
        Path | None, Parameter(help="Darknet's cfg file, instead of --model.", metavar="FILE")
    ] = None,
    names: Annotated[
        Path | None, Parameter(help="File of class names: one per line, or JSON.", metavar="FILE")
    ] = None,
    classes: Annotated[
        str | None, Parameter(help="Number of classes, if --names is not given.", metavar="N")
    ] = None,
    key: Annotated[
        str | None, Parameter(help="Key of the checkpoint's entry that holds the weights.", metavar="NAME")
    ] = None,
    partial: Annotated[
        bool, Parameter(help="Import the tensors that fit, and list the others."), flag
    ] = False,
    by_order: Annotated[
        bool, Parameter(help="Match tensors by their order instead of their names."), flag
    ] = False,
    port: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="The port of YOLOv3 or YOLOv4 that wrote the checkpoint. An unknown name lists all.",
            metavar="NAME",
        ),
    ] = None,
    force: Annotated[bool, Parameter(help="Replace an existing --out file."), flag] = False,
    as_json: Json = False,
) -> int:
    """Convert another project's checkpoint to a weights file."""
    count = None if classes is None else whole_number("--classes", classes)
    refuse_stray(overrides, "model.width=0.5")
    from rankless.interop.importing import import_weights

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
        port=port,
        overrides=overrides,
        force=force,
    )
    if as_json:
        print_json(report.as_json())
    else:
        for note in report.notes:
            say(note)
        say(
            f"{report.taken} of {report.tensors} tensors of {report.model}; {report.sha256}  {report.weights}"
        )
    return 0


@app.command(
    sort_key=9,
    usage="Usage: rankless export TARGET --format FORMAT [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless export runs/mine --format onnx
  rankless export runs/mine --format onnx --nms --confidence 0.4
  rankless export weights.safetensors --format openvino --half --out shared/net
  rankless export runs/mine --format folder
""",
)
def export(
    target: Target,
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="KEY=VALUE", help="Changes to the recipe: model.image_size, evaluate.iou and the like."
        ),
    ],
    format: Annotated[
        str,
        Parameter(
            help="onnx, openvino, torchscript, pt2 (torch.export), triton (a folder for a model server), "
            "pth (a PyTorch state dict), darknet (.cfg, .weights and .names) or folder (weights with a model "
            "card, to pass on)."
        ),
    ],
    out: Annotated[
        Path | None,
        Parameter(
            help="Path of the new files, without the extension, or folder. Default: the name of TARGET."
        ),
    ] = None,
    nms: Annotated[
        bool,
        Parameter(help="Include NMS: the file returns final detections instead of all candidates."),
        flag,
    ] = False,
    confidence: Annotated[
        float | None, Parameter(help="With --nms: the lowest score to keep. Default: 0.25.")
    ] = None,
    batch: Annotated[
        str | None, Parameter(help="Fixed batch size. Default: any batch size.", metavar="N")
    ] = None,
    any_size: Annotated[
        bool, Parameter(help="Accept images of any height and width that are multiples of 32."), flag
    ] = False,
    half: Annotated[
        bool, Parameter(help="Compute in float16. Inputs and outputs stay float32."), flag
    ] = False,
    force: Annotated[bool, Parameter(help="Replace existing files."), flag] = False,
    as_json: Json = False,
) -> int:
    """Export trained weights to other formats, and compare the results with PyTorch on real images."""
    from rankless.cli.path_checks import check_target

    images, *_ = check_all(
        lambda: None if batch is None else whole_number("--batch", batch),
        lambda: refuse_stray(overrides, "evaluate.iou=0.5"),
        lambda: check_target(target),
    )
    from rankless.interop.export import export as write

    done = write(
        target,
        format=format,
        out=out,
        force=force,
        overrides=overrides,
        nms=nms,
        confidence=confidence,
        batch=images,
        any_size=any_size,
        half=half,
    )
    if as_json:
        print_json(done.as_json())
        return 0
    for file in done.files:
        say(str(file))
    if done.agreement:
        say(done.agreement.sentence())
    return 0
