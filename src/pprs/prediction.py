"""Predict the images of a task with the smoothed classifier, without radii."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pprs.arithmetic import Arithmetic
from pprs.bounds import check_alpha
from pprs.certificate import Prediction
from pprs.classifier import SmoothedClassifier
from pprs.engine import EngineOptions
from pprs.errors import ConfigurationError, describe_error
from pprs.noise import Noise, QuantisedImage
from pprs.partition import Auto, Partition
from pprs.progress import Progress, as_progress, rename_inputs
from pprs.runners import Local, fit_in_memory
from pprs.runs import Failure
from pprs.runs.session import check_network, choose_partition, open_session
from pprs.space import FILE
from pprs.task import Task
from pprs.voting import error_context


@dataclass(frozen=True)
class PredictedImage:
    """The smoothed classifier's prediction for one image, with the true label if it is known."""

    index: int
    label: int | None
    prediction: Prediction


def predict_task(
    task: Task,
    noise: Noise,
    partition: Partition | Auto | None,
    *,
    n: int = 1_000,
    alpha: float = 0.001,
    seed: int = 0,
    options: EngineOptions | None = None,
    progress: bool | Progress = False,
    arithmetic: str = "auto",
) -> Iterator[PredictedImage | Failure]:
    """Predict every image with the smoothed classifier, abstaining where the vote is too close. There are no radii.

    An image that cannot be read or classified gives a failure, and the others are predicted. `arithmetic` is as for
    `certify_dataset`. Errors of the settings and the engine are raised by this call, before the iterator is used.
    """
    reporter, options = rename_inputs(as_progress(progress), task.domain), options or EngineOptions()
    check_alpha(alpha)
    device = Local().check_device(options.device)
    if task.pixels == FILE:
        task = fit_in_memory(task, Local(), replace(options, device=device))
    partition = choose_partition(task, noise, partition, None, reporter)
    for text in task.list_mismatches(noise, partition):
        reporter.message(f"warning: {text}")
    fixed = task.fix_arithmetic(noise, arithmetic)
    _check_attainable(task, noise, n, alpha, fixed)
    trials = task.trial_images(noise, partition, seed, fixed)
    session, _ = open_session(
        task, trials, options=replace(options, device=device), passes=n * len(task.images), message=reporter.message
    )
    classifier = SmoothedClassifier(
        session.network, task.num_classes, noise, partition, seed=seed,
        batch_size=options.batch_size, threads=options.threads, device=device, arithmetic=fixed,
    )  # fmt: skip
    check_network(classifier.votes, trials, reporter)

    def predict(index: int) -> PredictedImage | Failure:
        try:
            sample = task.data[index]
            prediction = classifier.predict(sample.image, n=n, alpha=alpha, index=index)
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries and a user's model may raise anything
            return Failure(index, _find_label(task, index), describe_error(error))
        return PredictedImage(index, sample.label, prediction)

    return map(predict, task.images)


def _find_label(task: Task, index: int) -> int | None:
    """Return the label of an image that failed, if its label can be read."""
    try:
        return task.data.label_of(index)
    except Exception:  # image libraries raise many types
        return None


def _check_attainable(task: Task, noise: Noise, n: int, alpha: float, arithmetic: Arithmetic) -> None:
    """Raise if exact arithmetic cannot keep alpha with so many samples of the first usable image."""
    with error_context(task.sample.image, task.sample.index, None):
        image = arithmetic.prepare(task.sample.image, noise)
    if isinstance(image, QuantisedImage):
        image.quantisation.reduced_alpha(alpha, noise.sigma, n, image.numel())
