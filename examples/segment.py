"""A custom task: the ink in scikit-learn's digits. Run `python examples/segment.py`, or with this FILE.yaml

    task: examples/segment.py:Segment
    epochs: 4

`rankless train FILE.yaml --devices 2`. The weights are bit-identical on any number of devices."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import rankless


class Digits:
    def __init__(self, first, last, seed):
        self.images, self.seed = torch.tensor(load_digits().images[first:last] / 16).float(), seed

    def __len__(self):
        return len(self.images)

    def item(self, index, epoch):  # this noise does not depend on the rank or the loader process
        noise = rankless.generator(self.seed, "noise", epoch, index).normal(0, 0.3, (8, 8))
        return torch.stack([self.images[index] + torch.tensor(noise), self.images[index] > 0.4]).float()


class Segment:
    class_names, score_name = ("ink",), "IoU"

    def __init__(self, recipe):
        self.seed = recipe.seed

    def model(self):
        one, two = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        return nn.Sequential(one, nn.BatchNorm2d(16), nn.ReLU(), two, nn.ReLU(), nn.Conv2d(16, 1, 1))

    def training_data(self):
        return Digits(0, 1500, self.seed)

    def evaluation_data(self):
        return Digits(1500, 1797, 0)

    def collate(self, items):
        return torch.stack(items)  # (B, 2, 8, 8): images and masks

    def loss(self, model, batch):  # a sum and a count, which are added over all devices before the division
        entropy = nn.BCEWithLogitsLoss(reduction="sum")(model(batch[:, :1]), batch[:, 1:])
        return rankless.LossSum(entropy, torch.tensor(len(batch)))

    def predict(self, model, batch):  # for each image, the number of pixels in the intersection and the union
        found, truth = model(batch[:, :1]) > 0, batch[:, 1:] > 0
        return [(int((f & t).sum()), int((f | t).sum())) for f, t in zip(found, truth, strict=True)]

    def score(self, predictions):
        return {"IoU": sum(both for both, _ in predictions) / sum(either for _, either in predictions)}


if __name__ == "__main__":
    rankless.train(rankless.Recipe(epochs=4), task=Segment)
