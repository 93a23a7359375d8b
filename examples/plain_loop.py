"""Run the loop of plain_loop_before.py on any number of devices, with bit-identical weights.

python examples/plain_loop.py
torchrun --nproc-per-node 4 examples/plain_loop.py
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import rankless


def images(count, seed):
    """Return noisy 12 × 12 images with a bright square in one of four corners, and the corners as labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=rng)
    noisy = torch.randn(count, 1, 12, 12, generator=rng)
    for image, label in zip(noisy, labels.tolist(), strict=True):
        image[:, 6 * (label // 2) :, 6 * (label % 2) :][:, :6, :6] += 0.7
    return TensorDataset(noisy, labels)


def network():
    body = nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)
    return nn.Sequential(*body, nn.Linear(16 * 25, 4))


def loss(model, batch):
    inputs, labels = batch
    return rankless.LossSum(F.cross_entropy(model(inputs), labels, reduction="sum"), len(labels))


def main(ranks):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = rankless.Steps(ranks, model, loss, images(800, 1), batch=32, micro=8)
    for step in steps.epochs(4):
        optimizer.step()
        if ranks.is_first and step.epoch.is_integer():
            print(f"epoch {step.epoch:.0f}: loss {step.loss:.3f}")
    if ranks.is_first:
        torch.save(model.state_dict(), "corners.pt")
        inputs, labels = (one.to(ranks.device) for one in images(400, 2).tensors)
        print(f"accuracy {(model.eval()(inputs).argmax(1) == labels).float().mean():.3f}")


if __name__ == "__main__":
    with rankless.join() as ranks:
        main(ranks)
