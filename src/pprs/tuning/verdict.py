"""What a search found, in words and points."""

from __future__ import annotations

from collections.abc import Sequence

from pprs.partition import parse_partition
from pprs.tuning.search import Final, Trial, Tuned


def short(text: str) -> str:
    """A partition's text without what is at its default."""
    made = parse_partition(text)
    return "none" if made is None else made.short


def points(trials: Sequence[Trial]) -> list[tuple[str, float, float, float]]:
    """What was tried, each as it was seen last: (family, ms a sample, score, error), for the chart."""
    last = {trial.partition: trial for trial in trials}
    return [(t.family, 1000 * t.seconds, t.score, t.error) for t in last.values()]


def best(tuned: Tuned) -> list[tuple[str, str, float, float]]:
    """The best of each family: (family, name, ms a sample, score), for the chart."""
    last = {trial.partition: trial for trial in tuned.trials}
    return [(f.family, short(f.partition), 1000 * last[f.partition].seconds, f.tuned) for f in tuned.finals]


def verdict(tuned: Tuned) -> str:
    """Whether superpixels help this classifier, as far as the pictures tell that the search did not see."""
    mine = tuned.of("superpixels")
    others = [f for f in tuned.finals if f.family != "superpixels"]
    if mine is None or not others:
        return f"the search's best is {short(tuned.best.partition)}"
    words, told = [], []
    for other in others:
        ahead, error = tuned.ahead(mine, other)
        words.append("ahead of" if ahead > error else "behind" if ahead < -error else "not told apart from")
        told.append(f"{words[-1]} {_name(other)} ({ahead:+.3f} ± {error:.3f})")
    if all(word == "ahead of" for word in words):
        head = "Superpixels help this classifier"
    elif "behind" in words:
        head = "Superpixels do not help this classifier most"
    else:
        head = "Whether superpixels help most cannot be told yet: give more --budget or pictures"
    return f"{head}. In average radius, on unseen pictures, they are {', '.join(told)}."


def _name(final: Final) -> str:
    return "plain smoothing" if final.family == "none" else f"the best {final.family}"
