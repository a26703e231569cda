"""Contract tests for your own partition, noise, model source or runner.

Subclass a contract in a test file, override its hook, and run pytest:

    from pprs.testing import PartitionContract

    class TestMyPartition(PartitionContract):
        def make_partition(self):
            return MyPartition()

The contracts check what certificates rely on, so a class that fails one of them should not be used to certify. Passing
is evidence and not a proof: a contract tries a few images and a finite number of samples. The built-in classes are run
through the same contracts. This module needs pytest, and nothing else in the package imports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import pickle
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from pprs import _threads
from pprs.dataset import certify_dataset
from pprs.errors import PprsError
from pprs.model import Model, Source
from pprs.noise import NOISES, Gaussian, Noise, keyed_rng, parse_noise
from pprs.partition import PARTITIONS, Grid, Partition, Superpixels, parse_partition
from pprs.progress import Silent
from pprs.runners import Local, Runner
from pprs.runs import Row, Run, open_run
from pprs.sampling import Sampling

try:
    import pytest
except ImportError as error:
    raise ImportError("pprs.testing needs pytest. Install it with: pip install pytest") from error

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]

# Gray and colour, the smallest image that is allowed, odd sizes, and one much wider than high.
SHAPES: tuple[Shape, ...] = ((1, 8, 8), (3, 8, 8), (1, 9, 14), (3, 17, 11), (3, 9, 40))
# Vote shares at which radii are checked: of the certified class, and of every other class.
SHARES = ((0.7, 0.3), (0.9, 0.1), (0.99, 0.01))
WIDE_SHARES = ((0.45, 0.3), (0.9, 0.02))

BAD_BATCHES: dict[str, Array] = {
    "an image without a batch axis": np.zeros((1, 8, 8), np.float32),
    "two channels": np.zeros((1, 2, 8, 8), np.float32),
    "channels last": np.zeros((1, 8, 8, 3), np.float32),
    "7x8 pixels": np.zeros((1, 1, 7, 8), np.float32),
    "integers": np.zeros((1, 1, 8, 8), np.uint8),
    "an empty batch": np.zeros((0, 1, 8, 8), np.float32),
    "a NaN pixel": np.full((1, 1, 8, 8), np.nan, np.float32),
    "an infinite pixel": np.full((1, 1, 8, 8), np.inf, np.float32),
}


# ---- partitions


class PartitionContract(ABC):
    """What every partition promises: its output is a function of one noisy image, and of nothing else."""

    @abstractmethod
    def make_partition(self) -> Partition:
        """Return the partition to test. It is called once or more per test and must return an equal one each time."""

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_shape_and_type_are_preserved(self, shape: Shape) -> None:
        noisy = noisy_images(3, shape)
        averaged = self.make_partition().apply(noisy)
        assert isinstance(averaged, np.ndarray), f"an array must give an array, not a {type(averaged).__name__}"
        assert averaged.shape == noisy.shape, f"the shape changed from {noisy.shape} to {averaged.shape}"
        assert averaged.dtype == np.float32, f"the result must be float32, not {averaged.dtype}"
        assert np.isfinite(averaged).all(), "the result has NaN or infinite pixels"
        from_tensor = self.make_partition().apply(torch.from_numpy(noisy))
        assert isinstance(from_tensor, torch.Tensor), f"a tensor must give a tensor, not a {type(from_tensor).__name__}"
        assert np.array_equal(from_tensor.numpy(), averaged), "a tensor and an array give different results"

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_an_image_does_not_depend_on_its_batch(self, shape: Shape) -> None:
        """Else the base classifier would not be a function of one noisy image, and the theorem would not apply."""
        partition, noisy = self.make_partition(), noisy_images(19, shape)
        together = partition.apply(noisy)
        for i in range(len(noisy)):
            alone = partition.apply(noisy[i : i + 1])[0]
            assert np.array_equal(alone, together[i]), f"image {i} of 19 differs from the same image on its own"
        backwards = partition.apply(np.ascontiguousarray(noisy[::-1]))[::-1]
        assert np.array_equal(backwards, together), "the order of the images in the batch changes the result"

    @pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
    def test_only_the_noisy_image_matters(self, shape: Shape) -> None:
        """Neither earlier images nor global random generators do."""
        partition, noisy = self.make_partition(), noisy_images(3, shape)
        first = partition.apply(noisy)
        for seed in (1, 2):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002  code that draws from the global generator must be noticed
            partition.apply(noisy_images(2, shape, seed=seed))
            assert np.array_equal(partition.apply(noisy), first), "the same images gave two different results"
        assert np.array_equal(self.make_partition().apply(noisy), first), "a second instance gives another result"

    def test_the_number_of_threads_does_not_matter(self) -> None:
        partition, noisy = self.make_partition(), noisy_images(7, (3, 11, 10))
        results = []
        for threads in (1, 2, 3):
            with number_of_threads(threads):
                results.append(partition.apply(noisy))
        for threads, result in zip((2, 3), results[1:], strict=True):
            assert np.array_equal(result, results[0]), f"{threads} threads and one thread give different results"

    def test_the_input_is_not_modified(self) -> None:
        noisy = noisy_images(3, (3, 12, 9))
        before = noisy.copy()
        self.make_partition().apply(noisy)
        assert np.array_equal(noisy, before), "apply() changed its input"
        tensor = torch.from_numpy(noisy)
        self.make_partition().apply(tensor)
        assert np.array_equal(tensor.numpy(), before), "apply() changed its input"

    def test_constant_images_are_unchanged(self) -> None:
        for value, shape in itertools.product((0.0, 0.3, 1.0, -0.75), SHAPES):
            constant = np.full((2, *shape), value, np.float32)
            change = float(np.abs(self.make_partition().apply(constant) - constant).max())
            assert change <= 1e-5, f"a constant image {shape} of {value} changed by up to {change:.2g}"

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_labels_are_numbered_without_gaps_and_averaged_over(self, shape: Shape) -> None:
        """A partition without segments refuses to give labels."""
        partition, noisy = self.make_partition(), noisy_images(3, shape)
        if not isinstance(partition, Superpixels):
            with contextlib.suppress(PprsError):
                check_labels(partition.labels(noisy), noisy)
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
            labels = partition.labels(noisy_images(5, (1, 12, 12)))
            assert (labels == labels[0]).all(), "it is declared `static`, but its segments differ between images"

    def test_text_round_trip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs record a partition as text and send it to workers as text."""
        partition = self.make_partition()
        if partition.name not in PARTITIONS:
            monkeypatch.setitem(PARTITIONS, partition.name, type(partition))
        for made in (partition, partition.with_defaults(), partition.resolve(0.25, (3, 32, 32))):
            for text in (str(made), made.short):
                again = parse_partition(text)
                assert again == made, f'the text "{text}" gives {again!r}, not {made!r}'

    def test_bad_input_raises_pprs_error(self) -> None:
        for kind, batch in BAD_BATCHES.items():
            try:
                self.make_partition().apply(batch)
            except PprsError:
                continue
            pytest.fail(f"{kind} ({batch.dtype}, shape {batch.shape}) must raise PprsError")


def noisy_images(count: int, shape: Shape, seed: int = 0) -> Array:
    """Images [count, C, H, W] of a bright corner on a dark ground, each with noise of its own, float32."""
    images = np.zeros((count, *shape), np.float32)
    images[..., shape[1] // 2 :, shape[2] // 3 :] = 0.8
    return images + np.float32(0.25) * np.random.default_rng(seed).standard_normal(images.shape, dtype=np.float32)


def check_labels(labels: Array, noisy: Array) -> None:
    """Check that labels are int32 [B, H, W] and number each image's segments 0..k-1 without gaps."""
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


# ---- noises


class NoiseContract(ABC):
    """What every noise promises: it samples what it says, and its radii never claim too much.

    Checks on samples are statistical, and honest about it: for a correct noise, each fails with a probability of at
    most `failure` over the choice of `key`. For a given key the outcome is always the same.
    """

    shape: ClassVar[Shape] = (1, 8, 8)
    draws: ClassVar[int] = 50_000
    failure: ClassVar[float] = 1e-6
    key: ClassVar[int] = 0

    @abstractmethod
    def make_noise(self) -> Noise:
        """Return the noise to test."""

    def log_density(self, norm: Array, dim: int) -> Array | None:
        """Return the logarithm of the density at points of this norm, up to a constant; None where it is unknown.

        Override it where you can. Radii are then also checked against the worst classifier that there is (Neyman and
        Pearson), which is a linear classifier under Gaussian noise only.
        """
        return None

    def test_the_same_key_gives_the_same_samples(self) -> None:
        noise, shape = self.make_noise(), (16, *self.shape)
        first = noise.sample(shape, keyed_rng("cpu", self.key, 1))
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002  code that draws from the global generator must be noticed
        assert torch.equal(noise.sample(shape, keyed_rng("cpu", self.key, 1)), first), "one key gave two samples"
        out = torch.empty(shape)
        assert noise.sample(shape, keyed_rng("cpu", self.key, 1), out) is out, "`out` must be filled and returned"
        assert torch.equal(out, first), "`out` does not hold the samples of its key"
        assert first.dtype == torch.float32, f"samples must be float32, not {first.dtype}"
        assert tuple(first.shape) == shape, f"samples have shape {tuple(first.shape)}, expected {shape}"

    def test_different_keys_give_different_samples(self) -> None:
        noise = self.make_noise()
        keys = ((self.key, 0, 0), (self.key, 0, 1), (self.key, 1, 0), (self.key + 1, 0, 0))
        samples = [noise.sample((500, *self.shape), keyed_rng("cpu", *key)).double().flatten() for key in keys]
        for i, one in enumerate(samples):
            for other in samples[i + 1 :]:
                assert not torch.equal(one, other), "two keys gave the same samples"
                cosine = float(one @ other / one.norm() / other.norm())
                limit = 10 / math.sqrt(500)  # ten deviations: images of one key are only uncorrelated, not Gaussian
                assert abs(cosine) < limit, f"the samples of two keys are correlated ({cosine:.3f})"

    def test_the_root_mean_square_of_a_coordinate_is_sigma(self) -> None:
        squares = (self._samples() ** 2).mean(axis=1)
        sigma, error = self.make_noise().sigma, float(squares.std()) / math.sqrt(len(squares))
        deviations = abs(float(squares.mean()) - sigma**2) / error
        assert deviations < stats.norm.isf(self.failure / 2), (
            f"the root mean square of a coordinate is {math.sqrt(squares.mean()):.4f}, not sigma = {sigma}"
        )

    def test_directions_are_uniform(self) -> None:
        """The noise is symmetric under rotations: uniform directions, independent of the norm."""
        samples = self._samples()
        dim, norms = samples.shape[1], np.linalg.norm(samples, axis=1)
        axes = {"a coordinate axis": np.eye(dim)[0], "the diagonal": np.ones(dim), "a random axis": self._axis(dim)}
        for name, axis in axes.items():
            cosines = samples @ axis / norms / np.linalg.norm(axis)
            shares = stats.beta.cdf((cosines + 1) / 2, (dim - 1) / 2, (dim - 1) / 2)
            assert stats.kstest(shares, "uniform").pvalue > self.failure / 6, f"directions favour or avoid {name}"
            large = norms > np.median(norms)
            apart = stats.ks_2samp(np.abs(cosines[large]), np.abs(cosines[~large])).pvalue
            assert apart > self.failure / 6, f"directions along {name} depend on the norm"

    def test_no_radius_at_a_share_of_one_half(self) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        for share in (0.5, 0.3, 0.0):
            assert noise.radius(share, dim) == 0, f"a vote share of {share} proves nothing, so its radius must be 0"
            assert noise.radius_between(share, share, dim) == 0, "two equal shares prove nothing"
            assert noise.radius_between(share, share + 0.1, dim) == 0, "a smaller share proves nothing"

    def test_radii_grow_with_the_share(self) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        shares = [0.5001, 0.51, 0.6, 0.8, 0.9, 0.99, 0.999, 0.999999, 1 - 1e-11, 1 - 1e-14]
        radii = [noise.radius(share, dim) for share in shares]
        assert all(math.isfinite(radius) and radius >= 0 for radius in radii), f"radius gives {radii}"
        assert radii == sorted(radii), f"radius falls somewhere along the shares {shares}: {radii}"
        pairs = ((0.45, 0.4), (0.45, 0.1), (0.9, 0.1), (0.9999, 0.0001))
        radii = [noise.radius_between(*pair, dim) for pair in pairs]
        assert all(math.isfinite(radius) and radius >= 0 for radius in radii), f"radius_between gives {radii}"
        assert radii == sorted(radii), f"radius_between falls somewhere along the shares {pairs}: {radii}"

    @pytest.mark.parametrize("shares", SHARES, ids=str)
    def test_radius_holds_for_a_linear_classifier(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        self._check_linear(shares, noise.radius(shares[0], dim), f"radius({shares[0]}, dim={dim})")

    @pytest.mark.parametrize("shares", [*SHARES, *WIDE_SHARES], ids=str)
    def test_radius_between_holds_for_a_linear_classifier(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        radius = noise.radius_between(*shares, dim)
        self._check_linear(shares, radius, f"radius_between({shares[0]}, {shares[1]}, dim={dim})")

    @pytest.mark.parametrize("shares", [*SHARES, *WIDE_SHARES], ids=str)
    def test_radius_is_at_most_the_neyman_pearson_bound(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        radii = {f"radius_between({shares[0]}, {shares[1]}, dim={dim})": noise.radius_between(*shares, dim)}
        if shares in SHARES:
            radii[f"radius({shares[0]}, dim={dim})"] = noise.radius(shares[0], dim)
        for name, radius in radii.items():
            self._check_worst(shares, radius, name)

    def test_text_round_trip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs record noise as text and send it to workers as text."""
        noise = self.make_noise()
        if noise.name not in NOISES:
            monkeypatch.setitem(NOISES, noise.name, type(noise))
        again = parse_noise(str(noise))
        assert again == noise, f'the text "{noise}" gives {again!r}, not {noise!r}'

    def _samples(self, stream: int = 0) -> Array:
        """Samples [draws, dim] in double precision."""
        return _draw(self.make_noise(), (self.draws, *self.shape), (self.key, 2, stream))

    def _axis(self, dim: int) -> Array:
        axis = np.random.default_rng(self.key).standard_normal(dim)
        return axis / np.linalg.norm(axis)

    def _check_linear(self, shares: tuple[float, float], radius: float, name: str) -> None:
        # The score falls along the axis, and the image is moved by the radius against it.
        axis = self._axis(math.prod(self.shape))
        before, after = self._samples(0) @ axis, self._samples(1) @ axis + radius
        self._check_lead(before, after, shares, f"{name} = {radius:.4f} does not hold for a linear classifier")

    def _check_worst(self, shares: tuple[float, float], radius: float, name: str) -> None:
        dim = math.prod(self.shape)
        move = radius * self._axis(dim)

        def log_density(points: Array) -> Array:
            density = self.log_density(np.linalg.norm(points, axis=1), dim)
            assert density is not None
            return density

        if self.log_density(np.ones(1), dim) is None or radius == 0:
            return  # the check against a linear classifier is all that can be done
        one, other = self._samples(0), self._samples(1)
        before = log_density(one - move) - log_density(one)
        after = log_density(other) - log_density(other + move)
        self._check_lead(before, after, shares, f"{name} = {radius:.4f} is above the Neyman-Pearson bound")

    def _check_lead(self, before: Array, after: Array, shares: tuple[float, float], message: str) -> None:
        """Check that a class keeps its lead when an image is moved by the radius that its vote share proves.

        The class is given where the score is low, and its rival where it is high. Thresholds are upper confidence
        limits of quantiles, so that the class has at least its share and the rival at most its own. Which of the two
        wins after the move is an exact binomial test on other samples. Each step errs with a third of `failure`.
        """
        low = _upper_quantile(before, shares[0], self.failure / 3)
        high = _upper_quantile(before, 1 - shares[1], self.failure / 3)
        wins, losses = int((after <= low).sum()), int((after >= high).sum())
        chance = float(stats.binom.cdf(wins, wins + losses, 0.5))
        assert chance > self.failure / 3, (
            f"{message}: after moving the image by this much, its class wins only {wins} of {wins + losses} votes. "
            f"A correct radius fails this check with a probability of at most {self.failure:g}."
        )


@functools.lru_cache(2)  # the tests of a noise use the same samples
def _draw(noise: Noise, shape: tuple[int, ...], key: tuple[int, ...]) -> Array:
    return noise.sample(shape, keyed_rng("cpu", *key)).flatten(1).numpy().astype(float)


def _upper_quantile(values: Array, share: float, failure: float) -> float:
    """An order statistic that is below the true quantile with a probability of at most `failure`."""
    rank = int(stats.binom.isf(failure, len(values), share)) + 1
    return float(np.sort(values)[min(rank, len(values)) - 1])


# ---- model sources


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


class ModelSourceContract(ABC):
    """What every source of models promises: the same classifier each time, in [0, 1] images, out scores."""

    source: ClassVar[type[Source]]  # set it to the class under test
    input_shape: ClassVar[Shape] = (3, 32, 32)  # used where the model does not know its own

    @abstractmethod
    def make_spec(self, folder: Path) -> str:
        """Return the text that names a model, after writing its files to this empty folder where it has any."""

    def test_claims_its_own_text_only(self, tmp_path: Path) -> None:
        spec = self.make_spec(tmp_path)
        assert self.source.claims(spec) is True, f'claims("{spec}") must be True'
        for other in ("", "no such kind of model!", "efficientnet-lite0" if "lite0" not in spec else "a b"):
            assert self.source.claims(other) is False, f'claims("{other}") must be False: it is not its own'

    def test_load_gives_a_model_that_knows_its_text(self, tmp_path: Path) -> None:
        spec = self.make_spec(tmp_path)
        model = self.source.load(spec)
        assert isinstance(model, Model), f"load() must return a pprs.Model, not a {type(model).__name__}"
        assert isinstance(model.module, torch.nn.Module), "the model's module must be a torch.nn.Module"
        assert model.source == spec, f'source must be the text "{spec}", not "{model.source}"'
        for name, names in (("class_names", model.class_names), ("class_ids", model.class_ids)):
            if names is not None and model.num_classes is not None:
                assert len(names) == model.num_classes, f"{len(names)} {name} for {model.num_classes} classes"

    def test_scores_are_one_row_per_image(self, tmp_path: Path) -> None:
        model = self.source.load(self.make_spec(tmp_path))
        for count in (1, 3):
            scores = self._scores(model, self._images(model, count))
            assert scores.ndim == 2, f"scores must be [B, num_classes], not of shape {tuple(scores.shape)}"
            expected = (count, model.num_classes or scores.shape[1])
            assert tuple(scores.shape) == expected, f"scores have shape {tuple(scores.shape)}, expected {expected}"
            assert scores.shape[1] >= 2, "a classifier needs at least two classes"
            assert scores.is_floating_point(), f"scores must be floating point, not {scores.dtype}"
            assert bool(scores.isfinite().all()), "scores must be finite"

    def test_evaluation_mode_is_deterministic(self, tmp_path: Path) -> None:
        """Dropout and batch statistics are off: a score depends on the weights and on its image."""
        model = self.source.load(self.make_spec(tmp_path))
        images = self._images(model, 4)
        torch.manual_seed(1)
        first = self._scores(model, images)
        torch.manual_seed(2)
        assert torch.equal(self._scores(model, images), first), "the same images got two different scores"
        alone = torch.cat([self._scores(model, images[i : i + 1]) for i in range(len(images))])
        torch.testing.assert_close(alone, first, rtol=1e-3, atol=1e-3, msg="scores depend on the rest of the batch")

    def test_threads_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        """A smoothed classifier calls its network from several threads at once."""
        model = self.source.load(self.make_spec(tmp_path))
        batches = [self._images(model, 2, seed) for seed in range(6)]
        expected = [self._scores(model, images) for images in batches]
        with ThreadPoolExecutor(3) as pool:
            for one, other in zip(pool.map(lambda images: self._scores(model, images), batches), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg="threads change each other's scores")

    def test_the_digest_is_stable(self, tmp_path: Path) -> None:
        """A run is resumed only with the network that it was started with, which the digest tells."""
        spec = self.make_spec(tmp_path)
        model = self.source.load(spec)
        digest = model.digest()
        assert self.source.load(spec).digest() == digest, "loading the model twice gives two digests"
        self._scores(model, self._images(model, 2))
        assert model.digest() == digest, "using the model changes its digest"

    def test_other_weights_have_another_digest(self, tmp_path: Path) -> None:
        model = self.source.load(self.make_spec(tmp_path))
        digest = model.digest()
        weights = [tensor for tensor in model.module.state_dict().values() if tensor.is_floating_point()]
        if weights:
            with torch.no_grad():
                weights[-1].view(-1)[0] += 1
            assert model.digest() != digest, "a changed weight does not change the digest"
        else:
            assert model.fingerprint, "a module without weights needs a fingerprint of its file"

    def test_missing_files_raise_pprs_error(self, tmp_path: Path) -> None:
        path = Path(self.make_spec(tmp_path))
        if path.exists():
            missing = str(path.parent / "missing" / path.name)
            if self.source.claims(missing):
                with pytest.raises(PprsError):
                    self.source.load(missing)

    @pytest.mark.parametrize("form", ["pickle", "torch.save"])
    def test_files_are_not_unpickled(self, tmp_path: Path, form: str) -> None:
        """A pickle runs code when it is read, so a file of somebody else's must never be read as one."""
        (tmp_path / "model").mkdir()
        path, sprung = Path(self.make_spec(tmp_path / "model")), tmp_path / "sprung"
        if not path.exists():
            return  # not a model in files
        payload = tmp_path / "payload"
        if form == "pickle":
            payload.write_bytes(pickle.dumps(Trap(sprung)))
        else:
            torch.save(Trap(sprung), payload)
        parts = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
        for part in parts:
            original = part.read_bytes()
            shutil.copyfile(payload, part)
            with contextlib.suppress(PprsError):
                self.source.load(str(path))
                assert path.is_dir(), f"a file that holds a pickle was loaded from {part.name}"
            assert not sprung.exists(), f"loading {part.name} ran the code that was pickled in it"
            part.write_bytes(original)

    def _images(self, model: Model, count: int, seed: int = 0) -> torch.Tensor:
        shape = model.input_shape or self.input_shape
        return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))

    def _scores(self, model: Model, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scores: torch.Tensor = model.module.eval()(images.clone())  # a network may overwrite its input
        return scores.clone()


# ---- runners

REFUSED, UNREADABLE, IMAGES, SIDE = 2, 5, 12, 8


class ContractNetwork(torch.nn.Module):
    """Class 1 for bright images; it refuses black ones. Runners load it as `pprs.testing:ContractNetwork`."""

    num_classes = 2
    threshold: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.2:
            raise ValueError("this network refuses black images")
        score = x.mean((1, 2, 3)) - self.threshold
        return torch.stack([-score, score], 1)


class ContractImages:
    """Gray images around the network's threshold: one is black, and one cannot be read."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == UNREADABLE:
            raise OSError("the file is damaged")
        brightness = 0.0 if index == REFUSED else 0.45 + 0.15 * index / IMAGES
        return torch.full((1, SIDE, SIDE), brightness), 1


class Interrupting(Silent):
    """Raises KeyboardInterrupt, as Ctrl-C does, once this many images are done."""

    def __init__(self, after: float = math.inf) -> None:
        self._left = after

    def advance(self, amount: float, note: str = "") -> None:
        self._left -= amount
        if self._left <= 0:
            raise KeyboardInterrupt


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run that was interrupted and resumed, and the rows that it had in between."""

    run: Run
    before: list[Row]
    interrupted: bool
    folder: tempfile.TemporaryDirectory[str]  # the run lives as long as this does


class RunnerContract(ABC):
    """What every runner promises: the rows of the local runner, whatever happens on the way."""

    @abstractmethod
    def make_runner(self) -> Runner:
        """Return the runner to test."""

    def test_rows_are_those_of_the_local_runner(self) -> None:
        expected, rows = _without_times(_certify(Local())), _without_times(self._outcome().run)
        missing = sorted(expected.keys() - rows.keys())
        assert not missing, f"images {missing} have no row"
        for index, row in rows.items():
            assert row == expected.get(index), f"image {index} has the row {row}, locally {expected.get(index)}"

    def test_failures_are_recorded(self) -> None:
        failures = {failure.idx: failure for failure in self._outcome().run.failures()}
        assert sorted(failures) == [REFUSED, UNREADABLE], f"images {sorted(failures)} are recorded as failed"
        assert "this network refuses black images" in failures[REFUSED].error, failures[REFUSED].error
        assert "the file is damaged" in failures[UNREADABLE].error, failures[UNREADABLE].error

    def test_a_bad_image_does_not_stop_the_others(self) -> None:
        done = {row.idx for row in self._outcome().run.rows()}
        assert done == set(range(IMAGES)) - {REFUSED, UNREADABLE}, f"only the images {sorted(done)} were certified"

    def test_resumes_after_an_interrupt(self) -> None:
        outcome = self._outcome()
        assert outcome.interrupted, "a KeyboardInterrupt in this process did not end the run"
        before = {row.idx: row for row in outcome.before}
        assert 0 < len(before) < IMAGES - 2, f"{len(before)} of {IMAGES} images have a row after 4 were reported"
        kept = {row.idx: row for row in outcome.run.rows() if row.idx in before}
        assert kept == before, "rows that were there before the interrupt were lost or certified again"

    def _outcome(self) -> Outcome:
        """Certify all images, with an interrupt on the way; once per class, since starting workers takes a while."""
        outcome: Outcome | None = type(self).__dict__.get("_cached")
        if outcome is None:
            folder = tempfile.TemporaryDirectory(prefix="pprs-")
            out, interrupted, before = Path(folder.name) / "run", False, list[Row]()
            try:
                _certify(self.make_runner(), out, Interrupting(after=4))
            except KeyboardInterrupt:
                interrupted, before = True, open_run(out).rows()
            outcome = Outcome(_certify(self.make_runner(), out), before, interrupted, folder)
            type(self)._cached = outcome  # type: ignore[attr-defined]
        return outcome


def _certify(runner: Runner, out: Path | None = None, progress: Interrupting | None = None) -> Run:
    return certify_dataset(
        "pprs.testing:ContractNetwork", ContractImages(), noise=Gaussian(0.25), partition=Grid(4), runner=runner,
        sampling=Sampling(n0=16, n=300, alpha=0.01, stop="radius:0.1"), progress=progress or Interrupting(),
        out=out, engine="torch",
    )  # fmt: skip


def _without_times(run: Run) -> dict[int, Row]:
    return {row.idx: dataclasses.replace(row, seconds=0.0) for row in run.iter_rows()}


__all__ = ["ModelSourceContract", "NoiseContract", "PartitionContract", "RunnerContract"]
