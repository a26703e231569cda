"""Certified robustness of image classifiers by partition-based randomized smoothing.

g = pprs.SmoothedClassifier(model, 10, noise=pprs.Gaussian(0.5), partition=pprs.Slic(n_segments=100))
c = g.certify(x)            # x: [C, H, W] in [0, 1]
c.prediction, c.radius      # no change of x of L2 norm up to c.radius changes the label
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pprs._version import __version__

if TYPE_CHECKING:
    from pprs.bound import clopper_pearson_lower
    from pprs.certificate import Certificate, Prediction
    from pprs.data import open_dataset
    from pprs.errors import PprsError
    from pprs.model import load_model
    from pprs.noise import Exponential, Gaussian, Noise, PowerLaw, parse_noise
    from pprs.partition import (
        Blur,
        Felzenszwalb,
        Grid,
        Mean,
        Partition,
        Quickshift,
        Shifts,
        Slic,
        Soft,
        parse_partition,
    )
    from pprs.smooth import SmoothedClassifier

# Loaded when first used, so that `pprs --help` need not wait for torch.
_HOME = {
    "clopper_pearson_lower": "bound",
    "Certificate": "certificate",
    "Prediction": "certificate",
    "open_dataset": "data",
    "PprsError": "errors",
    "load_model": "model",
    "Exponential": "noise",
    "Gaussian": "noise",
    "Noise": "noise",
    "PowerLaw": "noise",
    "parse_noise": "noise",
    "Blur": "partition",
    "Felzenszwalb": "partition",
    "Grid": "partition",
    "Mean": "partition",
    "Partition": "partition",
    "Quickshift": "partition",
    "Shifts": "partition",
    "Slic": "partition",
    "Soft": "partition",
    "parse_partition": "partition",
    "SmoothedClassifier": "smooth",
}

__all__ = [
    "Blur",
    "Certificate",
    "Exponential",
    "Felzenszwalb",
    "Gaussian",
    "Grid",
    "Mean",
    "Noise",
    "Partition",
    "PowerLaw",
    "PprsError",
    "Prediction",
    "Quickshift",
    "Shifts",
    "Slic",
    "SmoothedClassifier",
    "Soft",
    "__version__",
    "clopper_pearson_lower",
    "load_model",
    "open_dataset",
    "parse_noise",
    "parse_partition",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pprs' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pprs.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
