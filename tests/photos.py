"""Noisy versions of scikit-image's sample photos, and measures of how good a partition of them is."""

from __future__ import annotations

import functools

import numpy as np
from scipy import ndimage
from skimage import data, transform

SIGMA = 0.25


@functools.cache
def photo(name: str, side: int) -> np.ndarray:
    """Return a sample photo as [3, side, side] in [0, 1]."""
    full = getattr(data, name)() / 255.0
    full = np.repeat(full[..., None], 3, 2) if full.ndim == 2 else full
    small = transform.resize(full, (side, side), order=1, mode="reflect", anti_aliasing=True)
    return np.ascontiguousarray(np.clip(small, 0, 1).astype(np.float32).transpose(2, 0, 1))


def noisy(clean: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return clean + SIGMA * rng.standard_normal((count, *clean.shape), dtype=np.float32)


def box5(images: np.ndarray) -> np.ndarray:
    return ndimage.uniform_filter(images, (1, 1, 5, 5), mode="reflect")


def mean_over(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average over segments in double precision, independently of the package's own implementation."""
    flat = labels.ravel()
    sizes = np.maximum(np.bincount(flat), 1)
    return np.stack([(np.bincount(flat, weights=c.ravel()) / sizes)[labels] for c in image])


def psnr(image: np.ndarray, clean: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((image - clean) ** 2)))


def explained(clean: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of the clean image's variance that its segment means explain."""
    centre = clean.mean((1, 2), keepdims=True)
    return float(((mean_over(clean, labels) - centre) ** 2).sum() / ((clean - centre) ** 2).sum())
