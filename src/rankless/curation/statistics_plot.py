"""A data set at a glance, as an image: classes, places, sizes and numbers of boxes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from rankless.curation.data_set import DataSet, spare
from rankless.curation.statistics import box_centers, box_sides
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError
from rankless.files.outputs import Outputs

MOST_CLASSES = 40
"""So many classes have a bar of their own; of more, the most frequent ones."""
_COLORS = ("#3b6ea5", "#e08e45", "#5a9e6f", "#b05a7a", "#7d6bb0", "#8a8a8a")
_HEAT = "viridis"
_STYLE = {"fontsize": 11, "fontweight": "bold", "loc": "left"}


def place(out: Path, *, force: bool = False) -> Outputs:
    """The file to write, whose ending gives the kind (png, svg, pdf).

    Args:
        out: its name; an earlier plot is replaced.
        force: replace another file, too.

    Raises:
        UserError: an ending of no known kind, or it cannot be written.
    """
    if out.suffix[1:].lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise UserError(f"--out {out}: expected a name that ends in .png, .svg or .pdf")
    return Outputs([out], verb="data stats", force=force)


def plot(data: DataSet, out: Path, *, force: bool = False) -> bool:
    """Write the image to ``out``, as :func:`place` allows; returns whether another was replaced.

    Raises:
        UserError: it cannot be written.
    """
    outputs = place(out, force=force)
    outputs.refuse_inputs(chain.from_iterable(each.paths() for each in data.splits.values()))
    spare(outputs, data.root, data.format)
    splits = data.splits
    classes = len(next(iter(splits.values())).class_names)
    rows = min(classes, MOST_CLASSES)
    height = max(8.0, 3.2 + 0.2 * rows)
    figure = Figure(figsize=(13, height), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    images = sum(map(len, splits.values()))
    counted = f"{images:,} images"
    if data.has_boxes:
        counted += f", {sum(len(each.boxes) for each in splits.values()):,} boxes"
    name = Path(data.root).expanduser().resolve()
    title = f"{name.name if name.is_dir() else name.parent.name}: {counted}, {classes} classes"
    figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplot_mosaic(
        [["classes", "one", "two"], ["classes", "three", "four"]], width_ratios=[1.15, 1, 1]
    )
    _class_bars(axes["classes"], splits, "boxes" if data.has_boxes else "images")
    if data.has_boxes:
        _places(axes["one"], figure, list(splits.values()))
        _sides(axes["two"], figure, list(splits.values()))
        _per_image(axes["three"], splits)
        _image_sizes(axes["four"], splits)
    else:
        _image_sizes(axes["one"], splits)
        _histogram(axes["two"], splits, "Aspect of the images", "width / height", _aspects)
        _histogram(axes["three"], splits, "Area of the images", "megapixels", _megapixels)
        _share_bars(axes["four"], splits)
    with outputs.writing(out) as file, warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes; the table has it in letters.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(file, format=out.suffix[1:].lower())
    return bool(outputs.replaced)


def _class_bars(axes: Any, splits: dict[str, Annotations], what: str) -> None:
    """Stacked bars, a split's share of each class beside the other's."""
    first = next(iter(splits.values()))
    counts = {
        name: np.bincount(np.asarray(each.labels), minlength=len(first.class_names))[: len(first.class_names)]
        for name, each in splits.items()
    }
    total = np.sum(list(counts.values()), 0)
    shown = np.argsort(-total, kind="stable")[:MOST_CLASSES]
    rows = np.arange(len(shown))
    left = np.zeros(len(shown))
    for number, (name, values) in enumerate(counts.items()):
        axes.barh(rows, values[shown], left=left, height=0.75, color=_COLORS[number % 6], label=name)
        left += values[shown]
    for row, label in enumerate(shown.tolist()):
        share = total[label] / max(total.sum(), 1)
        axes.text(left[row], row, f" {total[label]:,}  {share:.1%}", va="center", fontsize=8, color="#444444")
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name in first.class_names]
    axes.set_yticks(rows, [_plain(names[label]) for label in shown], fontsize=9)
    axes.set_ylim(max(len(shown), 8) - 0.5, -0.6)  # from the top; few classes get no thicker bars
    axes.set_xlim(0, max(left.max(initial=1) * 1.28, 1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    more = f" (the {MOST_CLASSES} most frequent of {len(total)})" if len(total) > MOST_CLASSES else ""
    axes.set_title(f"{what.capitalize()} by class{more}", **_STYLE)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _bare(axes)


def _places(axes: Any, figure: Figure, splits: Sequence[Annotations]) -> None:
    centers = np.concatenate([box_centers(each) for each in splits])
    heat, _, _ = np.histogram2d(centers[:, 1], centers[:, 0], bins=32, range=[[0, 1], [0, 1]])
    image = axes.imshow(heat, extent=(0, 1, 1, 0), cmap=_HEAT, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="boxes", fraction=0.05)
    axes.set_title("Where the boxes' centers lie", **_STYLE)
    _shares(axes, "x, share of the width", "y, share of the height")


def _sides(axes: Any, figure: Figure, splits: Sequence[Annotations]) -> None:
    sides = np.concatenate([box_sides(each) for each in splits])
    if len(sides):
        cells = axes.hexbin(
            sides[:, 0], sides[:, 1], gridsize=36, extent=(0, 1, 0, 1), bins="log", mincnt=1, cmap=_HEAT
        )
        figure.colorbar(cells, ax=axes, label="boxes (logarithmic)", fraction=0.05)
    axes.set_title("Width and height of the boxes", **_STYLE)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    _shares(axes, "width, share of the image's", "height, share of the image's")


def _per_image(axes: Any, splits: dict[str, Annotations]) -> None:
    counts = [np.diff(each.offsets) for each in splits.values()]
    most = max((int(each.max(initial=0)) for each in counts), default=0)
    # One bar for each number, or some forty where the numbers are many.
    width = max(1, -(-(most + 1) // 40))
    bins = np.arange(0, most + width + 1, width) - 0.5
    colors = [_COLORS[number % 6] for number in range(len(counts))]
    axes.hist(counts, bins=bins, stacked=True, color=colors, label=list(splits))
    axes.set_title("Boxes in an image", **_STYLE)
    axes.set_xlabel("boxes")
    axes.set_ylabel("images")
    axes.legend(frameon=False, fontsize=9)
    _bare(axes)


def _image_sizes(axes: Any, splits: dict[str, Annotations]) -> None:
    """A dot for each size, as large as there are images of it."""
    for number, (name, each) in enumerate(splits.items()):
        sizes = np.asarray(each.sizes)[(np.asarray(each.sizes) > 0).all(1)]
        if not len(sizes):
            continue
        different, counts = np.unique(sizes, axis=0, return_counts=True)
        area = 12 + 300 * counts / counts.sum()
        axes.scatter(
            different[:, 1], different[:, 0], s=area, alpha=0.5, color=_COLORS[number % 6], label=name, lw=0
        )
    axes.set_title("Sizes of the images", **_STYLE)
    axes.set_xlabel("width in pixels")
    axes.set_ylabel("height in pixels")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.1)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    for handle in axes.legend(frameon=False, fontsize=9, loc="upper left").legend_handles:
        handle.set_sizes([40])
    _bare(axes)


def _histogram(axes: Any, splits: dict[str, Annotations], title: str, label: str, values: Any) -> None:
    found = [values(each) for each in splits.values()]
    colors = [_COLORS[number % 6] for number in range(len(found))]
    most = max((float(each.max(initial=0)) for each in found), default=0)
    axes.hist(found, bins=30, range=(0, 1.05 * most or 1), stacked=True, color=colors, label=list(splits))
    axes.set_title(title, **_STYLE)
    axes.set_xlabel(label)
    axes.set_ylabel("images")
    axes.legend(frameon=False, fontsize=9)
    _bare(axes)


def _aspects(each: Annotations) -> Any:
    sizes = np.asarray(each.sizes, np.float64)
    sizes = sizes[(sizes > 0).all(1)]
    return sizes[:, 1] / sizes[:, 0]


def _megapixels(each: Annotations) -> Any:
    return np.asarray(each.sizes, np.float64).prod(1) / 1e6


def _share_bars(axes: Any, splits: dict[str, Annotations]) -> None:
    counts = [len(each) for each in splits.values()]
    axes.bar(list(splits), counts, color=[_COLORS[number % 6] for number in range(len(counts))], width=0.6)
    for column, count in enumerate(counts):
        axes.text(
            column, count, f"{count:,}\n{count / sum(counts):.0%}", ha="center", va="bottom", fontsize=9
        )
    axes.set_ylim(0, max(counts) * 1.2)
    axes.set_title("Images of each split", **_STYLE)
    _bare(axes)


def _shares(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _plain(name: str) -> str:
    """A class name that matplotlib does not take for a formula."""
    return name.replace("$", r"\$")
