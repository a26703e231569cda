"""The screenshots of the documentation are of this version."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from screenshots import SHOTS, VERSION, Shot

from pprs import __version__
from pprs.app.render import render

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_a_screenshot_is_of_this_version(shot: Shot) -> None:
    with Image.open(DOCS / shot.name) as picture:
        assert picture.size == (shot.width, shot.height)
        version = picture.info.get(VERSION)
    assert version == __version__, f"{shot.name} shows {version or 'an unknown version'}. Run: make screenshots"


def test_all_screenshots_are_taken_by_the_script_and_the_version_is_on_them() -> None:
    assert {path.name for path in DOCS.glob("app-*.png")} == {shot.name for shot in SHOTS}
    assert f"<small>{__version__}</small>" in render("header.html", version=__version__)
