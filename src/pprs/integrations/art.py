"""An estimator for the Adversarial Robustness Toolbox (ART) that certifies and predicts with `SmoothedClassifier`."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.extras import extra
from pprs.audit.gradient import pull_back
from pprs.errors import ConfigurationError
from pprs.noise import AnyNoise, Gaussian, as_noise
from pprs.partition import AUTO, AnyPartition, as_partition
from pprs.progress import as_progress, stage
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import ATTACK, check_image, noisy_chunk

with extra():
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    from art.preprocessing.standardisation_mean_std.pytorch import StandardisationMeanStdPyTorch

Array = npt.NDArray[Any]
Values = TypeVar("Values", Array, torch.Tensor)


class PprsRandomizedSmoothing(PyTorchRandomizedSmoothing):  # type: ignore[misc]
    """ART's `PyTorchRandomizedSmoothing`, with the noise, partitions and certificates of this package.

    The arguments, methods and returned values are those of ART's class, so that changing the import is enough. The
    differences are in what they promise:

    - Images are in [0, 1], so `clip_values` must be (0, 1), which is the default.
    - Noise is drawn in integers, on images that are rounded to 16 bits (`arithmetic="rounded"`). A certificate holds
      for every image in [0, 1], not only for those with the bit depth of the certified one, so it can be compared with
      the changes that ART's attacks find.
    - No two calls share noise. An attack that has seen predictions or gradients does not know the noise of the next
      prediction or certificate.
    - A number of samples that can never certify at `alpha` is an error rather than a long series of abstentions.
    - Gradients are those of the mean softmax under noise, through the partition. Segments are held fixed, and
      partitions that cannot be differentiated pass the gradient straight through.

    Args:
        model: The base classifier. It maps images [B, C, H, W] to scores [B, nb_classes].
        loss: The loss for training with `fit`.
        input_shape: The shape of one image, (C, H, W).
        nb_classes: The number of classes.
        optimizer: The optimizer for training with `fit`, which adds Gaussian noise and applies no partition.
        channels_first: Whether images are [C, H, W], which they must be.
        clip_values: The range of the pixels, (0, 1).
        preprocessing_defences: Must be None.
        postprocessing_defences: Must be None.
        preprocessing: The mean and standard deviation that noisy images are standardised with.
        device_type: "gpu", which means a GPU if there is one, or "cpu".
        sample_size: The number of noisy samples that select a class, predict a label, or give a gradient.
        scale: The standard deviation of Gaussian noise.
        alpha: The failure probability of a prediction or certificate.
        noise: Other noise than Gaussian noise, instead of `scale`.
        partition: The partition applied to each noisy sample, as an object or as text such as "slic". "auto" is the
            recommended one, and None is plain randomized smoothing.
        seed: The random seed.
        arithmetic: The arithmetic, as for `SmoothedClassifier`. By default "rounded", or "real" for noise that cannot
            be drawn in integers.

    Raises:
        ConfigurationError: If `clip_values` are not (0, 1), or for defences that ART would apply to the image.
    """

    estimator_params: ClassVar[list[str]] = [
        *PyTorchRandomizedSmoothing.estimator_params, "noise", "partition", "seed", "arithmetic",
    ]  # fmt: skip

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Any,
        input_shape: tuple[int, ...],
        nb_classes: int,
        optimizer: torch.optim.Optimizer | None = None,
        channels_first: bool = True,
        clip_values: Any = (0.0, 1.0),
        preprocessing_defences: Any = None,
        postprocessing_defences: Any = None,
        preprocessing: Any = (0.0, 1.0),
        device_type: str = "gpu",
        sample_size: int = 32,
        scale: float = 0.1,
        alpha: float = 0.001,
        *,
        noise: AnyNoise | None = None,
        partition: AnyPartition = AUTO,
        seed: int = 0,
        arithmetic: str | None = None,
    ) -> None:
        super().__init__(
            model, loss, input_shape, nb_classes, optimizer, channels_first, clip_values, preprocessing_defences,
            postprocessing_defences, preprocessing, device_type, sample_size, scale, alpha,
        )  # fmt: skip
        self.noise = None if noise is None else as_noise(noise)
        self.partition, self.seed, self.arithmetic = as_partition(partition, auto=True), seed, arithmetic
        self._next_index = 0
        self.smoothed()  # checks the arguments

    def smoothed(self, batch_size: int | None = None) -> SmoothedClassifier:
        """Return the smoothed classifier with the present parameters."""
        self._check_estimator()
        noise = Gaussian(self.scale) if self.noise is None else self.noise
        return SmoothedClassifier(
            _Base(self.model, self.preprocessing_operations), self.nb_classes, noise, self.partition, seed=self.seed,
            batch_size=batch_size, device=self.device,
            arithmetic=self.arithmetic or ("rounded" if noise.exact else "real"),
        )  # fmt: skip

    def certify(self, x: Array, n: int, batch_size: int = 32) -> tuple[Array, Array]:
        """Certify images.

        Args:
            x: Images [B, C, H, W] in [0, 1].
            n: The number of noisy samples per image that estimate the probability of the class.
            batch_size: The number of noisy samples per call of the base classifier.

        Returns:
            The labels, -1 where the classifier abstains, and the certified L2 radii, 0 there.

        Raises:
            PprsError: If an image is invalid, if `n` can never certify at `alpha`, or if the base classifier is not a
                function of one image.
        """
        classifier, indices = self.smoothed(batch_size), self._take_indices(len(x))
        images = [torch.as_tensor(image) for image in x]
        if images:
            classifier.check_model(images[0], index=indices[0])
        found = list(classifier.certify_batch(images, n0=self.sample_size, n=n, alpha=self.alpha, indices=indices))
        labels = [-1 if certificate.prediction is None else certificate.prediction for certificate in found]
        return np.array(labels, dtype=np.int64), np.array([certificate.radius for certificate in found], dtype=float)

    def predict(self, x: Array, batch_size: int = 128, verbose: bool = False, **kwargs: Any) -> Array:
        """Predict labels.

        Args:
            x: Images [B, C, H, W] in [0, 1].
            batch_size: The number of noisy samples per call of the base classifier.
            verbose: Whether to show a progress bar.
            **kwargs: `is_abstain=False` predicts the class with the most votes where the classifier would abstain.

        Returns:
            The predictions [B, nb_classes]: 1 for the label and 0 elsewhere, and all 0 where the classifier abstains.
        """
        abstain = kwargs.get("is_abstain", True)
        if not isinstance(abstain, bool):
            raise ConfigurationError(f"`is_abstain` must be True or False, not {abstain!r}", parameter="is_abstain")
        classifier, reporter = self.smoothed(batch_size), as_progress(verbose)
        predictions = np.zeros((len(x), self.nb_classes))
        with stage(reporter, "predict", len(x), "images"):
            for row, image, index in zip(predictions, x, self._take_indices(len(x)), strict=True):
                found = classifier.predict(torch.as_tensor(image), n=self.sample_size, alpha=self.alpha, index=index)
                label = found.prediction if abstain else int(found.counts.argmax())
                if label is not None:
                    row[label] = 1
                reporter.advance(1)
        return predictions

    def loss_gradient(self, x: Values, y: Values, training_mode: bool = False, **kwargs: Any) -> Values:
        """Return the gradient of the cross-entropy of the mean softmax under noise, with respect to the images.

        Args:
            x: Images [B, C, H, W] in [0, 1].
            y: Labels [B], or [B, nb_classes] one-hot encoded.
            training_mode: Must be False: a network in training mode is not the one that is certified.
            **kwargs: Ignored. ART's `sampling` is always on.

        Returns:
            The gradients, in the shape and type (array or tensor) of `x`.
        """
        if training_mode:
            raise ConfigurationError("`training_mode` must be False for gradients", parameter="training_mode")
        classifier = self.smoothed()
        labels = torch.as_tensor(y)
        labels = labels.argmax(1) if labels.ndim > 1 else labels
        gradients = [
            self._gradient(classifier, torch.as_tensor(image), int(label), index)
            for image, label, index in zip(x, labels, self._take_indices(len(x)), strict=True)
        ]
        stacked = torch.stack(gradients)
        return stacked if isinstance(x, torch.Tensor) else stacked.cpu().numpy()

    def _gradient(self, classifier: SmoothedClassifier, image: torch.Tensor, label: int, index: int) -> torch.Tensor:
        """Return the gradient of one image, from noise that nothing else uses."""
        votes = classifier.votes
        prepared = votes.quantise(check_image(image.detach(), votes.device))
        noisy = noisy_chunk(prepared, votes.noise, self.seed, index, ATTACK, batch=self.sample_size)
        partition = votes.resolve(tuple(prepared.shape))
        inputs = (noisy if partition is None else partition.run(noisy)[0]).clone().requires_grad_()
        with torch.enable_grad():
            loss = -classifier.model(inputs).softmax(1).mean(0)[label].clamp_min(1e-20).log()
            (gradient,) = torch.autograd.grad(loss, inputs)
        estimates = pull_back(partition, noisy, gradient)
        return next(iter(estimates.values())).sum(0)

    def _take_indices(self, count: int) -> range:
        """Return indices that key noise which no other call uses."""
        first, self._next_index = self._next_index, self._next_index + count
        return range(first, self._next_index)

    def _check_estimator(self) -> None:
        limits = self.clip_values
        if limits is None or not (np.all(np.asarray(limits[0]) == 0) and np.all(np.asarray(limits[1]) == 1)):
            raise ConfigurationError(
                f"`clip_values` must be (0, 1), not {limits}: noise and radii are in the scale of images in "
                "[0, 1]. Rescale the images, and put any other scaling into the model or `preprocessing`.",
                parameter="clip_values",
            )
        if not self.channels_first:
            raise ConfigurationError("`channels_first` must be True: images are [C, H, W]", parameter="channels_first")
        operations = [*self.preprocessing_operations, *(self.postprocessing_defences or ())]
        if any(type(operation) is not StandardisationMeanStdPyTorch for operation in operations):
            raise ConfigurationError(
                "defences cannot be combined with this estimator, since ART would apply them outside of the certified "
                "classifier. Put them into the model, or leave out `preprocessing_defences` and "
                "`postprocessing_defences`.",
                parameter="preprocessing_defences",
            )


class _Base(torch.nn.Module):
    """The base classifier: ART's standardisation, then the network."""

    def __init__(self, model: torch.nn.Module, operations: list[Any]) -> None:
        super().__init__()
        self.model, self.operations = model, list(operations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for operation in self.operations:
            x = operation.forward(x)[0]
        scores: torch.Tensor = self.model(x)
        return scores


__all__ = ["PprsRandomizedSmoothing"]
