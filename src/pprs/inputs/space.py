"""The images whose changes a radius measures, in words: the network's input or the file it was made from.

Two radii can be compared only if they measure changes of the same images. Resizing changes norms: a grey file of 8x8
pixels that becomes an RGB image of 64x64 pixels has a norm that is up to 14 times larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pprs.errors import ConfigurationError, suggest
from pprs.inputs.domain import SIGNAL, domain_of, domain_of_any

NETWORK, FILE = "network", "file"
PIXELS = (NETWORK, FILE)
Shape = tuple[int, ...]
_SHORTER = re.compile(r"shorter side to (\d+)\b")


def check_pixels(pixels: str) -> str:
    """Return the value, or raise an error unless it is one of PIXELS."""
    if pixels not in PIXELS:
        raise ConfigurationError(
            f'`pixels` must be "network" (noise is added to the network\'s input) or "file" (to the pixels of the '
            f'file), not "{pixels}". {suggest(str(pixels), PIXELS)}',
            parameter="pixels",
        )
    return pixels


def state_pixels(pixels: str) -> str:
    """State what noise is added to, where the images are not known yet.

    >>> state_pixels("file")
    'noise is added to the pixels of the files'
    """
    return f"noise is added to {'the pixels of the files' if pixels == FILE else 'the input of the network'}"


def describe_shape(shape: Shape) -> str:
    """Describe the shape of an image as width x height and kind, that of a signal as length and channels.

    >>> describe_shape((3, 480, 640)), describe_shape((1, 28, 28)), describe_shape((1, 150))
    ('640x480 RGB', '28x28 grey', '150-sample')
    """
    return domain_of(shape).describe_shape(shape)


def describe_input(shape: Shape) -> str:
    """Describe an image or a signal by its shape.

    >>> describe_input((1, 28, 28)), describe_input((6, 100))
    ('28x28 grey image', '6-channel 100-sample signal')
    """
    return f"{describe_shape(shape)} {domain_of(shape).name}"


@dataclass(frozen=True)
class Space:
    """The images whose changes the radii of some rows measure.

    Attributes:
        pixels: "network" if noise was added to the network's input, "file" if it was added to the pixels of the file.
        preprocess: Description of the preprocessing, None for the default.
        shapes: The different shapes [C, H, W] of the images that noise was added to. Empty if they are unknown.
        file_shapes: The different shapes of the files. Empty if any of them is unknown, as for a file whose bits per
            channel are not all read.

    >>> print(Space(shapes=((3, 64, 64),), file_shapes=((1, 8, 8),)).describe_one())
    the 64x64 RGB image that the network takes, made from your 8x8 grey file
    >>> print(Space(shapes=((3, 224, 224),), file_shapes=((3, 480, 640), (1, 9, 9))))
    the network's 224x224 RGB input, made from files of various sizes
    """

    pixels: str = NETWORK
    preprocess: str | None = None
    shapes: tuple[Shape, ...] = ()
    file_shapes: tuple[Shape, ...] = ()

    @classmethod
    def of(
        cls, pixels: str, preprocess: str | None, shapes: Iterable[Shape | None], file_shapes: Iterable[Shape | None]
    ) -> Space:
        """Return the space of images with these shapes, which may repeat."""
        files = list(file_shapes)
        return cls(pixels, preprocess, _distinct(shapes), () if None in files else _distinct(files))

    @property
    def is_file(self) -> bool:
        """Whether noise was added to the pixels of the files, on purpose or because no file needed preparation."""
        return self.pixels == FILE or (
            bool(self.shapes)
            and self.shapes == self.file_shapes
            and len(self.shapes) == 1
            and _keeps(self.shapes[0], self.preprocess)
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Identifies the space. Radii with different keys must not be compared."""
        size = self.shapes[0] if len(self.shapes) == 1 else len(self.shapes) > 1
        return (FILE, None, size) if self.is_file else (NETWORK, self.preprocess, size)

    def __str__(self) -> str:
        """Describe the images of several rows."""
        if not self.shapes:
            return "images whose size is not recorded"
        if self.is_file:
            return f"your {_sizes(self.shapes, 'signals' if _are_signals(self.shapes) else 'files')}"
        if len(self.shapes) > 1:
            return "the network's inputs, of various sizes"
        origin = f", made from {_sizes(self.file_shapes, 'files')}" if self.file_shapes else ""
        return f"the network's {describe_shape(self.shapes[0])} input{origin}"

    def describe_one(self) -> str:
        """Describe the image of a single row."""
        if len(self.shapes) != 1:
            return str(self)
        shape = describe_shape(self.shapes[0])
        if self.is_file:
            return f"your {shape} {'signal' if _are_signals(self.shapes) else 'file'}"
        origin = f", made from your {describe_shape(self.file_shapes[0])} file" if len(self.file_shapes) == 1 else ""
        return f"the {describe_input(self.shapes[0])} that the network takes{origin}"


def state_claim(radius: str, image: str) -> str:
    """State what a radius means for the changes of an image.

    >>> print(state_claim("0.5", "your 8x8 grey file"))
    no change of L2 norm up to 0.5 to your 8x8 grey file can alter this label
    """
    return f"no change of L2 norm up to {radius} to {image}{',' if ',' in image else ''} can alter this label"


def describe_differences(spaces: Sequence[tuple[str, Space]]) -> str | None:
    """Say which runs measure radii in which space, or return None if all measure the same.

    >>> small, large = Space("file", shapes=((1, 8, 8),)), Space("file", shapes=((1, 9, 9),))
    >>> print(describe_differences([("RS", small), ("slic", small), ("blur", large)]))
    These radii measure changes of different images and must not be compared: RS, slic measure changes of your 8x8 \
grey files; blur measures changes of your 9x9 grey files
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, space in spaces:
        groups.setdefault(space.key, []).append(name)
    if len(groups) < 2:
        return None
    texts = {space.key: str(space) for _, space in spaces}
    if len(set(texts.values())) < len(texts):  # only the preprocessing tells them apart
        prepared = {space.key: f" ({space.preprocess or 'default preprocessing'})" for _, space in spaces}
        texts = {key: text + prepared[key] for key, text in texts.items()}
    parts = [
        f"{', '.join(names)} {'measure' if len(names) > 1 else 'measures'} changes of {texts[key]}"
        for key, names in groups.items()
    ]
    inputs = domain_of_any(shape for _, space in spaces for shape in space.shapes).plural
    return f"These radii measure changes of different {inputs} and must not be compared: {'; '.join(parts)}"


def _distinct(shapes: Iterable[Shape | None]) -> tuple[Shape, ...]:
    return tuple(sorted({tuple(shape) for shape in shapes if shape is not None}))


def _are_signals(shapes: Sequence[Shape]) -> bool:
    """Whether these are shapes of signals, several of which may be in one file."""
    return len(shapes[0]) == SIGNAL.ndim


def _sizes(shapes: Sequence[Shape], noun: str) -> str:
    return f"{describe_shape(shapes[0])} {noun}" if len(shapes) == 1 else f"{noun} of various sizes"


def _keeps(shape: Shape, preprocess: str | None) -> bool:
    """Whether this preprocessing leaves images of the shape that it makes as they are."""
    if len(shape) == SIGNAL.ndim:
        return preprocess is None
    _, height, width = shape
    if preprocess is None:
        return height == width
    shorter = _SHORTER.match(preprocess)
    return int(shorter[1]) == min(height, width) if shorter else preprocess.startswith("stretched to ")
