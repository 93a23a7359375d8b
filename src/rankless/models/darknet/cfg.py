"""Darknet's cfg files: read into a :class:`~rankless.models.darknet.network.Network`.

The network and its loss are read; how it was trained (the schedule and augmentation in ``[net]``) belongs to
the recipe, and such keys are ignored. A section or a key that changes what the network computes and that is
not supported is reported with its name and line.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from rankless.errors import UserError, nearest, one_of
from rankless.files import reading
from rankless.models.darknet import network as net
from rankless.models.darknet.cfg_layers import MOST_CHANNELS, SECTIONS, LayerReader
from rankless.models.darknet.cfg_sections import Section

MOST_LAYERS = 2000
# Keys of [convolutional] and others that change what is computed and are not supported.
_UNSUPPORTED = frozenset({
    "antialiasing", "assisted_excitation", "bin_output", "binary", "coordconv", "deform", "flipped",
    "maxpool_depth", "out_channels", "reverse", "rotate", "share_index", "stretch", "stretch_sway", "sway",
    "tanh", "weights_normalization", "xnor",
})  # fmt: skip


@dataclass(frozen=True)
class Cfg:
    """The contents of a cfg file.

    Attributes:
        network: the network.
        letterbox: images preserve their aspect ratio; else they are stretched, which is Darknet's default.
        nms: how boxes are compared when duplicates are removed.
        notes: sentences about options that are ignored.
    """

    network: net.Network
    letterbox: bool
    nms: Literal["iou", "diou"]
    notes: tuple[str, ...] = ()


def read_cfg(source: str) -> Cfg:
    """Read a cfg file, or the text of one (with line breaks and a ``[net]``)."""
    if "\n" in source and "[" in source:
        return _Reader("model.cfg", source).read()
    path = Path(source)
    try:
        content = reading.read_bytes(path, reading.CFG)
    except OSError as error:
        hint = "; is it the weights?" if error.errno == errno.EFBIG else ""
        raise UserError(f"{source}: this cfg file cannot be read: {error.strerror or error}{hint}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # comments may be in any encoding
    return _Reader(source, text).read()


class _Reader(LayerReader):
    """Turns sections into a network; collects problems on the way."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.text = text
        self.unused: dict[str, int] = {}
        self.unknown = False  # after an unknown layer, shapes that do not fit are not reported

    def read(self) -> Cfg:
        """Read the whole file."""
        sections = list(self.sections(self.text))
        self._raise()
        if not sections or sections[0].name not in ("net", "network"):
            first = f"[{sections[0].name}] in line {sections[0].line}" if sections else "nothing"
            raise UserError(
                f"{self.name}: begins with {first}: expected a Darknet cfg file, with [net] first"
            )
        if len(sections) > MOST_LAYERS:
            raise UserError(f"{self.name}: {len(sections):,} sections; expected at most {MOST_LAYERS:,}")
        size, letterbox = self._net(sections[0])
        for section in sections[1:]:
            self._layer(section)
        if not self.problems and not any(isinstance(layer, net.Yolo) for layer in self.layers):
            self.problems.append(f"{self.name}: has no [yolo] section: expected a detector")
        self._raise()
        return Cfg(self._network(size), letterbox, self.nms, tuple(self._notes()))

    def _network(self, size: tuple[int, int]) -> net.Network:
        names = tuple(str(number) for number in range(len(self.layers)))
        losses = [layer.loss.box_loss for layer in self.layers if isinstance(layer, net.Yolo)]
        loss: net.PublishedLoss = "yolov3" if all(name == "mse" for name in losses) else "yolov4"
        return net.Network(tuple(self.layers), names, size, self._backbone(), self.classes or 1, loss)

    def _backbone(self) -> int:
        """Count the layers up to the coarsest map's last residual block or pooling, else half of them."""
        coarsest = max((shape.stride or 0 for shape in self.shapes), default=0)
        first_head = next(n for n, layer in enumerate(self.layers) if isinstance(layer, net.Yolo))
        before = [n for n in range(first_head) if (self.shapes[n].stride or 0) == coarsest]
        shortcuts = [n for n in before if isinstance(self.layers[n], net.Shortcut)]
        return (shortcuts[-1] if shortcuts else before[0] if before else first_head // 2) + 1

    def _notes(self) -> Iterator[str]:
        if self.unused:
            listed = ", ".join(f"{key} (line {line})" for key, line in list(self.unused.items())[:12])
            more = f" and {len(self.unused) - 12} more" if len(self.unused) > 12 else ""
            yield f"{self.name}: not used: {listed}{more}"

    def _raise(self) -> None:
        if self.problems:
            raise UserError(self.problems[:40])

    def _net(self, section: Section) -> tuple[tuple[int, int], bool]:
        self.section = section
        width, height = self.integer("width", 416, 1, 16384), self.integer("height", 416, 1, 16384)
        channels = self.integer("channels", 3, 1, MOST_CHANNELS)
        if channels != 3:
            self.report(f"[net] channels={channels}: expected 3, color images", self.line("channels"))
        return (height, width), bool(self.integer("letter_box", 0, 0, 1))

    def _layer(self, section: Section) -> None:
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
            if key in section.used:
                continue
            if key in _UNSUPPORTED and value not in ("0", "none"):
                self.report(f"[{section.name}] {key}={value} is not supported", line)
            else:
                self.unused.setdefault(key, line)

    def _shape(self, layer: net.Layer) -> net.Shape:
        """Compute the shape of the layer's output; report inputs that do not fit together."""
        number = len(self.layers) - 1
        whole = net.Network(tuple(self.layers), (), (0, 0), 0, 0, "yolov3")
        image = net.Shape(3, Fraction(1))
        read = [self.shapes[source] if source >= 0 else image for source in whole.inputs(number)]
        if self.unknown:
            return net.shape(layer, read)
        if isinstance(layer, net.Route | net.Shortcut) and len({shape.stride for shape in read}) > 1:
            shown = ", ".join(str(shape.stride) for shape in read)
            self.report(f"[{self.section.name}] reads maps of different resolution (strides {shown})")
        if isinstance(layer, net.Route) and any(shape.channels % layer.groups for shape in read):
            self.report(f"[route] groups={layer.groups} does not divide the channels", self.line("groups"))
        if isinstance(layer, net.Conv):
            for what, count in (("the channels it reads", read[0].channels), ("filters", layer.filters)):
                if count % layer.groups:
                    self.report(
                        f"[convolutional] groups={layer.groups} does not divide {what} ({count})",
                        self.line("groups"),
                    )
        return net.shape(layer, read)
