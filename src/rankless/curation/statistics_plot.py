"""Plot statistics of a data set: class counts, box positions and sizes, and image sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter, StrMethodFormatter

from rankless.curation.data_set import DataSet, refuse_data_files
from rankless.curation.statistics import MEDIUM, SMALL, box_centers, box_sides, object_areas, readable_sizes
from rankless.data.index.annotations import Annotations
from rankless.errors import counted
from rankless.files.outputs import Outputs
from rankless.report.plot import COLORS

MOST_CLASSES = 40
"""Maximum number of classes shown as bars; the most frequent classes are shown."""
_FEW_CLASSES = 12  # maximum number of classes in a panel of normal height
_PANEL = (4.6, 3.7)  # inches
_HEAT = "viridis"
Splits = dict[str, Annotations]


def plot(data: DataSet, out: Path, outputs: Outputs) -> None:
    """Write the plot to ``out``, which must be one of the files of ``outputs``."""
    outputs.refuse_inputs(chain.from_iterable(each.paths() for each in data.splits.values()))
    refuse_data_files(outputs, data.root, data.format)
    drawn = figure(data)
    with outputs.writing(out) as file, warnings.catch_warnings():
        # Characters that the font lacks are drawn as empty boxes; the printed table shows the class names.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        drawn.savefig(file, format=out.suffix[1:].lower())


def figure(data: DataSet) -> Figure:
    """Draw panels for the classes, the boxes and the images."""
    splits = data.splits
    panels = _panels(data)
    count = len(next(iter(splits.values())).class_names)
    layout: Any = _layout(len(panels), min(count, MOST_CLASSES))
    width, height = _PANEL[0] * len(layout[0]), _PANEL[1] * len(layout)
    needed = 1.2 + 0.2 * min(count, MOST_CLASSES)
    drawn = Figure(
        figsize=(width, max(height, needed) + 0.6), dpi=110, layout="constrained", facecolor="white"
    )
    FigureCanvasAgg(drawn)
    drawn.get_layout_engine().set(rect=(0.01, 0.01, 0.98, 0.98))  # type: ignore[union-attr,call-arg]
    contents = [counted(sum(map(len, splits.values())), "image")]
    if data.has_boxes:
        contents.append(counted(sum(len(each.boxes) for each in splits.values()), "box", "boxes"))
    contents.append(counted(count, "class", "classes"))
    root = Path(data.root).expanduser().resolve()
    title = f"{root.name if root.is_dir() else root.parent.name}: {', '.join(contents)}"
    drawn.suptitle(_plain(title), fontsize=14, fontweight="bold", x=0.01, ha="left")
    for name, axes in drawn.subplot_mosaic(layout).items():
        panels[int(name)](axes)
    if len(splits) > 1:  # one legend for all panels, next to the title
        handles = [
            Patch(color=color, label=_plain(name))
            for name, color in zip(splits, _colors(splits), strict=True)
        ]
        drawn.legend(handles=handles, loc="upper right", ncols=len(splits), frameon=False, fontsize=10)
    return drawn


def _panels(data: DataSet) -> list[Callable[[Any], None]]:
    """Return a drawing function for each panel. The first one draws the classes."""
    splits = data.splits
    every = list(splits.values())
    what = "boxes" if data.has_boxes else "images"
    panels: list[Callable[[Any], None]] = [lambda axes: _class_bars(axes, splits, what)]
    if data.has_boxes:
        panels += [
            lambda axes: _centers(axes, every),
            lambda axes: _sides(axes, every),
            lambda axes: _boxes_per_image(axes, splits),
            lambda axes: _object_sizes(axes, splits),
        ]
    else:
        panels.append(lambda axes: _split_bars(axes, splits))
    panels.append(lambda axes: _image_sizes(axes, splits))
    sizes = [readable_sizes(each) for each in every]
    if not data.has_boxes and len(np.unique(np.concatenate(sizes), axis=0)) > 1:
        aspects, areas = [each[:, 1] / each[:, 0] for each in sizes], [each.prod(1) / 1e6 for each in sizes]
        panels += [
            lambda axes: _histogram(
                axes, splits, aspects, None, "Aspect ratios of the images", "width / height"
            ),
            lambda axes: _histogram(axes, splits, areas, None, "Areas of the images", "megapixels"),
        ]
    return panels


def _layout(panels: int, classes: int) -> list[list[str]]:
    """Return a layout without gaps. A panel with many classes fills the left column."""
    names = [str(number) for number in range(panels)]
    if classes > _FEW_CLASSES:
        rest = names[1:]
        if len(rest) % 2 and len(rest) > 1:
            rest.append(rest[-1])  # the last panel spans two columns
        columns = min(len(rest), 2)
        return [["0", *rest[start : start + columns]] for start in range(0, len(rest), columns)]
    if panels % 3:
        names.insert(0, "0")  # the class panel spans two columns
    return [names[start : start + 3] for start in range(0, len(names), 3)]


def _plain(name: str) -> str:
    """Escape a name for matplotlib, which interprets text between two $ signs as math."""
    return name.replace("$", r"\$")


def _class_bars(axes: Any, splits: Splits, what: str) -> None:
    """Draw a bar for each class, with a segment for each split."""
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
    axes.set_yticks(rows, [_plain(cut[label]) for label in shown], fontsize=9)
    axes.set_ylim(max(len(shown), 4) - 0.5, -0.6)  # from top to bottom, with space for at least four bars
    axes.set_xlim(0, max(left.max(initial=1) * 1.28, 1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    more = f": top {MOST_CLASSES} of {len(total):,}" if len(total) > MOST_CLASSES else ""
    _finish(axes, f"{what.capitalize()} by class{more}")


def _centers(axes: Any, splits: Sequence[Annotations]) -> None:
    centers = np.concatenate([box_centers(each) for each in splits])
    heat, _, _ = np.histogram2d(centers[:, 1], centers[:, 0], bins=32, range=[[0, 1], [0, 1]])
    image = axes.imshow(heat, extent=(0, 1, 1, 0), cmap=_HEAT, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="boxes", fraction=0.05, ticks=MaxNLocator(6, integer=True))
    _finish(axes, "Centers of the boxes", "x / image width", "y / image height", percent=True)


def _sides(axes: Any, splits: Sequence[Annotations]) -> None:
    sides = np.concatenate([box_sides(each) for each in splits])
    if len(sides):
        options: dict[str, Any] = {"gridsize": 36, "extent": (0, 1, 0, 1), "bins": "log", "mincnt": 1}
        cells = axes.hexbin(sides[:, 0], sides[:, 1], cmap=_HEAT, **options)
        ticks = LogLocator(subs=(1, 2, 5))
        bar = axes.figure.colorbar(cells, ax=axes, label="boxes (logarithmic)", fraction=0.05, ticks=ticks)
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        bar.ax.minorticks_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _finish(
        axes, "Width and height of the boxes", "width / image width", "height / image height", percent=True
    )


def _boxes_per_image(axes: Any, splits: Splits) -> None:
    counts = [np.diff(each.offsets) for each in splits.values()]
    most = max((int(each.max(initial=0)) for each in counts), default=0)
    width = max(1, -(-(most + 1) // 40))  # one bin per count, but at most about 40 bins
    bins = np.arange(0, most + width + 1, width) - 0.5
    _histogram(axes, splits, counts, bins, "Boxes per image", "boxes")


def _object_sizes(axes: Any, splits: Splits) -> None:
    """Draw the numbers of small, medium and large objects as defined by COCO."""
    names = [f"small\n< {SMALL**0.5:.0f}² px", "medium", f"large\n≥ {MEDIUM**0.5:.0f}² px"]
    below = np.zeros(3)
    for each, color in zip(splits.values(), _colors(splits), strict=True):
        areas = object_areas(each)
        counts, _ = np.histogram(areas, [-np.inf, SMALL, MEDIUM, np.inf])
        bars = axes.bar(names, counts, bottom=below, color=color, width=0.6)
        below += counts
    axes.bar_label(bars, [f"{count:,.0f}\n{count / max(below.sum(), 1):.0%}" for count in below], fontsize=9)
    axes.set_ylim(0, max(below.max() * 1.2, 1))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _finish(axes, "Areas of the objects", y="boxes")


def _image_sizes(axes: Any, splits: Splits) -> None:
    """Draw a dot for each image size, scaled by the number of images, or text if there is only one size."""
    every = np.concatenate([readable_sizes(each) for each in splits.values()])
    if len(sizes := np.unique(every, axis=0)) == 1:
        height, width = sizes[0].astype(int).tolist()
        axes.text(0.5, 0.5, f"{width:,} × {height:,}", ha="center", va="center", fontsize=22)
        images = "the only image" if len(every) == 1 else f"all {len(every):,} images"
        axes.text(0.5, 0.36, images, ha="center", va="center", fontsize=11, color="#444444")
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        _finish(axes, "Size of the images")
        axes.spines[["left", "bottom"]].set_visible(False)
        return
    for each, color in zip(splits.values(), _colors(splits), strict=True):
        sizes, counts = np.unique(readable_sizes(each), axis=0, return_counts=True)
        if len(sizes):
            area = 12 + 300 * counts / counts.sum()
            axes.scatter(sizes[:, 1], sizes[:, 0], s=area, alpha=0.5, color=color, lw=0)
    axes.set(xlim=(0, axes.get_xlim()[1] * 1.1), ylim=(0, axes.get_ylim()[1] * 1.1))
    _finish(axes, "Sizes of the images", "width in pixels", "height in pixels")


def _histogram(axes: Any, splits: Splits, values: Sequence[Any], bins: Any, title: str, label: str) -> None:
    most = max((float(each.max(initial=0)) for each in values), default=0)
    binned = {"bins": 30, "range": (0, 1.05 * most or 1)} if bins is None else {"bins": bins}
    axes.hist(values, stacked=True, color=_colors(splits), **binned)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _finish(axes, title, label, "images")


def _split_bars(axes: Any, splits: Splits) -> None:
    counts = [len(each) for each in splits.values()]
    bars = axes.bar([_plain(name) for name in splits], counts, color=_colors(splits), width=0.6)
    axes.bar_label(bars, [f"{count:,}\n{count / sum(counts):.0%}" for count in counts], fontsize=9)
    axes.set_ylim(0, max(counts) * 1.2)
    _finish(axes, "Images in each split")


def _colors(splits: Splits) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(len(splits))]


def _finish(axes: Any, title: str, x: str = "", y: str = "", *, percent: bool = False) -> None:
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set(xlabel=x, ylabel=y)
    if percent:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        axes.spines[["top", "right"]].set_visible(False)
