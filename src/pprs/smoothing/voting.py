"""The sampling loop of randomized smoothing: noisy samples, their scores, and their votes."""

from __future__ import annotations

from pprs.smoothing.local_votes import LocalVotes, Samples
from pprs.smoothing.samples import (
    ADAPT,
    ATTACK,
    AUDIT,
    CALIBRATE,
    ESTIMATE,
    PREDICT,
    SELECT,
    SETS,
    TRAIN,
    TRIAL,
    TRIAL_SIZE,
    TUNE,
    check_image,
    chunk_size,
    error_context,
    noisy_chunk,
    trial_inputs,
)  # fmt: skip
from pprs.smoothing.scoring import NEAR_TIE, TIES_PER_DIFFERENCE, BaseClassifier, BatchCheck, Scorer
from pprs.smoothing.votes import OnSamples, Votes, VoteSource, check_count, count_votes

__all__ = [
    "ADAPT", "ATTACK", "AUDIT", "CALIBRATE", "ESTIMATE", "NEAR_TIE", "PREDICT", "SELECT", "SETS",
    "TIES_PER_DIFFERENCE", "TRAIN", "TRIAL", "TRIAL_SIZE", "TUNE", "BaseClassifier", "BatchCheck", "LocalVotes",
    "OnSamples", "Samples", "Scorer", "VoteSource", "Votes", "check_count", "check_image", "chunk_size", "count_votes",
    "error_context", "noisy_chunk", "trial_inputs",
]  # fmt: skip
