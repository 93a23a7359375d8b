"""Charts as inline SVG, with colors from the page's CSS variables and the points as JSON for tooltips."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rankless.report.markup import card, embedded, text

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 34
COLORS = 8
"""Number of line colors (CSS variables ``--c0`` to ``--c7``). Further lines reuse the colors."""
Point = tuple[float, float]
_LARGEST = 1e100  # a diverged loss may have any value


@dataclass(frozen=True)
class Line:
    """A line of a chart. A line without a name is not in the legend.

    Attributes:
        points: pairs of x and y, in increasing order of x.
        color: index of the line's color, or None for gray.
        style: ``faint``, ``dashed``, ``dots``, ``points`` (without a line) or empty.
        labels: labels of the points, which tooltips show instead of x.
    """

    name: str
    points: Sequence[Point]
    color: int | None = 0
    style: str = ""
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Mark:
    """A mark on the horizontal axis. ``kind`` is ``start``, ``bad`` or ``best``."""

    x: float
    label: str
    kind: str = "start"


@dataclass(frozen=True)
class Axes:
    """The titles, limits, marks and ticks of a chart's axes.

    Attributes:
        x_range, y_range: limits of the axes, or None for the range of the data, rounded outward for y.
        log: whether the vertical axis is logarithmic if all values are positive.
        x_ticks: positions and labels of the ticks, or an empty list for round numbers.
    """

    x: str = "step"
    y: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    log: bool = False
    marks: Sequence[Mark] = field(default=())
    x_ticks: Sequence[tuple[float, str]] = ()


class _Scale:
    def __init__(self, axes: Axes, points: Sequence[Point]) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self.log = axes.log and min(ys) > 0
        self.x0, self.x1 = axes.x_range or (min(xs), max(xs))
        if self.x0 == self.x1:
            self.x0, self.x1 = self.x0 - 1, self.x1 + 1
        if self.log:
            low_power, high_power = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
            high_power = max(high_power, low_power + 1)
            self.y0, self.y1 = float(low_power), float(high_power)
            self.y_ticks = [10.0**power for power in range(low_power, high_power + 1)]
            if len(self.y_ticks) > 7:
                self.y_ticks = self.y_ticks[:: -(-len(self.y_ticks) // 7)]
        else:
            low, high = axes.y_range or (min(ys), max(ys))
            self.y_ticks = ticks(low, high)
            self.y0, self.y1 = axes.y_range or (self.y_ticks[0], self.y_ticks[-1])

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return HEIGHT - BOTTOM - (place - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float) -> list[float]:
    """Return about six round numbers for the ticks of an axis from ``low`` to ``high``.

    They are multiples of 1, 2 or 5 times a power of ten, and include the limits.
    """
    if low == high:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def shown(value: float) -> str:
    """Format a number as a short label, such as ``1.5k``."""
    if abs(value) < 1e-12:
        return "0"
    if abs(value) >= 1e4:
        short, unit = (value / 1e6, "M") if abs(value) >= 1e6 else (value / 1e3, "k")
        return f"{short:.4g}{unit}"
    if abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def line_chart(title: str, lines: Iterable[Line], axes: Axes | None = None, note: str = "") -> str:
    """Return a panel with a line chart, or an empty string if every line has fewer than two points."""
    axes, drawn = axes or Axes(), []
    for line in lines:
        if points := [(x, y) for x, y in line.points if abs(x) + abs(y) < _LARGEST]:
            drawn.append(replace(line, points=points))
    points = [point for line in drawn for point in line.points]
    if max((len(line.points) for line in drawn), default=0) < 2:
        return ""
    scale = _Scale(axes, points)
    marks = "".join(_mark(mark, scale) for mark in axes.marks if scale.x0 <= mark.x <= scale.x1)
    body = f"{_frame(axes, scale)}{marks}{''.join(_path(line, scale) for line in drawn)}"
    return card(title, _legend(drawn) + _svg(title, body, drawn, scale), note)


def stacked_chart(title: str, lines: Sequence[Line], axes: Axes, note: str = "") -> str:
    """Return a panel with a stacked area chart. All lines must have the same x values."""
    drawn = [line for line in lines if any(y for _, y in line.points)]
    if not drawn:
        return ""
    below = [0.0] * len(drawn[0].points)
    tops: list[list[Point]] = []
    for line in drawn:
        below = [total + y for total, (_, y) in zip(below, line.points, strict=True)]
        tops.append([(x, total) for (x, _), total in zip(line.points, below, strict=True)])
    scale = _Scale(axes, [*tops[-1], (tops[-1][0][0], 0.0)])
    areas = ""
    floor = [(x, 0.0) for x, _ in tops[0]]
    for line, top in zip(drawn, tops, strict=True):
        outline = _joined([*top, *reversed(floor)], scale)
        areas += f'<path class="area c{(line.color or 0) % COLORS}" d="M{outline}Z"/>'
        floor = top
    marks = "".join(_mark(mark, scale) for mark in axes.marks if scale.x0 <= mark.x <= scale.x1)
    return card(title, _legend(drawn) + _svg(title, _frame(axes, scale) + areas + marks, drawn, scale), note)


def column_chart(
    title: str, edges: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], y: str, note: str
) -> str:
    """Return a panel with a column chart, which shows the columns of all series side by side in each range.

    ``edges`` are the lower ends of the ranges, the last of which is open. ``series`` are pairs of a name and
    values, one per range, where None means no column. A vertical axis called ``recall`` ranges from 0 to 1.
    """
    values = [value for _, row in series for value in row if value is not None]
    if not values:
        return ""
    top = 1.0 if y == "recall" else max(values) or 1.0
    axes = Axes("", y, x_range=(0, len(edges)), y_range=None if y != "recall" else (0.0, 1.0))
    scale = _Scale(axes, [(0, 0.0), (len(edges), top)])
    body = _frame(axes, scale, x_ticks=False)
    for at, edge in enumerate(edges):
        place = f'x="{scale.x(at):.1f}" y="{HEIGHT - BOTTOM + 14}"'
        body += f'<text {place} text-anchor="middle">{text(edge)}</text>'
        wide = 0.84 / len(series)
        for number, (name, row) in enumerate(series):
            value = row[at]
            if value is None:
                continue
            left, right = (scale.x(at + 0.08 + wide * (number + end)) for end in (0, 1))
            upper = scale.y(value)
            size = f'width="{right - left - 1:.1f}" height="{max(HEIGHT - BOTTOM - upper, 0):.1f}"'
            to = edges[at + 1] if at + 1 < len(edges) else "more"
            said = text(f"{name}, {edge} to {to}: {shown(value)}")
            body += (
                f'<rect class="column c{number}" x="{left:.1f}" y="{upper:.1f}" {size} '
                f'data-value="{value!r}"><title>{said}</title></rect>'
            )
    legend = _legend([Line(name, [(0, 0)], number) for number, (name, _) in enumerate(series)])
    return card(title, (legend if len(series) > 1 else "") + _svg(title, body, [], scale), note)


FEW = 50
"""Minimum number of points for a line to be smoothed."""


def smoothed(points: Sequence[Point], reach: int | None = None) -> list[Point]:
    """Return a moving average of the points over ``reach`` neighbors on each side.

    By default, ``reach`` is a 25th of the number of points. Near the start, where losses fall quickly, the
    result is a line fitted to the first points (a Savitzky-Golay filter), clipped to the range of all values.
    Near the end, it is constant, so that an unusual last step does not bend the curve.
    """
    if reach is None:
        reach = max(len(points) // 25, 4) if len(points) >= FEW else 0
    reach = min(reach, (len(points) - 1) // 2)
    if reach < 1:
        return list(points)
    ys, size = [y for _, y in points], 2 * reach + 1
    means = [sum(ys[at : at + size]) / size for at in range(len(ys) - size + 1)]
    slope = sum(place * y for place, y in enumerate(ys[:size], -reach)) / (reach * (reach + 1) * size / 3)
    low, high = min(ys), max(ys)
    first = [min(max(means[0] + slope * place, low), high) for place in range(-reach, 0)]
    return [(x, y) for (x, _), y in zip(points, [*first, *means, *means[-1:] * reach], strict=True)]


def _frame(axes: Axes, scale: _Scale, *, x_ticks: bool = True) -> str:
    parts = []
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in scale.y_ticks:
        y = scale.y(value)
        if not TOP - 0.5 <= y <= low + 0.5:
            continue
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{shown(value)}</text>')
    if x_ticks:
        for value, label in axes.x_ticks or [(one, shown(one)) for one in ticks(scale.x0, scale.x1)]:
            if scale.x0 - 1e-9 <= value <= scale.x1 + 1e-9:
                x = scale.x(value)
                anchor = "end" if x > right - 12 else "middle"
                parts.append(f'<text x="{x:.1f}" y="{low + 15}" text-anchor="{anchor}">{text(label)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{low}" y2="{low}"/>')
    middle = (LEFT + right) / 2
    if axes.x:
        parts.append(
            f'<text class="title" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{text(axes.x)}</text>'
        )
    if axes.y:
        turned = f'transform="translate(10 {(TOP + low) / 2:.0f}) rotate(-90)"'
        parts.append(f'<text class="title" {turned} text-anchor="middle">{text(axes.y)}</text>')
    return "".join(parts)


def _mark(mark: Mark, scale: _Scale) -> str:
    x, low = scale.x(mark.x), HEIGHT - BOTTOM
    return (
        f'<g class="mark {mark.kind}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{low}"/>'
        f'<path d="M{x - 4:.1f} {TOP - 8}h8l-4 7z"/><title>{text(mark.label)}</title></g>'
    )


def _path(line: Line, scale: _Scale) -> str:
    color = "gray" if line.color is None else f"c{line.color % COLORS}"
    dots = ""
    if line.style == "points" or (line.style == "dots" and len(line.points) <= 60):
        places = ((scale.x(x), scale.y(y)) for x, y in line.points)
        r = 4.5 if len(line.points) == 1 else 3.5 if line.style == "points" else 2.5
        dots = "".join(f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>' for x, y in places)
    if line.style == "points":
        return dots
    return f'<path class="line {color} {line.style}" d="M{_joined(line.points, scale)}"/>{dots}'


def _joined(points: Iterable[Point], scale: _Scale) -> str:
    return "L".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in points)


def _legend(lines: Sequence[Line]) -> str:
    named = [line for line in lines if line.name and line.style != "faint"]
    if len(named) < 2:
        return ""
    entries = "".join(
        f'<li class="{"gray" if line.color is None else f"c{line.color % COLORS}"} {line.style}">'
        f"{text(line.name)}</li>"
        for line in named
    )
    return f'<ul class="legend">{entries}</ul>'


def _svg(title: str, body: str, lines: Sequence[Line], scale: _Scale) -> str:
    data = {
        "box": [LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM],
        "range": [scale.x0, scale.x1, scale.y0, scale.y1],
        "log": scale.log,
        "lines": [
            {
                "name": line.name,
                "color": line.color,
                "points": [[float(f"{x:.7g}"), float(f"{y:.6g}")] for x, y in line.points],
                **({"labels": line.labels} if line.labels else {}),
            }
            for line in lines
            if line.name
        ],
    }
    return (
        f'<div class="plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">'
        f"{body}</svg>{embedded(data) if lines else ''}</div>"
    )
