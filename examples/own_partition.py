"""Write a partition of your own, check it, and certify with it.

    python own_partition.py

This one groups pixels of similar brightness: it blurs the noisy image, sorts its pixels into levels of equal size, and
every level is a segment. The base class averages the noisy image over the segments.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import uniform_filter

import pprs
from pprs.partition import PARTITIONS, Superpixels


@dataclass(frozen=True)  # frozen, with options that are numbers: a run records a partition as text
class Brightness(Superpixels):
    """Segments of similar brightness."""

    name = "brightness"

    levels: int = 6
    blur: int = 5

    def _segment(self, noisy, labels, segments) -> None:
        """Write the labels [B, H*W] of noisy images [B, C, H, W], and the number of segments of each image.

        A segmentation may depend on its own noisy image only. Certificates are unsound if it depends on the clean image
        or on the rest of the batch, and cannot be repeated if it depends on chance.
        """
        for i, image in enumerate(noisy):
            smooth = uniform_filter(image.mean(axis=0), self.blur)
            edges = np.quantile(smooth, np.linspace(0, 1, self.levels + 1)[1:-1])
            levels = np.searchsorted(edges, smooth.ravel())
            # Number the levels 0..k-1 without gaps: a constant image has only one.
            used, labels[i] = np.unique(levels, return_inverse=True)
            segments[i] = len(used)


# With this line the text "brightness:levels=6,blur=5" is understood wherever a partition can be given as text.
PARTITIONS[Brightness.name] = Brightness


def main() -> None:
    data = pprs.open_dataset("builtin:mnist5k", split="test")
    image = data[0].image
    noisy = image + 0.5 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))

    print("error of the noisy image, and after averaging over segments (root mean square; lower is better):")
    print(f"  {'no partition':<40} {(noisy - image).square().mean().sqrt():.3f}")
    for partition in (pprs.Grid(2), pprs.Slic(n_segments=100), Brightness()):
        averaged = partition.apply(noisy[None])[0]
        print(f"  {partition.short:<40} {(averaged - image).square().mean().sqrt():.3f}")

    # A toy classifier, which tells dark images from bright ones.
    def model(x: torch.Tensor) -> torch.Tensor:
        score = x.mean((1, 2, 3)) - 0.3
        return torch.stack([-score, score], dim=1)

    smoothed = pprs.SmoothedClassifier(model, num_classes=2, noise=pprs.Gaussian(0.5), partition=Brightness())
    print(smoothed.certify(image, n=500))
    print("To check a partition of your own, see PartitionContract in pprs.testing.")


if __name__ == "__main__":
    main()
