"""Whether rows follow from their counts and the settings of their run. Reports and exports refuse rows that do not.

Everything but the votes themselves is recomputed. With a stop rule, a stored bound is the best of those at several
numbers of votes, of which only the last is stored. Then the bound must be one that some order of the votes gives.
Orders that are practically impossible are left out: votes are independent, so every order of them is equally likely.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pprs.errors import DamagedError, PprsError
from pprs.inputs.domain import IMAGE, SIGNAL
from pprs.noise import Gaussian, Quantisation, are_levels
from pprs.runs.provenance import Provenance
from pprs.runs.row import FAILED, PARTIAL, Row
from pprs.runs.settings import RunSettings
from pprs.smoothing.bounds import clopper_pearson_lower
from pprs.smoothing.confidence_sequence import ConfidenceSequence
from pprs.smoothing.sampling import Evidence, Sampling, check_times, parse_stop_rule
from pprs.smoothing.voting import chunk_size

ABOVE = 1e-12  # relative rounding error by which a stored value may exceed the recomputed one
FLOAT32 = 2.0**-23  # relative rounding error of a sigma in float32
BELOW = 1e-6  # by which it may be smaller, since earlier versions rounded down more
IMPOSSIBLE = 1e-18  # probability of an order of votes that is left out; a row has less than 10^6 numbers of votes
REASONS = {None: (), "radius": ("decided",), "width": ("width",), "abstain": ("hopeless",)}  # by stop rule

NO_SETTINGS = "the noise, the sample sizes or alpha are not recorded"
NO_COUNTS = "no counts are recorded"
RENUMBERED = "the classes were renumbered, so the votes for the selected class are not known"
NO_SHAPE = "the radius depends on the shape of the image, which is not recorded"
EARLIER = (
    "the bound is one of an earlier number of votes: some order of the votes gives it, but the order is not stored"
)

UNCHECKED = {NO_SETTINGS, NO_COUNTS, RENUMBERED, NO_SHAPE}  # reasons that leave the radius unchecked


@dataclass(frozen=True)
class Mismatch:
    """Something that does not follow, and the index of its row. None if it concerns the run as a whole."""

    idx: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.idx is None else f"row {self.idx}: {self.text}"


@dataclass(frozen=True)
class RowCheck:
    """What a check of rows found.

    Attributes:
        rows: Number of rows whose bounds and radius were checked.
        mismatches: What does not follow from the counts and settings.
        not_checked: Number of rows by the reason why something in them could not be checked.
        claims: What was checked, if not bounds and radii.
    """

    rows: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    not_checked: Mapping[str, int] = field(default_factory=dict)
    claims: str | None = None

    def refuse(self, path: str) -> None:
        """Raise an error if a row does not follow from its counts and the settings."""
        if self.mismatches:
            more = "" if len(self.mismatches) == 1 else f" There are {len(self.mismatches) - 1} more such findings."
            raise DamagedError(
                f"{path} does not follow from its own counts and settings: {self.mismatches[0]}.{more} The file "
                f"was edited or damaged, or another version wrote it, so it is not used. See `pprs verify {path}`."
            )

    def __str__(self) -> str:
        if self.mismatches:
            return f"Not verified: {len(self.mismatches)} values do not follow from the counts and settings"
        if not self.rows:
            return f"Not verified: {'; '.join(self.not_checked) or 'there are no rows'}"
        if self.claims is not None:
            return f"Verified: {self.claims} ({count_rows(self.rows)})"
        every = "the" if UNCHECKED.intersection(self.not_checked) else "all"
        text = f"Verified: {every} bounds and radii of {count_rows(self.rows)} follow from the counts and settings"
        return text + (f". Not checked: {'; '.join(self.list_unchecked())}" if self.not_checked else "")

    def list_unchecked(self) -> list[str]:
        """Return why something could not be checked, each with the number of rows."""
        return [f"{reason} ({count_rows(rows)})" for reason, rows in self.not_checked.items()]


def count_rows(rows: int) -> str:
    """Return the number of rows as text."""
    return "1 row" if rows == 1 else f"{rows} rows"


def check_rows(rows: Iterable[Row], settings: RunSettings) -> RowCheck:
    """Check that the bounds, radii and predictions of rows follow from their counts and the settings."""
    try:
        checker = RowChecker(settings)
    except PprsError as error:
        return RowCheck(0, (Mismatch(None, f"the settings are not valid ({error})"),))
    count, mismatches, not_checked = 0, list[Mismatch](), Counter[str]()
    for row in rows:
        found, missing = checker.check(row)
        mismatches += [Mismatch(row.idx, text) for text in found]
        not_checked.update(missing)
        count += row.stopped != FAILED and not UNCHECKED.intersection(missing)
    return RowCheck(count, tuple(mismatches), dict(not_checked))


def check_row(row: Row, settings: RunSettings) -> list[str]:
    """Return what in a row does not follow from its counts and the settings."""
    return [mismatch.text for mismatch in check_rows([row], settings).mismatches]


class RowChecker:
    """Checks rows of one run. Rows with equal votes share the work."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        recorded = None not in (settings.n0, settings.n, settings.alpha, settings.noise_text)
        self._sampling = settings.sampling if recorded else None
        self._noise = settings.noise if recorded else None
        self._anytime = self._sampling is not None and self._sampling.anytime
        self._rule = None if settings.stop is None else settings.stop.strip().partition(":")[0]
        parse_stop_rule(settings.stop)
        if settings.arithmetic not in ("exact", "real"):
            raise PprsError(f'unknown arithmetic "{settings.arithmetic}"')
        self._evidence = functools.lru_cache(256)(self._make_evidence)
        self._bounds = functools.lru_cache(4096)(self._compute_bounds)
        self._radius = functools.lru_cache(4096)(self._compute_radius)

    def check(self, row: Row) -> tuple[list[str], list[str]]:
        """Return what does not follow, and why something could not be checked."""
        if row.stopped == FAILED:
            claims = row.prediction is not None or row.radius != 0
            return (["a failed image has a certificate"] if claims else []), []
        if found := self._check_values(row):
            return found, []
        if self._sampling is None:
            return [], [NO_SETTINGS]
        if self.settings.num_classes is None:  # exported rows
            if not row.counts:
                return [], [NO_COUNTS]
            if row.selected >= len(row.counts):
                return [], [RENUMBERED]
        found = [*self._check_counts(row, self._sampling), *check_levels(row, self.settings), *_check_segments(row)]
        if found:
            return found, []
        try:
            return self._check_bounds(row, self._sampling)
        except PprsError as error:
            return [f"its certificate is not valid ({error.message})"], []

    def _check_values(self, row: Row) -> list[str]:
        """Check types and ranges, which nothing else does for a file that was written by others."""
        numbers: dict[str, Any] = {"radius": row.radius, "p_lower": row.p_lower}
        numbers |= {name: value for name in ("p_upper", "moved") if (value := getattr(row, name)) is not None}
        found = [
            f"{name} is {value!r}, which is not a non-negative number"
            for name, value in numbers.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
        ]
        found += [
            f"{name} is {getattr(row, name)!r}, which is not a class"
            for name in ("selected", "prediction", "label")
            if not _is_class(getattr(row, name), optional=name != "selected" or self.settings.num_classes is None)
        ]
        for name in ("counts", "shape"):
            values = getattr(row, name)
            if values is not None and not all(type(value) is int and value >= 0 for value in values):
                found.append(f"{name} are {_shorten(values)}, which are not all integers of at least 0")
        return found

    def _check_counts(self, row: Row, sampling: Sampling) -> list[str]:
        classes, n = self.settings.num_classes or len(row.counts), sampling.n
        if len(row.counts) != classes or classes < 2:
            return [f"it has the counts of {len(row.counts)} classes, and the run has {classes}"]
        for name in ("selected", "prediction", "label"):
            if (value := getattr(row, name)) is not None and value >= classes and self.settings.num_classes:
                return [f"{name} is {value}, and the run has {classes} classes"]
        allowed = ("n", *REASONS[self._rule], *([PARTIAL] if self._rule else []))
        if row.stopped not in allowed:
            return [f'sampling ended by "{row.stopped}", which the stop rule {self.settings.stop or "none"} cannot do']
        if (row.samples == n) != (row.stopped == "n") or row.samples > n or not row.samples:
            return [f'it has {row.samples} votes of {n}, and sampling ended by "{row.stopped}"']
        chunk = None if row.shape is None else chunk_size(math.prod(row.shape))
        if row.stopped != "n" and chunk is not None:
            in_chunks = row.samples % chunk == 0
            if not in_chunks or (row.stopped != PARTIAL and row.samples not in check_times(n, chunk)):
                return [f"sampling cannot end after {row.samples} votes: there is no check at that number"]
        return []

    def _check_bounds(self, row: Row, sampling: Sampling) -> tuple[list[str], list[str]]:
        two_sided = sampling.bound == "two-sided"
        if (row.p_upper is not None) != two_sided:
            return [f"p_upper is {row.p_upper}, and the bound is {sampling.bound}"], []
        key = _image_key(row)
        missing = list[str]()
        if self._anytime:
            found, earlier = self._check_sequence(row, key)
            missing += [EARLIER] if earlier else []
            most = max(sampling.decided_radii or (math.inf,))
            if earlier and not two_sided and row.radius >= most:
                found = [f"p_lower is {row.p_lower!r}, which would have ended sampling at an earlier number of votes"]
        elif row.samples < sampling.n:  # no bound is computed before all samples are drawn
            found = [] if row.p_lower == 0 and row.p_upper in (None, 1) else ["it has a bound before its last vote"]
        else:
            lower, upper = self._bounds(*_votes(row), key)
            found = _compare("p_lower", row.p_lower, lower)
            if upper is not None and row.p_upper is not None:
                found += _compare("p_upper", row.p_upper, upper, most=False)
        return (found, []) if found else self._check_radius(row, key, missing)

    def _check_sequence(self, row: Row, key: tuple[Any, ...]) -> tuple[list[str], bool]:
        """Check bounds that hold at all times, and return whether they are those of an earlier number of votes."""
        evidence, (top, runner_up, votes) = self._evidence(key), _votes(row)
        times = None if row.shape is None else check_times(self.settings.n or 0, chunk_size(math.prod(row.shape)))
        final = row.stopped != PARTIAL  # a budget ends sampling between checks, without computing a bound
        own = _Path(evidence.sequence, top, votes, times)
        error, earlier = own.judge(row.p_lower, final=final)
        if error:
            return _differs("p_lower", row.p_lower, evidence.sequence.lower(top, votes), error), earlier
        if row.p_upper is None:
            return [], earlier
        rest = 1 - row.p_lower  # no other class can have more
        others = _Path(evidence.others_sequence, votes - runner_up, votes, times)
        if row.p_upper > rest * (1 + BELOW):
            error, also_earlier = -1, False
        elif row.p_upper >= rest * (1 - ABOVE):
            (weaker,) = others.are_bounds(1 - row.p_upper * (1 - BELOW))
            error, also_earlier = -int(final and weaker), False
        else:
            error, also_earlier = others.judge(1 - row.p_upper, final=final)
        computed = min(rest, evidence.others_sequence.upper(runner_up, votes)) if error else rest
        return _differs("p_upper", row.p_upper, computed, -error), earlier or also_earlier

    def _check_radius(self, row: Row, key: tuple[Any, ...], missing: list[str]) -> tuple[list[str], list[str]]:
        """Check that the radius and the prediction are those of the stored bounds, which were checked before."""
        if row.shape is None and not isinstance(self._noise, Gaussian):
            above = row.p_lower > (0.5 if row.p_upper is None else row.p_upper)
            found = _compare_prediction(row, above)
            found += [f"radius is {row.radius}, but the bounds certify nothing"] if row.radius and not above else []
            return found, [*missing, NO_SHAPE]
        radius, certified = self._radius(row.p_lower, row.p_upper, key)
        # Earlier versions did not lower the radius where float32 noise has a slightly smaller sigma.
        tolerance = FLOAT32 if self.settings.arithmetic == "real" else ABOVE
        found = _compare("radius", row.radius, radius if certified else 0.0, above=tolerance)
        return found + _compare_prediction(row, certified), missing

    def _make_evidence(self, key: tuple[Any, ...]) -> Evidence:
        dim, classes, levels, moved = key
        assert self._sampling is not None
        assert self._noise is not None
        quantisation = Quantisation(levels, moved) if self.settings.arithmetic == "exact" else None
        return Evidence(self._sampling, self._noise, dim, classes, 0, quantisation)

    def _compute_bounds(self, top: int, runner_up: int, votes: int, key: tuple[Any, ...]) -> tuple[float, float | None]:
        return self._evidence(key).bounds(top, runner_up, votes)

    def _compute_radius(self, p_lower: float, p_upper: float | None, key: tuple[Any, ...]) -> tuple[float, bool]:
        evidence = self._evidence(key)
        radius = evidence.radius_at(p_lower, p_upper)
        return radius, evidence.certifies(p_lower, p_upper, radius)


class PreparedRow(Protocol):
    """The row of an image, with how it was prepared for its noise."""

    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def levels(self) -> int | None: ...
    @property
    def moved(self) -> float | None: ...
    @property
    def image_digest(self) -> str | None: ...


def check_levels(row: PreparedRow, settings: Provenance) -> list[str]:
    """Check what is recorded of the image in exact arithmetic."""
    if settings.arithmetic == "real":
        return [] if row.levels is None and not row.moved else ["it has levels, but the run is in real arithmetic"]
    if row.shape is None or len(row.shape) not in (IMAGE.ndim, SIGNAL.ndim) or not math.prod(row.shape):
        return [f"its shape is {row.shape}, but exact arithmetic needs [C, H, W] or [C, T]"]
    if row.levels is None or not are_levels(row.levels, row.shape) or row.moved is None:
        return [f"levels are {row.levels} and moved is {row.moved}, which cannot occur in exact arithmetic"]
    if settings.levels not in (None, row.levels):
        return [f"levels are {row.levels}, and those of the run are {settings.levels}"]
    if row.image_digest is None:
        return ["it is not bound to an image: it has no digest, which every row in exact arithmetic has"]
    most = Quantisation(row.levels).max_moved(math.prod(row.shape))
    return [] if row.moved <= most * (1 + BELOW) else [f"moved is {row.moved:g}, more than rounding can move it"]


def _image_key(row: Row) -> tuple[Any, ...]:
    """What bounds and radius depend on besides votes and settings. Where dim is needed, there is a shape."""
    return math.prod(row.shape or (1,)), len(row.counts), row.levels, row.moved


def _votes(row: Row) -> tuple[int, int, int]:
    """Votes for the selected class, for the strongest other class, and all votes."""
    others = (*row.counts[: row.selected], *row.counts[row.selected + 1 :])
    return row.counts[row.selected], max(others), row.samples


@dataclass(frozen=True)
class _Path:
    """The way to `hits` of `votes`. `times` are the earlier numbers of votes with a check, None if unknown."""

    sequence: ConfidenceSequence
    hits: int
    votes: int
    times: npt.NDArray[np.int64] | None

    def judge(self, bound: float, *, final: bool) -> tuple[int, bool]:
        """Return 1 if a lower bound is too large and -1 if it is too small, and whether it is one of earlier votes.

        `final` says that a bound was computed at the end of the path.
        """
        holds, more_holds = self.are_bounds(bound, bound + BELOW * max(bound, 1 - bound))
        if not holds:
            return (0, True) if self._was_bound(bound) else (1, False)
        return (-1 if final and more_holds else 0), False

    def are_bounds(self, *bounds: float) -> list[bool]:
        """Whether each of these is a lower bound at the end of the path."""
        values = np.array(bounds)
        holds = (values <= 0) | self.sequence.reaches(self.hits, self.votes, values)
        if self.votes == self.sequence.n:  # half of alpha is reserved for an exact bound here
            holds |= values <= clopper_pearson_lower(self.hits, self.votes, self.sequence.alpha / 2) * (1 + ABOVE)
        return [bool(value) for value in holds]

    def _was_bound(self, bound: float) -> bool:
        """Whether this can have been a lower bound before the end of the path."""
        if self.times is None:  # at best, all hits came first
            return bool(self.hits and self.sequence.reaches(self.hits, self.hits, bound))
        times = self.times[self.times < self.votes]
        return bool(np.any(self.sequence.reaches(_most_hits(self.hits, self.votes, times), times, bound)))


def _most_hits(hits: int, votes: int, times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how many hits there can be among the first `times` votes, given those among all votes.

    Every order of the votes is equally likely, so the first votes are drawn without replacement, and Bernstein's
    inequality holds for their hits and for those of the remaining votes (Hoeffding 1963, section 6).
    """
    share, log = hits / votes, -math.log(IMPOSSIBLE)
    variance, rest = share * (1 - share), votes - times
    first = log * (1 - share) / 3
    last = log * share / 3
    above = first + np.sqrt(first**2 + 2 * log * times * variance)
    below = last + np.sqrt(last**2 + 2 * log * rest * variance)
    most: npt.NDArray[np.float64] = np.minimum(times * share + np.minimum(above, below), np.minimum(hits, times))
    return most


def _compare(name: str, stored: float, computed: float, *, most: bool = True, above: float = ABOVE) -> list[str]:
    """Compare a stored value with the recomputed one. `most` says that larger values claim more."""
    above, below = (above, BELOW) if most else (BELOW, above)
    sign = (stored > computed * (1 + above)) - (stored < computed * (1 - below))
    return _differs(name, stored, computed, sign)


def _differs(name: str, stored: float, computed: float, sign: int) -> list[str]:
    """Say that a stored value is above (sign 1) or below (sign -1) the recomputed one."""
    word = {1: "above", -1: "below"}.get(sign)
    return [f"{name} is {stored!r}, {word} the {computed!r} that follows from its counts"] if word else []


def _compare_prediction(row: Row, certified: bool) -> list[str]:
    expected = row.selected if certified else None
    if row.prediction == expected:
        return []
    outcome = f"certify class {expected}" if certified else "certify nothing"
    return [f"prediction is {row.prediction}, but its counts {outcome}"]


def _check_segments(row: Row) -> list[str]:
    """Check the numbers of superpixels, which a replay draws again, and the size that follows from it."""
    if row.mean_segments is None:
        return [] if row.mean_segment_size is None else ["it has a size of superpixels, but no number of them"]
    if not 0 < row.mean_segments < math.inf or row.mean_segment_size is None:
        return [f"mean_segments are {row.mean_segments} of the size {row.mean_segment_size}, which cannot be"]
    if row.shape is None:
        return []
    size = math.prod(row.shape[1:]) / row.mean_segments
    equal = math.isclose(row.mean_segment_size, size, rel_tol=BELOW)
    return [] if equal else [f"mean_segment_size is {row.mean_segment_size}, but {size} follows from mean_segments"]


def _is_class(value: Any, *, optional: bool) -> bool:
    if value is None or value == -1:
        return optional
    return type(value) is int and value >= 0


def _shorten(values: Any) -> str:
    text = str(list(values))
    return text if len(text) <= 60 else f"{text[:57]}..."
