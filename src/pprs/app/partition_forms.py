"""The partitions that the page offers, each with the options that visitors can set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pprs.app.limits import MOST, check_number, check_partition
from pprs.errors import PprsError, suggest
from pprs.partition import Partition, parse_partition

SLOTS = 4  # the most options that a form has
AS_TEXT = "as text"


@dataclass(frozen=True)
class Option:
    """A number in a form. Left empty, it follows the noise where the partition has a rule for that."""

    link: str  # the part of the text that takes it
    name: str
    title: str
    about: str
    least: float
    whole: bool = False
    start: float | None = None  # to begin with; None: left empty


@dataclass(frozen=True)
class PartitionForm:
    """A partition as the page offers it: the links of its text, and its options."""

    links: tuple[str, ...]
    options: tuple[Option, ...]


_SEGMENTS = Option(
    "slic", "n_segments", "Superpixels (number)", "More of them: finer, and less noise averaged away.", 1, True
)
_COMPACT = Option(
    "slic",
    "compactness",
    "Compactness (colour, 0–1 scale)",
    "Larger: rounder segments. Smaller: they follow colour.",
    1e-4,
)
_BLUR = Option(
    "slic", "blur", "Blur first (pixels, odd)", "Segments are found on the noisy picture blurred so.", 1, True
)
_SHIFTS = Option("shifts", "k", "Grids (number)", "So many shifted grids are averaged.", 1, True, 4)

FORMS: dict[str, PartitionForm] = {
    "SLIC superpixels": PartitionForm(("slic",), (_SEGMENTS, _COMPACT, _BLUR)),
    "soft SLIC": PartitionForm(("slic", "soft"), (_SEGMENTS, _COMPACT)),
    "soft SLIC, shifted grids": PartitionForm(("slic", "soft", "shifts"), (_SEGMENTS, _COMPACT, _SHIFTS)),
    "Felzenszwalb": PartitionForm(
        ("felzenszwalb",),
        (
            Option("felzenszwalb", "scale", "Scale (of 255)", "Larger: larger segments.", 1e-6),
            Option("felzenszwalb", "min_size", "Smallest segment (pixels)", "Smaller ones are merged.", 1, True),
            Option("felzenszwalb", "blur", "Blur first (pixels, odd)", "Segments are found on this blur.", 1, True),
        ),
    ),
    "Quickshift": PartitionForm(
        ("quickshift",),
        (
            Option("quickshift", "kernel_size", "Kernel (pixels)", "How far density is felt.", 1),
            Option("quickshift", "max_dist", "Longest step (pixels)", "Larger: larger segments.", 1e-6),
            Option("quickshift", "ratio", "Colour against place (ratio)", "Larger: colour counts more.", 1e-6),
        ),
    ),
    "grid": PartitionForm(
        ("grid",), (Option("grid", "size", "Cell side (pixels)", "Fixed square cells.", 1, True, 4),)
    ),
    "box blur (baseline)": PartitionForm(
        ("blur",), (Option("blur", "size", "Box side (pixels, odd)", "The baseline to beat.", 1, True, 3),)
    ),
    "Gaussian blur (baseline)": PartitionForm(
        ("gauss",), (Option("gauss", "sigma", "Width (pixels)", "Of the bell.", 0.01),)
    ),
    "median (baseline)": PartitionForm(
        ("median",), (Option("median", "size", "Window side (pixels, odd)", "From 3 to 15.", 3, True),)
    ),
    "total variation (baseline)": PartitionForm(
        ("tv",), (Option("tv", "weight", "Weight (0–1 scale)", "Larger: smoother.", 1e-6),)
    ),
    "non-local means (baseline)": PartitionForm(
        ("nlm",), (Option("nlm", "h", "Likeness (0–1 scale)", "Larger: less alike patches are averaged.", 1e-4),)
    ),
    AS_TEXT: PartitionForm((), ()),
}


def partition_text(form: str, values: Sequence[float | None], text: str = "") -> str:
    """The partition's text, as the command line takes it.

    >>> partition_text("soft SLIC, shifted grids", [50, None, 4])
    'slic:n_segments=50/soft/shifts:k=4'
    """
    if form == AS_TEXT:
        if len(text or "") > 500:
            raise PprsError("a partition's text has at most 500 characters on this page")
        return text.strip() if text and text.strip() else "none"
    if form not in FORMS:
        raise PprsError(f'this page has no partition "{form}". {suggest(str(form), FORMS)}')
    chosen = FORMS[form]
    given: dict[str, list[str]] = {link: [] for link in chosen.links}
    for option, value in zip(chosen.options, values, strict=False):
        if value is not None:
            number = check_number(value, option.title, option.least, MOST[option.name], whole=option.whole)
            given[option.link].append(f"{option.name}={int(number) if option.whole else f'{number:g}'}")
        elif option.start is not None and option.name == "size" and option.link == "grid":
            raise PprsError("the grid needs the side of its cells, in pixels: e.g. 4")
    return "/".join(link + (":" + ",".join(given[link]) if given[link] else "") for link in chosen.links)


def make_partition(form: str, values: Sequence[float | None], text: str = "") -> Partition | None:
    """The partition, refused where it would take very long."""
    return check_partition(parse_partition(partition_text(form, values, text)))


def read_numbers(form: str, texts: Sequence[str | None]) -> list[float | None]:
    """The numbers in a form's boxes; an empty one, or "auto", follows the noise."""
    found: list[float | None] = []
    for option, text in zip(FORMS[form].options if form in FORMS else (), texts, strict=False):
        plain = str(text or "").strip()
        try:
            found.append(None if plain in ("", "auto") else float(plain))
        except ValueError:
            raise PprsError(
                f'{option.title}: "{plain[:20]}" is not a number. Leave it empty to follow the noise.'
            ) from None
    return found
