"""The partitions that the page offers, each with a form for its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pprs.app.server.limits import MAX_VALUES, check_estimate, check_number, check_partition
from pprs.dither.choice import as_estimate
from pprs.dither.estimators import Estimator
from pprs.errors import PprsError, suggest
from pprs.partition import AUTO, Auto, Partition, parse_request

SLOTS = 4  # the largest number of options in a form
RECOMMENDED = "recommended (auto)"
AS_TEXT = "as text"


@dataclass(frozen=True)
class Option:
    """A number in a form. If left empty, it follows the noise, for partitions that have a rule for this."""

    part: str  # the part of the partition that it belongs to
    name: str
    title: str
    help: str
    minimum: float
    integer: bool = False
    initial: float | None = None  # None: left empty


@dataclass(frozen=True)
class PartitionForm:
    """A partition as the page offers it: the parts of its text, and its options."""

    parts: tuple[str, ...]
    options: tuple[Option, ...]


_SEGMENTS = Option(
    "slic", "n_segments", "Superpixels (number)", "More: finer detail, but less noise is averaged away.", 1, True
)
_COMPACT = Option(
    "slic",
    "compactness",
    "Compactness (colour, 0–1 scale)",
    "Larger: rounder segments. Smaller: segments follow colour.",
    1e-4,
)
_BLUR = Option("slic", "blur", "Blur first (pixels, odd)", "Segments are computed on the blurred noisy image.", 1, True)
_SHIFTS = Option("shifts", "k", "Grids (number)", "Number of shifted grids that are averaged.", 1, True, 4)

IMAGE_FORMS: dict[str, PartitionForm] = {
    RECOMMENDED: PartitionForm((AUTO,), ()),
    "SLIC superpixels": PartitionForm(("slic",), (_SEGMENTS, _COMPACT, _BLUR)),
    "soft SLIC": PartitionForm(("slic", "soft"), (_SEGMENTS, _COMPACT)),
    "soft SLIC, shifted grids": PartitionForm(("slic", "soft", "shifts"), (_SEGMENTS, _COMPACT, _SHIFTS)),
    "Felzenszwalb": PartitionForm(
        ("felzenszwalb",),
        (
            Option("felzenszwalb", "scale", "Scale (of 255)", "Larger: larger segments.", 1e-6),
            Option("felzenszwalb", "min_size", "Smallest segment (pixels)", "Smaller segments are merged.", 1, True),
            Option(
                "felzenszwalb",
                "blur",
                "Blur first (pixels, odd)",
                "Segments are computed on the blurred image.",
                1,
                True,
            ),
        ),
    ),
    "Quickshift": PartitionForm(
        ("quickshift",),
        (
            Option("quickshift", "kernel_size", "Kernel size (pixels)", "Width of the density estimate.", 1),
            Option("quickshift", "max_dist", "Maximum distance (pixels)", "Larger: larger segments.", 1e-6),
            Option("quickshift", "ratio", "Colour against position (ratio)", "Larger: colour matters more.", 1e-6),
        ),
    ),
    "grid": PartitionForm(
        ("grid",), (Option("grid", "size", "Cell size (pixels)", "Side of the fixed square cells.", 1, True, 4),)
    ),
    "box blur (baseline)": PartitionForm(
        ("blur",), (Option("blur", "size", "Box size (pixels, odd)", "Side of the box.", 1, True, 3),)
    ),
    "Gaussian blur (baseline)": PartitionForm(
        ("gauss",), (Option("gauss", "sigma", "Sigma of the kernel (pixels)", "Larger: smoother.", 0.01),)
    ),
    "median (baseline)": PartitionForm(
        ("median",), (Option("median", "size", "Window size (pixels, odd)", "From 3 to 15.", 3, True),)
    ),
    "total variation (baseline)": PartitionForm(
        ("tv",), (Option("tv", "weight", "Weight (0–1 scale)", "Larger: smoother.", 1e-6),)
    ),
    "non-local means (baseline)": PartitionForm(
        ("nlm",),
        (Option("nlm", "h", "Filter strength h (0–1 scale)", "Larger: less similar patches are averaged.", 1e-4),),
    ),
    AS_TEXT: PartitionForm((), ()),
}

_CELLS = Option(
    "slic1d", "n_segments", "Segments (number)", "More: finer detail, but less noise is averaged away.", 1, True
)
_WEIGHT_OF_TIME = Option(
    "slic1d", "compactness", "Compactness (unit of the signal)", "Larger: segments of more equal length.", 1e-6
)

SIGNAL_FORMS: dict[str, PartitionForm] = {
    RECOMMENDED: PartitionForm((AUTO,), ()),
    "none": PartitionForm(("none",), ()),
    "SLIC over time": PartitionForm(("slic1d",), (_CELLS, _WEIGHT_OF_TIME)),
    "soft SLIC over time, shifted": PartitionForm(("slic1d", "soft", "shifts"), (_CELLS, _WEIGHT_OF_TIME, _SHIFTS)),
    "Felzenszwalb over time": PartitionForm(
        ("felzenszwalb1d",),
        (
            Option("felzenszwalb1d", "scale", "Scale (unit of the signal)", "Larger: larger segments.", 1e-6),
            Option("felzenszwalb1d", "min_size", "Smallest segment (values)", "Smaller ones are merged.", 1, True, 1),
        ),
    ),
    "change points": PartitionForm(
        ("changepoint",),
        (Option("changepoint", "penalty", "Penalty (squared unit)", "Larger: fewer changes.", 1e-12),),
    ),
    "moving average (baseline)": PartitionForm(
        ("blur1d",), (Option("blur1d", "size", "Window (values, odd)", "Larger: smoother.", 1, True, 5),)
    ),
    "Gaussian blur over time (baseline)": PartitionForm(
        ("gauss1d",), (Option("gauss1d", "sigma", "Sigma of the kernel (values)", "Larger: smoother.", 0.01),)
    ),
    "median over time (baseline)": PartitionForm(
        ("median1d",), (Option("median1d", "size", "Window (values, odd)", "Larger: smoother.", 3, True, 3),)
    ),
    "total variation over time (baseline)": PartitionForm(
        ("tv1d",), (Option("tv1d", "weight", "Weight (unit of the signal)", "Larger: smoother.", 1e-6),)
    ),
    "wavelet shrinkage (baseline)": PartitionForm(
        ("wavelet",), (Option("wavelet", "threshold", "Threshold (unit of the signal)", "Larger: smoother.", 1e-6),)
    ),
    AS_TEXT: PartitionForm((), ()),
}

ESTIMATE_FORMS = {name: SIGNAL_FORMS[name] for name in (RECOMMENDED, "none", AS_TEXT)}  # without options

FORMS = IMAGE_FORMS | SIGNAL_FORMS


def format_partition(form: str, values: Sequence[float | None], text: str = "") -> str:
    """Return the text of a partition, as the command line accepts it.

    >>> format_partition("soft SLIC, shifted grids", [50, None, 4])
    'slic:n_segments=50/soft/shifts:k=4'
    >>> format_partition("change points", [None])
    'changepoint'
    """
    if form == AS_TEXT:
        if len(text or "") > 500:
            raise PprsError("the text of a partition must have at most 500 characters")
        return text.strip() if text and text.strip() else "none"
    if form not in FORMS:
        raise PprsError(f'unknown partition "{form}". {suggest(str(form), FORMS)}')
    fields = FORMS[form]
    options: dict[str, list[str]] = {part: [] for part in fields.parts}
    for option, value in zip(fields.options, values, strict=False):
        if value is not None:
            number = check_number(value, option.title, option.minimum, MAX_VALUES[option.name], integer=option.integer)
            options[option.part].append(f"{option.name}={int(number) if option.integer else f'{number:g}'}")
        elif option.name == "size" and option.part == "grid":
            raise PprsError("the grid needs a cell size in pixels, such as 4")
    return "/".join(part + (":" + ",".join(options[part]) if options[part] else "") for part in fields.parts)


def make_partition(form: str, values: Sequence[float | None], text: str = "") -> Partition | Auto | None:
    """Return the partition that a form describes, refused if it would take very long."""
    requested = parse_request(format_partition(form, values, text))
    return requested if isinstance(requested, str) else check_partition(requested)


def make_estimate(form: str, values: Sequence[float | None], text: str = "") -> Estimator | Partition | Auto | None:
    """Return how images are estimated behind thresholds, refused if it would take very long."""
    return check_estimate(as_estimate(format_partition(form, values, text)))


def parse_numbers(form: str, texts: Sequence[str | None]) -> list[float | None]:
    """Parse the text boxes of a form. None, for an empty box or "auto", means that the option follows the noise."""
    numbers: list[float | None] = []
    for option, text in zip(FORMS[form].options if form in FORMS else (), texts, strict=False):
        stripped = str(text or "").strip()
        try:
            numbers.append(None if stripped in ("", "auto") else float(stripped))
        except ValueError:
            raise PprsError(
                f'{option.title}: "{stripped[:20]}" is not a number. Leave it empty to follow the noise.'
            ) from None
    return numbers
