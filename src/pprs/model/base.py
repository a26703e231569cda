"""A base classifier with its metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pprs._support.shown import Shown
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.inputs.space import describe_input
from pprs.model.adaptation import Adaptation
from pprs.model.file_input import FileInput, resize
from pprs.model.preprocess import Preprocess


@dataclass(frozen=True, repr=False)
class Model(Shown):
    """A base classifier with its metadata. Unknown fields are None.

    Attributes:
        module: Maps images [B, C, H, W] in [0, 1] to scores [B, num_classes]. It includes the normalisation.
        source: The text from which `load_model` loads it, or another name for it.
        num_classes: The number of classes.
        class_names: The names of the classes, in the order of the scores.
        input_shape: The shape of the network's input, [C, H, W] of images or [C, T] of signals.
        preprocess: How to bring an image to the input size. By default, resize the shorter side and crop the centre.
        class_ids: Alternative names of the classes that data may use, such as ImageNet's n01440764.
        fingerprint: Identifies the weights of a module that does not expose them.
        parts: Digests of what else it was loaded from, such as its source code, with their names.
        trained_behind: The partition behind which it was trained under noise, "none" for noise without a partition, or
            None if it was trained on clean images.
        trained_estimate: How inputs behind thresholds were estimated when it was trained with them, if it was.
        adaptation: What was changed in it by `pprs adapt`, if anything.
        task: "classify" if it scores the whole image, "segment" if it scores every pixel.
        sample_rate: The values per second of the signals that it takes.
    """

    module: torch.nn.Module
    source: str
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    preprocess: Preprocess | None = None
    class_ids: tuple[str, ...] | None = None
    fingerprint: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    trained_behind: str | None = None
    trained_estimate: str | None = None
    adaptation: Adaptation | None = None
    task: str | None = None
    sample_rate: int | None = None

    def _facts(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "classes": self.num_classes,
            "input": None if self.input_shape is None else describe_input(self.input_shape),
            "task": self.task,
            "trained behind": self.trained_behind,
            "adapted to": None if self.adaptation is None else self.adaptation.noise,
        }

    @property
    def made_for_dither(self) -> str | None:
        """How inputs behind thresholds were estimated when it was adapted to them, or trained, if it was."""
        if self.adaptation is not None and self.adaptation.methods and self.adaptation.is_for_dither:
            return self.adaptation.partition
        return self.trained_estimate

    def digest(self) -> str:
        """Return a digest of the weights, so that a run cannot be resumed with another network of the same name.

        Stored runs are compared by it, so it stays as it is. `pprs.model.identity` covers the rest.
        """
        sha = hashlib.sha256(self.fingerprint.encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:16]

    def prepare(self, image: torch.Tensor) -> torch.Tensor:
        """Convert an image to the network's input shape.

        Args:
            image: An image [C, H, W] in [0, 1], of any size.

        Returns:
            The image at the input shape, or unchanged if that shape is unknown.

        Raises:
            PprsError: If the image is too small, or has invalid values or channels.
        """
        if self.input_shape is None:
            return image
        if SIGNAL.ndim in (image.ndim, len(self.input_shape)):
            return self._check_signal(image, self.input_shape)
        return self._get_preprocess(self.input_shape)(image, self.input_shape[0])

    def _check_signal(self, signal: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a signal as it is, since the network takes no other length or number of channels."""
        domain_of(tuple(signal.shape)).check_values(signal)
        if tuple(signal.shape) != shape:
            raise PprsError(
                f"its shape is {tuple(signal.shape)}, but {self.source} takes {domain_of(shape).plural} of shape "
                f"{shape}. Use data of the network's kind. Cut, pad or resample signals of another length, and mix or "
                "select channels first."
            )
        return signal

    def prepare_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Convert the mask of an image to the network's input size, without interpolation.

        Args:
            mask: The class of each pixel [H, W], or -1 where it does not count.

        Returns:
            The mask of the image that `prepare` returns. Pixels added around the image do not count.
        """
        if self.input_shape is None:
            return mask
        preprocess = self._get_preprocess(self.input_shape)
        height, width = preprocess.resized_size(*mask.shape)
        moved = resize(mask[None, None] + 1, height, width, "nearest")[0, 0]  # so that 0 does not count
        return (moved if preprocess.shorter is None else preprocess.centre_crop(moved)) - 1

    def wrap_file_input(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return a module that takes images of any size and brings them to the network's input shape itself.

        Args:
            module: The network, on any engine.

        Returns:
            The network behind its preprocessing, or unchanged if the input shape is unknown.
        """
        if self.input_shape is None or len(self.input_shape) == SIGNAL.ndim:
            return module
        return FileInput(module, self._get_preprocess(self.input_shape), self.input_shape[0])

    def _get_preprocess(self, input_shape: tuple[int, ...]) -> Preprocess:
        _, height, width = input_shape
        return self.preprocess or Preprocess(height, width, shorter=max(height, width))

    def restricted(self, labels: Sequence[str]) -> Model:
        """Return the classifier that chooses among some of the labels only.

        Args:
            labels: At least two different labels, each given as a class index, name or id.

        Returns:
            A model whose classes are the labels, in the given order.

        Raises:
            ConfigurationError: If a label is unknown, ambiguous or repeated, or the number of classes is unknown.
        """
        if self.num_classes is None:
            raise ConfigurationError(
                f"`labels` cannot be used with {self.source}, whose number of classes is unknown",
                parameter="labels",
            )
        indices = [self.index_of(label) for label in labels]
        if len(indices) < 2 or len(set(indices)) < len(indices):
            raise ConfigurationError(
                f"`labels` must be two or more different labels, not {', '.join(labels)}", parameter="labels"
            )

        def pick(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if names is None else tuple(names[i] for i in indices)

        return replace(
            self,
            module=Restricted(self.module, indices),
            num_classes=len(indices),
            class_names=pick(self.class_names) or tuple(str(i) for i in indices),
            class_ids=pick(self.class_ids),
        )

    def index_of(self, label: str) -> int:
        """Return the index of a class.

        Args:
            label: The class's index, name or id. Case, spaces and punctuation between words are ignored.

        Returns:
            The index of the class in the scores.

        Raises:
            ConfigurationError: If the label is unknown or ambiguous.
        """
        count, names = self.num_classes or 0, self.class_names or ()
        if label.isascii() and label.isdecimal():
            if int(label) >= count:
                raise ConfigurationError(
                    f"there is no label {label}: the classes of {self.source} are 0 to {count - 1}", parameter="labels"
                )
            if label in names and names[int(label)] != label:
                raise ConfigurationError(
                    f"label {label} could be a number or a name: class {label} of {self.source} is called "
                    f'"{names[int(label)]}", and another class is called "{label}". Use a network whose class names '
                    "are not numbers.",
                    parameter="labels",
                )
            return int(label)
        known = class_indices(self)
        index = known.get(normalise_name(label))
        if index is None:
            options = [*names, *(self.class_ids or ())]
            hint = suggest(label, options) if options else "Its classes have no names: give numbers."
            problem = f'{self.source} has no label "{label}"'
            if normalise_name(label) in known:
                problem = f'label "{label}" is the name of several classes of {self.source}: give a number'
            raise ConfigurationError(f"{problem}. {hint}", parameter="labels")
        return index


def normalise_name(name: str) -> str:
    """Remove case, spaces and word separators, but keep signs that can distinguish names, as in "C" and "C++"."""
    return "".join(c for c in name.casefold() if c not in " _-./'\t" or len(name) <= 2)


def class_indices(model: Model) -> dict[str, int | None]:
    """Map every normalised class name and id to its index, or to None if several classes share it.

    A name such as "crane, bird" is also found as "crane".
    """
    indices: dict[str, int | None] = {}
    for names in (model.class_ids, model.class_names):
        for i, name in enumerate(names or ()):
            for key in {normalise_name(name), normalise_name(name.split(",")[0])}:
                indices[key] = i if indices.get(key, i) == i else None
    return indices


class Normalised(torch.nn.Module):
    """A network that expects normalised images, wrapped to take images in [0, 1].

    `flip` reverses the channels, for networks that expect BGR. If the network returns an object with `logits`, these
    are the scores.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, net: torch.nn.Module, mean: Sequence[float], std: Sequence[float], *, flip: bool = False
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(s > 0 for s in std):
            raise PprsError(
                f"mean {list(mean)} and std {list(std)} cannot normalise images: both need one number per channel, and "
                "std must be above 0"
            )
        self.net, self.flip = net, flip
        self.register_buffer("flipped", torch.tensor(flip))  # a buffer, so that it is part of the digest
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(list(std), dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, std = (self.mean, self.std) if x.ndim == 4 else (self.mean[..., 0], self.std[..., 0])
        output: Any = self.net((x.flip(1) if self.flip else x).sub(mean).div(std))
        return getattr(output, "logits", output)  # type: ignore[no-any-return]


class Restricted(torch.nn.Module):
    """A network reduced to some of its scores, in a given order."""

    chosen: torch.Tensor

    def __init__(self, net: torch.nn.Module, chosen: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        self.preserves_input = getattr(net, "preserves_input", False)
        self.register_buffer("chosen", torch.tensor(list(chosen)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x)
        return scores.index_select(1, self.chosen)
