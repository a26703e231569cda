"""Why images are not certified against patches, which patch size would hold, and what may help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pprs.errors import ConfigurationError, PprsError
from pprs.patches.guarantee import describe_method
from pprs.patches.row import PatchRow, PatchSettings
from pprs.patches.summary import group_by_patch
from pprs.runs import Run, open_run

SHARE = 0.5  # of the images for which a patch size should hold
LISTED = 3  # labels under the worst masks
BLUNT = ("constant", "mean")  # fills that do not continue the image


class PatchCause(StrEnum):
    """Why an image is not certified against patches of a size, in words."""

    CERTIFIED = "certified"
    PAIR = "a pair of masks gives it another label"
    TIE = "under a pair of masks, its label leads by too little to be sure of"
    MASKED = "its label without masks is right, and the one behind masks is wrong"
    WRONG = "its label is wrong without masks too"
    FAILED = "failed with an error"


@dataclass(frozen=True)
class SizeFindings:
    """How a run fares against patches of one size.

    Attributes:
        patch: The side of the patch.
        causes: The number of images by cause.
        rivals: How often each label is the one that the worst pair of masks gives instead.
    """

    patch: int
    causes: Counter[PatchCause]
    rivals: Counter[int]

    @property
    def images(self) -> int:
        """The number of images."""
        return self.causes.total()

    @property
    def share(self) -> float:
        """The share of images that are certified, with the correct label if that is known."""
        return self.causes[PatchCause.CERTIFIED] / self.images


@dataclass(frozen=True)
class PatchExamination:
    """Which patch sizes hold in a run, and why others do not.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings of the run.
        share: The share of the images for which a size should hold.
        sizes: What was found for each size, in ascending order.
        advice: What may help, one sentence or two each.
    """

    path: str
    settings: PatchSettings
    share: float
    sizes: tuple[SizeFindings, ...]
    advice: tuple[str, ...] = ()

    @property
    def largest(self) -> int | None:
        """The largest size of the run that holds for this share of the images. None if none does."""
        return max((size.patch for size in self.sizes if size.share >= self.share), default=None)

    def __str__(self) -> str:
        lines = [f"{self.path}: {describe_method(self.settings)}"]
        for size in self.sizes:
            side, certified = f"{size.patch}x{size.patch}", size.causes[PatchCause.CERTIFIED]
            lines.append(f"{side} patches: {certified} of {size.images} images certified ({size.share:.0%})")
            lost = [(cause, count) for cause, count in size.causes.most_common() if cause != PatchCause.CERTIFIED]
            lines += [f"{count:6d}  {cause}" for cause, count in lost]
            if size.rivals:
                lines.append(f"        under the worst masks: {self._list_rivals(size.rivals)}")
        lines.append(self._describe_largest())
        return "\n".join([*lines, *(f"advice: {text}" for text in self.advice)])

    def _list_rivals(self, rivals: Mapping[int, int]) -> str:
        names = self.settings.class_names
        return ", ".join(
            f"{names[label] if names else f'class {label}'} ({count})"
            for label, count in Counter(rivals).most_common(LISTED)
        )

    def _describe_largest(self) -> str:
        of_images = f"at least {self.share:.0%} of the images"
        if self.largest is None:
            return f"no patch size of this run holds for {of_images}"
        side = f"{self.largest}x{self.largest}"
        return f"the largest patch size of this run that holds for {of_images}: {side}, and so every smaller one"


def examine(run: Run | str | Path, *, radius: float = 0.0, share: float = SHARE) -> PatchExamination:
    """Say which patch sizes hold in a run, why others do not, and what may help. It reads the rows only.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: Has no meaning here, and must be 0.
        share: The share of the images for which a size should hold.

    Returns:
        What was found for each patch size, and advice.

    Raises:
        ConfigurationError: If a radius is given, if the share is none, or if there is no run.
        PprsError: If the run has no rows, or if they do not follow from its settings.
    """
    if radius:
        raise ConfigurationError(
            "a run against patches has no radius: its patch sizes are in its rows", parameter="radius"
        )
    if not 0 < share <= 1:
        raise ConfigurationError(f"`share` must lie above 0 and be at most 1, not {share}", parameter="share")
    opened = run if isinstance(run, Run) else open_run(run)
    rows = opened.checked_outcomes()
    if all(row.failed for row in rows):
        raise PprsError(f"{opened.path} has no certified or uncertified images yet. Let it finish at least one.")
    sizes = tuple(_examine_size(side, group) for side, group in group_by_patch(rows).items())
    found = PatchExamination(opened.path, opened.settings, share, sizes)
    return PatchExamination(opened.path, opened.settings, share, sizes, tuple(_advise(found)))


def _examine_size(side: int, rows: Sequence[PatchRow]) -> SizeFindings:
    rivals = Counter(row.worst_label for row in rows if find_cause(row) == PatchCause.PAIR)
    return SizeFindings(
        side,
        Counter(find_cause(row) for row in rows),
        Counter({label: count for label, count in rivals.items() if label is not None}),
    )


def find_cause(row: PatchRow) -> PatchCause:
    """Return why an image is not certified with the correct label."""
    if row.failed:
        return PatchCause.FAILED
    if row.label not in (None, row.prediction):
        return PatchCause.MASKED if row.plain == row.label else PatchCause.WRONG
    if row.certified:
        return PatchCause.CERTIFIED
    return PatchCause.TIE if row.worst_label == row.prediction else PatchCause.PAIR


def _advise(found: PatchExamination) -> Iterator[str]:
    settings, first = found.settings, found.sizes[0]
    causes = sum((size.causes for size in found.sizes), Counter[PatchCause]())
    hidden = causes[PatchCause.PAIR] + causes[PatchCause.TIE] + causes[PatchCause.MASKED]
    if causes[PatchCause.FAILED]:
        yield "Some images failed. Repeat the command of the run, which tries them again."
    if hidden and "+adapted:" not in (settings.model or ""):
        yield f"Adapt the classifier to masks, without labels: `pprs adapt --patch {first.patch}`."
    if hidden and (settings.fill_text or "").partition(":")[0] in BLUNT:
        yield f"Give another `fill`: {settings.fill_text} does not continue the image, as diffusion does."
    if hidden:
        yield f"Give more `masks` than {settings.masks} along each axis: they are smaller, and hide less."
    if found.largest is None and first.patch > 1:
        yield f"Try a smaller `patch` than {first.patch}. Repeat the command with it: a run takes more sizes."
    if causes[PatchCause.WRONG] > hidden:
        yield "Most images are lost without masks: improve the classifier first."
