"""Total variation: the picture that is near the given one and has little change in it, from its dual problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

F32 = np.float32
WAVE = 10  # iterations that follow each other
STEP = 0.125  # of the dual's gradient: one over the largest eigenvalue that four neighbours can have


def momenta(iterations: int) -> Any:
    """How far each iteration goes on in the direction it came; the last stays at p, which alone keeps to the weight."""
    made, t = [], 1.0
    for _ in range(iterations - 1):
        t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        made.append((before - 1) / t)
    return np.array([*made, 0.0], np.float32)


@njit(nogil=True, cache=True)
def denoise(pictures: Any, weight: Any, momenta: Any, out: Any) -> None:
    """out = f + div p, where p, a vector no longer than the weight at every pixel, makes its square least.

    The fast gradient projection of Beck and Teboulle (2009), an iteration for each of the momenta, of which the last
    is 0. The length of p is over both directions and all channels. Iterations follow each other down the picture, a
    row behind the one before, so that the rows between them stay in the cache.
    """
    batch, channels, height, width = pictures.shape
    # Of each row and channel: down and right of the point that the step starts from, down and right of p.
    # The number before the first pixel stays 0, as does what points out of the picture.
    state = np.empty((height, channels, 4, width + 1), np.float32)
    primal = np.empty((WAVE, 2, channels, width + 1), np.float32)
    norm = np.empty(width, np.float32)
    for b in range(batch):
        f = pictures[b]
        state[:] = 0
        for first in range(0, len(momenta), WAVE):
            count = min(WAVE, len(momenta) - first)
            for front in range(height + count - 1):
                for k in range(max(0, front - height + 1), min(count, front + 1)):
                    _iterate(f, front - k, state, weight, momenta[first + k], primal[k], norm)
        for c in range(channels):
            line = primal[0, 0, c]
            for y in range(height):
                _primal(f[c, y], state[y, c, 0], state[max(y - 1, 0), c, 0], F32(min(y, 1)), state[y, c, 1], line)
                out[b, c, y] = line[:width]


@njit(nogil=True, cache=True)
def _iterate(f: Any, y: int, state: Any, weight: Any, momentum: Any, primal: Any, norm: Any) -> None:
    """One iteration of row y. `primal` keeps what f + div was in this row before the row above took its step."""
    channels, height = f.shape[:2]
    here, below = primal[y % 2], primal[1 - y % 2]
    norm[:] = 0
    for c in range(channels):
        now = state[y, c]
        if y == 0:
            _primal(f[c, 0], now[0], now[0], F32(0), now[1], here[c])
        if y + 1 < height:
            after = state[y + 1, c]
            _primal(f[c, y + 1], after[0], now[0], F32(1), after[1], below[c])
            _step_down(now[0], here[c], below[c], norm)
        _step_right(now[1], here[c], norm)
    _shorten(norm, weight)
    for c in range(channels):
        for k in range(2):
            _project(state[y, c, k], state[y, c, k + 2], norm, momentum)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _primal(f: Any, down: Any, above: Any, inside: Any, right: Any, out: Any) -> None:
    """A row of f + div; its last pixel twice, so that there is no step to the right of it."""
    d, a, r, left = down[1:], above[1:], right[1:], right[:-1]
    for x in range(len(f)):
        out[x] = f[x] + (d[x] - inside * a[x]) + (r[x] - left[x])
    out[len(f)] = out[len(f) - 1]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _step_down(down: Any, here: Any, below: Any, norm: Any) -> None:
    d = down[1:]
    for x in range(len(norm)):
        d[x] += F32(STEP) * (below[x] - here[x])
        norm[x] += d[x] * d[x]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _step_right(right: Any, here: Any, norm: Any) -> None:
    r, after = right[1:], here[1:]
    for x in range(len(norm)):
        r[x] += F32(STEP) * (after[x] - here[x])
        norm[x] += r[x] * r[x]


@njit(nogil=True, cache=True, error_model="numpy")
def _shorten(norm: Any, weight: Any) -> None:
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
