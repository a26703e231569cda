"""The partitions that the page offers, each with the options that one wants to turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pprs.app.limits import MOST, check_number, check_partition
from pprs.errors import PprsError, suggest
from pprs.partition import Partition, parse_partition

SLOTS = 4  # options that a scheme has at most on the page
AS_TEXT = "as text"


@dataclass(frozen=True)
class Option:
    """A number of a scheme. Left empty, it follows the noise where the scheme has a rule for it."""

    link: str  # the part of the text that takes it
    name: str
    title: str
    about: str
    least: float
    whole: bool = False
    start: float | None = None  # to begin with; None: left empty


@dataclass(frozen=True)
class Scheme:
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

SCHEMES: dict[str, Scheme] = {
    "SLIC superpixels": Scheme(("slic",), (_SEGMENTS, _COMPACT, _BLUR)),
    "soft SLIC": Scheme(("slic", "soft"), (_SEGMENTS, _COMPACT)),
    "soft SLIC, shifted grids": Scheme(("slic", "soft", "shifts"), (_SEGMENTS, _COMPACT, _SHIFTS)),
    "Felzenszwalb": Scheme(
        ("felzenszwalb",),
        (
            Option("felzenszwalb", "scale", "Scale (of 255)", "Larger: larger segments.", 1e-6),
            Option("felzenszwalb", "min_size", "Smallest segment (pixels)", "Smaller ones are merged.", 1, True),
            Option("felzenszwalb", "blur", "Blur first (pixels, odd)", "Segments are found on this blur.", 1, True),
        ),
    ),
    "Quickshift": Scheme(
        ("quickshift",),
        (
            Option("quickshift", "kernel_size", "Kernel (pixels)", "How far density is felt.", 1),
            Option("quickshift", "max_dist", "Longest step (pixels)", "Larger: larger segments.", 1e-6),
            Option("quickshift", "ratio", "Colour against place (ratio)", "Larger: colour counts more.", 1e-6),
        ),
    ),
    "grid": Scheme(("grid",), (Option("grid", "size", "Cell side (pixels)", "Fixed square cells.", 1, True, 4),)),
    "box blur (baseline)": Scheme(
        ("blur",), (Option("blur", "size", "Box side (pixels, odd)", "The baseline to beat.", 1, True, 3),)
    ),
    "Gaussian blur (baseline)": Scheme(("gauss",), (Option("gauss", "sigma", "Width (pixels)", "Of the bell.", 0.01),)),
    "median (baseline)": Scheme(
        ("median",), (Option("median", "size", "Window side (pixels, odd)", "From 3 to 15.", 3, True),)
    ),
    "total variation (baseline)": Scheme(
        ("tv",), (Option("tv", "weight", "Weight (0–1 scale)", "Larger: smoother.", 1e-6),)
    ),
    "non-local means (baseline)": Scheme(
        ("nlm",), (Option("nlm", "h", "Likeness (0–1 scale)", "Larger: less alike patches are averaged.", 1e-4),)
    ),
    AS_TEXT: Scheme((), ()),
}


def text_of(scheme: str, values: Sequence[float | None], text: str = "") -> str:
    """The partition's text, as the command line takes it.

    >>> text_of("soft SLIC, shifted grids", [50, None, 4])
    'slic:n_segments=50/soft/shifts:k=4'
    """
    if scheme == AS_TEXT:
        if len(text or "") > 500:
            raise PprsError("a partition's text has at most 500 characters on this page")
        return text.strip() if text and text.strip() else "none"
    if scheme not in SCHEMES:
        raise PprsError(f'this page has no scheme "{scheme}". {suggest(str(scheme), SCHEMES)}')
    chosen = SCHEMES[scheme]
    given: dict[str, list[str]] = {link: [] for link in chosen.links}
    for option, value in zip(chosen.options, values, strict=False):
        if value is not None:
            number = check_number(value, option.title, option.least, MOST[option.name], whole=option.whole)
            given[option.link].append(f"{option.name}={int(number) if option.whole else f'{number:g}'}")
        elif option.start is not None and option.name == "size" and option.link == "grid":
            raise PprsError("the grid needs the side of its cells, in pixels: e.g. 4")
    return "/".join(link + (":" + ",".join(given[link]) if given[link] else "") for link in chosen.links)


def make(scheme: str, values: Sequence[float | None], text: str = "") -> Partition | None:
    """The partition, refused where it would take very long."""
    return check_partition(parse_partition(text_of(scheme, values, text)))


def numbers(scheme: str, texts: Sequence[str | None]) -> list[float | None]:
    """What a person wrote into a scheme's boxes; an empty one, or "auto", follows the noise."""
    made: list[float | None] = []
    for option, text in zip(SCHEMES[scheme].options if scheme in SCHEMES else (), texts, strict=False):
        plain = str(text or "").strip()
        try:
            made.append(None if plain in ("", "auto") else float(plain))
        except ValueError:
            raise PprsError(
                f'{option.title}: "{plain[:20]}" is not a number. Leave it empty to follow the noise.'
            ) from None
    return made
