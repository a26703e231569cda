"""Draw the votes of a certification run's row again, and compare them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pprs.noise import QuantisedImage
from pprs.runs.row import PARTIAL, Row
from pprs.smoothing.certificate import Counts
from pprs.smoothing.sampling import Evidence
from pprs.smoothing.voting import ESTIMATE, SELECT, OnSamples, check_image, count_votes, error_context

if TYPE_CHECKING:
    from pprs.certify.guarantee import CertifyAnswer


def replay_votes(answer: CertifyAnswer, row: Row, x: torch.Tensor, on_samples: OnSamples) -> list[str]:
    """Draw the votes of a row again, as many as it has, and return in what the row differs."""
    source, sampling = answer.scorer, answer.sampling
    with error_context(x, row.idx, source.partition):
        image = source.quantise(check_image(x, source.device))
        selected = int(count_votes(source, image, sampling.n0, row.idx, SELECT, on_samples).counts.argmax())
        quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
        evidence = Evidence(sampling, source.noise, image.numel(), source.num_classes, selected, quantisation)
        counts: Counts = np.zeros(source.num_classes, np.int64)
        segments, reason = None, None
        for votes in source.votes(image, range(row.samples), row.idx, ESTIMATE):
            counts = counts + votes.counts
            segments = None if votes.segments is None else (segments or 0) + votes.segments
            evidence.add(counts.tolist())
            reason = reason or evidence.stopped
            on_samples(int(votes.counts.sum()))
    if selected != row.selected:
        return [f"selected is {row.selected}, and drawing again selects {selected}"]
    if tuple(counts.tolist()) != row.counts:
        return [f"counts are {list(row.counts)}, and drawing again gives {counts.tolist()}"]
    drawn = replace(
        row, stopped=reason or PARTIAL, p_lower=evidence.p_lower, p_upper=evidence.p_upper,
        mean_segments=None if segments is None else segments / max(row.samples, 1),
    )  # fmt: skip
    return [
        f"{name} is {getattr(row, name)}, and drawing again gives {getattr(drawn, name)}"
        for name in ("stopped", "p_lower", "p_upper", "mean_segments")
        if not _equal(getattr(row, name), getattr(drawn, name))
    ]


def _equal(stored: Any, computed: Any) -> bool:
    if isinstance(stored, float | int) and isinstance(computed, float | int):
        return abs(stored - computed) <= 1e-9 * max(1.0, abs(computed))
    return bool(stored == computed)
