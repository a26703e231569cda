"""Metrics of certified robustness for torchmetrics, fed with certificates or with runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.extras import extra
from pprs.errors import ConfigurationError, check_type
from pprs.inputs.space import Space
from pprs.metrics import credited_radii
from pprs.runs import Run, open_run, read_frame
from pprs.smoothing.certificate import Certificate, state_arithmetic
from pprs.smoothing.sampling import decided_radii

with extra():
    from torchmetrics import Metric

Results = Run | str | Path | Certificate | Iterable[Certificate]
Targets = int | Sequence[int] | npt.NDArray[Any] | torch.Tensor
_NO_CLAIM = torch.iinfo(torch.int64)  # its largest and smallest value stand for no claim in a minimum and a maximum


class _Claim(NamedTuple):
    """What the radii of a metric are about. Radii of different claims must not be averaged."""

    norm: str
    space: str
    noise: str
    partition: str
    arithmetic: str
    alpha: float | None
    classifier: str = "unknown"  # of a run, by its weights and the labels that it chooses among

    @classmethod
    def of_certificate(cls, certificate: Certificate) -> _Claim:
        arithmetic = certificate.arithmetic + state_arithmetic(certificate.arithmetic, certificate.levels)
        return cls(
            "L2", repr(Space(shapes=(certificate.shape,)).key), certificate.noise, certificate.partition, arithmetic,
            certificate.alpha,
        )  # fmt: skip

    @classmethod
    def of_run(cls, run: Run, space: Space) -> _Claim:
        settings = run.settings
        arithmetic = settings.arithmetic + state_arithmetic(settings.arithmetic, settings.levels)
        return cls(
            "L2", repr(space.key), settings.noise_text or "unknown", settings.partition_text or "unknown", arithmetic,
            settings.alpha, f"{settings.model_digest}, labels {settings.label_choice or 'all'}",
        )  # fmt: skip

    def check_equal(self, other: _Claim) -> None:
        """Raise an error that names the first difference, if there is one."""
        for name, one, two in zip(self._fields, self, other, strict=True):
            if one != two:
                raise ConfigurationError(
                    f"radii of different claims cannot be averaged: they differ in their {name}, {one} and {two}. Use "
                    "one metric for each.",
                    parameter="results",
                )

    @property
    def digest(self) -> int:
        return int.from_bytes(hashlib.sha256(repr(self).encode()).digest()[:7], "big")


class _CertificateMetric(Metric):  # type: ignore[misc]
    """A metric of credited radii, all of one claim. Subclasses say what they add up."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    images: torch.Tensor
    first_claim: torch.Tensor
    last_claim: torch.Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("images", torch.tensor(0), dist_reduce_fx="sum")
        # Digests of the claim. They are equal if all processes of a distributed metric have seen the same claim.
        self.add_state("first_claim", torch.tensor(_NO_CLAIM.max), dist_reduce_fx="min")
        self.add_state("last_claim", torch.tensor(_NO_CLAIM.min), dist_reduce_fx="max")
        self._claim: _Claim | None = None

    def update(self, results: Results, target: Targets | None = None) -> None:
        """Add results.

        Args:
            results: One or more certificates, or a run, its folder or url, or rows exported from it.
            target: The true label of every certificate. A run has its own labels.

        Raises:
            ConfigurationError: If a label is missing, if the radii are about other claims than those added earlier, or
                if a stop rule left the metric undecided. Nothing is added then.
        """
        read = self._read(results, target)
        if read is None:
            return
        claim, credited = read
        self._claim = claim
        self._add(credited)
        self.images += len(credited)
        digest = torch.tensor(claim.digest, device=self.images.device)
        self.first_claim = torch.minimum(self.first_claim, digest)
        self.last_claim = torch.maximum(self.last_claim, digest)

    def forward(self, results: Results, target: Targets | None = None) -> Any:
        """Add results, and return the metric of these alone. The arguments and errors are those of `update`."""
        results = results if isinstance(results, Run | str | Path | Certificate) else list(results)
        self._read(results, target)  # before torchmetrics puts the earlier results aside, which an error would lose
        return super().forward(results, target)

    def _read(self, results: Results, target: Targets | None) -> tuple[_Claim, npt.NDArray[Any]] | None:
        """Return the claim and the credited radii of results that can be added, or None if there are none."""
        if isinstance(results, str | Path):
            results = open_run(results)
        if not isinstance(results, Run):
            read = self._read_certificates(results, target)
        elif target is None:
            read = self._read_run(results)
        else:
            raise ConfigurationError("a run has its own labels: leave out `target`", parameter="target")
        if read is not None and int(self.images):
            self._check_claim(read[0])
        return read

    def _read_run(self, run: Run) -> tuple[_Claim, npt.NDArray[Any]]:
        frame = read_frame(run)
        if (frame.label < 0).any():
            raise ConfigurationError(f"{run.path} has images without a true label", parameter="results")
        self._check_decided(frame.decided)
        return _Claim.of_run(run, frame.space), credited_radii(frame.prediction, frame.label, frame.radius)

    def _read_certificates(
        self, results: Certificate | Iterable[Certificate], target: Targets | None
    ) -> tuple[_Claim, npt.NDArray[Any]] | None:
        certificates = [results] if isinstance(results, Certificate) else list(results)
        labels = np.atleast_1d(np.asarray([] if target is None else torch.as_tensor(target).cpu()))
        if labels.shape != (len(certificates),) or (labels < 0).any():
            raise ConfigurationError(
                f"`target` must hold the true label of each of the {len(certificates)} certificates, not {target!r}",
                parameter="target",
            )
        for certificate in certificates:
            check_type(certificate, Certificate, "results", "certificates or a run")
            if certificate.assumes is not None:
                raise ConfigurationError(
                    f"a certificate that rests on an assumption ({certificate.assumes}) does not count",
                    parameter="results",
                )
            self._check_decided(decided_radii(certificate.stop))
        if not certificates:
            return None
        claim, *others = map(_Claim.of_certificate, certificates)
        for other in others:
            claim.check_equal(other)
        predictions = [-1 if c.prediction is None else c.prediction for c in certificates]
        return claim, credited_radii(predictions, labels, [c.radius for c in certificates])

    def _check_decided(self, decided: tuple[float, ...] | None) -> None:
        """Raise an error if sampling stopped at radii that leave this metric undecided."""
        raise NotImplementedError

    def _add(self, credited: npt.NDArray[Any]) -> None:
        """Add credited radii to the state."""
        raise NotImplementedError

    def _check_claim(self, claim: _Claim) -> None:
        """Raise an error if this is not the claim of the results that were added earlier."""
        if self._claim is not None:
            self._claim.check_equal(claim)
        if not int(self.first_claim) == int(self.last_claim) == claim.digest:  # of a state that was merged or loaded
            raise _mixture()

    def _check_one_claim(self) -> None:
        """Raise an error if the processes of a distributed metric have seen different claims."""
        if int(self.images) and int(self.first_claim) != int(self.last_claim):
            raise _mixture()


def _mixture() -> ConfigurationError:
    return ConfigurationError(
        "radii of different claims cannot be averaged: the results are of different noises, partitions, classifiers or "
        "images. Use one metric for each.",
        parameter="results",
    )


class CertifiedAccuracy(_CertificateMetric):
    """The share of images that are certified with the correct label and a radius of at least r, for several r.

    Args:
        radii: The radii r.
        options: Further arguments of `torchmetrics.Metric`.

    Raises:
        ConfigurationError: If there is no radius, or if one is negative or not finite.
    """

    plot_lower_bound: ClassVar[float] = 0.0
    plot_upper_bound: ClassVar[float] = 1.0
    certified: torch.Tensor

    def __init__(self, radii: Sequence[float] = (0.0, 0.25, 0.5, 1.0), **options: Any) -> None:
        super().__init__(**options)
        self.radii = tuple(float(radius) for radius in radii)
        if not self.radii or not all(0 <= radius < float("inf") for radius in self.radii):
            raise ConfigurationError(
                f"`radii` must be numbers of at least 0, such as [0, 0.25, 0.5], not {radii!r}", parameter="radii"
            )
        self.add_state("certified", torch.zeros(len(self.radii), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> torch.Tensor:
        """Return one share per radius. NaN if there are no images."""
        self._check_one_claim()
        return self.certified.double() / self.images

    def plot(self, val: torch.Tensor | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot certified accuracy against radius.

        Args:
            val: The shares to plot. By default those that `compute` returns.
            ax: The matplotlib axes to plot on. By default, those of a new figure.

        Returns:
            The figure and the axes.
        """
        with extra():
            import matplotlib.pyplot as plt  # takes a second to import

        ax = ax or plt.figure().add_subplot()
        shares = self.compute() if val is None else val
        ax.plot(self.radii, torch.atleast_1d(shares).cpu().numpy(), marker="o")
        ax.set(xlabel="L2 radius", ylabel="certified accuracy", ylim=(self.plot_lower_bound, self.plot_upper_bound))
        return ax.figure, ax

    def _check_decided(self, decided: tuple[float, ...] | None) -> None:
        undecided = [] if decided is None else [radius for radius in self.radii if radius not in decided]
        if undecided:
            raise ConfigurationError(
                f"sampling stopped once images were decided at the radii {decided}, so accuracy at {undecided[0]} is "
                "not known. Give only these as `radii`.",
                parameter="radii",
            )

    def _add(self, credited: npt.NDArray[Any]) -> None:
        counts = (credited[:, None] >= np.array(self.radii)).sum(0)
        self.certified += torch.from_numpy(counts).to(self.certified)


class AverageCertifiedRadius(_CertificateMetric):
    """The mean certified L2 radius, with 0 for images that are not certified with the correct label.

    Args:
        options: Further arguments of `torchmetrics.Metric`.
    """

    plot_lower_bound: ClassVar[float] = 0.0
    total: torch.Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def compute(self) -> torch.Tensor:
        """Return the mean. NaN if there are no images."""
        self._check_one_claim()
        return self.total / self.images

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the mean, or several of them.

        Args:
            val: One or more values, such as those of several epochs. By default that of `compute`.
            ax: The matplotlib axes to plot on. By default, those of a new figure.

        Returns:
            The figure and the axes.
        """
        return self._plot(val, ax)

    def _check_decided(self, decided: tuple[float, ...] | None) -> None:
        if decided is not None:
            raise ConfigurationError(
                f"sampling stopped once images were decided at the radii {decided}, so larger radii were not examined "
                "and there is no average. Certify without `stop`.",
                parameter="results",
            )

    def _add(self, credited: npt.NDArray[Any]) -> None:
        self.total += float(np.where(np.isfinite(credited), credited, 0.0).sum())


__all__ = ["AverageCertifiedRadius", "CertifiedAccuracy"]
