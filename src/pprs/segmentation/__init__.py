"""Certified segmentation: labels of pixels that no small change of the image alters, all at once."""

from __future__ import annotations

from pprs.segmentation.certificate import ABSTAINED, SegmentationCertificate
from pprs.segmentation.segmenter import SegmentationSampling, SmoothedSegmenter, certify_segmentation

__all__ = ["ABSTAINED", "SegmentationCertificate", "SegmentationSampling", "SmoothedSegmenter", "certify_segmentation"]
