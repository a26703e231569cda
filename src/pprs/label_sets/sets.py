"""Label sets that hold under attack: calibrated once, then one noisy pass for each image."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pprs.errors import ConfigurationError
from pprs.inputs.space import NETWORK, check_pixels
from pprs.label_sets.calibrated import CalibratedSets, pair_labels
from pprs.label_sets.calibrating import calibrate
from pprs.label_sets.scoring import (
    BoundModel,
    SetRequest,
    open_any_model,
    open_votes,
    reopen_bound_model,
)
from pprs.label_sets.settings import Calibration
from pprs.model.forms import AnyModel
from pprs.noise import AnyNoise, as_noise
from pprs.partition import AUTO, AnyPartition, as_partition
from pprs.progress import Progress, as_progress, rename_inputs
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import Subject, load_subject


class LabelSets(CalibratedSets):
    """Sets of labels that contain the true one with probability at least 1 - alpha, also under attack.

    The promise holds for every change of the image with an L2 norm up to `radius` that is made before the noise is
    drawn, by anyone who does not know the noise. The probability is over images, calibration images and noise together:
    it is not promised for each image or for each class. The calibration images must be like the images that are asked
    about, and must not have been used to train, adapt or choose the model, the noise or the partition.

    `LabelSets.fit(...)` calibrates in one step. `LabelSets(...)` followed by `conformalize` does it in two.

    Args:
        model: Text as for `load_model`, a `pprs.Model`, a `torch.nn.Module`, or a function. It maps images
            [B, C, H, W] in [0, 1] to scores [B, num_classes].
        num_classes: The number of classes, if the model does not know it.
        noise: Gaussian noise, as an object or as text.
        partition: The partition, as an object or as text. "auto" is the recommended one, and None is plain smoothing.
        radius: The L2 norm of the changes that the promise covers.
        alpha: The largest probability that a set does not contain the true label.
        score: "aps" or "lac", how badly a label fits an image.
        randomised: Whether the score uses a random number for each image, so that no scores are equal. Sets may then
            be empty.
        seed: The random seed. Whoever knows it knows the noise: see `predict`.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `certify_dataset`.
        pixels: "network" adds noise to the network's input, "file" to the image as it is.
        adapted: File with an adaptation of the model.
        engine: "auto", "torch" or "onnxruntime".
        device: The torch device.
        threads: CPU threads. Affects speed only.

    Raises:
        ConfigurationError: If an argument is invalid.

    Examples:
        >>> import torch
        >>> from pprs import Gaussian, LabelSets
        >>> def model(x): return 40 * torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], dim=1)
        >>> images = (torch.arange(200)[:, None, None, None].expand(200, 1, 8, 8) + 28) / 255
        >>> labels = (images[:, 0, 0, 0] < 0.5).long()
        >>> sets = LabelSets.fit(model, images, labels, num_classes=2, noise=Gaussian(0.25), radius=0.25)
        >>> sets.predict(images[0], index=0), sets.predict(images[-1], index=199)
        ((1,), (0,))
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        noise: AnyNoise,
        radius: float,
        num_classes: int | None = None,
        partition: AnyPartition = AUTO,
        alpha: float = 0.1,
        score: str = "aps",
        randomised: bool = False,
        seed: int = 0,
        arithmetic: str = "auto",
        pixels: str = NETWORK,
        adapted: str | Path | None = None,
        engine: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self.request = SetRequest(
            as_noise(noise), as_partition(partition, auto=True), radius, alpha, score, randomised, seed, arithmetic,
            EngineOptions(engine, device, threads=threads),
        )  # fmt: skip
        super().__init__(open_any_model(model, num_classes, adapted, check_pixels(pixels)), threads)

    @classmethod
    def fit(
        cls,
        model: AnyModel,
        images: Any,
        labels: Any = None,
        *,
        num_classes: int | None = None,
        noise: AnyNoise,
        partition: AnyPartition = AUTO,
        radius: float,
        alpha: float = 0.1,
        score: str = "aps",
        randomised: bool = False,
        seed: int = 0,
        arithmetic: str = "auto",
        pixels: str = NETWORK,
        adapted: str | Path | None = None,
        engine: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        progress: bool | Progress = False,
    ) -> LabelSets:
        """Calibrate label sets with labelled images.

        Args:
            model: As for `LabelSets`.
            images: The calibration images [N, C, H, W] in [0, 1], or data as for `certify_dataset`.
            labels: Their labels [N], if `images` are images only.
            num_classes: As for `LabelSets`.
            noise: As for `LabelSets`.
            partition: As for `LabelSets`.
            radius: As for `LabelSets`.
            alpha: As for `LabelSets`.
            score: As for `LabelSets`.
            randomised: As for `LabelSets`.
            seed: As for `LabelSets`.
            arithmetic: As for `LabelSets`.
            pixels: As for `LabelSets`.
            adapted: As for `LabelSets`.
            engine: As for `LabelSets`.
            device: As for `LabelSets`.
            threads: As for `LabelSets`.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            The calibrated sets.

        Raises:
            ConfigurationError: If an argument is invalid, or if there are too few images. The message names the
                smallest number that would do.
            PprsError: If an image has no label or cannot be used.
        """
        sets = cls(
            model, num_classes=num_classes, noise=noise, partition=partition, radius=radius, alpha=alpha, score=score,
            randomised=randomised, seed=seed, arithmetic=arithmetic, pixels=pixels, adapted=adapted, engine=engine,
            device=device, threads=threads,
        )  # fmt: skip
        return sets.conformalize(images, labels, progress=progress)

    def conformalize(self, images: Any, labels: Any = None, *, progress: bool | Progress = False) -> LabelSets:
        """Calibrate with labelled images, in place of any earlier calibration.

        Args:
            images: The calibration images [N, C, H, W] in [0, 1], or data as for `certify_dataset`.
            labels: Their labels [N], if `images` are images only.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            These sets.

        Raises:
            ConfigurationError: If there are too few images. The message names the smallest number that would do.
            PprsError: If an image has no label or cannot be used.
        """
        subject = load_subject(self.model, pair_labels(images, labels), pixels=self._bound.pixels)
        return self._calibrate(replace(subject, model_text=self._bound.text), progress)

    def _calibrate(self, subject: Subject, progress: bool | Progress, out: str | Path | None = None) -> LabelSets:
        self._state = calibrate(subject, self.request, rename_inputs(as_progress(progress), subject.domain), out)
        self._bound = BoundModel.of(subject)
        return self

    @classmethod
    def of_subject(
        cls,
        subject: Subject,
        request: SetRequest,
        *,
        progress: bool | Progress = False,
        out: str | Path | None = None,
    ) -> LabelSets:
        """Calibrate with the images of a subject.

        Args:
            subject: A model matched with its images.
            request: How to calibrate.
            progress: True to show a progress bar, or a `Progress` object to report to.
            out: Folder in which scores are kept, so that the same call continues after an interruption.

        Returns:
            The calibrated sets.
        """
        return cls._requested(BoundModel.of(subject), request)._calibrate(subject, progress, out)

    @classmethod
    def _requested(cls, bound: BoundModel, request: SetRequest) -> LabelSets:
        """Return sets that are not calibrated yet, of a model that is open."""
        options = {name: getattr(request.options, name) for name in ("engine", "device", "threads")}
        own = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "options"}
        sets = cls(bound.model, pixels=bound.pixels, **own, **options)
        sets._bound = bound
        return sets

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: AnyModel | None = None,
        adapted: str | Path | None = None,
        threads: int | None = None,
        progress: bool | Progress = False,
    ) -> LabelSets:
        """Open sets that were saved, with the model that they are bound to.

        Args:
            path: The file.
            model: The model, if it is not where the file says.
            adapted: The file of its adaptation, if it has one and it is not where the file says.
            threads: CPU threads. Affects speed only.
            progress: Receives messages about the engine.

        Returns:
            The calibrated sets.

        Raises:
            ConfigurationError: If the file holds no calibrated sets, or if the model is another one.
            PprsError: If the file was changed, or if the model cannot be opened.
        """
        calibration = Calibration.read(Path(path))
        settings = calibration.settings
        request = SetRequest.of(settings, threads)
        bound = reopen_bound_model(settings, model, adapted, path)
        votes, binding = open_votes(bound.model, bound.pixels, request, settings.shape, 0, as_progress(progress))
        differing = calibration.binding.differences(binding, votes.score_tolerance)
        if differing:
            raise ConfigurationError(
                f"{path} was calibrated with another model:\n" + "\n".join(f"  {line}" for line in differing) + "\n"
                "Use the model, code and packages that it was calibrated with, or calibrate again.",
                parameter="model",
            )
        sets = cls._requested(bound, request)
        sets._state = calibration, votes
        return sets
