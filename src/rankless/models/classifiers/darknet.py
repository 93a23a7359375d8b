"""Darknet-53 and CSPDarknet-53 as classifiers: the backbones of YOLOv3 and YOLOv4 with a linear layer.

The layer numbers, and therefore the tensor names, are the same as in the detectors.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from rankless.models.darknet.architectures import yolov3, yolov4
from rankless.models.darknet.network import Network
from rankless.models.darknet.reshape import with_activation
from rankless.models.detectors.convolutional import build_layer
from rankless.models.layers import Activation

NETWORKS = {"darknet53": yolov3, "cspdarknet53": yolov4}


def backbone(name: str, activation: Activation | None = None) -> Network:
    """Return the backbone with the given name in :data:`NETWORKS`, optionally with another activation."""
    whole = NETWORKS[name]()
    count = whole.backbone
    network = replace(whole, layers=whole.layers[:count], names=whole.names[:count])
    return with_activation(network, activation) if activation else network


class DarknetClassifier(nn.Module):
    """A classifier that consists of a backbone, global average pooling, dropout and a linear layer."""

    def __init__(self, network: Network, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sources = [network.inputs(number) for number in range(len(network.layers))]
        self.last_use = {source: number for number, read in enumerate(self.sources) for source in read}
        self.layers = nn.ModuleDict()
        shapes = network.shapes()
        for number, layer in enumerate(network.layers):
            first = self.sources[number][0]
            channels = shapes[first].channels if first >= 0 else 3
            self.layers[network.names[number]] = build_layer(layer, channels, classes)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(shapes[-1].channels, classes)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, classes) of normalized images (B, 3, H, W)."""
        maps, made = {-1: images}, images
        for number, built in enumerate(self.layers.values()):
            made = built(*(maps[source] for source in self.sources[number]))
            for source in set(self.sources[number]):
                if self.last_use[source] == number:
                    del maps[source]
            maps[number] = made
        logits: Tensor = self.classifier(self.dropout(made.mean((2, 3))))
        return logits
