"""Certify a classifier of your own, trained here in a few seconds.

    python own_model.py

Any torch.nn.Module will do that maps images [B, C, H, W] in [0, 1] to scores [B, num_classes]. Keep the normalisation
inside the module: noise is added to images in [0, 1].
"""

import torch
from torch import nn

import pprs

SIGMA = 0.25


class Digits(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers((x - 0.13) / 0.31)  # the normalisation belongs to the module


def train(epochs: int = 3) -> nn.Module:
    """Train on noisy images, since noisy images are what the network will vote on."""
    torch.manual_seed(0)
    images, labels = pprs.open_dataset("builtin:mnist5k", split="train").stack()
    net = Digits()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(100):
            noisy = images[batch] + SIGMA * torch.randn_like(images[batch])
            loss = nn.functional.cross_entropy(net(noisy), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def main() -> None:
    net = train()
    run = pprs.certify_dataset(
        net,
        "builtin:mnist5k",
        noise=pprs.Gaussian(SIGMA),
        sampling=pprs.Sampling(n0=50, n=500, alpha=0.001),
        images=range(40),
        progress=False,
    )
    for row in run.rows()[:5]:
        answer = "abstained" if row.prediction is None else f"class {row.prediction}, radius {row.radius:.3f}"
        print(f"image {row.idx} (a {row.label}): {answer}")
    accuracy = pprs.metrics.certified_accuracy(run, [0.0, 0.25, 0.5])
    low, high = pprs.metrics.accuracy_interval(accuracy, len(run))
    for radius, share, least, most in zip((0.0, 0.25, 0.5), accuracy, low, high, strict=True):
        print(f"certified accuracy at radius {radius:<4}: {share:.2f} (95% interval {least:.2f} to {most:.2f})")

    # This network exists in this process only. To certify in several processes, save its weights, write a function
    # `build` that makes the network and loads them, and give its name instead:
    #     pprs.certify_dataset("my_module:build", ..., runner=pprs.Processes(4))
    # The command takes the same name: pprs certify --model my_module:build --data builtin:mnist5k --sigma 0.25


if __name__ == "__main__":
    main()
