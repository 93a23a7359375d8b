"""The commands under ``rankless weights``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import OPTIONS, Force, Json, Offline, go_offline, part
from rankless.errors import UserError, escaped
from rankless.printing import print_json, say

weights = part(
    name="weights",
    help="List and download the weights that the models' publishers offer.",
    help_epilogue="Start with:\n  rankless weights list\n  rankless weights get yolov4-tiny",
    usage="Usage: rankless weights COMMAND [ARGUMENTS] [OPTIONS]",
    sort_key=8.5,
)
weights["--help"].group = OPTIONS
weights["--version"].show = False
app = part()
app.command(weights)


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
        Parameter(name="PATTERN", help="A part of the names to list, or a pattern with * and ?."),
    ] = None,
    /,
    *,
    as_json: Json = False,
) -> int:
    """List published weights with size, checksum, score, license and address."""
    from fnmatch import fnmatchcase

    from rankless.models.published import all_of_timm, all_published

    wanted = pattern if pattern and set("*?[") & set(pattern) else f"*{pattern or ''}*"
    found = [one for one in all_published() if fnmatchcase(one.name, wanted)]
    if pattern:
        found += all_of_timm(lambda name: fnmatchcase(name, wanted))
    if not found:
        raise UserError(
            f"PATTERN is '{pattern}': no published weights have such a name; expected one as in 'yolov4*' or "
            "'timm/convnext*'; rankless weights list prints those of Darknet and torchvision"
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
    left = max(len(facts) for facts, _ in lines)
    longest = max(left + 2 + len(rest) for _, rest in lines)
    columns = shutil.get_terminal_size((longest, 24)).columns  # without a terminal, one line each
    for facts, rest in lines:
        print(escaped(f"{facts:{left}}  {rest}") if longest <= columns else f"{facts}\n    {escaped(rest)}")
    if not pattern:
        print("timm's: rankless weights list 'timm/*'")
    return 0


@weights.command(
    sort_key=2,
    usage="Usage: rankless weights get NAME [OPTIONS]",
    help_epilogue="""\
A file is downloaded once: torchvision's into the cache of torch.hub, timm's into that of the Hugging Face
Hub, Darknet's into that of Rankless. RANKLESS_WEIGHTS_MIRROR is the address of a folder with copies.

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
            name="NAME", help="Name of the weights or of their model, or hf://OWNER/NAME[@REVISION]/FILE."
        ),
    ],
    /,
    *,
    to: Annotated[Path | None, Parameter(help="Also copy the file into this folder.", metavar="DIR")] = None,
    force: Force = False,
    offline: Offline = False,
) -> int:
    """Download published weights, unless they are in the cache, and print path, SHA-256 and license."""
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
        checked = f"checked ({wanted.checked_by})" if confirmed else "unconfirmed: no source states it"
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
    say(f"next: rankless train fine-tune {use} data.root=DATA")
    return 0
