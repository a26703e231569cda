"""Which partition, if any, makes the certificates of a classifier larger: a search with a budget.

Candidates follow the noise and the picture's size. All are given the same pictures and the same noise (common random
numbers), so that few samples tell them apart; each round keeps the better ones and looks at them more closely. In the
end the best of every family is certified on pictures that the search did not see. The draws are the search's own, so a
certificate made later with the partition that it found is as good as any other.
"""

from __future__ import annotations

from pprs.tuning.candidates import FAMILIES, candidates, family_of, neighbours
from pprs.tuning.notebook import Notebook, engine_of
from pprs.tuning.search import ALPHA, Final, Search, Trial, Tuned, tune
from pprs.tuning.verdict import best, points, short, verdict

__all__ = [
    "ALPHA",
    "FAMILIES",
    "Final",
    "Notebook",
    "Search",
    "Trial",
    "Tuned",
    "best",
    "candidates",
    "engine_of",
    "family_of",
    "neighbours",
    "points",
    "short",
    "tune",
    "verdict",
]
