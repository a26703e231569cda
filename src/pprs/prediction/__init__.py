"""Labels of the smoothed classifier without radii: what `pprs predict` promises."""

from __future__ import annotations

from pprs.prediction.dataset import predict_dataset, predict_subject
from pprs.prediction.row import PredictedRow, PredictionSettings

__all__ = ["PredictedRow", "PredictionSettings", "predict_dataset", "predict_subject"]
