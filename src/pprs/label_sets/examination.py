"""Which sizes the sets of a run have, and which size another radius or alpha would give. Estimates only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pprs.errors import ConfigurationError
from pprs.label_sets.evaluation import RadiusPoint, SetEvaluation, choose_radii, evaluate_run
from pprs.runs import Run, open_run

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.3)
EVERY = 4  # of the radii that are measured, those that are listed
NOTE = (
    "These are sizes and coverages on the inputs of this run. Choose a radius and alpha for other inputs, and before "
    "looking at them: a choice that was made for its small sets is not covered by the promise."
)


@dataclass(frozen=True)
class SetExamination:
    """Which sizes the sets have, and which another radius or alpha would give.

    Attributes:
        path: Folder, file or url of the run.
        evaluation: The sets, with their sizes at several radii.
        alphas: Sizes and coverage at the same radius for other alphas, by alpha.
    """

    path: str
    evaluation: SetEvaluation
    alphas: tuple[tuple[float, RadiusPoint], ...]

    def __str__(self) -> str:
        found, settings = self.evaluation, self.evaluation.settings
        count = len(found.rows)
        lines = [f"{self.path}: {count} sets for radius {settings.radius:g} and alpha {settings.alpha:g}"]
        lines += [
            f"{number:6d}  {'empty' if size == 0 else '1 label' if size == 1 else f'{size} labels'}"
            for size, number in enumerate(found.histogram)
            if number
        ]
        if found.failures:
            lines.append(f"{len(found.failures):6d}  failed with an error. Repeat the command of the run to try again")
        lines.append(f"at alpha {settings.alpha:g}, the same calibration gives for other radii:")
        lines += [f"        radius {point.radius:g}: {_describe(point)}" for point in found.points]
        lines.append(f"at radius {settings.radius:g}, it gives for other alphas:")
        lines += [f"        alpha {alpha:g}: {_describe(point)}" for alpha, point in self.alphas]
        return "\n".join([*lines, NOTE])


def _describe(point: RadiusPoint) -> str:
    coverage = f", coverage {point.coverage:.1%} without an attack" if point.labelled else ""
    return f"{point.mean_size:.2f} labels on average{coverage}"


def examine_sets(run: Run | str | Path, *, radius: float = 0.0) -> SetExamination:
    """Say which sizes the sets of a run have, and which another radius or alpha would give.

    Args:
        run: The run, its folder or url, or rows exported from it as json.
        radius: A radius to examine, besides those that are always listed. With 0, there is none.

    Returns:
        Sizes and coverages.

    Raises:
        ConfigurationError: If there is no run, or if the calibration images are too few for the radius.
        PprsError: If the rows do not follow from their scores and the calibration.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    radii = choose_radii(opened.settings.calibration)[::EVERY]
    evaluation = evaluate_run(opened, [*radii, radius] if radius else radii)
    alphas = list[tuple[float, RadiusPoint]]()
    for alpha in sorted({*ALPHAS, evaluation.settings.alpha}):
        try:
            alphas.append((alpha, evaluate_run(opened, [], alpha=alpha).point))
        except ConfigurationError:  # too few calibration images
            continue
    return SetExamination(opened.path, evaluation, tuple(alphas))
