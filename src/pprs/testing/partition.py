"""The contract of partitions."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pprs._support import threads as _threads
from pprs.errors import PprsError
from pprs.inputs.domain import IMAGE, SIGNAL, Domain
from pprs.partition import PARTITIONS, Partition, SignalSegments, Superpixels, parse_partition

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

SIZES = ("smallest", "smallest, with channels", "odd", "odd, with channels", "long")
SHAPES: dict[Domain, dict[str, Shape]] = {
    IMAGE: dict(zip(SIZES, ((1, 8, 8), (3, 8, 8), (1, 9, 14), (3, 17, 11), (3, 9, 40)), strict=True)),
    SIGNAL: dict(zip(SIZES, ((1, 8), (3, 8), (1, 21), (2, 45), (5, 150)), strict=True)),
}
BAD_IMAGES: dict[str, Array] = {
    "an image without a batch axis": np.zeros((1, 8, 8), np.float32),
    "two channels": np.zeros((1, 2, 8, 8), np.float32),
    "channels last": np.zeros((1, 8, 8, 3), np.float32),
    "7x8 pixels": np.zeros((1, 1, 7, 8), np.float32),
    "integers": np.zeros((1, 1, 8, 8), np.uint8),
    "an empty batch": np.zeros((0, 1, 8, 8), np.float32),
    "a NaN pixel": np.full((1, 1, 8, 8), np.nan, np.float32),
    "an infinite pixel": np.full((1, 1, 8, 8), np.inf, np.float32),
}
BAD_SIGNALS: dict[str, Array] = {
    "a signal without a batch axis": np.zeros((1, 8), np.float32),
    "images": np.zeros((1, 1, 8, 8), np.float32),
    "no channel": np.zeros((1, 0, 8), np.float32),
    "7 values": np.zeros((1, 1, 7), np.float32),
    "integers": np.zeros((1, 1, 8), np.int16),
    "an empty batch": np.zeros((0, 1, 8), np.float32),
    "a NaN": np.full((1, 1, 8), np.nan, np.float32),
    "an infinite value": np.full((1, 1, 8), np.inf, np.float32),
}
BAD_BATCHES: dict[Domain, dict[str, Array]] = {IMAGE: BAD_IMAGES, SIGNAL: BAD_SIGNALS}


class PartitionContract(ABC):
    """What every partition promises: its output is a function of one noisy image or signal, and of nothing else.

    The `domain` of the partition decides what it is tried on.
    """

    @abstractmethod
    def make_partition(self) -> Partition:
        """Return the partition to test. It is called once or more per test and must return an equal one each time."""

    def make_noisy(self, count: int, size: str, seed: int = 0) -> Array:
        """Return noisy images or signals of one of the SIZES."""
        domain = self.make_partition().domain
        return noisy_inputs(count, SHAPES[domain][size], seed)

    @pytest.mark.parametrize("size", SIZES)
    def test_shape_and_type_are_preserved(self, size: str) -> None:
        noisy = self.make_noisy(3, size)
        averaged = self.make_partition().apply(noisy)
        assert isinstance(averaged, np.ndarray), f"an array must give an array, not a {type(averaged).__name__}"
        assert averaged.shape == noisy.shape, f"the shape changed from {noisy.shape} to {averaged.shape}"
        assert averaged.dtype == np.float32, f"the result must be float32, not {averaged.dtype}"
        assert np.isfinite(averaged).all(), "the result has NaN or infinite pixels"
        from_tensor = self.make_partition().apply(torch.from_numpy(noisy))
        assert isinstance(from_tensor, torch.Tensor), f"a tensor must give a tensor, not a {type(from_tensor).__name__}"
        assert np.array_equal(from_tensor.numpy(), averaged), "a tensor and an array give different results"

    @pytest.mark.parametrize("size", SIZES)
    def test_an_image_does_not_depend_on_its_batch(self, size: str) -> None:
        """Else the base classifier would not be a function of one noisy image, and the theorem would not apply."""
        partition, noisy = self.make_partition(), self.make_noisy(19, size)
        together = partition.apply(noisy)
        for i in range(len(noisy)):
            alone = partition.apply(noisy[i : i + 1])[0]
            assert np.array_equal(alone, together[i]), f"image {i} of 19 differs from the same image on its own"
        backwards = partition.apply(np.ascontiguousarray(noisy[::-1]))[::-1]
        assert np.array_equal(backwards, together), "the order of the images in the batch changes the result"

    @pytest.mark.parametrize("size", SIZES[:2])
    def test_only_the_noisy_image_matters(self, size: str) -> None:
        """Neither earlier images nor global random generators do."""
        partition, noisy = self.make_partition(), self.make_noisy(3, size)
        first = partition.apply(noisy)
        for seed in (1, 2):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002  code that draws from the global generator must be noticed
            partition.apply(self.make_noisy(2, size, seed))
            assert np.array_equal(partition.apply(noisy), first), "the same images gave two different results"
        assert np.array_equal(self.make_partition().apply(noisy), first), "a second instance gives another result"

    def test_the_number_of_threads_does_not_matter(self) -> None:
        partition, noisy = self.make_partition(), self.make_noisy(7, "odd, with channels")
        results = []
        for threads in (1, 2, 3):
            with number_of_threads(threads):
                results.append(partition.apply(noisy))
        for threads, result in zip((2, 3), results[1:], strict=True):
            assert np.array_equal(result, results[0]), f"{threads} threads and one thread give different results"

    def test_the_input_is_not_modified(self) -> None:
        noisy = self.make_noisy(3, "odd, with channels")
        before = noisy.copy()
        self.make_partition().apply(noisy)
        assert np.array_equal(noisy, before), "apply() changed its input"
        tensor = torch.from_numpy(noisy)
        self.make_partition().apply(tensor)
        assert np.array_equal(tensor.numpy(), before), "apply() changed its input"

    def test_constant_images_are_unchanged(self) -> None:
        """Unless the partition says that it does more than average."""
        if not self.make_partition().keeps_constants:
            return
        for value, shape in itertools.product((0.0, 0.3, 1.0, -0.75), SHAPES[self.make_partition().domain].values()):
            constant = np.full((2, *shape), value, np.float32)
            change = float(np.abs(self.make_partition().apply(constant) - constant).max())
            assert change <= 1e-5, f"a constant image {shape} of {value} changed by up to {change:.2g}"

    @pytest.mark.parametrize("size", SIZES)
    def test_labels_are_numbered_without_gaps_and_averaged_over(self, size: str) -> None:
        """A partition without segments refuses to give labels."""
        partition, noisy = self.make_partition(), self.make_noisy(3, size)
        if not isinstance(partition, Superpixels):
            with contextlib.suppress(PprsError):
                check_labels(partition.labels(noisy), noisy)
            return
        if isinstance(partition, SignalSegments) and partition.channels == "separate" and noisy.shape[1] > 1:
            with pytest.raises(PprsError, match="has segments of its own"):
                partition.labels(noisy)
            return
        labels = partition.labels(noisy)
        check_labels(labels, noisy)
        difference = float(np.abs(partition.apply(noisy) - segment_means(noisy, labels)).max())
        assert difference <= 1e-5, f"apply() differs from the means over labels() by up to {difference:.2g}"
        segments = partition.run(torch.from_numpy(noisy))[1]
        assert segments is not None, "run() must return the number of segments of each image"
        expected = [int(label.max()) + 1 for label in labels]
        assert segments.tolist() == expected, f"run() reports {segments.tolist()} segments, labels() has {expected}"
        for i in range(len(noisy)):
            alone = partition.labels(noisy[i : i + 1])[0]
            assert np.array_equal(alone, labels[i]), f"the labels of image {i} depend on its batch"

    def test_static_segments_are_the_same_for_every_image(self) -> None:
        """Certificates of a static partition cover a cylinder instead of a ball, which relies on this."""
        partition = self.make_partition()
        if partition.static and isinstance(partition, Superpixels):
            labels = partition.labels(self.make_noisy(5, "odd"))
            assert (labels == labels[0]).all(), "it is declared `static`, but its segments differ between images"

    def test_text_round_trip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs record a partition as text and send it to workers as text."""
        partition = self.make_partition()
        if partition.name not in PARTITIONS:
            monkeypatch.setitem(PARTITIONS, partition.name, type(partition))
        for made in (partition, partition.with_defaults(), partition.resolve(0.25, SHAPES[partition.domain]["long"])):
            for text in (str(made), made.short):
                again = parse_partition(text)
                assert again == made, f'the text "{text}" gives {again!r}, not {made!r}'

    def test_bad_input_raises_pprs_error(self) -> None:
        for kind, batch in BAD_BATCHES[self.make_partition().domain].items():
            try:
                self.make_partition().apply(batch)
            except PprsError:
                continue
            pytest.fail(f"{kind} ({batch.dtype}, shape {batch.shape}) must raise PprsError")


def noisy_inputs(count: int, shape: Shape, seed: int = 0) -> Array:
    """Images of a bright corner on a dark ground, or signals with a step, each with noise of its own, float32."""
    clean = np.zeros((count, *shape), np.float32)
    clean[..., shape[-1] // 3 :] = 0.8
    if len(shape) == IMAGE.ndim:
        clean[..., : shape[1] // 2, :] = 0
    return clean + np.float32(0.25) * np.random.default_rng(seed).standard_normal(clean.shape, dtype=np.float32)


def check_labels(labels: Array, noisy: Array) -> None:
    """Check that labels are int32 [B, H, W] or [B, T] and number each input's segments 0..k-1 without gaps."""
    expected = (len(noisy), *noisy.shape[2:])
    assert labels.shape == expected, f"labels have shape {labels.shape}, expected {expected}"
    assert labels.dtype == np.int32, f"labels must be int32, not {labels.dtype}"
    for i, label in enumerate(labels):
        used = np.unique(label).tolist()
        assert used == list(range(len(used))), f"the labels of image {i} are {used}, which is not 0..k-1 without gaps"


def segment_means(images: Array, labels: Array) -> Array:
    """Replace every pixel by the mean of its segment, in double precision."""
    means = np.empty(images.shape)
    for image, label, out in zip(images.astype(np.float64), labels, means, strict=True):
        sizes = np.bincount(label.ravel())
        for channel, plane in enumerate(image):
            out[channel] = (np.bincount(label.ravel(), weights=plane.ravel()) / sizes)[label]
    return means


@contextlib.contextmanager
def number_of_threads(count: int) -> Iterator[None]:
    """Run kernels on this many threads."""
    before = _threads.get_threads()
    _threads.set_threads(count)
    try:
        yield
    finally:
        _threads.set_threads(before)
