"""The result of a search for people: a summary, a table and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from pprs.noise import Noise
from pprs.partition import parse_partition
from pprs.report import figures
from pprs.report.table import Table, TableCell
from pprs.smoothing.certificate import round_down
from pprs.tuning.candidates import ADAPTED
from pprs.tuning.result import Final, Trial, Tuned
from pprs.tuning.search import ALPHA

VERDICTS = {"ahead": "ahead of", "behind": "behind", "no clear difference": "not clearly different from"}
REMEDY = "use a larger `budget` or more images"


def shorten(text: str) -> str:
    """Return the text of a partition without the options that have their default value."""
    partition = parse_partition(text)
    return "none" if partition is None else partition.short


def summarize(tuned: Tuned) -> str:
    """Say whether superpixels help this classifier, and whether its adaptation does, judged by the held-out images."""
    adapted, unadapted = tuned.of(ADAPTED), [f for f in tuned.finals if not f.adapted]
    if adapted is None:
        return _judge_superpixels(tuned, unadapted)
    if not unadapted:
        return f"The best partition found for the adapted classifier is {shorten(adapted.partition)}."
    best = unadapted[0]
    difference = tuned.compare(adapted, best)
    return (
        f"{_judge_superpixels(tuned, unadapted)} The adapted classifier is {VERDICTS[difference.verdict]} the "
        f"unadapted one with {'no partition' if best.family == 'none' else shorten(best.partition)} "
        f"({difference.mean:+.3f} ± {difference.error:.3f})."
    )


def _judge_superpixels(tuned: Tuned, finals: Sequence[Final]) -> str:
    superpixels = next((f for f in finals if f.family == "superpixels"), None)
    others = [f for f in finals if f.family != "superpixels"]
    if superpixels is None or not others:
        return f"The best partition found is {shorten(finals[0].partition)}."
    differences = [tuned.compare(superpixels, other) for other in others]
    if all(difference.verdict == "ahead" for difference in differences):
        head = "Superpixels help this classifier"
    elif any(difference.verdict == "behind" for difference in differences):
        head = "Superpixels are not the best choice for this classifier"
    else:
        head = f"It is not clear yet whether superpixels are the best choice: {REMEDY}"
    comparisons = ", ".join(
        f"{VERDICTS[d.verdict]} {_describe_final(other)} ({d.mean:+.3f} ± {d.error:.3f})"
        for d, other in zip(differences, others, strict=True)
    )
    return f"{head}. In average certified radius on held-out images, they are {comparisons}."


def _describe_final(final: Final) -> str:
    return "plain smoothing" if final.family == "none" else f"the best {final.family}"


def make_table(tuned: Tuned, radii: Sequence[float]) -> Table:
    """Return a table with the best partition of each family, measured on the held-out images."""
    lines: list[tuple[str | TableCell, ...]] = [
        (
            final.family,
            TableCell(round_down(final.average_radius), f"± {final.average_radius_error:.3f}"),
            *(_accuracy_cell(*final.accuracy(radius)) for radius in radii),
        )
        for final in tuned.finals
    ]
    title = f"on {len(tuned.best.radii)} held-out images (n {tuned.n}, alpha {ALPHA})"
    return Table(("best of", "ACR", *(f"acc. at {radius:g}" for radius in radii)), tuple(lines), title)


def _accuracy_cell(share: float, low: float, high: float) -> TableCell:
    return TableCell(f"{100 * share:.0f}%", f"({100 * low:.0f}–{100 * high:.0f})")


def list_notes(tuned: Tuned) -> list[str]:
    """Return the caveats that a reader of the table needs."""
    if tuned.labelled:
        return []
    return ["images without labels count with the label that the classifier assigns to the clean image"]


def draw_chart(trials: Sequence[Trial], finals: Sequence[Final], noise: Noise) -> bytes:
    """Plot radius against time, one point per partition by its last measurement, with the best of each family named."""
    last = {(trial.partition, trial.adapted): trial for trial in trials}
    points = [(t.family, 1000 * t.seconds, t.score, t.error) for t in last.values()]
    best = [(f.family, shorten(f.partition), 1000 * last[f.partition, f.adapted].seconds, f.tuned) for f in finals]
    return figures.to_bytes(figures.plot_tuning(points, best, str(noise)), "png")
