"""The commands under ``rankless data``."""

from __future__ import annotations

from rankless.cli import data_looking, data_making
from rankless.cli.options import OPTIONS, part

data = part(
    name="data",
    help="Inspect, check, convert and split data sets.",
    help_epilogue="Start with:\n  rankless data check mydata\n  rankless data show mydata",
    usage="Usage: rankless data COMMAND ROOT [OPTIONS]",
    sort_key=10,
)
data["--help"].group = OPTIONS
data["--version"].show = False
for page in (data_looking.app, data_making.app):
    data.update(page)

app = part()
app.command(data)
