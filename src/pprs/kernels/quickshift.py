"""Quick shift: estimate a density, link each pixel to its nearest denser neighbour, and segment by the trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_line
from pprs.kernels.felzenszwalb import number_segments

F32 = np.float32
# Range and resolution of the lookup tables. A pixel of 3 is 13 in linear light.
LOW, HIGH, PER_UNIT = -1.0, 15.0, 2048


def make_tables() -> tuple[Any, Any]:
    """Return lookup tables for sRGB to linear light, and for CIE Lab's cube root with its linear segment near 0."""
    x = np.linspace(LOW, HIGH, int((HIGH - LOW) * PER_UNIT) + 1)
    linear = np.where(x > 0.04045, ((np.maximum(x, 0) + 0.055) / 1.055) ** 2.4, x / 12.92)
    root = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16.0 / 116.0)
    return linear.astype(np.float32), root.astype(np.float32)


@njit(nogil=True, cache=True)
def _look_up(table: Any, x: Any) -> Any:
    at = min(max((x - F32(LOW)) * F32(PER_UNIT), F32(0)), F32(len(table) - 2))
    i = int(at)
    return table[i] + (at - F32(i)) * (table[i + 1] - table[i])


@njit(nogil=True, cache=True)
def _to_lab(planes: Any, ratio: Any, linear: Any, root: Any, lab: Any, stride: int, top: int) -> None:
    """Convert planes [C, H, W] to Lab times ratio, into the padded rows of lab. A single channel is treated as grey."""
    channels, height, width = planes.shape
    for y in range(height):
        for x in range(width):
            r = _look_up(linear, planes[0, y, x])
            g = _look_up(linear, planes[1 if channels == 3 else 0, y, x])
            b = _look_up(linear, planes[2 if channels == 3 else 0, y, x])
            fx = _look_up(root, (F32(0.412453) * r + F32(0.357580) * g + F32(0.180423) * b) * F32(1 / 0.95047))
            fy = _look_up(root, F32(0.212671) * r + F32(0.715160) * g + F32(0.072169) * b)
            fz = _look_up(root, (F32(0.019334) * r + F32(0.119193) * g + F32(0.950227) * b) * F32(1 / 1.08883))
            i = top + y * stride + x
            lab[0, i] = (F32(116) * fy - F32(16)) * ratio
            lab[1, i] = F32(500) * (fx - fy) * ratio
            lab[2, i] = F32(200) * (fy - fz) * ratio


@njit(nogil=True, cache=True, fastmath={"contract", "nnan", "nsz"}, error_model="numpy")
def _compute_kernel(a: Any, b: Any, c: Any, a2: Any, b2: Any, c2: Any, scale: Any, near: Any, out: Any) -> None:
    """Compute near * exp(-scale * |colour difference|^2), accurate to 1e-4.

    The exponential is a polynomial of t / 8, raised to the eighth power.
    """
    for i in range(len(out)):
        d0, d1, d2 = a[i] - a2[i], b[i] - b2[i], c[i] - c2[i]
        t = min((d0 * d0 + d1 * d1 + d2 * d2) * scale, F32(16)) * F32(0.125)
        e = F32(1.0 / 720) * t - F32(1.0 / 120)
        e = e * t + F32(1.0 / 24)
        e = e * t - F32(1.0 / 6)
        e = e * t + F32(0.5)
        e = e * t - F32(1)
        e = e * t + F32(1)
        e = e * e
        e = e * e
        out[i] = e * e * near


@njit(nogil=True, cache=True)
def _add(target: Any, part: Any) -> None:
    for i in range(len(part)):
        target[i] += part[i]


@njit(nogil=True, cache=True, fastmath={"contract", "nnan", "nsz"}, error_model="numpy")
def _update_nearest(
    a: Any,
    b: Any,
    c: Any,
    density: Any,
    a2: Any,
    b2: Any,
    c2: Any,
    density2: Any,
    far: Any,
    step: Any,
    best: Any,
    to: Any,
) -> None:
    for i in range(len(best)):
        d0, d1, d2 = a[i] - a2[i], b[i] - b2[i], c[i] - c2[i]
        d = d0 * d0 + d1 * d1 + d2 * d2 + far
        # Of two equally dense pixels the earlier one counts as denser, so that flat areas stay connected.
        denser = density2[i] >= density[i] if step < 0 else density2[i] > density[i]
        d = d if denser else F32(1e30)
        to[i] = step if d < best[i] else to[i]
        best[i] = min(d, best[i])


@njit(nogil=True, cache=True)
def segment_images(
    images: Any, size: int, kernel_size: float, max_dist: float, ratio: float,
    linear: Any, root: Any, labels: Any, segments: Any,
) -> None:  # fmt: skip
    """Segment the box blur of each image; write labels [B, H*W] and the number of segments.

    An image is stored as one long row, with a gap after each line that is far from every pixel in colour. A step to a
    neighbour is then a shift of the entire row, which needs no boundary checks for any image size.
    """
    _, channels, height, width = images.shape
    furthest = max(height, width) - 1
    window = int(min(np.ceil(3 * kernel_size), furthest))
    reach = int(min(max_dist, window))
    gap = max(window, reach)
    stride, top = width + gap, gap * (width + gap) + gap
    total = height * stride
    padded = np.empty(width + size - 1, np.float32)
    share = np.float32(1.0 / (size * size))
    planes = np.empty((channels, height, width), np.float32)
    lab = np.empty((3, total + 2 * top), np.float32)
    density = np.empty(total + 2 * top, np.float32)
    part = np.empty(total, np.float32)
    best, to = np.empty(total, np.float32), np.empty(total, np.int32)
    parent = np.empty(height * width, np.int32)
    scale = F32(0.5 / kernel_size**2)
    a, b, c = lab[0, top : top + total], lab[1, top : top + total], lab[2, top : top + total]
    for index in range(len(images)):
        for k in range(channels):
            for y in range(height):
                plane = (index * channels + k) * height * width
                blur_line(images, plane, height, width, y, size, share, padded, 0, planes, (k * height + y) * width)
        lab[:] = F32(1e4)
        _to_lab(planes, F32(ratio), linear, root, lab, stride, top)
        density[:] = F32(1)  # each pixel's own contribution
        for dy in range(window + 1):
            for dx in range(-window, window + 1):
                if dy == 0 and dx <= 0:
                    continue  # each pair once
                near = F32(np.exp(-(dx * dx + dy * dy) * (0.5 / kernel_size**2)))
                at = top + dy * stride + dx
                _compute_kernel(
                    a,
                    b,
                    c,
                    lab[0, at : at + total],
                    lab[1, at : at + total],
                    lab[2, at : at + total],
                    scale,
                    near,
                    part,
                )
                _add(density[top : top + total], part)
                _add(density[at : at + total], part)
        for y in range(height):
            density[top + y * stride + width : top + (y + 1) * stride] = F32(-1)
        density[:top] = F32(-1)
        density[top + total :] = F32(-1)
        best[:] = F32(max_dist) * F32(max_dist) * F32(1.000001)
        to[:] = 0
        for dy in range(-reach, reach + 1):
            for dx in range(-reach, reach + 1):
                far = dx * dx + dy * dy
                if far == 0 or far > max_dist * max_dist:
                    continue
                step = dy * stride + dx
                at = top + step
                _update_nearest(
                    a, b, c, density[top : top + total],
                    lab[0, at : at + total], lab[1, at : at + total], lab[2, at : at + total], density[at : at + total],
                    F32(far), np.int32(dy * width + dx), best, to,
                )  # fmt: skip
        for y in range(height):
            for x in range(width):
                parent[y * width + x] = y * width + x + to[y * stride + x]
        for i in range(len(parent)):  # follow the chain to its root, compressing the path
            end = parent[i]
            while parent[end] != end:
                end = parent[end]
            step = i
            while parent[step] != end:
                parent[step], step = end, parent[step]
        segments[index] = number_segments(parent, labels[index])
