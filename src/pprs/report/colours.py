"""The colour of each method, the same in every figure and on every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pprs.partition import split_text


class Colour(NamedTuple):
    """A colour in figures, whose ground is white, of text on a light page, and of all on a dark page."""

    name: str
    figure: str
    text: str
    dark: str


class Style(NamedTuple):
    """How the curve of a method is drawn. Dashes tell methods of one colour apart."""

    colour: Colour
    dashes: str = "-"


# The palette of Okabe and Ito, distinguishable with any colour vision, and more colours for what is rarer.
BLACK = Colour("black", "#000000", "#3A3A3A", "#D8D8D8")
BLUE = Colour("blue", "#0072B2", "#0072B2", "#56B4E9")
VERMILION = Colour("vermilion", "#D55E00", "#C04E00", "#F0933A")
GREEN = Colour("green", "#009E73", "#007A59", "#34C79C")
PINK = Colour("pink", "#CC79A7", "#B84A88", "#F2B8D8")
ORANGE = Colour("orange", "#E69F00", "#946200", "#F7C948")
SKY = Colour("sky", "#56B4E9", "#007C93", "#B4E2FA")
BROWN = Colour("brown", "#7F5539", "#7F5539", "#C9A285")
OLIVE = Colour("olive", "#999933", "#66701C", "#B5C552")
WINE = Colour("wine", "#882255", "#7A1F4C", "#D67A9B")
GREY = Colour("grey", "#888888", "#6A6A6A", "#A6A6A6")
INDIGO = Colour("indigo", "#332288", "#332288", "#A497F0")
PURPLE = Colour("purple", "#AA4499", "#8F3FB0", "#D68BEB")
COLOURS = (BLACK, BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BROWN, OLIVE, WINE, GREY, INDIGO, PURPLE)

METHODS: Mapping[str, Colour] = {  # by `name_method`; a partition of signals has the colour of its twin for images
    "none": BLACK,
    "slic": BLUE, "slic1d": BLUE,
    "quickshift": VERMILION, "changepoint": VERMILION,
    "felzenszwalb": GREEN, "felzenszwalb1d": GREEN,
    "soft": PINK,
    "shifts": ORANGE,
    "grid": SKY,
    "gauss": BROWN, "gauss1d": BROWN,
    "blur": OLIVE, "blur1d": OLIVE,
    "median": WINE, "median1d": WINE,
    "tv": GREY, "tv1d": GREY, "mean": GREY,
    "nlm": INDIGO, "wavelet": INDIGO,
    "denoiser": PURPLE,
}  # fmt: skip
FILLS: Mapping[str, Colour] = {"constant": BROWN, "mean": ORANGE, "diffusion": GREEN, "superpixels": BLUE}
DASHES = ("-", "--", ":", "-.")


def name_method(partition: str | None) -> str | None:
    """Return the name in METHODS of a partition, of which it has only the text.

    >>> name_method("slic:n_segments=100/soft:near=8/shifts:k=4"), name_method("slic+blur"), name_method("none")
    ('shifts', 'mean', 'none')
    >>> name_method("denoiser:d.onnx/slic")
    'denoiser'
    """
    if partition is None:
        return None
    parts = split_text(partition)
    if len(parts) > 1:
        return "mean"
    names = [link.strip().partition(":")[0] for link in parts[0]]
    return "denoiser" if "denoiser" in names else names[-1]


def choose_styles(names: Sequence[str | None], table: Mapping[str, Colour] = METHODS) -> list[Style]:
    """Return a style for each of these methods in one figure, none of which looks like another.

    A method has the colour of the table. What is not in the table, such as a partition of your own, has a colour that
    is left. So have methods of one colour for which there are not enough dashes.

    >>> [tuple(style) for style in choose_styles(["none", "slic", "slic"])] == [(BLACK, "-"), (BLUE, "-"), (BLUE, "--")]
    True
    """
    known = [table.get(name or "") for name in names]
    left = [colour for colour in COLOURS[1:] if colour not in known]
    unknown = dict.fromkeys(name for name, colour in zip(names, known, strict=True) if colour is None)
    others = dict(zip(unknown, left, strict=False))
    styles = list[Style]()
    for name, colour in zip(names, known, strict=True):
        own = colour or others.get(name, BLACK)
        looks = [Style(colour, dashes) for colour in (own, *left) for dashes in DASHES]
        styles.append(next((look for look in looks if look not in styles), looks[0]))
    return styles


def to_css() -> str:
    """Return the colours as variables of CSS, such as `--method-blue` and `--text-blue`, on a light and a dark page."""
    light = " ".join(f"--method-{one.name}: {one.figure}; --text-{one.name}: {one.text};" for one in COLOURS)
    dark = " ".join(f"--method-{one.name}: {one.dark}; --text-{one.name}: {one.dark};" for one in COLOURS)
    return f":root {{ {light} }}\n.dark {{ {dark} }}\n"
