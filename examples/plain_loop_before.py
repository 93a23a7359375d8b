"""A plain training loop for one device. plain_loop.py runs the same loop on any number of devices."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


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


def main():
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        for inputs, labels in DataLoader(images(800, 1), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    torch.save(model.state_dict(), "corners.pt")
    inputs, labels = images(400, 2).tensors
    print(f"accuracy {(model.eval()(inputs).argmax(1) == labels).float().mean():.3f}")


if __name__ == "__main__":
    main()
