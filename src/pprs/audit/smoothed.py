"""Audits of certificates under noise: whether a label has changed is tested with fresh draws."""

from __future__ import annotations

import numpy as np
import torch

from pprs.audit.auditor import Auditor, Changed, GalleryRow, stack_views
from pprs.audit.image import audit_image
from pprs.audit.levels import LevelImage
from pprs.audit.options import SAMPLES, AuditOptions
from pprs.audit.result import AuditedImage
from pprs.progress import Progress
from pprs.runs import Row, RunSettings
from pprs.runs.session import check_network
from pprs.smoothing.certificate import Certificate, round_down
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import ATTACK, check_image, noisy_chunk


class SmoothedAuditor(Auditor):
    """Attacks the inputs of a certification run, within and beyond their L2 radii."""

    samples = SAMPLES

    def open(self, progress: Progress) -> None:
        settings = self.settings
        # The noise of an audit is keyed by its own seed, and that of the trials by the seed of the run.
        self.classifier = SmoothedClassifier(
            self.work.session.network, self.subject.num_classes, settings.noise, settings.partition,
            seed=self.seed, device=settings.device, arithmetic=settings.chosen_arithmetic, check=False,
        )  # fmt: skip
        check_network(self.classifier.votes, self.work.trials, progress)  # also decides which votes are near ties

    @property
    def alpha(self) -> float:
        alpha: float = self.settings.sampling.alpha
        return alpha

    def audit(self, row: Row, options: AuditOptions) -> tuple[AuditedImage, Changed]:
        image = self.read_image(row)
        certificate = restore_certificate(row, self.settings, tuple(image.shape))
        others = [] if self.has_gradients else self.find_others(image)
        found, changed = audit_image(
            self.classifier, image, certificate, index=row.idx, label=row.label, options=options,
            network=self.network, starts=[other.double() - image.double() for other in others],
        )  # fmt: skip
        return found, {} if changed is None else {found.file_names[0]: changed}

    def level_image(self, index: int) -> LevelImage:
        return LevelImage.of(self.subject.data[index].image, self.settings.levels)

    def make_gallery_rows(self, image: AuditedImage, changed: Changed) -> list[GalleryRow]:
        if image.found is None:
            return []
        votes, levels = self.classifier.votes, self.level_image(image.idx)
        clean, after = levels.to_tensor(levels.k), levels.to_tensor(changed[image.file_names[0]])
        prepared = votes.quantise(check_image(clean, votes.device))
        noisy = noisy_chunk(prepared, votes.noise, votes.seed, image.idx, ATTACK)[:1].cpu()
        pair = torch.cat([noisy, noisy + (after - clean)])
        views = [stack_views("noisy", pair)]
        partition = votes.resolve(tuple(clean.shape))
        if partition is not None:
            views.append(stack_views("averaged", partition.run(pair)[0]))
        return [
            GalleryRow(
                image, round_down(image.radius), f"{image.found or 0:.3f}", image.new_label, image.inside,
                clean.numpy(), after.numpy(), tuple(views),
            )
        ]  # fmt: skip


def restore_certificate(row: Row, settings: RunSettings, shape: tuple[int, ...]) -> Certificate:
    """Return the certificate of a row."""
    sampling = settings.sampling
    shape = row.shape or shape
    partition = settings.partition
    if partition is not None:
        partition = partition.resolve(settings.noise.sigma, shape)
    return Certificate(
        prediction=row.prediction,
        radius=row.radius,
        p_lower=row.p_lower,
        counts=np.array(row.counts, np.int64),
        selected=row.selected,
        n0=sampling.n0,
        n=row.samples,
        alpha=sampling.alpha,
        shape=shape,
        noise=str(settings.noise),
        partition=str(partition or "none"),
        mean_segments=row.mean_segments,
        bound=sampling.bound,
        p_upper=row.p_upper,
        n_max=sampling.n,
        stop=sampling.stop,
        stopped=row.stopped,
        arithmetic=settings.arithmetic,
        levels=row.levels,
        moved=row.moved or 0.0,
        image_digest=row.image_digest,
    )
