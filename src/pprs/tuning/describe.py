"""What a search found, for people: a verdict, a table and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from pprs.certificate import round_down
from pprs.noise import Noise
from pprs.partition import parse_partition
from pprs.report import figures
from pprs.report.table import Cell, Table
from pprs.tuning.result import Final, Trial, Tuned
from pprs.tuning.search import ALPHA

COMPARED = {"ahead": "ahead of", "behind": "behind", "no clear difference": "not clearly different from"}


def short(text: str) -> str:
    """A partition's text without options that have their default value."""
    partition = parse_partition(text)
    return "none" if partition is None else partition.short


def verdict(tuned: Tuned) -> str:
    """Whether superpixels help this classifier, as far as the pictures tell that the search did not see."""
    superpixels = tuned.of("superpixels")
    others = [f for f in tuned.finals if f.family != "superpixels"]
    if superpixels is None or not others:
        return f"the search's best is {short(tuned.best.partition)}"
    differences = [tuned.ahead(superpixels, other) for other in others]
    if all(difference.verdict == "ahead" for difference in differences):
        head = "Superpixels help this classifier"
    elif any(difference.verdict == "behind" for difference in differences):
        head = "Superpixels do not help this classifier most"
    else:
        head = "Whether superpixels help most cannot be told yet: give a larger `budget` or more pictures"
    compared = ", ".join(
        f"{COMPARED[d.verdict]} {_name(other)} ({d.mean:+.3f} ± {d.error:.3f})"
        for d, other in zip(differences, others, strict=True)
    )
    return f"{head}. In average radius, on unseen pictures, they are {compared}."


def _name(final: Final) -> str:
    return "plain smoothing" if final.family == "none" else f"the best {final.family}"


def results_table(tuned: Tuned, radii: Sequence[float]) -> Table:
    """The best of each family on pictures that the search did not see."""
    lines: list[tuple[str | Cell, ...]] = [
        (
            final.family,
            Cell(round_down(final.average_radius), f"± {final.average_radius_error:.3f}"),
            *(_accuracy_cell(*final.accuracy(radius)) for radius in radii),
        )
        for final in tuned.finals
    ]
    title = f"on {len(tuned.best.radii)} pictures that the search did not see (n {tuned.n}, alpha {ALPHA})"
    return Table(("the best", "ACR", *(f"acc. at {radius:g}" for radius in radii)), tuple(lines), title)


def _accuracy_cell(share: float, low: float, high: float) -> Cell:
    return Cell(f"{100 * share:.0f}%", f"({100 * low:.0f}–{100 * high:.0f})")


def notes(tuned: Tuned) -> list[str]:
    """What a reader of the table must know besides."""
    if tuned.labelled:
        return []
    return ["pictures without labels count with the label that the classifier gives them when they are clean"]


def draw_chart(trials: Sequence[Trial], finals: Sequence[Final], noise: Noise) -> bytes:
    """Radius against time: a point for each partition as it was measured last, with the best of each family marked."""
    last = {trial.partition: trial for trial in trials}
    points = [(t.family, 1000 * t.seconds, t.score, t.error) for t in last.values()]
    best = [(f.family, short(f.partition), 1000 * last[f.partition].seconds, f.tuned) for f in finals]
    return figures.to_bytes(figures.plot_tuning(points, best, str(noise)), "png")
