"""Noisy samples of an image: in chunks of fixed size, keyed by (seed, image index, phase, chunk).

Vote counts therefore do not depend on the batch size, the number of threads, the point at which an interrupted run
resumed, or the other images of the run, and selection and estimation never share a noisy sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import IMAGE, SIGNAL, Domain, domain_of
from pprs.noise import Noise, QuantisedImage, host_rng, keyed_rng, quantised_gaussian
from pprs.partition import Auto, Partition

# Each phase has its own noise. TRIAL is for decisions that are made before a run, such as the choice of engine: if
# these used the noise of the estimate, the classifier would depend on it and the guarantee would be lost. ATTACK is for
# the search for a change that alters a label, and AUDIT for the test whether it does. ADAPT is for the adaptation of a
# classifier to its noise.
SELECT, ESTIMATE, PREDICT, TRAIN, TRIAL, TUNE, ATTACK, AUDIT, ADAPT = range(9)
# CALIBRATE is for the images that label sets are calibrated with, and SETS for the images that are given a set.
CALIBRATE, SETS = 16, 17

TRIAL_SIZE = 8  # noisy images that are scored before a run


def check_image(x: torch.Tensor, device: torch.device | str = "cpu", domain: Domain | None = None) -> torch.Tensor:
    """Validate an image [C, H, W] or a signal [C, T], and return it as float32 on the device.

    With a domain, only inputs of this domain are valid.
    """
    x = torch.as_tensor(x)
    (domain or domain_of(tuple(x.shape))).check(x)
    return x.to(device=device, dtype=torch.float32)


@contextlib.contextmanager
def error_context(x: torch.Tensor, index: int, partition: Partition | Auto | None) -> Iterator[None]:
    """Add the image's index and shape and the partition to errors that do not name an image yet.

    Errors about a signal call it so.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except PprsError as error:
        if error.index is not None:
            raise
        shape = tuple(getattr(x, "shape", ()))
        domain = SIGNAL if len(shape) == SIGNAL.ndim else IMAGE
        message = error.message if error.noun else domain.rename(error.message)
        context = f"shape {shape}, partition {partition or 'none'}"
        raise PprsError(
            f"{context}: {message}", parameter=error.parameter, index=index, noun=error.noun or domain.name
        ) from error


def chunk_size(dim: int) -> int:
    """Return the number of samples per chunk for images of `dim` values. Large images get smaller chunks."""
    return max(1, min(64 if dim <= 2**16 else 32, 2**24 // dim))


def noisy_chunk(
    x: torch.Tensor | QuantisedImage,
    noise: Noise,
    seed: int,
    index: int,
    phase: int = ESTIMATE,
    chunk: int = 0,
    out: torch.Tensor | None = None,
    batch: int | None = None,
) -> torch.Tensor:
    """Return a chunk of noisy samples of a prepared image, exactly those that its certificate is based on.

    With `batch`, return that many samples instead. They are not the first samples of the chunk.
    """
    key, batch = (seed, index, phase, chunk), batch or chunk_size(x.numel())
    if isinstance(x, QuantisedImage):
        return quantised_gaussian(noise.sigma, x.levels).sample(x, batch, host_rng(*key), out)
    return noise.sample((batch, *x.shape), keyed_rng(x.device, *key), out).add_(x)


def trial_inputs(
    x: torch.Tensor | QuantisedImage, noise: Noise, partition: Partition | None, seed: int, index: int = 0
) -> torch.Tensor:
    """Return a few partitioned noisy samples of a prepared image, with noise used for nothing else."""
    noisy = noisy_chunk(x, noise, seed, index, TRIAL)[:TRIAL_SIZE]
    return noisy if partition is None else partition.resolve(noise.sigma, tuple(x.shape)).run(noisy)[0]
