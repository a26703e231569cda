"""How the inputs of a run are estimated, and between which values the thresholds of signals lie."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pprs.data import ImageSet
from pprs.dither.estimators import Estimator, LocalMean, PartitionedEstimator, is_estimator, parse_estimator
from pprs.dither.thresholds import Dither
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.inputs.space import FILE, describe_input
from pprs.partition import Auto, Partition, Shifts, Slic, Slic1d, Soft, as_partition
from pprs.progress import Progress
from pprs.runs.subject import Subject

MOST_MEASURED = 1000  # signals from which the range of their values is taken


def as_estimate(partition: Any) -> Partition | Auto | Estimator | None:
    """Return how inputs are to be estimated: by an estimator, by a partition of a local mean, or as recommended."""
    if is_estimator(partition):
        return parse_estimator(partition)
    if isinstance(partition, Estimator):
        return partition
    return as_partition(partition, auto=True)


def choose_estimator(
    dither: Dither, partition: Partition | Auto | Estimator | None, subject: Subject, progress: Progress
) -> Estimator:
    """Return how inputs of a subject are estimated, with all options set if they all have one shape."""
    shape, model = tuple(subject.sample.image.shape), subject.model
    if isinstance(partition, str):
        estimator, reason = recommend_estimator(model.made_for_dither, shape)
        progress.message(f"estimate: {estimator.resolve(dither.levels, shape)}, recommended {reason}")
    else:
        estimator = make_estimator(partition)
    resolved = estimator.resolve(dither.levels, shape)
    return estimator if subject.pixels == FILE or model.input_shape is None else resolved


def make_estimator(partition: Partition | Estimator | None) -> Estimator:
    """Return the estimate that averages a local mean over a partition, or the local mean itself."""
    if isinstance(partition, Estimator):
        return partition
    return LocalMean() if partition is None else PartitionedEstimator(LocalMean(), partition)


def recommend_estimator(made_for: str | None, shape: tuple[int, ...]) -> tuple[Estimator, str]:
    """Return what "auto" stands for, and why it is recommended, as the end of a sentence.

    Args:
        made_for: What came before the network when it was adapted or trained to classify dithered inputs, if it was.
        shape: The shape of an input.
    """
    if made_for is not None:
        return parse_estimator(made_for), "since the network was made for it"
    segments = Slic1d() if domain_of(shape) is SIGNAL else Slic()
    return make_estimator(Shifts(Soft(segments), 4)), f"for a {describe_input(shape)}"


def iter_inputs(data: ImageSet) -> Iterator[torch.Tensor]:
    """Yield the inputs of data that can be read."""
    for index in range(len(data)):
        with contextlib.suppress(PprsError):  # what cannot be read is reported later
            yield data.image_of(index)


def choose_range(dither: Dither, inputs: Iterable[torch.Tensor]) -> Dither:
    """Return thresholds for signals with a range, by default that of the values of these. Images need none."""
    some = list(itertools.islice(inputs, MOST_MEASURED)) if dither.low is None else []
    if not some or domain_of(tuple(some[0].shape)) is not SIGNAL:
        return dither
    low, high = min(float(x.min()) for x in some), max(float(x.max()) for x in some)
    if not low < high:
        raise ConfigurationError(
            f"the values of the signals are all {low:g}, so thresholds cannot lie between them. Give a range, such as "
            "dither:low=-2,high=2.",
            parameter="noise",
        )
    digits = 2 - math.floor(math.log10(high - low))  # three of the range, also where it is far from 0
    return replace(dither, low=round(low, digits), high=round(high, digits))
