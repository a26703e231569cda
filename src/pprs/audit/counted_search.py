"""The search for a small change of an image that alters the label by counted votes.

Moves are planned on a model of the votes, made, and counted, until the label is another. What the change does not need
is then taken back. Parts of it are also given up and planned again, since a model is more precise near the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pprs.audit.counted_votes import CountedVotes, list_models
from pprs.audit.flips import FlipModel, Pick, apply_picks
from pprs.audit.levels import Ints

GROWTH = 1.5  # of the size that a change may have, from the certified one on
LEAST_UNIT = 16  # levels; what is certified may be too little for a first budget
PIXEL_GROWTH = 1.35
MOVES = 24  # of which a plan consists, about
SHARPNESS = 0.3  # by which the scale of votes is smaller in a plan: it should decide some, not soften all
TRIED = 64  # offsets at which models are compared
GIVEN_UP = 0.3  # the share of a change that is planned again
SPARED = 0.97  # of what it took before


@dataclass(frozen=True)
class CountedFinding:
    """A changed image, in levels and flattened, whose label is another.

    Attributes:
        k: The levels.
        size: The size of the change.
        new_label: The label.
    """

    k: Ints
    size: int
    new_label: int


class CountedSearch:
    """A search for changes of one kind: of few levels in total, or of few pixels.

    Args:
        votes: The votes.
        original: The levels of the image, flattened.
        certified: The largest certified size.
        by_pixel: Whether a change is counted in pixels.
        steps: How many models are made.
        others: Levels of other images, flattened, towards which to change it.
        seed: The random seed.

    Attributes:
        best: The smallest change found.
        searched: The largest size tried that did not alter the label.
        kind: "gradient", or "scores" if the network has no usable gradient.
        how: How models were obtained.
        gradient_error: Why the network has no usable gradient.
    """

    def __init__(
        self,
        votes: CountedVotes,
        original: Ints,
        certified: int,
        *,
        by_pixel: bool,
        steps: int,
        others: Sequence[Ints] = (),
        seed: int = 0,
    ) -> None:
        self._votes, self._original, self.certified, self._steps = votes, original, certified, steps
        self._others, self._rng = others, np.random.default_rng(seed)
        self._pixels = math.prod(votes.shape[1:])
        self._by_pixel = self._pixels if by_pixel else 0
        self.best: CountedFinding | None = None
        self.searched, self.kind, self.how = 0, "gradient", ""
        self.gradient_error: str | None = None

    def measure(self, k: Ints) -> int:
        """Return the size of a change."""
        if self._by_pixel:
            return len(np.unique(np.flatnonzero(k != self._original) % self._pixels))
        return int(np.abs(k - self._original).sum())

    def _try(self, k: Ints) -> bool:
        """Count the votes of a changed image, and note what they say."""
        size = self.measure(k)
        found = self._votes.find_other_label(k)
        if found is None:
            if self.best is None:
                self.searched = max(self.searched, size)
            return False
        self._note(k, found)
        return True

    def _note(self, k: Ints, new_label: int) -> None:
        size = self.measure(k)
        if self.best is None or size < self.best.size:
            self.best = CountedFinding(k.copy(), size, new_label)

    def adopt(self, finding: CountedFinding | None) -> None:
        """Note what a search of the other kind has found, of which the votes are known."""
        if finding is not None:
            self._note(finding.k, finding.new_label)

    def run(self) -> None:
        """Search until all steps are made."""
        self._votes.aim(None)
        if self._try(self._original):
            return
        if self.best is None and not self._by_pixel:  # for the few pixels that it takes, growing is faster
            self._approach_others()
        used = self._grow()
        if self.best is None or (self._by_pixel and self.kind == "scores"):
            self._approach_others()
        if self.best is None:
            return
        self._trim()
        for step in range(used, self._steps):
            self._plan_again(step)

    # ---- models and plans

    def _model(self, k: Ints) -> FlipModel:
        """Return the model of the votes that is best by a plan that is tried."""
        models, error = list_models(self._votes, k)
        if error is not None:
            self.kind, self.gradient_error = "scores", error
        same = [model for model in models if model.how == self.how]
        if same or len(models) == 1:
            chosen = (same or models)[0]
        else:
            budget = self._budget(2)

            def share(model: FlipModel) -> float:
                picks = self._plan(model, k, budget)
                return float(self._votes.soften(self._votes.measure(apply_picks(k, picks), TRIED)).mean())

            chosen = min(models, key=share)
        self.how = chosen.how
        return chosen

    def _plan(self, model: FlipModel, k: Ints, budget: int) -> list[Pick]:
        step = max(1, budget // MOVES)
        return model.plan(k, self._original, budget, step, SHARPNESS * self._votes.scale, by_pixel=self._by_pixel)

    def _budget(self, step: int) -> int:
        """Return the size that a change may have at a step."""
        if self._by_pixel:
            return max(step + 1, round(PIXEL_GROWTH**step))
        return math.ceil(max(self.certified, LEAST_UNIT) * GROWTH**step)

    def _grow(self) -> int:
        """Change the image more and more until its label is another. Return the number of steps made."""
        k = self._original
        for step in range(self._steps):
            if self.best is not None and self._budget(step) >= self.best.size:
                return step
            picks = self._plan(self._model(k), k, self._budget(step) - self.measure(k))
            if not picks:
                return step + 1
            if self._try(apply_picks(k, picks)):
                self._bisect(k, picks)
                return step + 1
            k = apply_picks(k, picks)
        return self._steps

    def _bisect(self, k: Ints, picks: list[Pick]) -> None:
        """Find how many of some moves it takes."""
        low, high = 0, len(picks)
        while high - low > 1:
            middle = (low + high) // 2
            if self._try(apply_picks(k, picks[:middle])):
                high = middle
            else:
                low = middle

    def _plan_again(self, step: int) -> None:
        """Give up a part of the change, and find a smaller one in its place."""
        assert self.best is not None
        best = self.best
        self._votes.aim(best.new_label if step % 2 else None)
        places = self._list_parts(best.k)
        given = self._rng.permutation(places)[: max(1, round(GIVEN_UP * len(places)))]
        k = self._restore(best.k, given)
        left = best.size - self.measure(k)
        budget = min(left - 1, math.floor(SPARED * left))
        if budget < 1:
            return
        picks = self._plan(self._model(k), k, budget)
        if picks and self._try(apply_picks(k, picks)):
            self._bisect(k, picks)
            self._trim()

    def _approach_others(self) -> None:
        """Change the image towards others of another label."""
        for other in self._others:
            if not self._try(other):
                continue
            low, high = 0.0, 1.0
            for _ in range(8):
                middle = (low + high) / 2
                k = np.rint(self._original + middle * (other - self._original)).astype(np.int64)
                low, high = (low, middle) if self._try(k) else (middle, high)
            return  # the first is as good as any: what is not needed of it is taken back

    # ---- what is not needed

    def _list_parts(self, k: Ints) -> Ints:
        """Return the changed pixels, or the places of the changed values."""
        places = np.flatnonzero(k != self._original)
        return np.unique(places % self._pixels) if self._by_pixel else places

    def _restore(self, k: Ints, parts: Ints, share: float = 1.0) -> Ints:
        """Take back a share of the change of some parts."""
        places = np.flatnonzero(np.isin(np.arange(k.size) % self._pixels, parts)) if self._by_pixel else parts
        restored = k.copy()
        change = k[places] - self._original[places]
        restored[places] -= (np.sign(change) * np.ceil(share * np.abs(change))).astype(np.int64)
        return restored

    def _trim(self) -> None:
        """Take back what the smallest change found does not need: whole parts, then shares of them."""
        shares = (1.0,) if self._by_pixel else (1.0, 0.5, 0.25, 0.125, 1e-9)
        for share in shares:
            assert self.best is not None
            parts = self._list_parts(self.best.k)
            sizes = np.abs(self.best.k - self._original)[parts]
            parts = parts[sizes.argsort(kind="stable")]
            chunk = max(1, len(parts) // 2)
            while True:
                for start in range(0, len(parts), chunk):
                    some = parts[start : start + chunk]
                    k = self._restore(self.best.k, some, share)
                    if self.measure(k) < self.best.size:
                        self._try(k)
                if chunk == 1:
                    break
                chunk = max(1, chunk // 2)
                parts = parts[np.isin(parts, self._list_parts(self.best.k))]
