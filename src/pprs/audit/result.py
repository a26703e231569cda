"""The result of an audit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
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
PIXELS = "pixels"


@dataclass(frozen=True)
class CountedClaim:
    """A claim about changes of a whole size, which rests on votes that were all counted, and the smallest such change.

    Attributes:
        unit: What the size of a change is counted in: "grey levels" in total, or "pixels", each with all its channels.
        certified: The largest size of which no change alters the label, by the certificate.
        found: The size of the smallest change found that alters the label, None if none was found.
        new_label: The label after it.
        inside: Whether it is inside the certificate, where there is none if the certificate is true.
        searched: The largest size tried that did not alter the label.
    """

    unit: str
    certified: int
    found: int | None = None
    new_label: int | None = None
    inside: bool = False
    searched: int = 0

    @property
    def ratio(self) -> float | None:
        """The size of the change found as a multiple of the largest certified one."""
        return None if self.found is None or not self.certified else self.found / self.certified

    def __str__(self) -> str:
        found = "nothing found" if self.found is None else f"found {self.found}"
        return f"certified {count_units(self.certified, self.unit)}, {found}"


def count_units(size: int, unit: str) -> str:
    """Say how large a change is.

    >>> count_units(1, "pixels"), count_units(288, "grey levels")
    ('1 pixel', '288 grey levels')
    """
    return f"{size} {unit.removesuffix('s') if size == 1 else unit}"


@dataclass(frozen=True)
class AuditedImage:
    """What was found for one image.

    Attributes:
        idx: Index of the image in its data set.
        label: True label, None if unknown.
        prediction: Certified label.
        radius: Certified L2 radius, or L1 norm where votes are counted.
        found: Norm of the smallest change that is proved to alter the label, None if no such change was found.
        inside: Whether that change is inside the certified set, where there should be none. Where votes are counted,
            whether that of any claim is.
        new_label: The label that is proved to be more likely than the certified one.
        searched: Largest norm at which the search found nothing, None if it found a change at every norm.
        kind: "gradient", or "scores" for a network without gradients.
        how: How the gradient was obtained.
        queries: Number of noisy copies that the network classified.
        seconds: Time that the image took.
        complete: Whether the search ended by itself, not at the time limit.
        gradient_error: Why the network has no usable gradient, None if it has one.
        untested: Number of changes that may alter the label but were not tested, since earlier tests had used up alpha.
        claims: Where votes are counted, what is certified, and what was found: the total of a change, of which `radius`
            and `found` are the norms, and the number of pixels.
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
    claims: tuple[CountedClaim, ...] = ()

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of the files of the changed images, without their endings."""
        if not self.claims:
            return () if self.found is None else (str(self.idx),)
        return tuple(self.name_file(claim) for claim in self.claims if claim.found is not None)

    def name_file(self, claim: CountedClaim) -> str:
        """Return the name of the file of the image that a claim's change leads to."""
        return f"{self.idx}-{PIXELS}" if claim.unit == PIXELS else str(self.idx)

    def __str__(self) -> str:
        if self.claims:
            return f"image {self.idx}: {'; '.join(map(str, self.claims))}"
        found = "nothing found" if self.found is None else f"found {self.found:.3f}"
        return f"image {self.idx}: certified {self.radius:.3f}, {found}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known."""
        return dataclasses.asdict(self, dict_factory=_keep_known)


@dataclass(frozen=True)
class Audit:
    """Certified radii and the smallest changes found, side by side.

    Attributes:
        images: The images that were attacked.
        alpha: Failure probability of each certificate, and of the tests of each image. 0 where votes are counted.
        settings: What the audit depends on: the run and the options.
        attempted: The number of images that the run attempted to certify, up to the last one audited.
    """

    images: tuple[AuditedImage, ...]
    alpha: float
    settings: Mapping[str, Any]
    attempted: int

    @property
    def is_certain(self) -> bool:
        """Whether nothing was sampled, so that every change found is certain, and none can be inside by chance."""
        return self.alpha == 0

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
        names = self.settings.get("class_names")
        middle: tuple[str, ...] = ("certified", "found", "ratio", "becomes", "attack")
        if self.is_certain:
            middle = ("levels", "found", "ratio", "becomes", PIXELS, "found", "becomes")
        heads = (inputs.name, "label", *middle, "queries", "s")
        return Table(heads, tuple(_make_line(image, names) for image in self.images))

    def notes(self, inputs: Domain = IMAGE) -> list[str]:
        """Return the conclusion, and what limits it."""
        inside, count = self.found_inside, f"{len(self.images)} {inputs.plural}"
        if self.is_certain:
            return [*self._conclude_with_certainty(count), *self._list_limits(count)]
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

    def _conclude_with_certainty(self, count: str) -> list[str]:
        """Return the conclusion where votes were counted."""
        units = "changes are counted in grey levels in total, 255 of which are an L1 norm of 1, and in pixels"
        if not self.found_inside:
            return [units, f"nothing was found inside the certificates of {count}, and nothing can be if they are true"]
        listed = ", ".join(str(image.idx) for image in self.found_inside)
        inside = f"{len(self.found_inside)} of {count} have a change inside the certificate that alters the label"
        why = "that is certain, since all votes were counted: the certificates or the classifier are wrong"
        return [units, f"{inside} ({listed})", why]

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


def _keep_known(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if value not in (None, ())}


def _make_line(image: AuditedImage, names: Any) -> tuple[str, ...]:
    def name(label: int | None) -> str:
        return NONE if label is None else str(names[label]) if names else str(label)

    cells: list[str] = []
    for claim in image.claims:
        found = f"none up to {claim.searched}" if claim.found is None else str(claim.found)
        how = _describe_found(found, claim.inside, claim.ratio)
        cells += [str(claim.certified), *(how[:1] if claim.unit == PIXELS else how), name(claim.new_label)]
    if not image.claims:
        found = f"none up to {image.searched or 0:.3f}" if image.found is None else f"{image.found:.3f}"
        ratio = None if image.found is None or not image.radius else image.found / image.radius
        how = _describe_found(found, image.inside, ratio)
        cells = [round_down(image.radius), *how, name(image.new_label), image.kind]
    return str(image.idx), name(image.prediction), *cells, f"{image.queries:,}", f"{image.seconds:.1f}"


def _describe_found(found: str, inside: bool, ratio: float | None) -> tuple[str, str]:
    return found + (" inside" if inside else ""), NONE if ratio is None else f"{ratio:.2f}"
