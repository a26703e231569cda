"""The smoothed classifier."""

from __future__ import annotations

from pprs.smooth.classifier import Certifying, Earlier, SmoothedClassifier
from pprs.smooth.vote import ESTIMATE, PREDICT, SELECT, TRAIN, TRIAL, TUNE, chunk_size, noisy_chunk

__all__ = [
    "ESTIMATE",
    "PREDICT",
    "SELECT",
    "TRAIN",
    "TRIAL",
    "TUNE",
    "Certifying",
    "Earlier",
    "SmoothedClassifier",
    "chunk_size",
    "noisy_chunk",
]
