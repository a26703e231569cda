"""The smoothed classifier."""

from __future__ import annotations

from pprs.smooth.classifier import Certifying, Earlier, SmoothedClassifier
from pprs.smooth.vote import ESTIMATE, PREDICT, SELECT, TRAIN, TRIAL, chunk_size, noisy_chunk

__all__ = [
    "ESTIMATE",
    "PREDICT",
    "SELECT",
    "TRAIN",
    "TRIAL",
    "Certifying",
    "Earlier",
    "SmoothedClassifier",
    "chunk_size",
    "noisy_chunk",
]
