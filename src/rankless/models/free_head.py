"""STUB"""

from torch import nn


class FreeHeadLayers(nn.Module):
    class_parts = ("predict_classes",)

    def __init__(self, channels, classes, bins, *, momentum):
        super().__init__()
        self.predict_classes = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        return self.predict_classes(x)
