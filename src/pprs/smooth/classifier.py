"""What the votes of noisy copies are for: a certificate, a label, counts."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from pprs.bound import binomial_test, check_alpha
from pprs.certificate import Certificate, Counts, Prediction
from pprs.errors import PprsError
from pprs.smooth.vote import ESTIMATE, PREDICT, SELECT, OnSamples, Voter, Votes
from pprs.stop import Judge, Plan, check_reach


class Earlier(Protocol):
    """What is known of an image that was left before it was done."""

    @property
    def selected(self) -> int: ...
    @property
    def counts(self) -> tuple[int, ...]: ...
    @property
    def p_lower(self) -> float: ...
    @property
    def p_upper(self) -> float | None: ...
    @property
    def mean_segments(self) -> float | None: ...


class SmoothedClassifier(Voter):
    """A classifier's majority vote under noise, with the partition applied to every noisy copy.

    `model` maps float32 [B, C, H, W] (about [0, 1], plus noise) to scores [B, num_classes]; it is put in eval
    mode. `partition=None` is plain randomized smoothing (Cohen et al. 2019).

    On a CPU, `threads` batches (as many as there are cores, unless given) go through noise, partition and network side
    by side, so the network is called from several threads at once: give threads=1 to one that keeps state between
    calls. A `model` that is not a torch.nn.Module is called from the caller's thread alone.

    >>> from pprs import Gaussian
    >>> def model(x): return torch.stack([x.mean((1, 2, 3)) - 0.5, 0.5 - x.mean((1, 2, 3))], dim=1)
    >>> g = SmoothedClassifier(model, num_classes=2, noise=Gaussian(0.5))
    >>> print(g.certify(torch.full((1, 8, 8), 0.6), n=1000))
    class 0: no change of L2 norm up to 0.719 can alter this label, with 99.9% confidence
    """

    def certify(
        self,
        x: torch.Tensor,
        *,
        n0: int = 100,
        n: int = 10_000,
        alpha: float = 0.001,
        index: int = 0,
        bound: str = "one-sided",
        stop: str | None = None,
        on_samples: OnSamples | None = None,
    ) -> Certificate:
        """A label and a radius within which no perturbation changes it; wrong with probability at most alpha.

        x: [C, H, W] in [0, 1]. index keys this image's randomness: give every image of a set its own. bound:
        "one-sided" grants the selected class's rivals all that it may lack; "two-sided" bounds each of them too.
        stop: end before all n samples are drawn, at no loss of the guarantee: "radius:0.25,0.5" when it is decided
        whether the image is certified at these radii, "width:0.02" when the radius is known to that precision,
        "abstain" when the image is hopeless.
        """
        work = Certifying(self, Plan(n0, n, alpha, bound, stop), index)
        if stop is not None:
            check_reach(work.plan, self.noise, self._checked(x).numel(), self.num_classes)
        work.advance(x, on_samples=on_samples)
        return work.certificate()

    def predict(self, x: torch.Tensor, *, n: int = 1_000, alpha: float = 0.001, index: int = 0) -> Prediction:
        """The smoothed classifier's own label, wrong with probability at most alpha, or an abstention.

        Abstains unless an exact binomial test tells the two classes with the most votes apart.
        """
        check_alpha(alpha)
        counts = self.counts(x, n=n, index=index)
        second, first = np.argsort(counts, kind="stable")[-2:]
        p_value = binomial_test(int(counts[first]), int(counts[first] + counts[second]))
        return Prediction(int(first) if p_value <= alpha else None, counts, p_value, n, alpha)

    def counts(
        self,
        x: torch.Tensor,
        *,
        n: int = 1_000,
        index: int = 0,
        on_samples: OnSamples | None = None,
        phase: int = PREDICT,
    ) -> Counts:
        """How many of n noisy copies each class gets: int64 [num_classes]. A phase has draws of its own."""
        if n < 1:
            raise PprsError(f"n must be at least 1, not {n}")
        with self._context(x, index):
            return self._vote(self._checked(x), n, index, phase, on_samples).counts


class Certifying:
    """The certification of one image, which can be left after any chunk and gone on with."""

    def __init__(self, classifier: SmoothedClassifier, plan: Plan, index: int, earlier: Earlier | None = None) -> None:
        self._of, self.plan, self._index, self._earlier = classifier, plan, index, earlier
        # Votes and what was made of them, as one: an interruption finds both or neither.
        self._state: tuple[Votes, Judge] | None = None
        self._shape = (0, 0, 0)

    @property
    def stopped(self) -> str | None:
        """Why it is done: "n" (all samples are drawn) or the rule's reason; None: it is not."""
        return None if self._state is None else self._state[1].stopped

    @property
    def samples(self) -> int:
        """How many votes were counted."""
        counts = (self._earlier.counts if self._earlier else ()) if self._state is None else self._state[0].counts
        return int(sum(counts))

    @property
    def begun(self) -> bool:
        """Whether there is anything to tell."""
        return self._state is not None and self.samples > 0

    @property
    def promise(self) -> float:
        """How much larger the radius may become, with luck, by going on."""
        return 0.0 if self._state is None else self._state[1].hoped() - self._state[1].radius

    def advance(
        self, x: torch.Tensor, pause: Callable[[int], bool] | None = None, on_samples: OnSamples | None = None
    ) -> None:
        """Draw samples until it is done, or until `pause`, asked after every chunk with how many there are, says so.

        What other threads are at by then is counted too, not drawn a second time.
        """
        g, plan = self._of, self.plan
        with g._context(x, self._index):
            x = g._checked(x)
            if self._state is None:
                self._state = self._begin(x, on_samples)
            if self.stopped is not None:
                return
            paused = threading.Event()
            parts = g._votes(
                x, range(self.samples, plan.n), self._index, ESTIMATE,
                eager=plan.stop is None, more=lambda: not paused.is_set(),
            )  # fmt: skip
            with contextlib.closing(parts):
                for part in parts:
                    votes, judge = self._state[0] + part, copy.copy(self._state[1])
                    judge.see(votes.counts.tolist())
                    self._state = votes, judge
                    if on_samples is not None:
                        on_samples(int(part.counts.sum()))
                    if judge.stopped is not None:
                        return
                    if pause is not None and not paused.is_set() and pause(self.samples):
                        paused.set()
            if paused.is_set():
                return
            raise PprsError(f"{self.samples} votes were counted for {plan.n} samples: the model is not consistent")

    def _begin(self, x: torch.Tensor, on_samples: OnSamples | None) -> tuple[Votes, Judge]:
        """Select the class, or take up what was left."""
        g, plan = self._of, self.plan
        self._shape = (x.shape[0], x.shape[1], x.shape[2])
        if self._earlier is None:
            selected = int(g._vote(x, plan.n0, self._index, SELECT, on_samples).counts.argmax())
            return Votes.none(g.num_classes), Judge(plan, g.noise, x.numel(), g.num_classes, selected)
        judge = Judge(plan, g.noise, x.numel(), g.num_classes, self._earlier.selected)
        judge.recall(self._earlier.counts)
        judge.remember(self._earlier.p_lower, self._earlier.p_upper)
        many = self._earlier.mean_segments
        segments = None if many is None else round(many * sum(self._earlier.counts))
        return Votes(np.array(self._earlier.counts, np.int64), segments), judge

    def certificate(self) -> Certificate:
        """What is proved by now."""
        if self._state is None or not self.begun:
            raise PprsError("no sample was drawn yet")
        g, plan, n, (votes, judge) = self._of, self.plan, self.samples, self._state
        return Certificate(
            prediction=judge.selected if judge.certified else None,
            radius=judge.radius if judge.certified else 0.0,
            p_lower=judge.p_lower,
            counts=votes.counts,
            selected=judge.selected,
            n0=plan.n0,
            n=n,
            alpha=plan.alpha,
            shape=self._shape,
            noise=str(g.noise),
            partition=str(g.scheme(self._shape) or "none"),
            mean_segments=None if votes.segments is None else votes.segments / n,
            bound=plan.bound,
            p_upper=judge.p_upper,
            n_max=plan.n,
            stop=plan.stop,
            stopped=judge.stopped or "budget",
        )
