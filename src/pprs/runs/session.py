"""A session: a subject opened for answering, with its network on an engine.

Every command that asks a network opens it here: the engine is chosen on inputs like those of the run, the network is
checked to be one function of one input, and what it is recognised by is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.inputs.space import FILE as FILE_PIXELS
from pprs.model import Model
from pprs.model.forms import FunctionModule
from pprs.model.identity import identify
from pprs.model.recommendation import recommend_for_model
from pprs.model.scores import Probe
from pprs.noise import Noise, Quantisation, QuantisedImage
from pprs.partition import AUTO, Auto, Partition
from pprs.partition.recommendation import describe_rough_signal
from pprs.progress import Progress, stage
from pprs.runs.binding import Binding
from pprs.runs.engine import EngineChoice, EngineOptions, choose_engine
from pprs.runs.provenance import Provenance
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import REAL, Arithmetic
from pprs.smoothing.consistency import Watch, check_function_of_one_image
from pprs.smoothing.voting import Scorer, error_context

MAX_USEFUL_SIGMA = 2.0  # times the range of the values


@dataclass(frozen=True)
class Session:
    """A network on its engine, and what comes before it. It may be open in a worker, which has no data.

    Attributes:
        network: The network, which takes inputs after noise and partition.
        num_classes: The number of its classes.
        noise: The noise. None if inputs are changed otherwise.
        partition: The partition, with resolved options. None for plain smoothing.
        seed: The random seed.
        arithmetic: The arithmetic, the same for all inputs.
        device: The torch device.
        batch_size: Inputs per call of the network. None for a number that suits their size.
        threads: CPU threads. None for as many as this process uses.
    """

    network: Callable[[torch.Tensor], torch.Tensor]
    num_classes: int
    noise: Noise | None = None
    partition: Partition | None = None
    seed: int = 0
    arithmetic: Arithmetic = REAL
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None

    def make_scorer(self) -> Scorer:
        """Return what asks the network for checked scores."""
        return Scorer(
            self.network, self.num_classes, batch_size=self.batch_size, threads=self.threads, device=self.device
        )


def open_session(
    subject: Subject,
    trials: torch.Tensor,
    *,
    noise: Noise | None = None,
    partition: Partition | None = None,
    seed: int = 0,
    arithmetic: Arithmetic = REAL,
    options: EngineOptions | None = None,
    passes: int = 0,
    message: Callable[[str], None] = lambda text: None,
) -> tuple[Session, EngineChoice]:
    """Put the network of a subject on an engine.

    Args:
        subject: The model and its data.
        trials: A few inputs like those of the run, before they are brought to the network's input.
        noise: The noise.
        partition: The partition.
        seed: The random seed.
        arithmetic: The arithmetic.
        options: How the network is run.
        passes: The expected number of passes, by which an export to a faster engine is weighed.
        message: Receives the choice.

    Returns:
        The session, and the engine that was chosen.
    """
    options = options or EngineOptions()
    choice = choose_engine(
        subject.model, subject.network_inputs(trials), engine=options.engine, device=options.device, samples=passes,
        autocast=options.autocast, channels_last=options.channels_last, message=message,
    )  # fmt: skip
    network: Callable[[torch.Tensor], torch.Tensor] = subject.base_classifier(choice.model.module)
    if isinstance(network, FunctionModule):
        network = network.function  # which is called from one thread only
    session = Session(
        network, subject.num_classes, noise, partition, seed, arithmetic, options.device, options.batch_size,
        options.threads,
    )  # fmt: skip
    return session, choice


def check_network(scorer: Scorer, trials: torch.Tensor, progress: Progress) -> Watch | None:
    """Check that a network is a function of one input, and return what tells whether it remains the same one.

    If it fails on these inputs altogether, the run reports which ones it fails on.
    """
    try:
        scorer.settle_alone(check_function_of_one_image(scorer, trials))
        if scorer.batch_check is not None:
            scorer.batch_check.accept(scorer, trials[-1:])
        return Watch(scorer, trials)
    except ConfigurationError:
        raise
    except (PprsError, MemoryError) as error:
        progress.message(f"the model could not be checked before the run: {describe_error(error)}")
        return None


def take_binding(
    subject: Subject, scorer: Scorer, engine: str, make_trials: Callable[[Subject], torch.Tensor]
) -> Binding:
    """Return what a model is recognised by: its parts, and its labels and margins for a few inputs.

    These are made of the first input of the data, since the inputs that are chosen may change when a run is resumed.
    """
    return Binding(identify(subject.model, engine=engine), take_probe(scorer, make_trials, subject))


def take_probe(scorer: Scorer, make_trials: Callable[[Subject], torch.Tensor], subject: Subject) -> Probe | None:
    """Return the network's labels and margins for a few inputs of the data, or None if it fails on them."""
    try:
        inputs = make_trials(subject.of_all())
        with torch.inference_mode():
            return Probe.of(scorer.scores(inputs.to(scorer.device)))
    except ConfigurationError:
        raise
    except (PprsError, MemoryError):
        return None


def describe_subject(subject: Subject) -> Provenance:
    """Return the settings that follow from the model and the data."""
    model = subject.model
    return Provenance(
        model=subject.model_text or model.source,
        model_digest=model.digest(),
        preprocess=str(model.preprocess) if model.preprocess else None,
        labels=subject.labels,
        data=subject.data.source,
        split=subject.data.split,
        data_fingerprint=subject.data.fingerprint(),
        num_classes=subject.num_classes,
        class_names=model.class_names,
        pixels=subject.pixels,
    )


def describe_problem(
    subject: Subject, noise: Noise, arithmetic: Arithmetic
) -> tuple[Noise, int, int, Quantisation | None]:
    """What the largest possible radius depends on besides the sampling, for the first usable image."""
    with error_context(subject.sample.image, subject.sample.index, None):
        image = arithmetic.prepare(subject.sample.image, noise)
    quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
    return noise, image.numel(), subject.num_classes, quantisation


def choose_partition(
    subject: Subject, noise: Noise, requested: Partition | Auto | None, recorded: Provenance | None, progress: Progress
) -> Partition | None:
    """Return the partition with resolved options, or None for plain smoothing.

    The run records the resolved options, so that it stays valid when the rules for "auto" change. They are not resolved
    if every image has a size of its own.
    """
    if requested == AUTO and recorded is not None:
        return recorded.partition
    requested = settle_partition(subject.model, noise, subject.sample.image, requested, progress)
    if requested is None:
        return None
    requested = requested.bind_files()
    if subject.pixels == FILE_PIXELS or subject.model.input_shape is None:
        return requested
    return requested.resolve(noise.sigma, subject.model.input_shape)


def settle_partition(
    model: Model, noise: Noise, image: torch.Tensor, requested: Partition | Auto | None, progress: Progress
) -> Partition | None:
    """Return the partition that is asked for, and say which one that is if it is the recommended one."""
    if not isinstance(requested, str):
        return requested
    recommendation = recommend_for_model(model, noise.sigma, tuple(image.shape))
    progress.message(f"partition: {recommendation}")
    if (warning := describe_rough_signal(image, noise.sigma)) is not None:
        progress.message(f"warning: {warning}")
    return recommendation.partition


def warn_of_strong_noise(sigma: float, image: torch.Tensor, progress: Progress) -> None:
    """Warn if noise drowns an image or a signal, as where sigma was meant for pixel values in 0..255.

    The limit is twice the range of the values. The largest sigma in the literature is the range itself, at which
    networks trained for it recognise half of what they do without noise. Where the values come from a denoiser, twice
    the range is still of use.
    """
    is_signal = domain_of(tuple(image.shape)) is SIGNAL
    span = float(image.max() - image.min()) if is_signal else 1.0
    if sigma <= MAX_USEFUL_SIGMA * span:
        return
    what = f"values that span {span:.3g}, as those of the first signal" if is_signal else "pixel values in [0, 1]"
    scale = "" if is_signal else f" A sigma of {sigma:g} for 0..255 is {sigma / 255:.2g} here."
    progress.message(
        f"warning: `sigma` {sigma:g} is for {what}, which this noise drowns, so 0 correct of all is likely.{scale} "
        f"{0.25 * span:.3g} to {span:.3g} is usual."
    )


def choose_run_arithmetic(
    arithmetic: Arithmetic, subject: Subject, noise: Noise, recorded: Provenance | None
) -> Arithmetic:
    """The arithmetic of a run: its own if it is resumed, otherwise that of the first image of the data."""
    if recorded is not None and arithmetic.text == "auto":
        return recorded.chosen_arithmetic
    if recorded is not None and arithmetic.text == recorded.arithmetic and not recorded.chosen_arithmetic.is_fixed:
        return arithmetic  # a run of an earlier version, in which each image has its own bit depth
    return subject.fix_arithmetic(noise, arithmetic)


def report_adaptation(subject: Subject, mismatches: list[str], caveat: str, progress: Progress) -> None:
    """Warn if an adapted model is used for something else, or for the images that it was adapted with.

    Args:
        subject: The model and its inputs.
        mismatches: To what it was not adapted, in sentences.
        caveat: What is then promised about these images, and what is not.
        progress: Receives the warnings.
    """
    if subject.model.adaptation is None:
        return
    for text in mismatches:
        progress.message(f"warning: {text}")
    if used := count_adapted_images(subject, progress):
        progress.message(
            f"warning: the classifier was adapted with {used} of these {len(subject.images)} images. {caveat}"
        )


def count_adapted_images(subject: Subject, progress: Progress) -> int:
    """Return how many images of a subject its model was adapted with."""
    if subject.model.adaptation is None:
        return 0
    used = 0
    with stage(progress, "compare with the images of the adaptation", len(subject.images), "images"):
        for index in subject.images:
            with contextlib.suppress(PprsError):  # images that cannot be read are reported later
                used += subject.was_adapted_with(subject.data[index].image)
            progress.advance(1)
    return used


__all__ = [
    "Session", "check_network", "choose_partition", "choose_run_arithmetic", "count_adapted_images",
    "describe_problem", "describe_subject", "open_session", "report_adaptation", "settle_partition",
    "take_binding", "take_probe",
    "warn_of_strong_noise",
]  # fmt: skip
