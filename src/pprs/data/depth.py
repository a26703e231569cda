"""Image files with more bits per channel than Pillow reads.

Pillow reads grey images of 16 bits in full, but silently reduces colour images of more than 8 bits per channel to 8. A
certificate of such an image is not one of its file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Any

from PIL import Image

from pprs.data.base import UNREADABLE, refuse_bombs

BITS_PER_SAMPLE = 258  # the number of this tag of TIFF files


def find_lost_depth(file: Path | str | IO[bytes]) -> str | None:
    """Describe the channels of an image file if they have more bits than are read, else return None.

    Returns None for a file that cannot be opened too: that is an error where it is read.
    """
    try:
        with refuse_bombs(), Image.open(file) as image:
            return lost_depth(image)
    except UNREADABLE:
        return None


def lost_depth(image: Image.Image) -> str | None:
    """Describe the channels of an image if they have more bits than are read, else return None.

    The image must have been opened, but not decoded: afterwards the bits are known for TIFF files only.
    """
    if image.mode.startswith(("I", "F")):  # more than 8 bits
        return None
    bits = _BITS.get(image.format or "", lambda _: 8)(image)
    return f"{bits} bits per channel" if bits > 8 else None


def _bits_of_tiff(image: Any) -> int:
    return int(max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))))


def _bits_of_layout(image: Any) -> int:
    """From the decoder and its arguments, which name a layout such as "RGB;16B"."""
    return 16 if any(";16" in str(arguments) or decoder == "SGI16" for decoder, *_, arguments in image.tile) else 8


def _bits_of_ppm(image: Any) -> int:
    """From the largest value that the header states, which is an argument of the decoder if it is not 255."""
    arguments = [arguments for *_, arguments in image.tile if isinstance(arguments, tuple)]
    return max((int(largest).bit_length() for _, largest, *_ in arguments), default=8)


def _bits_of_jpeg2000(image: Any) -> int:
    """From the sizes of the components in the SIZ segment, with which the codestream starts."""
    content = _read_file(image)
    start = content.find(b"\xff\x4f\xff\x51")
    if start < 0:
        return 8
    count = int.from_bytes(content[start + 40 : start + 42], "big")
    return max(((size & 0x7F) + 1 for size in content[start + 42 : start + 42 + 3 * count : 3]), default=8)


def _bits_of_avif(image: Any) -> int:
    """From the flags high_bitdepth and twelve_bit in the codec's configurations, one for colour and one for alpha."""
    flags = [found[1][0] for found in re.finditer(rb"av1C..(.)", _read_file(image), re.DOTALL)]
    return max((8 if not flag & 0x40 else 12 if flag & 0x20 else 10 for flag in flags), default=8)


def _read_file(image: Any) -> bytes:
    """Return the content of an image's file, and leave its position as it is."""
    if image.fp is None:
        return b""
    place = image.fp.tell()
    image.fp.seek(0)
    content: bytes = image.fp.read()
    image.fp.seek(place)
    return content


_BITS = {
    "AVIF": _bits_of_avif,
    "JPEG2000": _bits_of_jpeg2000,
    "PNG": _bits_of_layout,
    "PPM": _bits_of_ppm,
    "SGI": _bits_of_layout,
    "TIFF": _bits_of_tiff,
}
