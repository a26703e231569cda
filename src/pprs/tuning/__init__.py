"""Which partition, if any, makes the certificates of a classifier larger: a search with a budget.

Candidates follow the noise and the picture's size. All are given the same pictures and the same noise (common random
numbers), so that few samples tell them apart; each round keeps the better ones and looks at them more closely. In the
end the best of every family is certified on pictures that the search did not see. The draws are the search's own, so a
certificate made later with the partition that it found is as good as any other.
"""

from __future__ import annotations

from pprs.tuning.candidates import FAMILIES, candidates, family_of, neighbours
from pprs.tuning.describe import draw_chart, notes, results_table, short, verdict
from pprs.tuning.measurement import MeasurementCache, recorded_engine
from pprs.tuning.result import Final, Trial, Tuned
from pprs.tuning.run import CHART, LIMIT, MEASUREMENTS, RESULT, tune
from pprs.tuning.search import ALPHA, Search, SearchStep, search_partitions

__all__ = [
    "ALPHA",
    "CHART",
    "FAMILIES",
    "LIMIT",
    "MEASUREMENTS",
    "RESULT",
    "Final",
    "MeasurementCache",
    "Search",
    "SearchStep",
    "Trial",
    "Tuned",
    "candidates",
    "draw_chart",
    "family_of",
    "neighbours",
    "notes",
    "recorded_engine",
    "results_table",
    "search_partitions",
    "short",
    "tune",
    "verdict",
]
