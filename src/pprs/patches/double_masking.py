"""Double masking: a prediction rule and a certificate for it (Xiang, Mahloujifar, Mittal 2022, PatchCleanser).

`look` returns the scores of the image under pairs of masks, each a function of the pixels that the pair leaves visible.
A pair of a mask with itself is a single mask. The theorem and its proof are in docs/patches.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Predictions:
    """What the base classifier predicts for an image under pairs of masks.

    Attributes:
        pairs: The pairs of masks, int64 [B, 2].
        scores: The scores, float32 [B, num_classes].
        clear: Whether the best score leads by more than rounding can change, bool [B].
    """

    pairs: torch.Tensor
    scores: torch.Tensor
    clear: torch.Tensor

    @property
    def labels(self) -> torch.Tensor:
        """The label of the best score, int64 [B]."""
        return self.scores.argmax(1)

    def are_all(self, label: int) -> bool:
        """Return whether all labels are this one."""
        return bool((self.labels == label).all())

    def support(self, label: int) -> bool:
        """Return whether all labels are clearly this one."""
        return self.are_all(label) and bool(self.clear.all())

    def split(self, size: int) -> Iterator[Predictions]:
        """Yield the predictions in order, so many at a time."""
        parts = (self.pairs.split(size), self.scores.split(size), self.clear.split(size))
        yield from map(Predictions, *parts)

    def margins(self, label: int) -> torch.Tensor:
        """Return by how much the score of a label exceeds the best other score, float32 [B]."""
        others = self.scores.clone()
        others[:, label] = -torch.inf
        return self.scores[:, label] - others.amax(1)


Look = Callable[[torch.Tensor], Predictions]


@dataclass(frozen=True)
class Verdict:
    """The result of double masking on an image.

    Attributes:
        label: The label of the double-masked classifier.
        certified: Whether no patch can change it.
        worst: The pair of masks, among those that were looked at, with the smallest margin of the label.
        worst_label: What the base classifier predicts under this pair.
        passes: How many masked images this rests on.
    """

    label: int
    certified: bool
    worst: tuple[int, int]
    worst_label: int
    passes: int


def predict(look: Look, masks: int) -> int:
    """Return the label of the double-masked classifier.

    If the predictions with one mask agree, that is the label. Otherwise a prediction with one mask that differs from
    the majority is the label, if it stays the same under every second mask. If there is none, the label is that of the
    majority.
    """
    return _Examination(look, masks).predict()


def certify(look: Look, masks: int, step: int, ahead: int = 1) -> Verdict:
    """Return the label of the double-masked classifier, and whether no patch can change it.

    It is certified if the predictions with any two masks agree. Near ties do not count as agreement: the same masked
    image could get another label in another batch. Pairs are examined `step` at a time, those first whose single masks
    have the smallest margins, and no further than the first disagreement. `ahead` is how many steps are looked at
    together. What lies behind the first disagreement does not count, so that no result depends on it.
    """
    examination = _Examination(look, masks)
    label = examination.predict()
    return examination.conclude(label, examination.is_certified(label, step, ahead))


class _Examination:
    """The predictions for one image so far. Those with a single mask come first."""

    def __init__(self, look: Look, masks: int) -> None:
        self._look, self._masks = look, masks
        each = torch.arange(masks)
        self._single = look(torch.stack([each, each], dim=1))
        self._seen = [self._single]

    def predict(self) -> int:
        labels = self._single.labels
        majority = int(labels.bincount().argmax())
        for mask in (labels != majority).nonzero().flatten().tolist():
            label = int(labels[mask])
            if self._look_again(_pair_with_all(mask, self._masks)).are_all(label):
                return label
        return majority

    def is_certified(self, label: int, step: int, ahead: int) -> bool:
        if not self._single.support(label):
            return False
        for pairs in self._iter_pairs(label, step * ahead):
            for predictions in self._look(pairs).split(step):
                self._seen.append(predictions)
                if not predictions.support(label):
                    return False
        return True

    def _iter_pairs(self, label: int, step: int) -> Iterator[torch.Tensor]:
        """Yield all pairs of two different masks, the least certain ones first."""
        margins = self._single.margins(label)
        pairs = torch.combinations(torch.arange(self._masks))
        order = margins[pairs].sum(1).argsort(stable=True)
        yield from pairs[order].split(step)

    def _look_again(self, pairs: torch.Tensor) -> Predictions:
        predictions = self._look(pairs)
        self._seen.append(predictions)
        return predictions

    def conclude(self, label: int, certified: bool) -> Verdict:
        pairs = torch.cat([seen.pairs for seen in self._seen])
        labels = torch.cat([seen.labels for seen in self._seen])
        worst = int(torch.cat([seen.margins(label) for seen in self._seen]).argmin())
        first, second = pairs[worst].tolist()
        return Verdict(label, certified, (first, second), int(labels[worst]), len(pairs))


def _pair_with_all(mask: int, masks: int) -> torch.Tensor:
    """Return the pairs of a mask with every mask, including itself."""
    return torch.stack([torch.full((masks,), mask), torch.arange(masks)], dim=1)
