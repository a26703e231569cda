"""The result of an audit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pprs._support.checks import validate
from pprs._support.files import atomic_write
from pprs.audit.decision import count_by_chance
from pprs.errors import PprsError
from pprs.inputs.domain import IMAGE, Domain
from pprs.report.table import NONE, Table
from pprs.smoothing.certificate import round_down

FORMAT = 1


@dataclass(frozen=True)
class AuditedImage:
    """What was found for one image.

    Attributes:
        idx: Index of the image in its data set.
        label: True label, None if unknown.
        prediction: Certified label.
        radius: Certified L2 radius.
        found: L2 norm of the smallest change that is proved to alter the label, None if no such change was found.
        inside: Whether that change is inside the certified set, where there should be none.
        new_label: The label that is proved to be more likely than the certified one.
        searched: Largest L2 norm at which the search found nothing, None if it found a change at every norm.
        kind: "gradient", or "scores" for a network without gradients.
        how: How the gradient was obtained.
        queries: Number of noisy copies that the network classified.
        seconds: Time that the image took.
        complete: Whether the search ended by itself, not at the time limit.
        gradient_error: Why the network has no usable gradient, None if it has one.
        untested: Number of changes that may alter the label but were not tested, since earlier tests had used up alpha.
    """

    idx: int
    prediction: int
    radius: float
    kind: str
    how: str
    queries: int
    seconds: float
    complete: bool
    inside: bool = False
    label: int | None = None
    found: float | None = None
    new_label: int | None = None
    searched: float | None = None
    gradient_error: str | None = None
    untested: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Audit:
    """Certified radii and the smallest changes found, side by side.

    Attributes:
        images: The images that were attacked.
        alpha: Failure probability of each certificate, and of the tests of each image.
        settings: What the audit depends on: the run and the options.
        attempted: The number of images that the run attempted to certify, up to the last one audited.
    """

    images: tuple[AuditedImage, ...]
    alpha: float
    settings: Mapping[str, Any]
    attempted: int

    @property
    def found_inside(self) -> list[AuditedImage]:
        """The images for which a change inside the certified set alters the label."""
        return [image for image in self.images if image.inside]

    @property
    def allowed(self) -> int:
        """How many images may have such a change by chance alone, with 95% probability."""
        return count_by_chance(self.attempted, len(self.images), self.alpha)

    @property
    def passed(self) -> bool:
        """Whether no more was found inside the certified sets than chance explains."""
        return len(self.found_inside) <= self.allowed

    def table(self, inputs: Domain = IMAGE) -> Table:
        """Return the certified radius and the smallest change found for each image, or other input."""
        heads = (inputs.name, "label", "certified", "found", "ratio", "becomes", "attack", "queries", "s")
        names = self.settings.get("class_names")
        return Table(heads, tuple(_make_line(image, names) for image in self.images))

    def notes(self, inputs: Domain = IMAGE) -> list[str]:
        """Return the conclusion, and what limits it."""
        inside, count = self.found_inside, f"{len(self.images)} {inputs.plural}"
        verdict = f"{len(inside)} of {count} have a change inside the certified radius that alters the label"
        notes = [
            f"{verdict if inside else f'nothing was found inside the certified radius of {count}'} "
            f"(chance alone explains at most {self.allowed}, with 95% probability: {self.attempted} {inputs.plural} "
            "were attempted up to the last of these)"
        ]
        if self.images and self.allowed == len(self.images):
            notes.append(
                f"so few {inputs.plural} cannot fail an audit: chance could explain a change inside each. Audit more."
            )
        if not self.passed:
            listed = ", ".join(str(image.idx) for image in inside)
            notes.append(f"that is more than chance explains: the certificates or the classifier are wrong ({listed})")
        return [*notes, *self._list_limits(count)]

    def _list_limits(self, count: str) -> list[str]:
        """Return what may have kept the search from finding smaller changes. `count` says of how many inputs."""
        limits = []
        scored = [image for image in self.images if image.kind == "scores"]
        if scored:
            reason = next((f" ({image.gradient_error})" for image in scored if image.gradient_error), "")
            limits.append(
                f"{len(scored)} of {count} were searched by scores, which finds less: the network has no usable "
                f"gradient{reason}"
            )
        if incomplete := sum(not image.complete for image in self.images):
            limits.append(f"{incomplete} of {count} reached the time limit. Increase `seconds` to search further.")
        if untested := sum(image.untested > 0 for image in self.images):
            limits.append(
                f"{untested} of {count} have changes that may alter the label but were not tested: earlier tests had "
                "used up alpha, part of which pays for noise drawn with 64 bits. Reduce `samples` to test them."
            )
        return [*limits, "smaller changes than those found may exist; none exists inside a true certificate"]

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as values that JSON can represent."""
        return {
            "format": FORMAT,
            "settings": dict(self.settings),
            "alpha": self.alpha,
            "attempted": self.attempted,
            "found_inside": len(self.found_inside),
            "allowed": self.allowed,
            "passed": self.passed,
            "images": [image.to_dict() for image in self.images],
        }

    def write_json(self, path: Path) -> None:
        """Write the audit as JSON, in one step."""
        with atomic_write(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")

    @classmethod
    def read_json(cls, path: Path) -> Audit:
        """Read an audit that `write_json` wrote.

        Raises:
            PprsError: If the file is not an audit.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            images = tuple(validate(AuditedImage, image, str(path)) for image in stored["images"])
            return cls(images, float(stored["alpha"]), dict(stored["settings"]), int(stored["attempted"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PprsError(f"{path} is not an audit ({error}). Delete it, or give another `out`.") from error


def _make_line(image: AuditedImage, names: Any) -> tuple[str, ...]:
    def name(label: int | None) -> str:
        return NONE if label is None else str(names[label]) if names else str(label)

    found = f"none up to {image.searched or 0:.3f}" if image.found is None else f"{image.found:.3f}"
    return (
        str(image.idx),
        name(image.prediction),
        round_down(image.radius),
        found + (" inside" if image.inside else ""),
        NONE if image.found is None or not image.radius else f"{image.found / image.radius:.2f}",
        name(image.new_label),
        image.kind,
        f"{image.queries:,}",
        f"{image.seconds:.1f}",
    )
