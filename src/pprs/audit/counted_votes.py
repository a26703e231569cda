"""The votes of a classifier behind thresholds for one label, counted over all offsets and modelled over some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pprs.audit.flips import FlipModel
from pprs.audit.gradient import pull_back_shown
from pprs.audit.levels import Ints, LevelImage
from pprs.audit.margins import BaseClassifier, NoGradientError, SoftVotes, is_usable, score_margin
from pprs.dither.certificate import choose_label
from pprs.dither.classifier import DitherClassifier
from pprs.kernels.thresholds import GREY

OFFSETS = 512  # at most, at which gradients are computed
PROBED_OFFSETS = 32  # at which changes are tried where there are no gradients
SCREENED = 64  # offsets whose votes may already show that a label stands
FIRST_OFFSETS = 16  # at which the values of a large image are chosen that a model is about
MOST_VALUES = 2048
BLOCKS = 8  # along an axis, which are changed as a whole where there are no gradients


@dataclass(frozen=True)
class _Gradients:
    """Margins at some offsets, and the effects of thresholds there on them, by how they were obtained."""

    margins: torch.Tensor
    effects: dict[str, torch.Tensor]


class CountedVotes(SoftVotes):
    """Votes for the label of an image, and for that of its changes.

    Args:
        classifier: The classifier whose votes were counted.
        levels: The image in levels.
        label: The certified label.
        network: The network to differentiate, if it is not the one that the classifier runs.
        pause: Called between batches.
    """

    def __init__(
        self,
        classifier: DitherClassifier,
        levels: LevelImage,
        label: int,
        network: BaseClassifier | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        votes, self.shape = classifier.votes, levels.k.shape
        super().__init__(votes, network, votes.usual_batch(torch.empty(self.shape)), pause)
        self.classifier, self.votes, self.label, self._levels = classifier, votes, label, levels
        self.total = classifier.dither.levels
        self._estimator = votes.find_estimator(self.shape)
        self.template = classifier.dither.thresholds(self.shape).astype(np.int64).ravel()
        self._rival: int | None = None

    @property
    def scale(self) -> float:
        return self._scale

    def aim(self, rival: int | None) -> None:
        """Measure margins to this label, or to the best other one."""
        if rival is None:
            self._margin = score_margin
        else:
            self._margin = lambda scores, label: scores[:, label] - scores[:, rival]

    def find_other_label(self, k: Ints) -> int | None:
        """Return the label of a changed image if it is another: by the votes of all offsets, or of all that decide."""
        image = self._levels.to_tensor(k.reshape(self.shape))
        order = self.votes.dither.order()
        if self.total > 4 * SCREENED:
            few = self._score(k, torch.from_numpy(order[:SCREENED])).argmax(1).bincount(minlength=2).tolist()
            if choose_label(few) == self.label and 2 * few[self.label] - sum(few) > SCREENED // 2:
                return None
        found = choose_label(self.classifier.count(image, self._note, early=True))
        return None if found == self.label else found

    def _note(self, passes: int) -> None:
        self.queries += passes
        self.pause()

    def _score(self, k: Ints, offsets: torch.Tensor) -> torch.Tensor:
        values = self._to_values(k)

        @torch.inference_mode()
        def classify(part: torch.Tensor) -> torch.Tensor:
            return self.votes.scores(self.votes.estimate(values, part))

        return torch.cat(list(self._map(classify, offsets, self.votes.model))).clone()

    def _to_values(self, k: Ints) -> torch.Tensor:
        return torch.from_numpy(k.reshape(self.shape).astype(np.int32)).to(self.votes.device)

    def measure(self, k: Ints, count: int) -> torch.Tensor:
        """Return the margins at so many offsets, which lie evenly among all."""
        return self._margin(self._score(k, self._spread(count)), self.label).cpu()

    def _spread(self, count: int) -> torch.Tensor:
        """Return offsets that lie evenly among all, in order."""
        count = min(count, self.total)
        return torch.from_numpy(-(-np.arange(count) * self.total // count))

    # ---- models

    def differentiate(self, k: Ints) -> list[FlipModel]:
        """Return models by the network's gradients, one for each way to obtain them.

        Raises:
            NoGradientError: If the network cannot be differentiated, or has no usable gradient.
        """
        self.check_network()
        chosen = np.arange(k.size)
        if k.size > MOST_VALUES:
            first = self._gather(k, self._spread(FIRST_OFFSETS), chosen)
            masses = sum(effect.abs().sum(0) for effect in first.effects.values())
            assert isinstance(masses, torch.Tensor)
            chosen = np.sort(masses.numpy().argsort()[-MOST_VALUES:])
        found = self._gather(k, self._spread(OFFSETS), chosen)
        if not any(is_usable(effect) for effect in found.effects.values()):
            raise NoGradientError("its gradient is zero or not finite")
        self.fix_scale(found.margins)
        return [
            self._make_model(found.margins, effect.numpy(), -effect.numpy(), chosen, how)
            for how, effect in found.effects.items()
            if is_usable(effect)
        ]

    def _gather(self, k: Ints, offsets: torch.Tensor, chosen: Ints) -> _Gradients:
        values, columns = self._to_values(k), torch.from_numpy(chosen)

        def differentiate(part: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            shown = self.votes.show(values, part)
            with torch.inference_mode():
                estimate = self.votes.dither.restore(self._estimator.estimate(shown))
            margins, gradient = self.differentiate_network(estimate)
            pulled = pull_back_shown(self._estimator, shown, gradient)
            return margins.cpu(), {how: one.flatten(1).cpu()[:, columns] for how, one in pulled.items()}

        parts = list(self._map(differentiate, offsets, self.network))
        effects = {how: torch.cat([effects[how] for _, effects in parts]) for how in parts[0][1]}
        return _Gradients(torch.cat([margins for margins, _ in parts]), effects)

    def _make_model(self, margins: torch.Tensor, up: np.ndarray, down: np.ndarray, chosen: Ints, how: str) -> FlipModel:
        return FlipModel(margins.numpy(), up, down, chosen, self.template[chosen], self.total, how)

    def probe(self, k: Ints) -> FlipModel:
        """Return a model by scores alone, of changes of whole blocks to black and to white."""
        offsets = self._spread(PROBED_OFFSETS)
        before = self.measure(k, PROBED_OFFSETS)
        self.fix_scale(before)
        blocks = self._number_blocks()
        effects = {0: np.zeros((len(offsets), k.size), np.float32), GREY: np.zeros((len(offsets), k.size), np.float32)}
        at = (self.template + offsets.numpy()[:, None]) % self.total  # the lowest threshold of each value
        for block in range(int(blocks.max()) + 1):
            inside = np.flatnonzero(blocks == block)
            for end, effect in effects.items():
                changed = k.copy()
                changed[inside] = end
                moved = (self.measure(changed, PROBED_OFFSETS) - before).numpy()
                low, high = np.minimum(k[inside], end), np.maximum(k[inside], end)
                passed = ((at[:, inside] >= low) & (at[:, inside] < high)).sum(1)
                effect[:, inside] = (moved / np.maximum(passed, 1))[:, None]
        masses = sum(np.abs(effect).sum(0) for effect in effects.values())
        assert isinstance(masses, np.ndarray)
        chosen = np.sort(masses.argsort()[-MOST_VALUES:])
        return self._make_model(
            before, effects[GREY][:, chosen], effects[0][:, chosen], chosen, "estimated from scores"
        )

    def _number_blocks(self) -> Ints:
        """Return the block of each value of the flattened image."""
        channels, height, width = self.shape
        rows, columns = (np.arange(side) * min(BLOCKS, side) // side for side in (height, width))
        plane = rows[:, None] * BLOCKS + columns
        _, numbers = np.unique(plane, return_inverse=True)
        return np.tile(numbers.ravel(), channels)


def list_models(votes: CountedVotes, k: Ints) -> tuple[Sequence[FlipModel], str | None]:
    """Return models of the votes around a changed image, and why they are not by gradients, if they are not."""
    try:
        return votes.differentiate(k), None
    except NoGradientError as error:
        return [votes.probe(k)], error.message
