"""Audits of counted votes: nothing is sampled, so that a change that alters the label is certain."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from pprs.audit.auditor import Auditor, Changed, GalleryRow, stack_views
from pprs.audit.counted_search import CountedSearch
from pprs.audit.counted_votes import CountedVotes
from pprs.audit.levels import Ints, LevelImage
from pprs.audit.options import AuditOptions, OutOfTime
from pprs.audit.result import PIXELS, AuditedImage, CountedClaim, count_units
from pprs.dither.certificate import measure_radius
from pprs.dither.classifier import DitherClassifier
from pprs.dither.guarantee import DITHER, DitherRow
from pprs.dither.scale import STEP
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.kernels.thresholds import GREY

GREY_LEVELS = "grey levels"
PIXEL_TIME = 0.4  # the share of the time that the search for few pixels may take
VIEWED = 64  # offsets of which the one with the largest difference is drawn


class DitherAuditor(Auditor):
    """Attacks the images of a run of counted votes: in few grey levels in total, and in few pixels."""

    alpha = 0.0

    @classmethod
    def list_obstacles(cls, rows: Sequence[DitherRow]) -> list[str]:
        if not any(row.shape is not None and domain_of(row.shape) is SIGNAL for row in rows):
            return []
        return [
            "an audit of counted votes changes images in grey levels, and this run is of signals, which have none. "
            "Audit a run of images, or a run of these signals under Gaussian noise."
        ]

    @property
    def classifier(self) -> DitherClassifier:
        """The classifier that the certificates are about."""
        found: DitherClassifier = self.work.answer.classifier  # type: ignore[attr-defined]
        return found

    def audit(self, row: DitherRow, options: AuditOptions) -> tuple[AuditedImage, Changed]:
        attack = _ImageAttack(self, row, options)
        try:
            image = attack.run()
        except ConfigurationError:
            raise
        except PprsError as error:
            raise PprsError(error.message, parameter=error.parameter, index=row.idx, noun=error.noun) from error
        return image, {
            image.name_file(claim): attack.changed(claim) for claim in image.claims if claim.found is not None
        }

    def level_image(self, index: int) -> LevelImage:
        return LevelImage.of_grey(self.subject.data[index].image)

    def make_gallery_rows(self, image: AuditedImage, changed: Changed) -> list[GalleryRow]:
        levels, rows = self.level_image(image.idx), list[GalleryRow]()
        for claim in image.claims:
            if claim.found is None:
                continue
            k = changed[image.name_file(claim)]
            rows.append(
                GalleryRow(
                    image, count_units(claim.certified, claim.unit), count_units(claim.found, claim.unit),
                    claim.new_label, claim.inside, levels.to_tensor(levels.k).numpy(), levels.to_tensor(k).numpy(),
                    self._view(levels.k, k),
                )
            )  # fmt: skip
        return rows

    def _view(self, clean: Ints, changed: Ints) -> tuple[tuple[str, np.ndarray, np.ndarray], ...]:
        """Return what is shown of both at the offset where most differs, and what is estimated from that."""
        votes = self.classifier.votes
        offsets = torch.from_numpy(votes.dither.order()[:VIEWED])
        pair = [torch.from_numpy(k.astype(np.int32)).to(votes.device) for k in (clean, changed)]
        shown = [votes.show(values, offsets) for values in pair]
        differs = (shown[0].lowest != shown[1].lowest) | (shown[0].highest != shown[1].highest)
        most = int(differs.flatten(1).sum(1).argmax())
        middles = torch.stack([(one.lowest[most].float() + one.highest[most].float()) / (2 * GREY) for one in shown])
        estimates = torch.cat([votes.estimate(values, offsets[most : most + 1]) for values in pair])
        return stack_views("shown", middles), stack_views("estimated", estimates)


class _ImageAttack:
    """The attack on one image: first in few pixels, then in few levels in total."""

    def __init__(self, auditor: DitherAuditor, row: DitherRow, options: AuditOptions) -> None:
        assert row.prediction is not None
        self._row, self._options, self._began = row, options, time.monotonic()
        image = auditor.read_image(row)
        self._levels = LevelImage.of_grey(image)
        self._deadline = self._began + options.seconds
        others = [LevelImage.of_grey(other).k.ravel() for other in auditor.find_others(image)]
        self._votes = CountedVotes(auditor.classifier, self._levels, row.prediction, auditor.network, self._check_time)
        certificate = DITHER.certificate(row, auditor.settings)
        self._per_pixel = certificate.per_pixel
        self._searches = {
            unit: CountedSearch(
                self._votes, self._levels.k.ravel(), certified, by_pixel=unit == PIXELS, steps=options.steps,
                others=others, seed=auditor.seed,
            )
            for unit, certified in ((GREY_LEVELS, certificate.grey_levels), (PIXELS, certificate.pixels))
        }  # fmt: skip

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime

    def run(self) -> AuditedImage:
        few_pixels, few_levels = self._searches[PIXELS], self._searches[GREY_LEVELS]
        end, complete = self._deadline, True
        for search, deadline in (
            (few_pixels, self._began + PIXEL_TIME * self._options.seconds),
            (few_levels, end),
        ):
            self._deadline = deadline
            try:
                few_levels.adopt(few_pixels.best)
                search.run()
            except OutOfTime:
                complete = False
        few_pixels.adopt(few_levels.best)
        few_levels.adopt(few_pixels.best)
        claims = tuple(self._make_claim(unit) for unit in self._searches)
        found, modelled = claims[0].found, few_levels if few_levels.how else few_pixels
        return AuditedImage(
            idx=self._row.idx,
            prediction=self._votes.label,
            radius=self._row.radius,
            kind=modelled.kind,
            how=modelled.how,
            queries=self._votes.queries,
            seconds=time.monotonic() - self._began,
            complete=complete,
            inside=any(claim.inside for claim in claims),
            label=self._row.label,
            found=None if found is None else measure_radius(found, STEP, self._row.shape),
            new_label=claims[0].new_label,
            searched=measure_radius(claims[0].searched, STEP, self._row.shape),
            gradient_error=modelled.gradient_error,
            claims=claims,
        )

    def _make_claim(self, unit: str) -> CountedClaim:
        search = self._searches[unit]
        best, certified = search.best, search.certified
        if best is None:
            return CountedClaim(unit, certified, searched=search.searched)
        # By the votes, it is the distance from the rounded image that counts.
        offsets = best.size * (self._per_pixel if unit == PIXELS else 1)
        size = best.size if unit == PIXELS else self._levels.total(best.k.reshape(self._levels.k.shape))
        return CountedClaim(unit, certified, size, best.new_label, offsets <= self._row.offsets, search.searched)

    def changed(self, claim: CountedClaim) -> Ints:
        """Return the changed image of a claim, in levels."""
        best = self._searches[claim.unit].best
        assert best is not None
        return best.k.reshape(self._levels.k.shape)
