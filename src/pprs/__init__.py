"""Certified robustness of image classifiers by partition-based randomized smoothing.

g = pprs.SmoothedClassifier(model, 10, noise=pprs.Gaussian(0.5), partition=pprs.Slic(n_segments=100))
c = g.certify(x)            # x: [C, H, W] in [0, 1]
c.prediction, c.radius      # no perturbation of x with an L2 norm up to c.radius changes the label

run = pprs.certify_dataset(model, data, noise=pprs.Gaussian(0.25), partition=pprs.Slic(), out="runs/slic")
pprs.metrics.certified_accuracy(run, [0, 0.25, 0.5])
pprs.write_report([run], "report.html")
"""

from __future__ import annotations

from pprs._support.lazy import attach_stub
from pprs._support.moved import find_old_paths
from pprs._version import __version__ as __version__

# The public names are listed in __init__.pyi. Each is imported when it is first used.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

find_old_paths(__name__)
del attach_stub, find_old_paths
