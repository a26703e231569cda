"""Certify a set of images twice, with and without a partition, and write a report.

    python certify_dataset.py

Runs are written to the folder `runs` as they go. Interrupt the script and start it again: it resumes where it stopped.
read_runs.py reads what it has written.
"""

import torch
from torch import nn

import pprs

IMAGES = range(60)
RADII = [0.0, 0.25, 0.5, 0.75]


def train(epochs: int = 3) -> nn.Module:
    """Train a small network on clean images: like most published classifiers, it has never seen noise."""
    torch.manual_seed(0)
    images, labels = pprs.open_dataset("builtin:mnist5k", split="train").stack()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(100):
            loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def main() -> None:
    model = train()
    # Few samples, so that this takes seconds. Published results use n=10_000 or more, and alpha=0.001.
    sampling = pprs.Sampling(n0=50, n=500, alpha=0.001)
    runs = {}
    for name, partition in (("none", None), ("slic", pprs.Slic())):
        runs[name] = pprs.certify_dataset(
            model,
            "builtin:mnist5k",
            noise=pprs.Gaussian(0.5),
            partition=partition,
            sampling=sampling,
            images=IMAGES,
            out=f"runs/{name}",
            progress=False,
        )
        print(f"{name}: {len(runs[name])} images certified, in runs/{name}")

    # Certified accuracy at radius r: the share of images that are certified with the correct label and a radius >= r.
    print("\nradius       " + "".join(f"{radius:>8}" for radius in RADII))
    for name, run in runs.items():
        accuracy = pprs.metrics.certified_accuracy(run, RADII)
        print(f"{name:<13}" + "".join(f"{share:>8.2f}" for share in accuracy))

    pprs.write_report(list(runs.values()), "report.html")
    print("\nreport.html compares the two, with confidence intervals.")


if __name__ == "__main__":
    main()
