"""Read Darknet cfg files into a :class:`~rankless.models.darknet.network.Network`.

Training keys, such as the schedule and the augmentation in ``[net]``, are ignored, because they belong in the
recipe. Unsupported sections, and unsupported keys that change the network's output, are errors. The defaults
are those of Darknet's parser.c.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal, cast, get_args

from rankless.errors import UserError, counted, nearest, one_of, printable
from rankless.files import reading
from rankless.geometry.boxes import SIMILARITIES
from rankless.models.darknet import network as net
from rankless.models.darknet.cfg_text import NMS_BETA
from rankless.models.heads.yolo.codec import BoxLoss, HeadLoss
from rankless.models.layers import Activation

MOST_CHANNELS = 65536
_ACTIVATIONS = tuple(name for name in get_args(Activation) if name != "prelu")  # Darknet has no PReLU
_BOX_LOSSES = ("mse", *SIMILARITIES)
MOST_LAYERS = 2000
# Values that are always used: no IoU is above 1, and NMS with DIoU has this exponent.
_WITHOUT_EFFECT = {("truth_thresh", "1"), ("beta_nms", str(NMS_BETA))}
# Unsupported keys that change a layer's output.
_UNSUPPORTED = frozenset({
    "antialiasing", "assisted_excitation", "bin_output", "binary", "coordconv", "deform", "flipped",
    "maxpool_depth", "out_channels", "reverse", "rotate", "share_index", "stretch", "stretch_sway", "sway",
    "tanh", "weights_normalization", "xnor",
})  # fmt: skip


@dataclass(frozen=True)
class Cfg:
    """The contents of a cfg file.

    If ``letterbox`` is false, images are stretched, which is Darknet's default.
    """

    network: net.Network
    letterbox: bool
    nms: Literal["iou", "diou"]
    notes: tuple[str, ...] = ()


def read_cfg(source: str) -> Cfg:
    """Read a cfg file, given its path or its text. All problems are reported at once."""
    if "\n" in source and "[" in source:
        return _Reader("model.cfg", source).read()
    path = Path(source)
    try:
        content = reading.read_bytes(path, reading.CFG)
    except OSError as error:
        hint = "; check that it is not the weights file" if error.errno == errno.EFBIG else ""
        raise UserError(f"{source}: the cfg file cannot be read: {error.strerror or error}{hint}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # comments may be in any encoding
    return _Reader(source, text).read()


@dataclass
class _Section:
    """A ``[name]`` section. ``options`` contains the value and the line number of each key."""

    name: str
    line: int
    options: dict[str, tuple[str, int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


class _Reader:
    """A reader that converts one section at a time to a layer and collects all problems."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.problems: list[str] = []
        self.section = _Section("", 0)
        self.layers: list[net.Layer] = []
        self.shapes: list[net.Shape] = []
        self.nms: Literal["iou", "diou"] = "iou"
        self.classes: int | None = None  # the number of classes in the heads read so far
        self.unused: dict[str, int] = {}
        self.unknown = False  # after an unknown layer, mismatched shapes are not reported

    def report(self, sentence: str, line: int | None = None) -> None:
        """Record a problem in a line, by default in the first line of the section."""
        self.problems.append(f"{self.name}:{line or self.section.line}: {sentence}")

    def expected(self, key: str, expected: str) -> None:
        """Record that the value of an option is invalid."""
        text, line = self.section.options.get(key, ("nothing", self.section.line))
        self.report(f"[{self.section.name}] {key}={text[:40]}: expected {expected}", line)

    def sections(self) -> Iterator[_Section]:
        """Yield the sections of the file, and report lines that are neither a section nor an option."""
        section: _Section | None = None
        for number, raw in enumerate(self.text.splitlines(), 1):
            line = "".join(raw.split("#")[0].split(";")[0].split())
            if not line:
                continue
            if line.startswith("["):
                if section is not None:
                    yield section
                section = _Section(line.strip("[]").lower(), number)
                continue
            key, equals, value = line.partition("=")
            if not equals or section is None:
                shown = printable(raw.strip(), 60)
                self.report(f"'{shown}': expected [section] or key=value; use a Darknet cfg file", number)
                if len(self.problems) > 5 or "\0" in raw:
                    return
                continue
            section.options[key] = (value, number)
        if section is not None:
            yield section

    def line(self, key: str) -> int:
        """Return the line number of an option, or of the section if the option is missing."""
        return self.section.options.get(key, ("", self.section.line))[1]

    def word(self, key: str, default: str) -> str:
        """Read an option as text, and mark it as used."""
        self.section.used.add(key)
        return self.section.options.get(key, (default, 0))[0]

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """Read an integer. If it is invalid, report a problem and return the default."""
        text = self.word(key, str(default))
        try:
            value = int(float(text)) if len(text) < 20 else None
        except (ValueError, OverflowError):
            value = None
        if value is None or not least <= value <= most:
            self.expected(key, f"a whole number from {least} to {most}")
            return min(max(default, least), most)
        return value

    def number(self, key: str, default: float, least: float = 0.0, most: float = 1e9) -> float:
        """Read a number. If it is invalid, report a problem and return the default."""
        (value,) = self.numbers(key, str(default), count=1) or (default,)
        if not least <= value <= most:
            self.expected(key, f"a number from {least:g} to {most:g}")
            return default
        return value

    def numbers(self, key: str, default: str, count: int | None = None) -> tuple[float, ...]:
        """Read comma-separated numbers. If one is invalid, report a problem and return an empty tuple."""
        text = self.word(key, default)
        try:
            values = tuple(float(part) for part in text.split(",") if part)
        except ValueError:
            values = (math.nan,)
        if not all(map(math.isfinite, values)) or (count is not None and len(values) != count):
            self.expected(key, "a number" if count == 1 else "comma-separated numbers")
            return ()
        return values

    def _activation(self, default: str) -> Activation:
        name = self.word("activation", default)
        if name not in _ACTIVATIONS:
            self.expected("activation", one_of(_ACTIVATIONS))
            return "linear"
        return cast(Activation, name)

    def _layers(self, key: str) -> tuple[int, ...]:
        """Read layer numbers from an option. Negative numbers count back from the current layer."""
        number = len(self.layers)
        sources = []
        for value in self.numbers(key, "") or (0.5,):
            source = int(value) + (number if value < 0 else 0)
            if value != int(value) or not 0 <= source < number:
                self.expected(key, f"numbers of earlier layers (0 to {number - 1}, or -1 to -{number})")
                return (0,) if number else (net.IMAGE,)
            sources.append(source)
        return tuple(sources)

    def _convolutional(self) -> net.Conv:
        filters = self.integer("filters", 1, 1, MOST_CHANNELS)
        return self._kernel(filters, self.integer("groups", 1, 1, MOST_CHANNELS))

    def _depthwise(self) -> net.Conv:
        """Read a depthwise layer (one kernel per input channel), as in MobileNet forks of Darknet."""
        channels = self.shapes[-1].channels if self.shapes else 3  # the image's channels
        return self._kernel(channels, channels)

    def _kernel(self, filters: int, groups: int) -> net.Conv:
        size = self.integer("size", 1, 1, 255)
        stride = self.integer("stride", 1, 1, 64)
        for key in ("stride_x", "stride_y"):
            if self.integer(key, stride, 1, 64) != stride:
                self.report(
                    f"[{self.section.name}] {key} differs from stride; expected equal values", self.line(key)
                )
        pad = self.integer("pad", 0, 0, 255)
        padding = self.integer("padding", 0, 0, 255)
        if pad:
            padding = size // 2
        return net.Conv(
            filters=filters,
            size=size,
            stride=stride,
            activation=self._activation("logistic"),
            norm=bool(self.integer("batch_normalize", 0, 0, 1)),
            groups=groups,
            padding=None if padding == size // 2 else padding,
            dilation=self.integer("dilation", 1, 1, 64),
        )

    def _maxpool(self) -> net.MaxPool:
        stride = self.integer("stride", 1, 1, 64)
        size = self.integer("size", stride, 1, 255)
        return net.MaxPool(size, stride, self.integer("padding", size - 1, 0, 255))

    def _avgpool(self) -> net.AveragePool:
        return net.AveragePool()

    def _upsample(self) -> net.Upsample:
        return net.Upsample(self.integer("stride", 2, 1, 64), self.number("scale", 1.0, -1e6, 1e6))

    def _route(self) -> net.Route:
        groups = self.integer("groups", 1, 1, MOST_CHANNELS)
        return net.Route(self._layers("layers"), groups, self.integer("group_id", 0, 0, groups - 1))

    def _shortcut(self) -> net.Shortcut:
        weights = self.word("weights_type", "none")
        if weights != "none":
            self.report(f"[shortcut] weights_type={weights} is not supported", self.line("weights_type"))
        return net.Shortcut(self._layers("from"), self._activation("linear"))

    def _scale_channels(self) -> net.Multiply:
        if self.integer("scale_wh", 0, 0, 1):
            self.report("[scale_channels] scale_wh=1 is not supported", self.line("scale_wh"))
        return net.Multiply(self._one_layer(), self._activation("linear"))

    def _sam(self) -> net.Multiply:
        return net.Multiply(self._one_layer(), self._activation("linear"), per_channel=False)

    def _one_layer(self) -> int:
        sources = self._layers("from")
        if len(sources) != 1:
            self.expected("from", "a single layer")
        return sources[0]

    def _dropout(self) -> net.Dropout:
        if self.integer("dropblock", 0, 0, 1):
            self.report("[dropout] dropblock=1 is not supported", self.line("dropblock"))
        return net.Dropout(self.number("probability", 0.2, 0.0, 0.999))

    def _involution(self) -> net.Involution:
        size = self.integer("size", 7, 1, 255)
        if size % 2 == 0:
            self.expected("size", "an odd number")
        return net.Involution(size)

    def _yolo(self) -> net.Yolo:
        classes = self.integer("classes", 20, 1, MOST_CHANNELS)
        numbers = self.numbers("anchors", "")
        anchors = tuple(zip(numbers[::2], numbers[1::2], strict=False))
        if not anchors or len(numbers) % 2 or min(numbers) <= 0:
            self.expected("anchors", "pairs of a positive width and height")
        total = self.integer("num", len(anchors) or 1, 1, 4096)
        mask = tuple(int(value) for value in self.numbers("mask", ",".join(map(str, range(total)))))
        if any(not 0 <= number < len(anchors) for number in mask) or not mask:
            self.expected("mask", f"indices of the {len(anchors)} anchors")
        self._head_fits(len(mask) * (net.DETECTOR_CHANNELS + classes), classes)
        new_coords = bool(self.integer("new_coords", 0, 0, 1))
        before = self.layers[-1] if self.layers else None
        if isinstance(before, net.Conv) and new_coords != (before.activation == "logistic"):
            self.report(
                f"[yolo] has new_coords={int(new_coords)} after a convolution with "
                f"activation={before.activation}; expected activation=logistic for new_coords=1, and linear "
                "for new_coords=0",
                self.line("new_coords"),
            )
        if self.word("nms_kind", "default") in ("greedynms", "diounms"):
            self.nms = "diou"
        return net.Yolo(
            anchors=anchors,
            mask=mask,
            scale_xy=self.number("scale_x_y", 1.0, 1.0, 100.0),
            new_coords=new_coords,
            anchor_iou=self.number("iou_thresh", 1.0, 0.0, 1.0),
            loss=self._loss(),
        )

    def _head_fits(self, channels: int, classes: int) -> None:
        before = self.layers[-1] if self.layers else None
        if not isinstance(before, net.Conv) or before.norm:
            self.report("[yolo]: expected a [convolutional] section without batch_normalize before it")
        elif before.filters != channels:
            self.report(
                f"[yolo] follows a layer with {counted(before.filters, 'filter')}; expected {channels} "
                "(anchors in mask × (5 + classes))"
            )
        if self.classes not in (None, classes):
            self.expected("classes", f"{self.classes}, as in the previous [yolo] section")
        self.classes = classes

    def _loss(self) -> HeadLoss:
        box_loss = self.word("iou_loss", "mse")
        if box_loss not in _BOX_LOSSES:
            self.expected("iou_loss", one_of(_BOX_LOSSES))
            box_loss = "mse"
        given = self.section.options
        return HeadLoss(
            box_loss=cast(BoxLoss, box_loss),
            # pjreddie's Darknet has no such factor; AlexeyAB's default is 0.75.
            box=self.number("iou_normalizer", 1.0 if box_loss == "mse" else 0.75),
            objectness=self.number("obj_normalizer", 1.0),
            classes=self.number("cls_normalizer", 1.0),
            ignore=self.number("ignore_thresh", 0.5, 0.0, 1.0),
            smoothing=self.number("label_smooth_eps", 0.0, 0.0, 1.0) if "label_smooth_eps" in given else None,
            largest_gradient=self.number("max_delta", math.inf, 0.0, math.inf)
            if "max_delta" in given
            else None,
            smooth_objectness=bool(self.integer("objectness_smooth", 0, 0, 1)),
        )

    def read(self) -> Cfg:
        sections = list(self.sections())
        self._raise()
        if not sections or sections[0].name not in ("net", "network"):
            first = f"starts with [{sections[0].name}] in line {sections[0].line}" if sections else "is empty"
            raise UserError(f"{self.name}: {first}; expected a Darknet cfg file, which starts with [net]")
        if len(sections) > MOST_LAYERS:
            raise UserError(f"{self.name}: has {len(sections):,} sections; expected at most {MOST_LAYERS:,}")
        size, letterbox = self._net(sections[0])
        for section in sections[1:]:
            self._layer(section)
        if not self.problems and not any(isinstance(layer, net.Yolo) for layer in self.layers):
            self.problems.append(f"{self.name}: has no [yolo] section; expected a detector")
        self._raise()
        return Cfg(self._network(size), letterbox, self.nms, tuple(self._notes()))

    def _network(self, size: tuple[int, int]) -> net.Network:
        names = tuple(str(number) for number in range(len(self.layers)))
        losses = [layer.loss.box_loss for layer in self.layers if isinstance(layer, net.Yolo)]
        loss: net.PublishedLoss = "yolov3" if all(name == "mse" for name in losses) else "yolov4"
        return net.Network(tuple(self.layers), names, size, self._backbone(), self.classes or 1, loss)

    def _backbone(self) -> int:
        """Guess the number of layers in the backbone.

        The backbone ends with the last shortcut at the coarsest resolution before the first head. If there is
        no shortcut, it ends with the first layer at that resolution or, if there is no such layer, halfway to
        the first head.
        """
        coarsest = max((shape.stride or 0 for shape in self.shapes), default=0)
        first_head = next(n for n, layer in enumerate(self.layers) if isinstance(layer, net.Yolo))
        before = [n for n in range(first_head) if (self.shapes[n].stride or 0) == coarsest]
        shortcuts = [n for n in before if isinstance(self.layers[n], net.Shortcut)]
        return (shortcuts[-1] if shortcuts else before[0] if before else first_head // 2) + 1

    def _notes(self) -> Iterator[str]:
        if self.unused:
            listed = ", ".join(f"{key} (line {line})" for key, line in list(self.unused.items())[:12])
            more = f" and {len(self.unused) - 12} more" if len(self.unused) > 12 else ""
            yield f"{self.name}: ignored keys: {listed}{more}"

    def _raise(self) -> None:
        if self.problems:
            raise UserError(self.problems[:40])

    def _net(self, section: _Section) -> tuple[tuple[int, int], bool]:
        self.section = section
        width, height = self.integer("width", 416, 1, 16384), self.integer("height", 416, 1, 16384)
        channels = self.integer("channels", 3, 1, MOST_CHANNELS)
        if channels != 3:
            self.expected("channels", "3, for color images")
        return (height, width), bool(self.integer("letter_box", 0, 0, 1))

    def _layer(self, section: _Section) -> None:
        self.section = section
        make = SECTIONS.get(section.name)
        if make is None:
            hint = nearest(section.name, SECTIONS, shown="[{}]") or f"; expected {one_of(SECTIONS)}"
            self.report(f"section [{section.name}] is not supported{hint}")
            self.unknown = True
            layer: net.Layer = net.Dropout(0.0)
        else:
            layer = make(self)
        self.layers.append(layer)
        self.shapes.append(self._shape(layer))
        for key, (value, line) in section.options.items():
            if key in section.used or (key, value) in _WITHOUT_EFFECT:
                continue
            if key in _UNSUPPORTED and value not in ("0", "none"):
                self.report(f"[{section.name}] {key}={value} is not supported", line)
            else:
                self.unused.setdefault(key, line)

    def _shape(self, layer: net.Layer) -> net.Shape:
        """Compute the output shape of the last layer, and report inputs that do not fit together."""
        number = len(self.layers) - 1
        whole = net.Network(tuple(self.layers), (), (0, 0), 0, 0, "yolov3")
        image = net.Shape(3, Fraction(1))
        read = [self.shapes[source] if source >= 0 else image for source in whole.inputs(number)]
        if self.unknown:
            return net.shape(layer, read)
        if isinstance(layer, net.Route | net.Shortcut) and len({shape.stride for shape in read}) > 1:
            shown = ", ".join(str(shape.stride) for shape in read)
            self.report(f"[{self.section.name}] reads layers of different resolutions (strides {shown})")
        if isinstance(layer, net.Route) and any(shape.channels % layer.groups for shape in read):
            self.report(
                f"[route] groups={layer.groups} does not divide its input channels",
                self.line("groups"),
            )
        if isinstance(layer, net.Conv):
            for what, count in (("input channels", read[0].channels), ("filters", layer.filters)):
                if count % layer.groups:
                    self.report(
                        f"[convolutional] groups={layer.groups} does not divide its {what} ({count})",
                        self.line("groups"),
                    )
        return net.shape(layer, read)


SECTIONS: dict[str, Callable[[_Reader], net.Layer]] = {
    "convolutional": _Reader._convolutional,
    "conv": _Reader._convolutional,
    "depthwise_convolutional": _Reader._depthwise,
    "maxpool": _Reader._maxpool,
    "max": _Reader._maxpool,
    "avgpool": _Reader._avgpool,
    "avg": _Reader._avgpool,
    "upsample": _Reader._upsample,
    "route": _Reader._route,
    "shortcut": _Reader._shortcut,
    "scale_channels": _Reader._scale_channels,
    "sam": _Reader._sam,
    "dropout": _Reader._dropout,
    "involution": _Reader._involution,
    "yolo": _Reader._yolo,
}
