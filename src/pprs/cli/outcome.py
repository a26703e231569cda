"""What is told of a run when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pprs.cli.setup import Setup
    from pprs.engine import Ready
    from pprs.partition import Partition
    from pprs.record import Failure, Row
    from pprs.stop import Plan

REASONS = {
    "decided": "it is decided at the radii asked for",
    "width": "the radius is known as well as asked for",
    "hopeless": "it would hardly be certified",
    "budget": "the budget is spent",
}
SHOWN = 5  # failed images that are told of one by one


def beside(
    setup: Setup, ready: Ready, plan: Plan, noise: Any, row: Row, scheme: Partition, options: dict[str, Any]
) -> None:
    """How plain smoothing does on the same picture, with as many samples."""
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import row_of
    from pprs.smooth import SmoothedClassifier

    plain = SmoothedClassifier(ready.model.module, setup.num_classes, noise, None, **options)
    example = setup.pictures[row.idx]
    with CertifyBar("plain smoothing", 1, None if plan.stop else plan.n0 + plan.n) as bar:
        made = plain.certify(
            example.image,
            n0=plan.n0,
            n=plan.n,
            alpha=plan.alpha,
            index=row.idx,
            bound=plan.bound,
            stop=plan.stop,
            on_samples=bar.samples,
        )
    other = row_of(row.idx, example.label, made, 0.0)
    say(f"  {scheme.short}: {in_short(row, setup.model.class_names)}")
    say(f"  plain smoothing: {in_short(other, setup.model.class_names)}")


def in_short(row: Row, names: Sequence[str] | None) -> str:
    from pprs.certificate import round_down

    top = names[row.selected] if names else f"class {row.selected}"
    votes = f"{row.counts[row.selected]} of {sum(row.counts)} votes"
    if row.prediction is None:
        return f"abstained ({top}: {votes})"
    return f"{top}, radius {round_down(row.radius)} ({votes})"


def draw(setup: Setup, noise: Any, scheme: Partition | None, seed: int, path: Path) -> None:
    """The picture, noisy, cut into superpixels, averaged: as the network sees it."""
    from pprs.cli.progress import say
    from pprs.files import written_whole
    from pprs.report import figures
    from pprs.smooth import noisy_chunk

    index, clean = setup.sample.index, setup.sample.image
    noisy = noisy_chunk(clean, noise, seed, index)[0].numpy()
    figure = figures.picture_rows(clean.numpy(), noisy, [(scheme.short if scheme else "none", scheme)], noise)
    with written_whole(path) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))
    say(f"wrote {path}")


@dataclass
class Tally:
    """The outcome of many rows, none of which is kept but the first."""

    first: Row | None = None
    rows: int = 0
    certified: int = 0
    radii: float = 0.0
    right: int = 0
    labelled: bool = False
    samples: int = 0
    left: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Tally:
        made = cls()
        for row in rows:
            made.first = made.first or row
            made.rows += 1
            made.certified += row.prediction is not None
            made.radii += row.radius if row.prediction is not None else 0.0
            made.right += row.correct
            made.labelled |= row.label is not None
            made.samples += row.samples
            made.left += row.stopped == "budget"
        return made


def tell(tally: Tally, failures: Sequence[Failure], settings: dict[str, Any], out: str | Path | None) -> None:
    """The outcome, in words for one picture, in a line for many."""
    from pprs.cli.progress import say

    if tally.rows == 1 and not failures and tally.first is not None:
        _tell_one(tally.first, settings)
    else:
        _tell_many(tally, len(failures), settings)
    if out is not None:
        say(f"rows in {out}; see them with: pprs report {out} --out report.html")


def tell_failures(failures: Sequence[Failure]) -> str:
    """Which images failed, and of what: for the end of a command that is not a success."""
    what = "1 image" if len(failures) == 1 else f"{len(failures)} images"
    lines = [f"failed: {what}, counted as not certified. The same command tries again."]
    for failure in failures[:SHOWN]:
        named = failure.error.startswith(f"image {failure.idx}")
        lines.append(f"  {failure.error}" if named else f"  image {failure.idx}: {failure.error}")
    if len(failures) > SHOWN:
        lines.append(f"  and {len(failures) - SHOWN} more")
    return "\n".join(lines)


def _tell_one(row: Row, settings: dict[str, Any]) -> None:
    from pprs.certificate import confidence, round_down
    from pprs.cli.progress import say

    names = settings["class_names"]
    if row.stopped != "n":
        why = REASONS.get(row.stopped, row.stopped)
        say(f"stopped after {row.samples} of at most {settings['n']} samples: {why}")
    if row.prediction is None:
        top = names[row.selected] if names else row.selected
        say(
            f"abstained: class {top} got {row.counts[row.selected]} of {sum(row.counts)} "
            "votes, which does not prove "
            "a majority. More samples (--n), less noise (--sigma) or another partition may help."
        )
    else:
        name = f"{names[row.prediction]} (class {row.prediction})" if names else f"class {row.prediction}"
        say(
            f"{name}: no change of L2 norm up to {round_down(row.radius)} can alter this label, "
            f"with {confidence(settings['alpha'])} confidence"
        )


def _tell_many(tally: Tally, failed: int, settings: dict[str, Any]) -> None:
    from pprs.certificate import round_down
    from pprs.cli.progress import say
    from pprs.stop import decided_radii

    told = f"{tally.certified} of {tally.rows + failed} images certified"
    if decided_radii(settings["stop"]) is None:
        told += f", mean radius {round_down(tally.radii / max(tally.certified, 1))}"
    say(told + (f"; {tally.right} of them as what they are" if tally.labelled else ""))
    if settings["stop"] is not None:
        say(
            f"{tally.samples:,} samples, {tally.samples / max(tally.rows, 1):,.0f} an image, of at most "
            f"{settings['n']:,}"
            + (f"; {tally.left} images are left undecided: the same command goes on with them" if tally.left else "")
        )
