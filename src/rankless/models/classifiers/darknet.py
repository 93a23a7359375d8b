"""Darknet-53 and CSPDarknet-53 as classifiers: the backbones of YOLOv3 and YOLOv4 with a linear layer.

The layer numbers, and therefore the tensor names, are the same as in the detectors.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from rankless.models.darknet.architectures import yolov3, yolov4
from rankless.models.darknet.network import Network
from rankless.models.darknet.reshape import with_activation
from rankless.models.detectors.convolutional import LayerGraph
from rankless.models.layers import Activation

NETWORKS = {"darknet53": yolov3, "cspdarknet53": yolov4}


def backbone(name: str, activation: Activation | None = None) -> Network:
    """Return the backbone with the given name in :data:`NETWORKS`, optionally with a different activation."""
    whole = NETWORKS[name]()
    count = whole.backbone
    network = replace(whole, layers=whole.layers[:count], names=whole.names[:count])
    return with_activation(network, activation) if activation else network


class DarknetClassifier(LayerGraph):
    """A classifier that consists of a backbone, global average pooling, dropout and a linear layer."""

    def __init__(self, network: Network, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__(network)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(network.shapes()[-1].channels, classes)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, classes) of normalized images (B, 3, H, W)."""
        (features,) = self.run(images)
        logits: Tensor = self.classifier(self.dropout(features.mean((2, 3))))
        return logits
