"""From images to conformal scores: the model on its engine, one noisy sample of each image, and its scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from pprs.data.wrap import as_image_set
from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.inputs.domain import SIGNAL
from pprs.label_sets.calibration import check_promise
from pprs.label_sets.scores import Floats, conformal_scores, find_score
from pprs.label_sets.settings import SetSettings
from pprs.model import Model
from pprs.model.forms import AnyModel, FunctionModule, open_model, set_num_classes
from pprs.model.identity import identify
from pprs.model.scores import Probe
from pprs.noise import Noise, QuantisedImage, as_noise, keyed_rng
from pprs.partition import Auto, Partition, as_partition
from pprs.progress import Progress
from pprs.runs.binding import Binding
from pprs.runs.engine import EngineOptions
from pprs.runs.session import Session, open_session
from pprs.runs.subject import Subject, reopen_model
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image
from pprs.smoothing.voting import LocalVotes, trial_inputs

HALF = 0.5  # value of such a signal, on the levels of audio and on decimals
GREY = 128 / 255  # value of the image by whose scores a model is recognised, on 8-bit and on 16-bit levels
RANDOM = 1  # keys the random number of an image, where 0 keys its noise


@dataclass(frozen=True)
class SetRequest:
    """How label sets are to be calibrated, as described at `LabelSets`."""

    noise: Noise
    partition: Partition | Auto | None
    radius: float
    alpha: float = 0.1
    score: str = "aps"
    randomised: bool = False
    seed: int = 0
    arithmetic: str | Arithmetic = "auto"
    options: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        as_noise(self.noise)
        as_partition(self.partition, auto=True)
        check_promise(self.radius, self.alpha, self.noise)
        find_score(self.score)
        check_integer(self.seed, "seed")
        Arithmetic.of(self.arithmetic, self.noise)
        if self.options.autocast or self.options.channels_last:
            raise ConfigurationError("label sets are calibrated without `autocast` and `channels_last`")

    @classmethod
    def of(cls, settings: SetSettings, threads: int | None) -> SetRequest:
        """Return how saved label sets were calibrated."""
        return cls(
            settings.noise, settings.partition, settings.radius, settings.alpha, settings.score, settings.randomised,
            settings.seed, settings.arithmetic, EngineOptions(settings.engine, settings.device, threads=threads),
        )  # fmt: skip


@dataclass(frozen=True)
class BoundModel:
    """The model of label sets.

    Attributes:
        model: The model, with its number of classes.
        text: Text that opens it again, if there is one.
        pixels: What noise is added to.
        unrestricted: The model before it was restricted to some labels, which is the same if it was not.
    """

    model: Model
    text: str | None
    pixels: str
    unrestricted: Model

    @classmethod
    def of(cls, subject: Subject) -> BoundModel:
        """Return the model of a subject."""
        return cls(subject.model, subject.model_text, subject.pixels, subject.model)


def open_any_model(model: AnyModel, num_classes: int | None, adapted: str | Path | None, pixels: str) -> BoundModel:
    """Return the model with its number of classes."""
    opened, text = open_model(model, adapted)
    opened = set_num_classes(opened, num_classes)
    return BoundModel(opened, text, pixels, opened)


def reopen_bound_model(
    settings: SetSettings,
    model: AnyModel | None,
    adapted: str | Path | None,
    path: str | Path,
) -> BoundModel:
    """Open the model of saved label sets, and check that it is the one that they were calibrated with."""
    net, overlay = reopen_model(settings.model, model, adapted)
    assert net is not None  # since the settings name one
    try:
        opened, _ = open_model(net, overlay)
    except PprsError as error:
        if model is not None:
            raise
        raise ConfigurationError(
            f"the model of {path} cannot be opened: {error.message} If it is elsewhere now, give it as `model`.",
            parameter="model",
        ) from error
    unrestricted = opened
    if settings.labels is not None:
        opened = opened.restricted(settings.labels)
    opened = replace(opened, num_classes=opened.num_classes or settings.num_classes)
    if opened.digest() != settings.model_digest or opened.num_classes != settings.num_classes:
        raise ConfigurationError(
            f"{opened.source} is not the model that {path} was calibrated with: its weights differ. Give that one as "
            f"{'`model`' if overlay is None else '`model` and its adaptation as `adapted`'}, or calibrate again.",
            parameter="model",
        )
    opened = replace(opened, class_names=settings.class_names)
    unrestricted = opened if settings.labels is None else unrestricted
    return BoundModel(opened, settings.model, settings.pixels, unrestricted)


def open_votes(
    model: Model, pixels: str, request: SetRequest, shape: tuple[int, ...], samples: int, progress: Progress
) -> tuple[LocalVotes, Binding]:
    """Put the model on its engine, and check that it is a function of one image.

    Args:
        model: The model, with its number of classes.
        pixels: What noise is added to.
        request: Noise, partition and engine.
        shape: Shape [C, H, W] of an image that noise is added to.
        samples: The expected number of images.
        progress: Receives messages.

    Returns:
        What scores noisy images, and what the model is recognised by.
    """
    options, arithmetic = request.options, Arithmetic.of(request.arithmetic, request.noise)
    assert not isinstance(request.partition, str), "a calibration chooses the partition"
    subject = Subject(model, as_image_set([_grey(shape)]), range(1), None, None, pixels)  # only the model is asked
    trials = make_trials(shape, request.noise, request.partition, request.seed, arithmetic)
    if isinstance(model.module, FunctionModule):
        options = replace(options, engine="torch")
    session, choice = open_session(
        subject, trials, noise=request.noise, partition=request.partition, seed=request.seed,
        arithmetic=arithmetic, options=options, passes=samples, message=progress.message,
    )  # fmt: skip
    votes = make_votes(session)
    check_function_of_one_image(votes, trials)
    check = FirstBatch()
    check.accept(votes, trials[-1:])
    votes.batch_check = check
    with torch.inference_mode():
        probe = Probe.of(votes.scores(trials.to(votes.device)))
    return votes, Binding({"engine": choice.engine, **identify(model, engine=choice.engine)}, probe)


def make_trials(
    shape: tuple[int, ...], noise: Noise, partition: Partition | None, seed: int, arithmetic: Arithmetic
) -> torch.Tensor:
    """Return the inputs by whose scores the model of label sets is recognised, which need no image."""
    return trial_inputs(arithmetic.prepare(_grey(shape), noise), noise, partition, seed)


def _grey(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.full(shape, HALF if len(shape) == SIGNAL.ndim else GREY)


def make_votes(session: Session) -> LocalVotes:
    """Return what scores noisy images with an open network. A function is called from one thread only."""
    assert session.noise is not None
    network = session.network
    return LocalVotes(
        network, session.num_classes, session.noise,
        session.partition, seed=session.seed, threads=session.threads, device=session.device,
        arithmetic=session.arithmetic,
    )  # fmt: skip


def reseed(votes: LocalVotes, seed: int) -> LocalVotes:
    """Return the same classifier with another seed."""
    if seed == votes.seed:
        return votes
    other = LocalVotes(
        votes.model, votes.num_classes, votes.noise, votes.partition, seed=seed, threads=votes.threads,
        device=votes.device, arithmetic=votes.arithmetic,
    )  # fmt: skip
    other.batch_check = votes.batch_check
    return other


def confirm_unchanged(votes: LocalVotes) -> None:
    """Raise an error if the model has changed since it was opened: scores before and after would not be comparable."""
    if votes.batch_check is not None:
        votes.batch_check.confirm(votes)


def score_images(
    votes: LocalVotes,
    images: Iterable[tuple[int, torch.Tensor | QuantisedImage]],
    phase: int,
    score: str,
    randomised: bool,
) -> Iterator[tuple[int, Floats]]:
    """Yield the index and the score of every label for each prepared image, from one noisy sample of it."""
    for index, outputs in votes.score_once(images, phase):
        u = _draw_uniform(votes.seed, index, phase) if randomised else None
        with name_image(index):
            scores = conformal_scores(outputs, score, u)
        yield index, scores


def score_image(
    votes: LocalVotes, index: int, x: torch.Tensor | QuantisedImage, phase: int, score: str, randomised: bool
) -> Floats:
    """Return the score of every label for a prepared image, from one noisy sample of it."""
    ((_, scores),) = score_images(votes, [(index, x)], phase, score, randomised)
    return scores


def check_size(x: torch.Tensor | QuantisedImage, dim: int) -> None:
    """Raise an error if an image in exact arithmetic has more values than the calibration images."""
    if isinstance(x, QuantisedImage) and x.numel() > dim:
        raise PprsError(
            f"it has {x.numel():,} values, and no calibration image has more than {dim:,}. Calibrate with images of "
            "this size.",
            parameter="sets",
        )


def _draw_uniform(seed: int, index: int, phase: int) -> float:
    """Return the random number of an image, in [0, 1), which is independent of its noise."""
    rng = keyed_rng("cpu", seed, index, phase, RANDOM)
    assert isinstance(rng, np.random.Generator)
    return rng.random()


@contextlib.contextmanager
def name_image(index: int | None) -> Iterator[None]:
    """Add the index of an image to an error about it."""
    try:
        yield
    except ConfigurationError:
        raise
    except PprsError as error:
        raise PprsError(error.message, parameter=error.parameter, index=index) from error
