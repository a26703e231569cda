"""Search, within a time budget, for the partition that makes the certificates of a classifier largest, if any does.

The candidates depend on the noise and the image size. All of them are measured on the same images with the same noise
(common random numbers), so that few samples suffice to rank them. Each round keeps the better ones and measures them on
more images. Finally, the best candidate of every family is certified on images that the search has not used. The search
draws its own noise, so certificates computed later with the chosen partition keep their guarantee.
"""

from __future__ import annotations

from pprs.tuning.candidates import ALL_FAMILIES, FAMILIES, Candidate, family_of, find_neighbours, propose_candidates
from pprs.tuning.describe import draw_chart, list_notes, make_table, shorten, summarize
from pprs.tuning.measurement import MeasurementCache, recorded_engine
from pprs.tuning.result import Final, Trial, Tuned
from pprs.tuning.run import CHART, LIMIT, MEASUREMENTS, RESULT, tune
from pprs.tuning.search import ALPHA, AdaptedNetwork, Search, SearchStep, search_partitions

__all__ = [
    "ALL_FAMILIES",
    "ALPHA",
    "CHART",
    "FAMILIES",
    "LIMIT",
    "MEASUREMENTS",
    "RESULT",
    "AdaptedNetwork",
    "Candidate",
    "Final",
    "MeasurementCache",
    "Search",
    "SearchStep",
    "Trial",
    "Tuned",
    "draw_chart",
    "family_of",
    "find_neighbours",
    "list_notes",
    "make_table",
    "propose_candidates",
    "recorded_engine",
    "search_partitions",
    "shorten",
    "summarize",
    "tune",
]
