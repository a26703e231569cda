"""The smoothed classifier: votes, certificates, predictions and errors."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear

from pprs import Blur, Certificate, Gaussian, Grid, PprsError, Slic, SmoothedClassifier
from pprs.model.resnet import architecture
from pprs.smoothing import samples
from pprs.smoothing.certification import Certification
from pprs.smoothing.local_votes import LocalVotes
from pprs.smoothing.samples import error_context
from pprs.smoothing.sampling import Evidence, Sampling
from pprs.smoothing.votes import Votes, count_votes
from pprs.smoothing.voting import ESTIMATE, SELECT, chunk_size, noisy_chunk

X = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1))


def small_net(channels: int = 1) -> torch.nn.Module:
    torch.manual_seed(3)
    arch = architecture(
        "resnet-small", channels=channels, num_classes=10, mean=(0.5,) * channels, std=(0.25,) * channels, width=8
    )
    net = arch.build().eval()
    with torch.no_grad():  # an untrained network votes for one class, so rescale its head to spread the votes
        scores = net(X + torch.randn(256, 1, 12, 12))
        net.head.bias -= scores.mean(0)
        net.head.weight /= scores.std(0)[:, None]
    return net


@pytest.mark.parametrize("partition", [None, Grid(3), Blur(3), Slic(n_segments=10)], ids=str)
def test_counts_do_not_depend_on_batches_or_threads(partition) -> None:
    net, results = small_net(), []
    for batch_size, threads in [(1, 1), (7, 2), (64, 1), (64, 3), (200, 2), (None, None)]:
        g = SmoothedClassifier(net, 10, Gaussian(0.5), partition, seed=5, batch_size=batch_size, threads=threads)
        results.append(g.counts(X, n=200, index=9))
    assert (results[0] > 0).sum() > 3  # otherwise nothing is tested
    for counts in results[1:]:
        np.testing.assert_array_equal(counts, results[0])
    assert results[0].sum() == 200


def test_near_ties_depend_only_on_the_image() -> None:
    def batch_dependent(x: torch.Tensor) -> torch.Tensor:
        """Return scores whose last digits depend on the batch size, like those of real networks."""
        jitter = 1e-6 * (-1) ** len(x) if len(x) > 1 else 0.0
        sign = torch.where(x[:, 0, 0, 0] > 0.5, 1.0, -1.0) * 3e-7
        return torch.stack([10 + sign + jitter, 10 - sign - jitter], dim=1)

    counts = [
        SmoothedClassifier(batch_dependent, 2, Gaussian(0.5), batch_size=b, partition=None).counts(X, n=120).tolist()
        for b in (1, 3, 64)
    ]
    assert counts[0] == counts[1] == counts[2]


def test_a_chunk_of_near_ties_is_measured_by_earlier_ones() -> None:
    votes = LocalVotes(lambda x: torch.tensor([[-1e-6, 1e-6]]).expand(len(x), 2), 2, Gaussian(0.25))
    images, tied = torch.zeros(4, 1, 8, 8), torch.tensor([[1e-6, -1e-6]]).expand(4, 2)
    assert votes._choose_labels(images, tied, alone=False).tolist() == [0] * 4  # far apart, for all that is known
    votes._choose_labels(images, tied * 1e6, alone=False)
    assert votes._choose_labels(images, tied, alone=False).tolist() == [1] * 4  # as each of them alone


def test_keys_separate_the_draws() -> None:
    noise = Gaussian(1.0)
    keys = [(0, 0, SELECT, 0), (0, 0, ESTIMATE, 0), (0, 0, ESTIMATE, 1), (0, 1, ESTIMATE, 0), (1, 0, ESTIMATE, 0)]
    chunks = [noisy_chunk(X, noise, *key) for key in keys]
    for i in range(len(keys)):
        assert torch.equal(chunks[i], noisy_chunk(X, noise, *keys[i]))
        for j in range(i):
            assert not torch.equal(chunks[i], chunks[j])
    z = torch.cat([noisy_chunk(X, noise, 0, i, ESTIMATE) for i in range(20)]) - X
    assert abs(float(z.mean())) < 0.01
    assert float(z.std()) == pytest.approx(1, abs=0.01)
    assert not torch.equal(chunks[1][0], chunks[1][1])
    assert len(chunks[0]) == chunk_size(144) == 64
    assert chunk_size(3 * 4000 * 3000) == 1  # only a few copies of a large photo are in memory at once
    sizes = {2**16: 64, 3 * 224 * 224: 32, 3 * 1000 * 1000: 5}  # others would draw other noise for old runs
    assert {dim: chunk_size(dim) for dim in sizes} == sizes


def test_each_phase_has_noise_of_its_own() -> None:
    phases = {name: value for name, value in vars(samples).items() if name.isupper() and isinstance(value, int)}
    del phases["TRIAL_SIZE"]
    assert len(phases) >= 11
    assert len({*phases.values()}) == len(phases)


def test_every_sample_has_one_vote() -> None:
    class Forgetful(LocalVotes):
        def votes(self, x: Any, samples: range, *args: Any, **options: Any) -> Any:
            return super().votes(x, range(len(samples) - 1), *args, **options)

    source = Forgetful(Linear(torch.ones(1, 12, 12), 0.0), 2, Gaussian(0.25))
    with pytest.raises(PprsError, match="99 votes were counted for 100 samples"):
        count_votes(source, source.quantise(X), 100, 0, ESTIMATE)
    certification = Certification(source, Sampling(10, 100))
    certification._state = Votes.none(2), Evidence(Sampling(10, 100), Gaussian(0.25), 144, 2, 1)
    with pytest.raises(PprsError, match="99 votes were counted for 100 samples"):
        certification.estimate(X)


@pytest.mark.parametrize("partition", [None, Grid(3)], ids=str)
@pytest.mark.parametrize("arithmetic", ["auto", "real"])
def test_an_image_is_scored_once_as_its_sample_is(partition: Grid | None, arithmetic: str) -> None:
    model = Linear(torch.linspace(-1, 1, 144).reshape(1, 12, 12), 0.0)
    votes = SmoothedClassifier(model, 2, Gaussian(0.25), partition, arithmetic=arithmetic).votes
    image = votes.quantise(X)
    noisy = noisy_chunk(image, votes.noise, 0, 7, ESTIMATE, batch=1)
    if partition is not None:
        noisy = partition.run(noisy)[0]
    ((index, scores),) = votes.score_once([(7, image)], ESTIMATE)
    assert index == 7
    torch.testing.assert_close(scores, votes.scores(noisy)[0], atol=1e-4, rtol=1e-4)


def test_certificate_fields() -> None:
    model = Linear(torch.ones(1, 12, 12), 0.0)
    g = SmoothedClassifier(model, 2, Gaussian(0.25), Grid(4))
    c = g.certify(X, n0=10, n=100, alpha=0.01)
    assert isinstance(c, Certificate)
    assert c.prediction == 1
    assert not c.abstained
    assert c.counts.sum() == 100
    assert c.p_lower == pytest.approx(0.01 ** (1 / 100))
    # X is on no levels, and what rounding moves is taken off.
    assert c.radius == pytest.approx(Gaussian(0.25).radius(c.p_lower, 144) - c.moved - 12 / (2 * 65535))
    assert c.radius_linf == pytest.approx(c.radius / 12)
    assert c.mean_segments == 9
    assert c.mean_segment_size == 16
    delta = torch.zeros(1, 12, 12)
    delta[0, :4, :4] = c.radius / 4 * 0.999  # constant over a cell, so averaging does not change it
    assert c.covers(delta)
    delta[0, :4, :4] = c.radius / 4 * 1.001
    assert not c.covers(delta.numpy())
    assert (c.arithmetic, c.levels, len(c.image_digest or "")) == ("exact", 65535, 32)
    with pytest.raises(PprsError, match="they must agree"):
        c.covers(torch.zeros(12, 12))
    coloured = SmoothedClassifier(Linear(torch.ones(3, 12, 12), 0.0), 2, Gaussian(0.25), Grid(4))
    colours = coloured.certify(X.expand(3, 12, 12), n0=10, n=100, alpha=0.01)
    assert (colours.mean_segments, colours.mean_segment_size) == (9, 16)
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.radius = 9.0  # type: ignore[misc]
    assert c == g.certify(X, n0=10, n=100, alpha=0.01)
    assert c != g.certify(X, n0=10, n=200, alpha=0.01)


def coin(x: torch.Tensor) -> torch.Tensor:
    """Toss a coin by the sign of the noise."""
    return torch.stack([x[:, 0, 0, 0] - X[0, 0, 0], X[0, 0, 0] - x[:, 0, 0, 0]], dim=1)


@pytest.mark.slow
def test_certify_abstains_on_a_coin_toss() -> None:
    g = SmoothedClassifier(coin, 2, Gaussian(0.5), partition=None)
    certificates = [g.certify(X, n0=10, n=200, index=i) for i in range(50)]
    assert all(c.abstained and c.prediction is None and c.radius == 0.0 for c in certificates)
    assert not certificates[0].covers(np.zeros((1, 12, 12)))
    predictions = sum(not g.predict(X, n=200, index=i).abstained for i in range(300))
    assert predictions <= 3  # each is wrong with probability at most alpha, 0.001


def test_predict_returns_a_clear_majority() -> None:
    g = SmoothedClassifier(Linear(torch.ones(1, 12, 12), 0.0), 2, Gaussian(0.25), partition=None)
    assert g.predict(X, n=100).prediction == 1
    assert g.predict(X, n=5, alpha=0.001).abstained  # five votes cannot be significant at that level
    real = SmoothedClassifier(Linear(torch.ones(1, 12, 12), 0.0), 2, Gaussian(0.25), arithmetic="real")
    found = real.predict(X, n=100)
    assert (found.arithmetic, found.levels, found.moved) == ("real", None, 0.0)
    exact = g.predict(X, n=100)
    assert (exact.arithmetic, exact.levels) == ("exact", 65535)
    assert 0 < exact.moved < 12 / (2 * 65535)


def test_selection_and_estimation_share_no_draw() -> None:
    batches: list[torch.Tensor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        batches.append(x.clone())
        return torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x)) - 9], dim=1)

    SmoothedClassifier(model, 2, Gaussian(0.5), check=False, partition=None).certify(X, n0=50, n=300)
    samples = torch.cat(batches).flatten(1)
    assert len(samples) == 350
    assert len(torch.unique(samples, dim=0)) == 350


def test_model_is_put_in_eval_mode_under_inference_mode() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            assert torch.is_inference_mode_enabled()
            return torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x)) - 9], dim=1)

    net = Net().train()
    SmoothedClassifier(net, 2, Gaussian(0.5), partition=None).counts(X, n=10)


@pytest.mark.slow
def test_memory_does_not_grow_with_n() -> None:
    script = """
import resource, sys, torch, pprs
model = lambda x: torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3))], 1)
g = pprs.SmoothedClassifier(model, 2, pprs.Gaussian(0.25), pprs.Grid(4))
g.counts(torch.full((1, 64, 64), 0.5), n=int(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    few, many = (
        int(subprocess.run([sys.executable, "-c", script, n], capture_output=True, text=True, check=True).stdout)
        for n in ("256", "12800")
    )
    growth = (many - few) * 1024
    assert growth < 0.25 * (12800 - 256) * 64 * 64 * 4, f"{growth / 2**20:.0f} MiB more"


def test_a_model_in_training_mode_votes_in_eval_mode() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    g = SmoothedClassifier(net, 2, Gaussian(0.5), partition=None)
    before = g.counts(X, n=100)
    net.train()
    np.testing.assert_array_equal(g.counts(X, n=100), before)


def test_the_callers_thread_count_is_unchanged() -> None:
    torch.set_num_threads(2)
    SmoothedClassifier(small_net(), 10, Gaussian(0.5), threads=2, partition=None).counts(X, n=300)
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_no_more_threads_run_than_requested() -> None:
    class Monitored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.running, self.max_running, self.met = threading.Lock(), 0, 0, threading.Event()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert torch.get_num_threads() == 1  # batches run in parallel, each on one thread
            with self.lock:
                self.running += 1
                self.max_running = max(self.max_running, self.running)
                if self.running == min(count, 2):
                    self.met.set()
            self.met.wait(200)  # for the other thread, however busy the machine is
            time.sleep(0.02)
            with self.lock:
                self.running -= 1
            return torch.tensor([1.0, 0.0]).repeat(len(x), 1)  # no ties, each of which would be scored again alone

    for count in (1, 3):
        model = Monitored()
        SmoothedClassifier(model, 2, Gaussian(0.5), Slic(n_segments=10), threads=count).counts(X, n=64 * 12)
        assert min(count, 2) <= model.max_running <= count


def test_models_may_modify_their_input() -> None:
    def normalising(x: torch.Tensor) -> torch.Tensor:
        x.sub_(0.5).div_(0.25)
        score = 1e-6 * x.mean((1, 2, 3))
        return torch.stack([1 + score, 1 - score], dim=1)  # all near ties, so all are scored twice

    results = [
        SmoothedClassifier(normalising, 2, Gaussian(0.5), batch_size=b, partition=None).counts(X, n=128)
        for b in (1, 64)
    ]
    np.testing.assert_array_equal(results[0], results[1])


def test_exact_ties_go_to_the_first_class_in_every_batch() -> None:
    for batch_size in (1, 64):
        g = SmoothedClassifier(
            lambda x: torch.zeros(len(x), 10), 10, Gaussian(0.5), batch_size=batch_size, partition=None
        )
        assert g.counts(X, n=65)[0] == 65


def test_models_must_return_one_score_per_sample() -> None:
    calls = []

    def growing(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.zeros(len(x) * len(calls), 2)

    with pytest.raises(PprsError, match="the model returned shape"):
        SmoothedClassifier(growing, 2, Gaussian(0.5), partition=None).counts(X, n=200)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((1, 12, 12), float("nan")), "NaN or infinite"),
        (torch.full((1, 12, 12), float("inf")), "NaN or infinite"),
        (torch.linspace(0, 255, 144).reshape(1, 12, 12), r"must lie in \[0, 1\]. Divide 0..255 images by 255"),
        (torch.linspace(-2, 2.5, 144).reshape(1, 12, 12), r"must lie in \[0, 1\]. Do not normalise"),
        (torch.zeros(1, 12, 12, dtype=torch.uint8), "Divide 0..255"),
        (torch.rand(2, 12, 12), "1 or 3 channels, not 2"),
        (torch.rand(1, 4, 4), "at least 8x8"),
        (torch.rand(1, 1, 12, 12), r"one image \[C, H, W\]"),
    ],
)
def test_bad_images_are_refused(x: torch.Tensor, message: str) -> None:
    g = SmoothedClassifier(Linear(torch.ones(1, 12, 12), 0.0), 2, Gaussian(0.5), partition=None)
    with pytest.raises(PprsError, match=message):
        g.certify(x, n=100)


def test_nothing_is_claimed_before_a_sample_is_drawn() -> None:
    source = LocalVotes(Linear(torch.ones(1, 12, 12), 0.0), 2, Gaussian(0.25))
    certification = Certification(source, Sampling(10, 100))
    for prepare in (lambda: None, lambda: certification.select(X)):
        prepare()
        assert not certification.begun
        with pytest.raises(PprsError, match="no sample has been drawn yet"):
            certification.certificate()
    certification.estimate(X)
    assert certification.certificate().prediction == 1


def test_a_batch_has_at_least_one_image() -> None:
    votes = LocalVotes(coin, 2, Gaussian(0.5))
    assert [votes.usual_batch(torch.empty(1).expand(3, side, side)) for side in (8, 256, 2000)] == [64, 5, 1]


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"threads": 0}])
def test_sizes_below_1_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(PprsError, match="must be at least 1, not 0") as caught:
        LocalVotes(coin, 2, Gaussian(0.5), **options)
    assert caught.value.parameter in options


def test_bad_models_are_reported_with_context() -> None:
    def certify(model, num_classes=2):
        SmoothedClassifier(model, num_classes, Gaussian(0.5), Grid(3)).certify(X, n=100, index=17)

    with pytest.raises(PprsError, match=r"image 17: shape \(1, 12, 12\), partition grid:size=3: .*num_classes=3"):
        certify(Linear(torch.ones(1, 12, 12), 0.0), 3)
    with pytest.raises(PprsError, match=r"^image 3: it is damaged$"), error_context(X, 7, None):
        raise PprsError("it is damaged", index=3)
    with pytest.raises(PprsError, match="size or number of channels"):
        certify(small_net(channels=1).stem[0].__class__(3, 2, 3))
    with pytest.raises(PprsError, match="must return a tensor"):
        certify(lambda x: [1, 2])
    with pytest.raises(PprsError, match="NaN scores"):
        certify(lambda x: torch.full((len(x), 2), float("nan")))
    with pytest.raises(PprsError, match="NaN scores"):
        certify(lambda x: torch.tensor([0.0, float("nan")]).repeat(len(x), 1))  # which would be its largest score


@pytest.mark.parametrize("sigma", [0, -1, 1e-9, 1e30, float("nan"), float("inf"), "0.5"])
def test_bad_sigma_is_refused(sigma) -> None:
    with pytest.raises(PprsError, match="`sigma` must be a positive number"):
        Gaussian(sigma)
