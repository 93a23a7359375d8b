"""Train on an existing PyTorch data set with torchvision's transforms.

Run `python examples/own_dataset.py`, or run `rankless train FILE.yaml --devices 2` with this FILE.yaml:

    task: examples/own_dataset.py:Read
    epochs: 3

The weights do not depend on the number of devices or loader processes. The data comes with scikit-learn.
"""

import random
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

import rankless


class Digits(Dataset):  # the same class that you would pass to a DataLoader
    def __init__(self, first, last, transform=None):
        found = load_digits()
        self.images, self.labels = (found.images[first:last] * 15.9).astype("uint8"), found.target[first:last]
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index])[None].float() / 255
        if self.transform:
            image = self.transform(image) + np.random.normal(0, 0.02) + random.uniform(0, 0.02)  # noqa: NPY002
        return image, int(self.labels[index])


class Batch(NamedTuple):
    images: torch.Tensor  # (B, 1, 8, 8)
    labels: torch.Tensor  # (B,)

    def to(self, device):
        return Batch(self.images.to(device), self.labels.to(device))


class Read:
    class_names, score_name = tuple("0123456789"), "accuracy"

    def __init__(self, recipe):
        self.seed = recipe.seed

    def model(self):
        layers = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(32 * 64, 10))

    def training_data(self):
        moved = v2.RandomAffine(8, translate=(0.08, 0.08))
        both = v2.Compose([moved, v2.RandomApply([v2.GaussianBlur(3)], 0.2)])
        return rankless.from_dataset(Digits(0, 1400, both), seed=self.seed)

    def evaluation_data(self):
        return rankless.from_dataset(Digits(1400, 1797), seed=self.seed)

    def collate(self, items):
        images, labels = zip(*items, strict=True)
        return Batch(torch.stack(images), torch.tensor(labels))

    def loss(self, model, batch):
        entropy = nn.functional.cross_entropy(model(batch.images), batch.labels, reduction="sum")
        return rankless.LossSum(entropy, len(batch.labels))

    def predict(self, model, batch):
        return (model(batch.images).argmax(1) == batch.labels).tolist()

    def score(self, predictions):
        return {"accuracy": sum(predictions) / len(predictions)}


if __name__ == "__main__":
    rankless.train(rankless.Recipe(epochs=3), task=Read)
