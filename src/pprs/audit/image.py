"""The audit of one image: attacks at growing norms, then bisection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pprs.audit.attack import Attack, Objective
from pprs.audit.decision import LabelTest
from pprs.audit.levels import Ints, LevelImage
from pprs.audit.margins import BaseClassifier, NoGradientError
from pprs.audit.options import AuditOptions, OutOfTime
from pprs.audit.result import AuditedImage
from pprs.errors import PprsError
from pprs.smoothing.certificate import Certificate
from pprs.smoothing.classifier import SmoothedClassifier

INSIDE = (0.5, 1.0)  # norms inside the certified ball, in units of the radius
OUTSIDE = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # norms outside it
LEAST_UNIT = 0.25  # standard deviations of the noise; a smaller radius is no sensible unit
SCREENING = 128  # noisy copies that decide whether a change is worth a test
BISECTIONS, PRECISION = 6, 1.04  # how closely the smallest change is determined, as a ratio of norms


@dataclass(frozen=True)
class Finding:
    """A changed image, in levels, whose label is proved to differ."""

    changed: Ints
    norm: float
    new_label: int
    inside: bool


def audit_image(
    classifier: SmoothedClassifier,
    x: torch.Tensor,
    certificate: Certificate,
    *,
    index: int = 0,
    label: int | None = None,
    options: AuditOptions | None = None,
    network: BaseClassifier | None = None,
    starts: Sequence[torch.Tensor] = (),
    pause: Callable[[], None] = lambda: None,
) -> tuple[AuditedImage, Ints | None]:
    """Search for the smallest change that alters a certified label.

    Args:
        classifier: The smoothed classifier that was certified, with a seed for the noise of the audit.
        x: The image [C, H, W] in [0, 1].
        certificate: The certificate of the image.
        index: The index of the image, which keys the noise.
        label: The true label, which is only recorded.
        options: How much to spend.
        network: The network to differentiate, if it is not the one that the classifier runs.
        starts: Changes towards other images, which a network without gradients may start from.
        pause: Called between batches.

    Returns:
        What was found, and the changed image in levels (`LevelImage`), or None.

    Raises:
        PprsError: If nothing is certified, or if the image or the network is invalid.
    """
    if certificate.prediction is None:
        raise PprsError("nothing is certified about this image, so there is nothing to audit", index=index)
    search = _Search(classifier, x, certificate, index, options or AuditOptions(), network, pause)
    try:
        search.run(starts)
        complete = True
    except OutOfTime:
        complete = False
    best = search.best
    image = AuditedImage(
        idx=index,
        prediction=certificate.prediction,
        radius=certificate.radius,
        kind=search.kind,
        how=search.how,
        queries=search.queries,
        seconds=time.monotonic() - search.began,
        complete=complete,
        inside=best is not None and best.inside,
        label=label,
        found=None if best is None else best.norm,
        new_label=None if best is None else best.new_label,
        searched=search.failed if search.failed >= 0 else None,
        gradient_error=search.gradient_error,
        untested=search.untested,
    )
    return image, None if best is None else best.changed


class _Search:
    """The state of a search."""

    def __init__(
        self,
        classifier: SmoothedClassifier,
        x: torch.Tensor,
        certificate: Certificate,
        index: int,
        options: AuditOptions,
        network: BaseClassifier | None,
        pause: Callable[[], None],
    ) -> None:
        assert certificate.prediction is not None
        self.began, self.kind, self.how = time.monotonic(), "gradient", ""
        self.gradient_error: str | None = None
        self.best: Finding | None = None
        self.failed = -1.0  # the largest norm at which nothing was found, before the first finding
        self._certificate, self._options, self._pause = certificate, options, pause
        self._levels = LevelImage.of(x, certificate.levels)
        self._image = torch.from_numpy(self._levels.image)
        self._test = LabelTest(classifier, index, certificate.prediction, certificate.alpha, options.samples)
        self._objective = Objective(classifier, x, certificate.prediction, index=index, network=network, pause=pause)
        self._objective.pause = self._check_time  # from here on, so that there is a result to return

    @property
    def queries(self) -> int:
        return self._objective.queries + self._test.queries

    @property
    def untested(self) -> int:
        return self._test.untested

    def _check_time(self) -> None:
        self._pause()
        if time.monotonic() - self.began > self._options.seconds:
            raise OutOfTime

    def run(self, starts: Sequence[torch.Tensor]) -> None:
        """Attack at growing norms up to the first finding, and then in between."""
        if self._try(self._levels.k):  # the unchanged image
            return
        self.failed = 0.0
        try:
            attack = Attack(self._objective, starts)
        except NoGradientError:  # the votes are constant around the image
            self.how = "no direction lowers the votes"
            return
        self.kind, self.how, self.gradient_error = attack.kind, attack.how, attack.gradient_error
        change: torch.Tensor | None = None
        for norm in self._norms():
            change = attack.search(norm, self._options.steps, change)
            if self._try(self._levels.fit(change.cpu().numpy(), norm)):
                self._bisect(attack, change)
                return
            self.failed = norm
            if float(change.norm()) < 0.9 * norm:  # valid pixels allow no larger change in this direction
                return

    def _norms(self) -> Iterator[float]:
        radius, sigma = self._certificate.radius, self._objective.sigma
        unit = max(radius, LEAST_UNIT * sigma)
        yield from (norm for factor in INSIDE if (norm := factor * radius) * self._levels.levels >= 1)
        yield from (norm for factor in OUTSIDE if (norm := factor * unit) > radius)

    def _bisect(self, attack: Attack, change: torch.Tensor) -> None:
        """Search between the largest norm without a finding and the smallest with one."""
        failed = self.failed
        for _ in range(BISECTIONS):
            assert self.best is not None
            if self.best.norm <= PRECISION * failed or (self.best.norm - failed) * self._levels.levels < 1:
                return
            norm = (failed + self.best.norm) / 2
            candidate = attack.search(norm, max(1, self._options.steps // 2), change)
            if self._try(self._levels.fit(candidate.cpu().numpy(), norm)):
                change = candidate
            else:
                failed = norm

    def _try(self, changed: Ints) -> bool:
        """Test whether the label of a changed image is another, unless a few votes already suggest that it is not."""
        change = self._levels.change(changed)
        shift = torch.from_numpy(change).float().to(self._objective.image.device)
        if self._objective.leads(self._objective.draw(SCREENING), shift):
            return False
        new_label = self._test.find_other_label(self._levels.to_tensor(changed))
        if new_label is None:
            return False
        norm, inside = self._levels.norm(changed), self._certificate.covers(change)
        finding = Finding(changed, norm, new_label, inside)
        # A change inside the certified set is never dropped for a smaller one outside it.
        if self.best is None or (not inside, norm) < (not self.best.inside, self.best.norm):
            self.best = finding
        return True
