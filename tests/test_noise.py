"""That noise has the law that certificates are made for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pprs import Gaussian
from pprs.kernels import normal
from pprs.noise import keyed_rng, standard_normal

N = 2_000_000


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    return standard_normal((N,), keyed_rng("cpu", 7, 0, 0, 0)).numpy().astype(np.float64)


def plainly(state: np.ndarray, count: int) -> np.ndarray:
    """The same numbers in Python's whole numbers and double precision."""
    s = [[int(v) for v in row] for row in state.reshape(4, normal.LANES)]
    word = 2**32 - 1

    def draw() -> np.ndarray:
        out = []
        for lane in range(normal.LANES):
            a, b, c, d = (row[lane] for row in s)
            total = (a + d) & word
            out.append((((total << 7 | total >> 25) & word) + a) & word)
            t = (b << 9) & word
            c, d = c ^ a, d ^ b
            b, a = b ^ c, a ^ d
            c, d = c ^ t, (d << 11 | d >> 21) & word
            for row, value in zip(s, (a, b, c, d), strict=True):
                row[lane] = value
        return np.array(out, np.float64)

    made = []
    while len(made) * 2 * normal.LANES < count:
        high, low, angle = draw(), draw(), draw()
        u = (high + (low // 256 + 0.5) / 2**24) / 2**32
        radius, turn = np.sqrt(-2 * np.log(u)), 2 * np.pi * angle / 2**32
        made.append(np.concatenate([radius * np.cos(turn), radius * np.sin(turn)]))
    return np.concatenate(made)[:count]


def test_the_kernel_is_its_definition() -> None:
    for count in (1, 63, 64, 65, 3000):
        state = np.random.default_rng(3).integers(0, 2**32, normal.STATE, dtype=np.uint32)
        out = np.empty(count, np.float32)
        normal.normal(state.copy(), out)
        # The logarithm of a number next to 1 is known to 2^-24 only, of itself and so its root to 2^-12.
        np.testing.assert_allclose(out, plainly(state, count), rtol=2e-4, atol=4e-4)
        assert np.mean(np.abs(out - plainly(state, count)) > 1e-5) < 0.01


def test_the_law(drawn: np.ndarray) -> None:
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    for power, value, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(drawn**power) - value) < 4 * np.sqrt(spread / N)
    for far in (3.0, 4.0, 4.5):
        expected = 2 * N * stats.norm.sf(far)
        assert abs((np.abs(drawn) > far).sum() - expected) < 4.5 * np.sqrt(expected)


@pytest.mark.parametrize("lag", [1, 2, 16, 32, 33, 64, 128, 784, 3072])
def test_draws_are_independent(drawn: np.ndarray, lag: int) -> None:
    near, far = drawn[:-lag], drawn[lag:]
    assert abs(np.mean(near * far)) < 4.5 / np.sqrt(N)
    assert abs(np.mean((near**2 - 1) * (far**2 - 1))) < 4.5 * 2 / np.sqrt(N)


def test_keys_have_streams_of_their_own() -> None:
    draws = [
        Gaussian(1.0).sample((50_000,), keyed_rng("cpu", *key)) for key in ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0))
    ]
    for i, one in enumerate(draws):
        for other in draws[i + 1 :]:
            assert abs(float((one * other).mean())) < 4.5 / np.sqrt(50_000)
    again = Gaussian(1.0).sample((50_000,), keyed_rng("cpu", 0, 0, 0, 0))
    assert torch.equal(draws[0], again)
    out = torch.empty(50_000)
    assert Gaussian(1.0).sample((50_000,), keyed_rng("cpu", 0, 0, 0, 0), out) is out
    assert torch.equal(out, again)


def test_the_tail_is_not_cut() -> None:
    """The smallest uniform number gives the largest radius: 64 bits reach far beyond what single ones would."""
    state = np.zeros(normal.STATE, np.uint32)
    state[3 * normal.LANES :] = 1  # the first draw of each lane is tiny
    out = np.empty(2 * normal.LANES, np.float32)
    normal.normal(state, out)
    assert np.isfinite(out).all()
    assert np.hypot(out[: normal.LANES], out[normal.LANES :]).max() > 5
