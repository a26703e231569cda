"""Take the screenshots of the documentation: `make screenshots`, or `python tests/app/screenshots.py FOLDER`.

Each PNG records the version that its page shows. `test_screenshots.py` compares it with the version of the package.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from browser import Page, open_browser, resized, run_app, wait_until
from PIL import Image
from PIL.PngImagePlugin import PngInfo

VERSION = "pprs-version"  # the key of the text in a PNG
COLOURS = 128  # of a picture, which keeps the repository small


class Shot(NamedTuple):
    """A picture: its size, its theme, and what is shown."""

    width: int
    height: int
    theme: str
    show: Callable[[Page], Any]
    subject: str = ""  # in the name of the file

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"app-{self.subject}{self.width}-{self.theme}.png"


def show_explore(page: Page) -> None:
    """Wait for the certificates of the first example."""
    page.wait_done("seed 0")


def show_map(page: Page) -> None:
    """Certify the label map of a scene."""
    page.tab("Segment")
    wait_until(lambda: page.one("#segment-go").is_displayed(), "the button")
    page.one("#segment-go").click()
    page.wait("#maps[data-state=done]", "certified")


def show_signal(page: Page) -> None:
    """Wait for the certificates of the first signal."""
    page.tab("Signal")
    page.wait("#signal-live[data-state=done]", "seed 0")


def show_radius(page: Page) -> None:
    """Draw changes of a norm."""
    page.wait_done("seed 0")
    page.tab("See a radius")
    page.wait("#directions", "a random direction")


SHOTS = (
    Shot(1280, 1000, "light", show_explore),
    Shot(1280, 1000, "dark", show_map),
    Shot(1280, 1000, "light", show_signal, "signal-"),
    Shot(390, 844, "light", show_explore),
    Shot(390, 844, "dark", show_radius),
)


def take(shot: Shot, driver: Any, url: str, folder: Path) -> None:
    """Take a picture, and record the version on the page."""
    with resized(driver, shot.width, shot.height, mobile=shot.width < 500):
        page = Page(driver, f"{url}/?__theme={shot.theme}")
        shot.show(page)
        driver.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
        version = page.text("h1 small")
        png = driver.get_screenshot_as_png()
    assert version, "the page shows no version"
    text = PngInfo()
    text.add_text(VERSION, version)
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(folder / shot.name, optimize=True, pnginfo=text)


def main(folder: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        (temporary / "profile").mkdir()
        with run_app(temporary) as url, open_browser(temporary / "profile") as driver:
            for shot in SHOTS:
                take(shot, driver, url, folder)
                print(folder / shot.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
