"""What calibrated label sets answer: one noisy pass for each image."""

from __future__ import annotations

import contextlib
import copy
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from pprs.data import Selection
from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.inputs.space import FILE
from pprs.label_sets.evaluation import SetEvaluation, evaluate_run
from pprs.label_sets.guarantee import LABEL_SET
from pprs.label_sets.row import LabelSetSettings
from pprs.label_sets.scores import Floats
from pprs.label_sets.scoring import BoundModel, check_size, name_image, reseed, score_images
from pprs.label_sets.settings import Calibration, SetSettings, shorten_digest, state_promise
from pprs.model import Model
from pprs.model.forms import FunctionModule
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Local, Runner, RunOptions, run_subject
from pprs.runs import Run
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import Subject, load_subject, open_data
from pprs.smoothing.voting import SETS, LocalVotes, check_image

SECRET_BITS = 63  # as many as columns of exports hold


class CalibratedSets:
    """A model, and the calibration of its label sets once there is one. How both are made is up to `LabelSets`."""

    def __init__(
        self, bound: BoundModel, threads: int | None = None, state: tuple[Calibration, LocalVotes] | None = None
    ) -> None:
        self._bound, self._threads, self._state = bound, threads, state

    @property
    def calibration(self) -> Calibration:
        """The scores of the calibration images, the threshold, and all settings.

        Raises:
            ConfigurationError: If the sets are not calibrated.
        """
        return self._calibrated[0]

    @property
    def settings(self) -> SetSettings:
        """All settings that the sets depend on."""
        return self.calibration.settings

    @property
    def votes(self) -> LocalVotes:
        """What adds noise, partitions and classifies."""
        return self._calibrated[1]

    @property
    def _calibrated(self) -> tuple[Calibration, LocalVotes]:
        if self._state is None:
            raise ConfigurationError(
                "these label sets are not calibrated. Call `conformalize` with labelled images, or use LabelSets.fit."
            )
        return self._state

    @property
    def model(self) -> Model:
        """The model, which may be restricted to some labels."""
        return self._bound.model

    def __str__(self) -> str:
        return state_promise(self.settings)

    def at(self, *, radius: float | None = None, alpha: float | None = None) -> Self:
        """Return the sets for another radius or alpha, from the same calibration scores.

        Choose both before looking at results: a radius that is chosen for its small sets is not covered by the promise.

        Args:
            radius: The L2 norm of the changes that the promise covers.
            alpha: The largest probability that a set does not contain the true label.

        Returns:
            The other sets.

        Raises:
            ConfigurationError: If there are too few calibration images. The message names the smallest number.
        """
        calibration = self.calibration.at(radius, alpha)
        calibration.check_enough()
        other = copy.copy(self)
        other._state = calibration, self.votes
        return other

    def predict(
        self, x: torch.Tensor, index: int = 0, *, seed: int | None = None, secret: bool = False
    ) -> tuple[int, ...]:
        """Return the set of labels of one image, from one noisy pass.

        The promise is about changes that are made without knowledge of the noise. The noise follows from the seed and
        the index, so anyone who knows both can see through it. Use `secret` where that matters.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            index: Keys the noise of this image. Use a different index for each image.
            seed: The random seed. By default, that of the calibration.
            secret: Draw the noise from the randomness of the system, so that nobody can know it in advance.

        Returns:
            The labels in the set, in ascending order.

        Raises:
            PprsError: If the image is invalid, or if the model fails.
        """
        inputs = [(check_integer(index, "index"), self.prepare(x, index))]
        scores = next(self.score_inputs(inputs, seed=seed, secret=secret))[1]
        return tuple(np.flatnonzero(scores <= self.calibration.threshold).tolist())

    def predict_set(
        self, images: Iterable[torch.Tensor], *, indices: Iterable[int] | None = None, seed: int | None = None
    ) -> npt.NDArray[np.bool_]:
        """Return the sets of several images.

        Args:
            images: A tensor [N, C, H, W] or any iterable of images [C, H, W].
            indices: One index per image, which keys its noise. Defaults to the positions of the images.
            seed: The random seed. By default, that of the calibration.

        Returns:
            Which labels are in the set of each image, [N, num_classes].
        """
        items = enumerate(images) if indices is None else zip(indices, images, strict=True)
        inputs = ((index, self.prepare(image, index)) for index, image in items)
        sets = [scores <= self.calibration.threshold for _, scores in self.score_inputs(inputs, seed=seed)]
        return np.array(sets, bool).reshape(-1, self.settings.num_classes)

    def score_inputs(
        self,
        inputs: Iterable[tuple[int, torch.Tensor | QuantisedImage]],
        *,
        seed: int | None = None,
        secret: bool = False,
    ) -> Iterator[tuple[int, Floats]]:
        """Yield the index and the score of every label for each image, from one noisy pass.

        Args:
            inputs: The index of each image, and the image as returned by `prepare` or `quantise`.
            seed: The random seed. By default, that of the calibration.
            secret: Draw the noise from the randomness of the system.
        """
        settings, votes = self.settings, reseed(self.votes, self._choose_seed(seed, secret))
        yield from score_images(votes, inputs, SETS, settings.score, settings.randomised)

    def _choose_seed(self, seed: int | None, secret: bool) -> int:
        if secret and seed is not None:
            raise ConfigurationError("noise is drawn either from a `seed` or in `secret`, not both", parameter="secret")
        if secret:
            return secrets.randbits(SECRET_BITS)
        return self.settings.seed if seed is None else check_integer(seed, "seed")

    def prepare(self, image: torch.Tensor, index: int | None = None) -> torch.Tensor | QuantisedImage:
        """Bring an image to the size of the network's input, and to the form in which noise is added to it.

        Raises:
            PprsError: If the image is invalid, or has more values than the calibration images.
        """
        with name_image(index):
            image = torch.as_tensor(image)
            return self.quantise(image if self.settings.pixels == FILE else self.model.prepare(image))

    def quantise(self, image: torch.Tensor, index: int | None = None) -> torch.Tensor | QuantisedImage:
        """Bring an image that has the right size to the form in which noise is added to it.

        Raises:
            PprsError: If the image is invalid, or has more values than the calibration images.
        """
        with name_image(index):
            x = self.votes.quantise(check_image(image, self.votes.device))
            check_size(x, self.settings.dim)
            return x

    @property
    def network(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The network in torch, which can be differentiated, whatever the engine."""
        if isinstance(self.model.module, FunctionModule):
            return self.votes.model
        return self.model.wrap_file_input(self.model.module) if self.settings.pixels == FILE else self.model.module

    def was_calibrated_with(self, image: torch.Tensor | QuantisedImage) -> bool:
        """Return whether a prepared image is one of the calibration images."""
        return shorten_digest(digest_image(image)) in self.calibration.digest_set

    def evaluate(
        self,
        images: Any,
        labels: Any = None,
        *,
        radii: Sequence[float] | None = None,
        progress: bool | Progress = False,
    ) -> SetEvaluation:
        """Measure the coverage and the size of the sets on labelled images, at several radii.

        Args:
            images: Images [N, C, H, W] in [0, 1], data as for `certify_dataset`, or a run, whose images are used.
                Calibration images among them are left out.
            labels: Their labels [N], if `images` are images only.
            radii: The radii. By default, from 0 to the largest that the calibration images allow.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            Coverage and sizes, with exact intervals.

        Raises:
            ConfigurationError: If there are no images other than the calibration images.
        """
        chosen = None
        if isinstance(images, Run):
            chosen = [row.idx for row in images.iter_rows()]
            if images.settings.data is None:
                raise ConfigurationError("the run does not record its data. Give the images.", parameter="images")
            images = open_data(images.settings.data, split=images.settings.split)
        return self.evaluate_subject(
            self.open_subject(pair_labels(images, labels), images=chosen), radii=radii, progress=progress
        )

    def open_subject(
        self,
        data: Any,
        *,
        split: str | None = None,
        classes: str | Path | None = None,
        images: Iterable[int] | Selection | None = None,
    ) -> Subject:
        """Match the model of these sets with other images.

        Args:
            data: Data as for `certify_dataset`.
            split: Split of the data.
            classes: File with the class names of the data, one per line, in the model's order.
            images: Indices of the images, all by default. Images with labels that the classifier was restricted not to
                choose are left out.

        Returns:
            The model with the images.
        """
        bound = self._bound
        labels = None if bound.unrestricted is bound.model else self.settings.labels
        subject = load_subject(
            bound.unrestricted, data, split=split, classes=classes, labels=labels, images=images,
            pixels=self.settings.pixels,
        )  # fmt: skip
        return replace(subject, model=self.model)

    def evaluate_subject(
        self,
        subject: Subject,
        *,
        radii: Sequence[float] | None = None,
        seed: int | None = None,
        secret: bool = False,
        progress: bool | Progress = False,
    ) -> SetEvaluation:
        """Predict the images of a subject, and measure the sets of those with a label.

        An image that cannot be read or classified is a failure, and has no set. The others are predicted.

        Args:
            subject: This model and the images.
            radii: The radii at which to measure.
            seed: The random seed. By default, that of the calibration.
            secret: Draw the noise from the randomness of the system.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            Coverage and sizes, with exact intervals.

        Raises:
            PprsError: If no image can be predicted.
        """
        run = self.predict_subject(subject, seed=seed, secret=secret, progress=progress)
        assert run.images is not None
        return evaluate_run(run, radii, skipped=len(subject.images) - len(run.images))

    def predict_dataset(
        self,
        data: Any,
        *,
        images: Iterable[int] | Selection | None = None,
        seed: int | None = None,
        secret: bool = False,
        out: str | Path | None = None,
        runner: Runner | None = None,
        progress: bool | Progress = True,
        split: str | None = None,
        classes: str | Path | None = None,
    ) -> Run:
        """Predict the sets of the images of a data set, as a run.

        Calibration images are left out, since nothing is promised for them.

        Args:
            data: As for `certify_dataset`.
            images: Indices of the images. All images by default.
            seed: The random seed. By default, that of the calibration.
            secret: Draw the noise from the randomness of the system. Such a run cannot be resumed.
            out: As for `certify_dataset`.
            runner: As for `certify_dataset`.
            progress: As for `certify_dataset`.
            split: As for `certify_dataset`.
            classes: As for `certify_dataset`.

        Returns:
            The run, with the rows of all its images.

        Raises:
            ConfigurationError: If there are only calibration images, or if `out` holds a run with other settings.
            PprsError: If no image can be predicted.
        """
        subject = self.open_subject(data, split=split, classes=classes, images=images)
        return self.predict_subject(subject, seed=seed, secret=secret, out=out, runner=runner, progress=progress)

    def predict_subject(
        self,
        subject: Subject,
        *,
        seed: int | None = None,
        secret: bool = False,
        out: str | Path | None = None,
        runner: Runner | None = None,
        progress: bool | Progress = True,
    ) -> Run:
        """Predict the sets of the images of a subject, from `open_subject`, as `predict_dataset` does."""
        settings, seed = self.settings, self._choose_seed(seed, secret)
        if self.model.digest() != settings.model_digest:
            raise ConfigurationError(
                "the weights of the model have changed since these sets were calibrated. Calibrate again.",
                parameter="model",
            )
        own = LabelSetSettings.own(self.calibration)
        images = self._leave_out_calibrated(subject, rename_inputs(as_progress(progress), subject.domain))
        engine = EngineOptions(settings.engine, settings.device, threads=self._threads)
        options = RunOptions(
            settings.noise, settings.partition, seed, out, runner or Local(), engine, progress=progress,
            arithmetic=settings.arithmetic,
        )  # fmt: skip
        return run_subject(LABEL_SET, replace(subject, images=images, labels=settings.labels), own, options)

    def _leave_out_calibrated(self, subject: Subject, progress: Progress) -> list[int]:
        """Return the images that the sets were not calibrated with."""
        images = []
        with stage(progress, "compare with the calibration images", len(subject.images), "images"):
            for index in subject.images:
                is_known = False
                with contextlib.suppress(PprsError, OSError):  # images that cannot be used are reported later
                    is_known = self.was_calibrated_with(self.votes.quantise(check_image(subject.data[index].image)))
                images += [] if is_known else [index]
                progress.advance(1)
        if not images:
            raise ConfigurationError(
                "all of these images are calibration images, for which the promise says nothing. Give other images.",
                parameter="data",
            )
        return images

    def save(self, path: str | Path) -> None:
        """Write the sets to a JSON file, bound to the model, the noise and the partition.

        Args:
            path: The file to write.

        Raises:
            PprsError: If the model is a plain function, which cannot be recognised again.
        """
        if isinstance(self.model.module, FunctionModule):
            raise PprsError(
                "label sets of a plain function cannot be saved, because nothing would show that it is the same one. "
                "Give the model as a torch.nn.Module, or as text for load_model."
            )
        self.calibration.write(Path(path))


def pair_labels(images: Any, labels: Any) -> Any:
    """Return images and their labels as data that `load_subject` takes."""
    if labels is None:
        return images
    if isinstance(images, list | tuple):  # of tensors, perhaps of different shapes
        if len(images) != len(labels):
            raise ConfigurationError(f"there are {len(images)} images and {len(labels)} labels", parameter="labels")
        return list(zip(images, labels, strict=True))
    return images, labels
