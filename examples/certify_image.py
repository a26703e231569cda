"""Certify one image: a label, and a radius within which no perturbation can change it.

    python certify_image.py

The image is a handwritten digit that comes with pprs, and the classifier is small enough to be built here.
"""

import torch

import pprs


class NearestMean(torch.nn.Module):
    """Give an image the class whose average training image is nearest."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__()
        means = torch.stack([images[labels == c].mean(0).flatten() for c in range(10)])
        self.register_buffer("means", means)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images [B, C, H, W] in [0, 1] to one score per class: any classifier of this form will do."""
        return -torch.cdist(x.flatten(1), self.means)


def main() -> None:
    # Certification starts from an ordinary classifier and an image that it has not been trained on.
    model = NearestMean(*pprs.open_dataset("builtin:mnist5k", split="train").stack())
    example = pprs.open_dataset("builtin:mnist5k", split="test")[3]

    # The smoothed classifier takes the majority vote over noisy copies of the image. The partition replaces every
    # superpixel of a noisy copy by its mean, which removes much of the noise before the classifier sees the copy.
    smoothed = pprs.SmoothedClassifier(
        model, num_classes=10, noise=pprs.Gaussian(sigma=0.5), partition=pprs.Slic(n_segments=100)
    )

    # n0 votes select a class; n other votes bound its share from below. The certificate is wrong with a probability of
    # at most alpha. `index` selects the random stream, so that the same call always gives the same answer.
    certificate = smoothed.certify(example.image, n0=100, n=2_000, alpha=0.001, index=example.index)

    print(certificate)
    print(f"votes per class: {certificate.counts.tolist()}")
    print(f"true class: {example.label}")

    # Two perturbations by whole grey levels: one that the certificate covers, and one that is too large for it.
    for levels in (1, 100):
        change = torch.full_like(example.image, levels / 255)
        covered = "covered" if certificate.covers(change) else "not covered"
        print(f"a perturbation of L2 norm {float(change.norm()):.3f} is {covered}")


if __name__ == "__main__":
    main()
