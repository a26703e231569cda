"""Total variation denoising by accelerated projection in the dual problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

F32 = np.float32
ITERATIONS_PER_PASS = 10  # iterations that run as one wavefront down the image
STEP = 0.125  # step along the dual's gradient: one over a bound on the largest eigenvalue of the discrete Laplacian


def compute_momenta(iterations: int) -> Any:
    """Return the momentum of each iteration. The last is 0, since only p itself satisfies the constraint."""
    momenta, t = [], 1.0
    for _ in range(iterations - 1):
        t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        momenta.append((before - 1) / t)
    return np.array([*momenta, 0.0], np.float32)


@njit(nogil=True, cache=True)
def denoise(images: Any, weight: Any, momenta: Any, out: Any) -> None:
    """Write f + div p to out, where p minimises its squared norm subject to |p| <= weight at every pixel.

    This is the fast gradient projection of Beck and Teboulle (2009), with one iteration per momentum. The length of p
    is taken over both directions and all channels. Successive iterations run down the image one row behind each other,
    so that the rows they share stay in the cache.
    """
    batch, channels, height, width = images.shape
    # For each row and channel: the down and right components of the point that the step starts from, then those of p.
    # The entry before the first pixel stays 0, as do components that point out of the image.
    state = np.empty((height, channels, 4, width + 1), np.float32)
    primal = np.empty((ITERATIONS_PER_PASS, 2, channels, width + 1), np.float32)
    norm = np.empty(width, np.float32)
    for b in range(batch):
        f = images[b]
        state[:] = 0
        for first in range(0, len(momenta), ITERATIONS_PER_PASS):
            count = min(ITERATIONS_PER_PASS, len(momenta) - first)
            for front in range(height + count - 1):
                for k in range(max(0, front - height + 1), min(count, front + 1)):
                    _iterate(f, front - k, state, weight, momenta[first + k], primal[k], norm)
        for c in range(channels):
            line = primal[0, 0, c]
            for y in range(height):
                _compute_primal(
                    f[c, y], state[y, c, 0], state[max(y - 1, 0), c, 0], F32(min(y, 1)), state[y, c, 1], line
                )
                out[b, c, y] = line[:width]


@njit(nogil=True, cache=True)
def _iterate(f: Any, y: int, state: Any, weight: Any, momentum: Any, primal: Any, norm: Any) -> None:
    """Run one iteration on row y. `primal` holds f + div of this row from before the row above was updated."""
    channels, height = f.shape[:2]
    current, below = primal[y % 2], primal[1 - y % 2]
    norm[:] = 0
    for c in range(channels):
        dual = state[y, c]
        if y == 0:
            _compute_primal(f[c, 0], dual[0], dual[0], F32(0), dual[1], current[c])
        if y + 1 < height:
            after = state[y + 1, c]
            _compute_primal(f[c, y + 1], after[0], dual[0], F32(1), after[1], below[c])
            _step_down(dual[0], current[c], below[c], norm)
        _step_right(dual[1], current[c], norm)
    _compute_projection_scale(norm, weight)
    for c in range(channels):
        for k in range(2):
            _project(state[y, c, k], state[y, c, k + 2], norm, momentum)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _compute_primal(f: Any, down: Any, above: Any, inside: Any, right: Any, out: Any) -> None:
    """Compute a row of f + div. Its last pixel is repeated, so that there is no step to the right of it."""
    d, a, r, left = down[1:], above[1:], right[1:], right[:-1]
    for x in range(len(f)):
        out[x] = f[x] + (d[x] - inside * a[x]) + (r[x] - left[x])
    out[len(f)] = out[len(f) - 1]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _step_down(down: Any, current: Any, below: Any, norm: Any) -> None:
    d = down[1:]
    for x in range(len(norm)):
        d[x] += F32(STEP) * (below[x] - current[x])
        norm[x] += d[x] * d[x]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _step_right(right: Any, current: Any, norm: Any) -> None:
    r, after = right[1:], current[1:]
    for x in range(len(norm)):
        r[x] += F32(STEP) * (after[x] - current[x])
        norm[x] += r[x] * r[x]


@njit(nogil=True, cache=True, error_model="numpy")
def _compute_projection_scale(norm: Any, weight: Any) -> None:
    for x in range(len(norm)):
        length = np.sqrt(norm[x])
        norm[x] = weight / (length if length > weight else weight)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _project(start: Any, p: Any, share: Any, momentum: Any) -> None:
    s, q = start[1:], p[1:]
    for x in range(len(share)):
        new = s[x] * share[x]
        s[x] = new + momentum * (new - q[x])
        q[x] = new
