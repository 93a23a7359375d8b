"""A data set at a glance, as an image: classes, positions, sizes and numbers of boxes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from rankless.curation.data_set import DataSet, spare
from rankless.curation.statistics import box_centers, box_sides, readable_sizes
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError, counted
from rankless.files.outputs import Outputs

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".svg", ".pdf")
"""What a plot's file may end in."""
MOST_CLASSES = 40
"""Classes with a bar each; of more, the most frequent ones."""
_COLORS = ("#3b6ea5", "#e08e45", "#5a9e6f", "#b05a7a", "#7d6bb0", "#8a8a8a")
_HEAT = "viridis"
Splits = dict[str, Annotations]


def output(out: Path, *, force: bool = False) -> Outputs:
    """Check the file to write, whose ending gives the format: one of :data:`ENDINGS`.

    Args:
        out: its name; an earlier plot is replaced.
        force: replace another file, too.

    Raises:
        UserError: an unknown ending, or it cannot be written.
    """
    if out.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {out}: expected a name that ends in one of {', '.join(ENDINGS)}")
    return Outputs([out], verb="data stats", force=force)


def plot(data: DataSet, out: Path, *, force: bool = False) -> bool:
    """Write the image to ``out``, as :func:`output` allows; return whether another was replaced.

    Raises:
        UserError: it cannot be written.
    """
    outputs, splits = output(out, force=force), data.splits
    outputs.refuse_inputs(chain.from_iterable(each.paths() for each in splits.values()))
    spare(outputs, data.root, data.format)
    classes = len(next(iter(splits.values())).class_names)
    height = max(8.0, 3.2 + 0.2 * min(classes, MOST_CLASSES))
    figure = Figure(figsize=(13, height), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    contents = [counted(sum(map(len, splits.values())), "image")]
    if data.has_boxes:
        contents.append(counted(sum(len(each.boxes) for each in splits.values()), "box", "boxes"))
    contents.append(counted(classes, "class", "classes"))
    root = Path(data.root).expanduser().resolve()
    title = f"{root.name if root.is_dir() else root.parent.name}: {', '.join(contents)}"
    figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplot_mosaic(
        [["classes", "one", "two"], ["classes", "three", "four"]], width_ratios=[1.15, 1, 1]
    )
    _class_bars(axes["classes"], splits, "boxes" if data.has_boxes else "images")
    if data.has_boxes:
        _centers(axes["one"], figure, list(splits.values()))
        _sides(axes["two"], figure, list(splits.values()))
        counts = [np.diff(each.offsets) for each in splits.values()]
        most = max((int(each.max(initial=0)) for each in counts), default=0)
        width = max(1, -(-(most + 1) // 40))  # one bar for each number, or some forty of many
        bins = np.arange(0, most + width + 1, width) - 0.5
        _histogram(axes["three"], splits, counts, bins, "Boxes in an image", "boxes")
        _image_sizes(axes["four"], splits)
    else:
        _image_sizes(axes["one"], splits)
        sizes = [readable_sizes(each) for each in splits.values()]
        aspects, areas = [each[:, 1] / each[:, 0] for each in sizes], [each.prod(1) / 1e6 for each in sizes]
        _histogram(axes["two"], splits, aspects, None, "Aspect of the images", "width / height")
        _histogram(axes["three"], splits, areas, None, "Area of the images", "megapixels")
        _split_bars(axes["four"], splits)
    with outputs.writing(out) as file, warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes; the table has it in letters.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(file, format=out.suffix[1:].lower())
    return bool(outputs.replaced)


def _class_bars(axes: Any, splits: Splits, what: str) -> None:
    """Draw stacked bars, one per class, with a part for each split."""
    names = next(iter(splits.values())).class_names
    counts = {
        name: np.bincount(np.asarray(each.labels), minlength=len(names))[: len(names)]
        for name, each in splits.items()
    }
    total = np.sum(list(counts.values()), 0)
    shown = np.argsort(-total, kind="stable")[:MOST_CLASSES]
    rows, left = np.arange(len(shown)), np.zeros(len(shown))
    for (name, values), color in zip(counts.items(), _colors(splits), strict=True):
        axes.barh(rows, values[shown], left=left, height=0.75, color=color, label=name)
        left += values[shown]
    for row, label in enumerate(shown.tolist()):
        text = f" {total[label]:,}  {total[label] / max(total.sum(), 1):.1%}"
        axes.text(left[row], row, text, va="center", fontsize=8, color="#444444")
    cut = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
    # An escaped $: matplotlib would take the name for a formula.
    axes.set_yticks(rows, [cut[label].replace("$", r"\$") for label in shown], fontsize=9)
    axes.set_ylim(max(len(shown), 8) - 0.5, -0.6)  # from the top; few classes get no thicker bars
    axes.set_xlim(0, max(left.max(initial=1) * 1.28, 1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    more = f" (the {MOST_CLASSES} most frequent of {len(total)})" if len(total) > MOST_CLASSES else ""
    _finish(axes, f"{what.capitalize()} by class{more}", legend="lower right")


def _centers(axes: Any, figure: Figure, splits: Sequence[Annotations]) -> None:
    centers = np.concatenate([box_centers(each) for each in splits])
    heat, _, _ = np.histogram2d(centers[:, 1], centers[:, 0], bins=32, range=[[0, 1], [0, 1]])
    image = axes.imshow(heat, extent=(0, 1, 1, 0), cmap=_HEAT, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="boxes", fraction=0.05, ticks=MaxNLocator(6, integer=True))
    _finish(axes, "Centers of the boxes", "x / image width", "y / image height", percent=True)


def _sides(axes: Any, figure: Figure, splits: Sequence[Annotations]) -> None:
    sides = np.concatenate([box_sides(each) for each in splits])
    if len(sides):
        options: dict[str, Any] = {"gridsize": 36, "extent": (0, 1, 0, 1), "bins": "log", "mincnt": 1}
        cells = axes.hexbin(sides[:, 0], sides[:, 1], cmap=_HEAT, **options)
        figure.colorbar(cells, ax=axes, label="boxes (logarithmic)", fraction=0.05)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _finish(
        axes, "Width and height of the boxes", "width / image width", "height / image height", percent=True
    )


def _image_sizes(axes: Any, splits: Splits) -> None:
    """Draw a dot for each size, as large as there are images of it."""
    for (name, each), color in zip(splits.items(), _colors(splits), strict=True):
        sizes, counts = np.unique(readable_sizes(each), axis=0, return_counts=True)
        if len(sizes):
            area = 12 + 300 * counts / counts.sum()
            axes.scatter(sizes[:, 1], sizes[:, 0], s=area, alpha=0.5, color=color, label=name, lw=0)
    axes.set(xlim=(0, axes.get_xlim()[1] * 1.1), ylim=(0, axes.get_ylim()[1] * 1.1))
    _finish(axes, "Sizes of the images", "width in pixels", "height in pixels", legend="upper left")
    for handle in axes.get_legend().legend_handles:
        handle.set_sizes([40])


def _histogram(axes: Any, splits: Splits, values: Sequence[Any], bins: Any, title: str, label: str) -> None:
    most = max((float(each.max(initial=0)) for each in values), default=0)
    binned = {"bins": 30, "range": (0, 1.05 * most or 1)} if bins is None else {"bins": bins}
    axes.hist(values, stacked=True, color=_colors(splits), label=list(splits), **binned)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _finish(axes, title, label, "images", legend="best")


def _split_bars(axes: Any, splits: Splits) -> None:
    counts = [len(each) for each in splits.values()]
    bars = axes.bar(list(splits), counts, color=_colors(splits), width=0.6)
    axes.bar_label(bars, [f"{count:,}\n{count / sum(counts):.0%}" for count in counts], fontsize=9)
    axes.set_ylim(0, max(counts) * 1.2)
    _finish(axes, "Images of each split")


def _colors(splits: Splits) -> list[str]:
    return [_COLORS[number % len(_COLORS)] for number in range(len(splits))]


def _finish(
    axes: Any, title: str, x: str = "", y: str = "", *, legend: str = "", percent: bool = False
) -> None:
    """Set the title, labels, ticks and legend of a panel."""
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set(xlabel=x, ylabel=y)
    if legend:
        axes.legend(frameon=False, fontsize=9, loc=legend)
    if percent:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        axes.spines[["top", "right"]].set_visible(False)
