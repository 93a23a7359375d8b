"""The commands ``rankless recipes``, ``models``, ``import``, ``export`` and ``weights``."""

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
from rankless.cli.options import (
    Force,
    Json,
    Offline,
    Target,
    app,
    check_target,
    flag,
    go_offline,
    group,
    refuse_stray,
    whole_number,
)
from rankless.errors import UserError, check_all
from rankless.printing import print_json, print_models, print_pairs, print_result, say


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
    help_epilogue="All timm classifiers also work, as in model.name=timm/convnext_tiny.\n",
)
def models(
    name: Annotated[
        str | None,
        Parameter(name="NAME", help="The model whose layers are listed.", completer=candidates.models),
    ] = None,
    /,
    *overrides: Annotated[
        str,
        Parameter(name="KEY=VALUE", help="With --layers: recipe keys of the model, such as model.width=0.5."),
    ],
    layers: Annotated[bool, Parameter(help="List the layers of NAME and their output shapes."), flag] = False,
    as_json: Json = False,
) -> int:
    """List models with parameters, FLOPs and origin, or the layers of one model."""
    if layers != (name is not None):
        raise UserError("rankless models lists all models; to list the layers of one, add NAME and --layers")
    if name is not None:
        refuse_stray(overrides, "model.width=0.5")
        return _print_layers(name, overrides, as_json=as_json)
    from dataclasses import asdict

    from rankless.models.listing import listed

    rows = list(listed())
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_models(rows)
    return 0


def _print_layers(name: str, overrides: Sequence[str], *, as_json: bool) -> int:
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
    source: Annotated[Path, Parameter(name="FILE", help="A checkpoint from another project.")],
    /,
    *overrides: Annotated[
        str, Parameter(name="KEY=VALUE", help="Changes to the recipe stored with the weights.")
    ],
    out: Annotated[Path, Parameter(help="The weights file to write.", metavar="FILE")],
    model: Annotated[
        str | None,
        Parameter(
            help="Name of the model, from rankless models.", metavar="NAME", completer=candidates.models
        ),
    ] = None,
    cfg: Annotated[
        Path | None, Parameter(help="Darknet cfg file, instead of --model.", metavar="FILE")
    ] = None,
    names: Annotated[
        Path | None, Parameter(help="File with class names: one per line, or JSON.", metavar="FILE")
    ] = None,
    classes: Annotated[
        str | None, Parameter(help="Number of classes, instead of --names.", metavar="N")
    ] = None,
    key: Annotated[
        str | None, Parameter(help="Key of the checkpoint entry that contains the weights.", metavar="NAME")
    ] = None,
    partial: Annotated[
        bool, Parameter(help="Import the tensors that fit, and list all others."), flag
    ] = False,
    by_order: Annotated[
        bool, Parameter(help="Match tensors by their order instead of their names."), flag
    ] = False,
    port: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="The YOLOv3 or YOLOv4 port that wrote the checkpoint. Pass an unknown name to list "
            "all ports.",
            metavar="NAME",
        ),
    ] = None,
    force: Annotated[bool, Parameter(help="Replace --out if it exists."), flag] = False,
    as_json: Json = False,
) -> int:
    """Convert a checkpoint from another project to a weights file."""
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
    counts = f"imported {report.taken} of {report.tensors} tensors of {report.model}"
    lines = (*report.notes, f"{counts}; {report.sha256}  {report.weights}")
    print_result(report.as_json(), lines, as_json=as_json)
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
        Parameter(name="KEY=VALUE", help="Changes to the recipe, such as model.image_size or evaluate.iou."),
    ],
    format: Annotated[
        str,
        Parameter(
            help="onnx, openvino, torchscript, pt2 (torch.export), triton (a model repository), pth (a "
            "PyTorch state dict), darknet (.cfg, .weights and .names) or folder (weights with a model card, "
            "for sharing).",
            metavar="FORMAT",
        ),
    ],
    out: Annotated[
        Path | None,
        Parameter(
            help="Output path without an extension or, for triton and folder, the output folder. "
            "Default: the name of TARGET."
        ),
    ] = None,
    nms: Annotated[
        bool,
        Parameter(
            help="Include NMS, so that the exported model returns final detections instead of candidates."
        ),
        flag,
    ] = False,
    confidence: Annotated[
        float | None,
        Parameter(
            help="With --nms: minimum score of the detections to keep. Default: 0.25.", metavar="SCORE"
        ),
    ] = None,
    batch: Annotated[
        str | None, Parameter(help="Fix the batch size. By default, any batch size is accepted.", metavar="N")
    ] = None,
    any_size: Annotated[
        bool, Parameter(help="Accept any height and width in multiples of 32."), flag
    ] = False,
    half: Annotated[
        bool, Parameter(help="Compute in float16. Inputs and outputs remain float32."), flag
    ] = False,
    force: Annotated[bool, Parameter(help="Replace existing files."), flag] = False,
    as_json: Json = False,
) -> int:
    """Export trained weights to another format, and compare the outputs with PyTorch's on real images."""
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
    lines = (*map(str, done.files), *([done.agreement.sentence()] if done.agreement else []))
    print_result(done.as_json(), lines, as_json=as_json)
    return 0


weights = group(
    name="weights",
    help="List and download published weights.",
    help_epilogue="Start with:\n  rankless weights list\n  rankless weights get yolov4-tiny",
    usage="Usage: rankless weights COMMAND [ARGUMENTS] [OPTIONS]",
    sort_key=8.5,
)


@weights.command(
    name="list",
    sort_key=1,
    usage="Usage: rankless weights list [PATTERN] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless weights list
  rankless weights list 'yolov4*'
  rankless weights list 'timm/convnext*'
""",
)
def list_(
    pattern: Annotated[
        str | None,
        Parameter(
            name="PATTERN",
            help="Part of a name, or a pattern with * and ?. Patterns such as 'timm/*' also list the weights "
            "in timm.",
        ),
    ] = None,
    /,
    *,
    as_json: Json = False,
) -> int:
    """List published weights with size, checksum, score, license and URL."""
    from fnmatch import fnmatchcase

    from rankless.models.published import all_of_timm, all_published

    wanted = pattern if pattern and set("*?[") & set(pattern) else f"*{pattern or ''}*"
    found = [one for one in all_published() if fnmatchcase(one.name, wanted)]
    if pattern:
        found += all_of_timm(lambda name: fnmatchcase(name, wanted))
    if not found:
        raise UserError(
            f"PATTERN is '{pattern}': no published weights match; expected a pattern such as 'yolov4*' or "
            "'timm/convnext*'; to list the weights of Darknet and torchvision, run: rankless weights list"
        )
    entries = [one.as_json() for one in found]
    if as_json:
        print_json(entries)
        return 0
    width = max(len(one.name) for one in found)
    lines = [(f"{'name':{width}}  {'MB':>6}  {'checked by':21}  score", "license, address")]
    for one in entries:
        size = f"{one['about_bytes'] / 1e6:.1f}" if one["about_bytes"] else ""
        facts = f"{one['name']:{width}}  {size:>6}  {one['checked_by']:21}  {one['score'] or ''}"
        lines.append((facts.rstrip(), f"{one['license']}, {one['address']}"))
    print_pairs(lines)
    if not pattern:
        print("to list timm's weights, run: rankless weights list 'timm/*'")
    return 0


@weights.command(
    sort_key=2,
    usage="Usage: rankless weights get NAME [OPTIONS]",
    help_epilogue="""\
Each file is downloaded once, into the cache of torch.hub (torchvision), of the
Hugging Face Hub (timm) or of Rankless (Darknet). RANKLESS_WEIGHTS_MIRROR is
the URL of a folder with copies of the files. model.pretrained=hf://OWNER/NAME,
without a file, downloads a whole transformers model when training starts.

Examples:
  rankless weights get yolov4-tiny
  rankless weights get resnet50.IMAGENET1K_V1 --to downloads
  rankless weights get hf://timm/resnet18.a1_in1k/model.safetensors
""",
)
def get(
    name: Annotated[
        str,
        Parameter(
            name="NAME", help="The name of the weights or the model, or hf://OWNER/NAME[@REVISION]/FILE."
        ),
    ],
    /,
    *,
    to: Annotated[Path | None, Parameter(help="Also copy the file to this folder.", metavar="DIR")] = None,
    force: Force = False,
    offline: Offline = False,
) -> int:
    """Download published weights unless they are cached, and print their path, SHA-256 and license."""
    go_offline(offline)
    from rankless.files import checksums, hub
    from rankless.files.outputs import Outputs
    from rankless.models import published

    if name.startswith(hub.PREFIX):
        address = hub.parse(name)
        hub.refuse_pickles(address)
        path = hub.fetch(address, newest=True) / address.file
        sha256, about = checksums.of_file(path), f"commit {path.parents[address.file.count('/')].name}"
        use = f"model.pretrained={name}"
    else:
        wanted = published.named(name)
        path, sha256 = published.fetch(wanted)
        confirmed = wanted.checked_by != "unconfirmed"
        checked = (
            f"checked ({wanted.checked_by})" if confirmed else "unconfirmed, because no checksum is published"
        )
        about = f"{checked}; license: {wanted.license}"
        model, default = wanted.models[0], published.named(wanted.models[0]) == wanted
        use = f"model.name={model} model.pretrained=published{'' if default else f'/{wanted.name}'}"
    if to is not None:
        outputs = Outputs([to / path.name], verb="weights get", force=force, option="--to")
        with outputs.writing(to / path.name) as part_:
            shutil.copyfile(path, part_)
        path = to / path.name
    say(f"{path} ({path.stat().st_size:,} bytes)")
    say(f"SHA-256 {sha256}, {about}")
    say(f"to train: rankless train fine-tune {use} data.root=DATA")
    return 0
