"""Draw the gallery of dither.md: what three templates show of a photo, and what is recovered.

python docs/results/dither_gallery.py [FILE]

It is the figure of `pprs show` with the command of that page, made smaller.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from pprs.data import open_dataset
from pprs.dither.recovery import list_estimators, list_templates
from pprs.partition import AUTO
from pprs.report import write_image_rows

OUT = Path(__file__).parent / "dither-gallery.jpg"
NOISE = "dither:levels=1020"
WIDTH, QUALITY = 1000, 70


def draw() -> bytes:
    """Return the figure as a JPEG file."""
    sample = open_dataset("builtin:cat")[0]
    estimators = list_estimators([AUTO], tuple(sample.image.shape))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "show.png"
        write_image_rows(sample, list_templates(NOISE, sample.image), estimators, 0, path)
        figure = Image.open(path).convert("RGB")
    smaller, file = figure.resize((WIDTH, figure.height * WIDTH // figure.width)), io.BytesIO()
    smaller.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    (Path(sys.argv[1]) if sys.argv[1:] else OUT).write_bytes(draw())
