"""What a segmentation run says as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pprs.partition import parse_partition
from pprs.report.table import format_percent, format_radius
from pprs.runs import Failure, Run
from pprs.runs.guarantee import Metric, RunSummary
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.row import SegmentationRow
from pprs.segmentation.settings import SegmentationSettings
from pprs.smoothing.certificate import confidence, state_arithmetic


@dataclass(frozen=True)
class Totals:
    """Totals over the images of a run.

    Attributes:
        images: Number of images, with failed ones.
        failures: Images that failed, and count as abstained.
        pixels: Number of pixels. A failed image whose mask is unknown counts with the mean size of the others.
        certified_share: Share of these pixels that have a certified label.
        radius: Smallest certified radius of an image, NaN if there is none.
        certified: The certified labels against the masks, or None without masks.
        selected: The selected labels against the masks, which are certified nowhere, or None without masks.
        only: The row, if there is one image, and it did not fail.
    """

    images: int
    failures: tuple[Failure, ...]
    pixels: int
    certified_share: float
    radius: float
    certified: Confusion | None
    selected: Confusion | None
    only: SegmentationRow | None

    @property
    def failed(self) -> int:
        """The number of images that failed."""
        return len(self.failures)


def add_up(run: Run) -> Totals:
    """Return the totals of a run, without holding its rows in memory."""
    settings: SegmentationSettings = run.settings
    classes, failures = settings.num_classes or 0, tuple(run.failures())
    count, pixels, claimed, radius = 0, 0, 0, math.inf
    certified = selected = Confusion.none(classes)
    unknown = 0  # failed images of which not even the size is known
    for failure in failures:
        row = run.guarantee.failed_row(failure)
        unknown += row.mask is None
        if (confusion := row.confusion(classes)) is not None:
            pixels += row.mask.size
            certified, selected = certified + confusion, selected + confusion
    only = None
    for row in run.iter_rows():
        count, only, certificate = count + 1, row, row.certificate
        pixels, claimed = pixels + certificate.labels.size, claimed + int(certificate.certified.sum())
        radius = min(radius, certificate.radius)
        if (confusion := row.confusion(classes)) is not None:
            certified, selected = certified + confusion, selected + row.confusion(classes, selected=True)
    if unknown and count + len(failures) > unknown:
        pixels += round(unknown * pixels / (count + len(failures) - unknown))
    scored = certified.pixels > 0
    return Totals(
        count + len(failures), failures, pixels, claimed / max(pixels, 1), radius if count else math.nan,
        certified if scored else None, selected if scored else None, only if count == 1 and not failures else None,
    )  # fmt: skip


def summarise_segmentation(run: Run) -> RunSummary:
    """Return the claim of a segmentation run, and what its certified labels score against the masks."""
    totals = add_up(run)
    if not totals.images:
        return RunSummary(())
    if totals.only is not None:
        claims: tuple[str, ...] = (str(totals.only.certificate),)
    else:
        share = format_percent(totals.certified_share)
        claims = (
            f"{share} of the pixels of {totals.images} images certified",
            state_claims(run.settings, totals.radius),
        )
    metrics = [Metric("certified pixels", totals.certified_share)]
    if totals.certified is not None:
        metrics = [
            Metric("certified pixel accuracy", totals.certified.accuracy),
            Metric("certified mean IoU", totals.certified.certified_mean_iou),
        ]
    return RunSummary(claims, tuple(metrics), totals.images, totals.failures)


def state_claims(settings: SegmentationSettings, radius: float) -> str:
    """State what the certificates of a run claim, of which this is the smallest radius. NaN if there are none."""
    if math.isnan(radius) or settings.alpha is None:
        return "Nothing is claimed."
    groups = parse_partition(settings.groups)
    fixed = "" if groups is None or groups.static else ", with the groups of each image fixed"
    return (
        f"No change of L2 norm up to {format_radius(radius)} to an image, as the network receives it, can alter any of "
        f"its certified labels. For each image this holds for all its pixels at once, with "
        f"{confidence(settings.alpha)} confidence{fixed}{state_arithmetic(settings.arithmetic, settings.levels)}."
    )


__all__ = ["Totals", "add_up", "state_claims", "summarise_segmentation"]
