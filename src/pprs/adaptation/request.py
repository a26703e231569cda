"""What a classifier is to be adapted to, as arguments say it: noise and a partition, or thresholds and an estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pprs.adaptation.dithering import DitherProblem
from pprs.adaptation.images import AdaptationImages
from pprs.adaptation.ladder import AUTO, list_methods
from pprs.adaptation.problem import SmoothingProblem, VotingProblem
from pprs.dither.perturbation import DitherPerturbation
from pprs.dither.thresholds import as_dither, is_dither
from pprs.errors import ConfigurationError, suggest
from pprs.model import Model
from pprs.noise import as_noise
from pprs.partition import as_partition
from pprs.progress import Progress
from pprs.runs.session import settle_partition, warn_of_strong_noise
from pprs.training.perturbation import NoisePerturbation, Perturbation

METHODS = (AUTO, "statistics", "bias", "denoiser", "distill")
MakeProblem = Callable[[Model, AdaptationImages, int, Progress], tuple[VotingProblem, Perturbation]]


def prepare_problem(noise: Any, partition: Any, method: str) -> MakeProblem:
    """Check the arguments of an adaptation, and return what makes its problem of a model and images.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if method not in METHODS:
        raise ConfigurationError(f'unknown method "{method}". {suggest(str(method), METHODS)}', parameter="method")
    prepare = _behind_thresholds if is_dither(noise) else _behind_noise
    make_problem = prepare(noise, partition)

    def make(model: Model, read: AdaptationImages, seed: int, progress: Progress) -> tuple[VotingProblem, Perturbation]:
        problem, behind = make_problem(model, read, seed, progress)
        if method in problem.unsuited:
            raise ConfigurationError(
                f"{method} does not suit {behind.noise_text}. Choose another `method`: "
                f"{', '.join(list_methods(model, problem.unsuited))}.",
                parameter="method",
            )
        return problem, behind

    return make


def _behind_noise(noise: Any, partition: Any) -> MakeProblem:
    """Return what makes the problem of an adaptation to noise, after checking the arguments."""
    chosen, asked = as_noise(noise), as_partition(partition, auto=True)

    def make(model: Model, read: AdaptationImages, seed: int, progress: Progress) -> tuple[VotingProblem, Perturbation]:
        settled = settle_partition(model, chosen, read.training[0], asked, progress)
        resolved = None if settled is None else settled.resolve(chosen.sigma, read.shape)
        warn_of_strong_noise(chosen.sigma, read.training[0], progress)
        return SmoothingProblem(model, read.training, chosen, resolved, seed), NoisePerturbation(chosen, resolved)

    return make


def _behind_thresholds(noise: Any, partition: Any) -> MakeProblem:
    """Return what makes the problem of an adaptation to thresholds, after checking the arguments."""
    behind = DitherPerturbation.of(as_dither(noise).bind_file(), partition)

    def make(model: Model, read: AdaptationImages, seed: int, progress: Progress) -> tuple[VotingProblem, Perturbation]:
        if model.task == "segment":
            raise ConfigurationError(
                "votes behind thresholds are counted for classifiers, not for networks that label every pixel. Adapt "
                "it to Gaussian `noise`.",
                parameter="noise",
            )
        resolved = behind.resolve(read.training)
        return DitherProblem(model, read.training, resolved, seed), resolved

    return make
